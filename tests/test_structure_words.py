"""Structure, projections and score functions: which sweeps draw the same words."""

import pytest

from sim.cell import Cell
from sim.sweep import Sweep

SIZES = {"d_k": 16, "n_tokens": 8}
AR1 = {"kind": "ar1", "rho": 0.5}
HE = {"init": "he", "d_model": 32}


def sweep(**fields):
    return Sweep(**{name: value for name, value in {**SIZES, **fields}.items() if value is not None})


def only(**fields) -> Cell:
    """Return the one cell of a sweep."""
    (cell,) = sweep(**fields).cells
    return cell


PINNED = {
    "fe6b1f43209b66a9": ({}, [(1336763775, 1096669139)]),
    "2c93be7ddbd9abf7": (
        {"vectors": {"law": ["uniform", "rademacher"], "mean": 1}},
        [(405246604, 1518465090), (2184231695, 1340481145)],
    ),
    "2a94fc9b5d9fce92": (
        {
            "query": {"std": [0, 2.5]},
            "key": {"law": "uniform"},
            "histogram": {"low": 0, "high": 1, "bins": 4},
            "observables": ["scores", "distribution", "weights", "jacobian", "gradients", "numerics"],
        },
        [(745214793, 2163556931), (874318952, 648439893)],
    ),
    "3dbe75ebb53c629a": (
        {"causal": [False, True], "precision": "float64", "scale": [0.1, "dk"]},
        [(1336763775, 1096669139)] * 2,
    ),
}


@pytest.mark.parametrize("digest", PINNED)
def test_sweeps_without_structure_stay_what_they_were(digest):
    """Pinned before there was any structure: a change would make stored datasets stale and move every number."""
    fields, keys = PINNED[digest]
    made = sweep(**fields)
    assert made.hash == digest
    assert [cell.philox_key() for cell in made.cells] == keys


DIFFERENT = [
    {},
    *({"vectors": side} for side in (
        {"dependent": "signs"},
        {"dependent": {"kind": "magnitude", "df": 4}},
        {"within": AR1},
        {"within": {**AR1, "rho": 0.25}},
        {"within": {"kind": "equicorrelated", "rho": 0.5}},
        {"tokens": {"rho": 0.5}},
        {"normalize": "rms"},
        {"normalize": "layer"},
        {"normalize": {"kind": "rms", "gain": 2}},
        {"rotation": {}},
        {"rotation": {"base": 100}},
    )),
    {"query": {"within": AR1}},
    {"key": {"within": AR1}},
    {"pair": {"kind": "paired", "rho": 0.5}},
    {"pair": {"kind": "shared", "rho": 0.5}},
    {"projection": HE},
    {"projection": {**HE, "d_model": 33}},
    {"projection": {**HE, "tied": True}},
    {"projection": {**HE, "attention": "self"}},
    {"projection": {**HE, "bias_std": 1}},
    {"score": {"kind": "additive", "units": 8}},
    {"score": {"kind": "additive", "units": 9}},
    {"score": "iid", "d_k": None},
    {"score": {"kind": "iid", "law": "uniform"}, "d_k": None},
]  # fmt: skip


def test_what_shapes_the_draw_has_words_of_its_own():
    made = [sweep(**fields) for fields in DIFFERENT]
    assert len({one.cells[0].philox_key() for one in made}) == len(DIFFERENT)
    assert len({one.hash for one in made}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"precision": "bfloat16"}),
        ({}, {"scale_at": "both"}),
        ({}, {"score": "cosine"}),
        ({"score": {"kind": "additive", "units": 8}}, {"score": {"kind": "additive", "units": 8, "v_std": 3}}),
        ({"score": "iid", "d_k": None}, {"score": "iid", "d_k": None, "scale": 3}),
    ],
)
def test_what_only_acts_on_the_draw_shares_its_words(one, other):
    assert only(**one).philox_key() == only(**other).philox_key()
    assert sweep(**one).hash != sweep(**other).hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"vectors": {"within": AR1}}, {"query": {"within": AR1}, "key": {"within": AR1}}),
        ({"vectors": {"rotation": {}}}, {"vectors": {"rotation": {"base": 10000}}}),
        ({"vectors": {"normalize": "rms"}}, {"vectors": {"normalize": {"kind": "rms", "gain": 1}}}),
        ({"projection": HE}, {"projection": {**HE, "attention": "cross", "tied": False, "bias_std": 0}}),
        ({"score": "iid", "d_k": None}, {"score": {"kind": "iid", "law": {"kind": "gaussian"}}, "d_k": None}),
    ],
)
def test_two_spellings_of_one_draw_share_its_words(one, other):
    assert only(**one).philox_key() == only(**other).philox_key()
    assert only(**one) == only(**other)
    if "query" not in other:
        assert sweep(**one).hash == sweep(**other).hash


def test_draw_fields_in_full():
    made = only(
        vectors={"tokens": {"rho": 0.5}, "rotation": {}, "normalize": "rms"},
        projection={**HE, "tied": True},
        score={"kind": "additive", "units": 8, "v_std": 2},
    )
    side = {"tokens": {"rho": 0.5}, "normalize": "rms", "rotation": {"base": 10000.0}}
    assert made.draw_fields() == {
        "seed": 0,
        "d_k": 16,
        "n_queries": 8,
        "n_keys": 8,
        "query": side,
        "key": side,
        "projection": {"init": "he", "d_model": 32, "tied": True},
        "score": {"kind": "additive", "units": 8},
    }
    assert only(score="iid", d_k=None).draw_fields() == {"seed": 0, "n_queries": 8, "n_keys": 8, "score": "iid"}
