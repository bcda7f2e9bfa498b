"""Cells: the key of the random words, and strictness."""

import hashlib
import json

import numpy as np
import pytest
from pydantic import ValidationError

from sim.cell import Cell, Side
from sim.sweep import Sweep

SIZES = {"d_k": 16, "n_tokens": 8}


def sweep(**fields):
    return Sweep(**{**SIZES, **fields})


def cell(**fields):
    return Cell(**{"seed": 0, "d_k": 16, "n_queries": 8, "n_keys": 4, **fields})


def test_draw_fields_leave_defaults_out():
    assert cell().draw_fields() == {"seed": 0, "d_k": 16, "n_queries": 8, "n_keys": 4}
    full = cell(seed=3, query=Side(mean=0, std=1), key=Side(law="uniform", mean=1))
    assert full.draw_fields() == {
        "seed": 3,
        "d_k": 16,
        "n_queries": 8,
        "n_keys": 4,
        "key": {"law": "uniform", "mean": 1.0},
    }


def test_philox_key_is_two_little_endian_words_of_the_hash():
    text = '{"d_k":16,"key":{"mean":1.0},"n_keys":4,"n_queries":8,"seed":0}'
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    assert cell(key=Side(mean=1)).philox_key() == tuple(np.frombuffer(digest, "<u4").tolist())
    assert cell().philox_key() == (3183475579, 1554594626)  # pinned: a change would change every result


def test_only_what_shapes_the_draw_changes_the_key():
    one_side = {"law": "uniform", "mean": 1}
    same = [
        sweep(vectors=one_side),
        sweep(query=one_side, key={"mean": 1.0, "law": {"kind": "uniform"}}),
        Sweep(d_k=16, n_queries=8, n_keys=8, vectors=one_side),
        sweep(vectors=one_side, precision="float64", scale=0.5, trials=3, threshold=0.5, observables="scores"),
        sweep(vectors=one_side, causal=True, gradient_threshold=0.5),
        sweep(vectors={**one_side, "std": 1}, seed=0, name="other"),
    ]
    assert len({made.cells[0].philox_key() for made in same}) == 1
    different = [
        sweep(),
        sweep(seed=1),
        sweep(d_k=17),
        Sweep(d_k=16, n_queries=8, n_keys=9),
        Sweep(d_k=16, n_queries=9, n_keys=8),
        sweep(query=one_side),
        sweep(key=one_side),
        sweep(vectors={**one_side, "std": 2}),
        *same[:1],
    ]
    assert len({made.cells[0].philox_key() for made in different}) == len(different)


@pytest.mark.parametrize(
    "fields",
    [
        {"d_k": 0},
        {"d_k": 2**20 + 1},
        {"d_k": 16.0},
        {"seed": -1},
        {"seed": 2**63},
        {"n_keys": 2**31},
        {"n_queries": True},
        {"precision": "float8"},
        {"causal": 1},
        {"causal": "yes"},
        {"causal": True, "n_queries": 5, "n_keys": 4},
        {"key": {"mean": "1"}},
        {"key": {"std": -1.0}},
        {"key": {"law": "gauss"}},
        {"trials": 3},
    ],
)
def test_a_cell_by_itself_is_strict(fields):
    with pytest.raises(ValidationError):
        cell(**fields)


def test_a_query_sees_all_keys_or_those_up_to_its_own_place():
    assert cell(n_queries=3, n_keys=7).visible.tolist() == [7, 7, 7]
    assert cell(n_queries=3, n_keys=7, causal=True).visible.tolist() == [5, 6, 7]  # aligned at the last key
    assert cell(n_queries=4, n_keys=4, causal=True).visible.tolist() == [1, 2, 3, 4]
    assert cell(n_queries=1, n_keys=9, causal=True).visible.tolist() == [9]


def test_causal_shapes_a_cell_and_may_be_an_axis():
    made = sweep(causal=[False, np.True_], n_tokens=[4, 8])
    assert made.axes == {"n_tokens": (4, 8), "causal": (False, True)}
    assert [cell.causal for cell in made.cells] == [False, True, False, True]
    assert made.hash != sweep(causal=False, n_tokens=[4, 8]).hash
    assert Sweep(**json.loads(json.dumps(made.resolved()))) == made
    assert Sweep(d_k=4, n_queries=3, n_keys=3, causal=True).cells[0].causal
