"""Sweeps: what they expand to, and what they are called."""

import copy
import json
import math
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from sim.cell import Cell, Side
from sim.errors import InputError
from sim.kinds import Choice, Parameter
from sim.laws import LAWS
from sim.scales import SCALES, Rule, ScaleRule
from sim.sweep import Histogram, Sweep
from sim.tally import FAMILIES

SIZES = {"d_k": 16, "n_tokens": 8}


def sweep(**fields):
    return Sweep(**{**SIZES, **fields})


@pytest.fixture
def heavy(monkeypatch):
    """Add a law with a required parameter, one with a default, and a scale rule with both."""
    df = Parameter(None, "a finite number above 2", lambda x: x > 2)
    skew = Parameter(0.5, "a number from 0 to 1", lambda x: 0 <= x <= 1)
    monkeypatch.setitem(LAWS, "student_t", replace(LAWS["gaussian"], parameters={"df": df}))
    monkeypatch.setitem(LAWS, "tilted", replace(LAWS["gaussian"], parameters={"skew": skew}))
    cap = Parameter(50, "a number above 0", lambda x: x > 0)
    power = Parameter(None, "a number", lambda x: True)
    monkeypatch.setitem(
        SCALES, "softcap", ScaleRule(parameters={"cap": cap, "power": power}, rule=lambda d_k, cap, power: Rule(1))
    )


# What a sweep is ----------------------------------------------------------------------------------


def test_the_example_of_the_documentation(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        """
        name = "shifted_keys"
        seed = 0
        trials = 2000
        n_queries = 64
        n_keys = 128
        d_k = [16, 64, 256]
        scale = ["none", "sqrt_dk", "dk"]

        [query]
        law = "gaussian"
        mean = 1.0
        std = 1.0

        [key]
        law = "rademacher"
        mean = [0.0, 0.5, 1.0]
        """
    )
    read = Sweep.from_toml(tmp_path / "sweep.toml")
    assert read.name == "shifted_keys"
    assert read.trials == 2000
    assert read.axes == {"d_k": (16, 64, 256), "key_mean": (0.0, 0.5, 1.0)}
    assert read.shape == (3, 3)
    assert [(cell.d_k, cell.key.mean) for cell in read.cells] == [(d, m) for d in (16, 64, 256) for m in (0, 0.5, 1)]
    assert read.cells[4] == Cell(
        seed=0,
        d_k=64,
        n_queries=64,
        n_keys=128,
        precision="float32",
        query=Side(law=Choice("gaussian"), mean=1.0, std=1.0),
        key=Side(law=Choice("rademacher"), mean=0.5, std=1.0),
    )
    assert read.coordinates == {
        "seed": 0,
        "n_queries": 64,
        "n_keys": 128,
        "causal": False,
        "precision": "float32",
        "query_law": "gaussian",
        "query_mean": 1.0,
        "query_std": 1.0,
        "key_law": "rademacher",
        "key_std": 1.0,
    }


def test_defaults():
    plain = sweep()
    assert (plain.name, plain.trials, plain.shape, plain.axes) == ("sweep", 1000, (), {})
    assert plain.scale == (Choice("none"), Choice("sqrt_dk"), Choice("dk"))
    assert plain.scale_labels == ("none", "sqrt_dk", "dk")
    assert plain.observables == tuple(family for family in FAMILIES if family != "spectrum")
    assert plain.gradient_threshold == (0.1, 0.01, 0.001)
    assert plain.cells[0].causal is False
    assert plain.threshold == (0.9, 0.99, 0.999)
    assert plain.quantile == (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    assert plain.histogram is None
    assert plain.cells == (Cell(d_k=16, n_queries=8, n_keys=8),)
    assert plain.coordinates == {
        "seed": 0,
        "d_k": 16,
        "n_tokens": 8,
        "causal": False,
        "precision": "float32",
        "law": "gaussian",
        "mean": 0.0,
        "std": 1.0,
    }


def test_axes_are_in_the_order_of_the_schema_whatever_the_order_of_the_file():
    fields = {
        "seed": [3, 1],
        "d_k": [4],
        "n_tokens": [2, 5],
        "causal": [True, False],
        "precision": ["float64", "float32"],
        "vectors": {"law": ["uniform", "gaussian"], "mean": [1, 0], "std": [2, 1]},
    }
    forwards = Sweep(**fields)
    backwards = Sweep(
        **{name: fields[name] for name in reversed(fields)} | {"vectors": dict(reversed(fields["vectors"].items()))}
    )
    assert list(forwards.axes) == ["seed", "d_k", "n_tokens", "causal", "precision", "law", "mean", "std"]
    assert forwards.axes == backwards.axes
    assert forwards.cells == backwards.cells
    assert forwards.hash == backwards.hash
    assert forwards.axes["seed"] == (3, 1)  # the values keep the order that they were given in
    assert forwards.shape == (2, 1, 2, 2, 2, 2, 2, 2)
    grid = np.array([cell.n_keys for cell in forwards.cells]).reshape(forwards.shape)
    np.testing.assert_array_equal(grid[0, 0, :, 0, 0, 0, 0, 0], [2, 5])
    assert all(cell.n_keys == cell.n_queries for cell in forwards.cells)


def test_vectors_are_both_sides_at_once():
    both = sweep(vectors={"mean": [0, 1], "law": "uniform"})
    assert list(both.axes) == ["mean"]
    assert [(cell.query.mean, cell.key.mean) for cell in both.cells] == [(0, 0), (1, 1)]
    assert both.coordinates["law"] == "uniform"
    assert {cell.query.law.kind for cell in both.cells} == {cell.key.law.kind for cell in both.cells} == {"uniform"}


def test_one_side_given_names_both():
    one = sweep(key={"mean": 1})
    assert one.coordinates["query_law"] == "gaussian"
    assert one.coordinates["key_mean"] == 1.0
    assert "mean" not in one.coordinates


@pytest.mark.parametrize(
    ("fields", "axes"),
    [
        ({"d_k": [4]}, {"d_k": (4,)}),
        ({"d_k": (4, 8)}, {"d_k": (4, 8)}),
        ({"d_k": range(1, 4)}, {"d_k": (1, 2, 3)}),
        ({"d_k": 2 ** np.arange(3)}, {"d_k": (1, 2, 4)}),
        ({"d_k": np.int64(4)}, {}),
        ({"vectors": {"mean": np.array([0.5, -0.0])}}, {"mean": (0.5, 0.0)}),
        ({"vectors": {"law": [Choice("uniform"), "gaussian"]}}, {"law": ("uniform", "gaussian")}),
        ({"vectors": {"law": {"kind": "uniform"}}}, {}),
        ({"vectors": {}}, {}),
        ({"scale": [1, 2], "threshold": [0.5, 0.6], "quantile": [0.1, 0.2]}, {}),
        ({"gradient_threshold": [0.5, 1e-6]}, {}),
        ({"causal": True}, {}),
    ],
)
def test_axes(fields, axes):
    made = sweep(**fields)
    assert made.axes == axes
    assert all(type(value) in (int, float, str) for values in made.axes.values() for value in values)
    json.dumps(made.coordinates)


@pytest.mark.parametrize(
    ("scale", "labels"),
    [
        ("none", ("none",)),
        (0, ("0",)),
        (0.125, ("0.125",)),
        ([1, "dk", -2.5, {"kind": "none"}], ("1", "dk", "-2.5", "none")),
        (np.float32(0.5), ("0.5",)),
    ],
)
def test_scale_is_always_a_list_and_makes_no_cells(scale, labels):
    made = sweep(scale=scale)
    assert made.scale_labels == labels
    assert len(made.cells) == 1


def test_settings():
    made = sweep(
        observables=["numerics", "scores", "spectrum"],
        threshold=1,
        gradient_threshold=[1, 0.2],
        quantile=0.5,
        histogram={"low": -1, "high": 2},
        trials=1,
        name="a-b_c d.1",
    )
    assert made.observables == ("scores", "spectrum", "numerics")
    assert made.threshold == (1.0,)
    assert made.gradient_threshold == (1.0, 0.2)
    assert made.quantile == (0.5,)
    assert made.histogram == Histogram(low=-1.0, high=2.0, bins=256)
    assert made.trials == 1
    assert sweep(observables="scores").observables == ("scores",)


@pytest.mark.usefixtures("heavy")
class TestParameters:
    """Laws and scale rules with parameters need nothing but their registry entry."""

    def test_a_table_is_a_scalar(self):
        made = sweep(key={"law": {"kind": "student_t", "df": 3}})
        assert made.axes == {}
        assert made.coordinates["key_law"] == "student_t(df=3)"
        assert made.cells[0].key.law.parameters == (("df", 3.0),)

    def test_a_list_of_kinds_is_one_axis(self):
        made = sweep(vectors={"law": ["gaussian", {"kind": "student_t", "df": 3}, {"kind": "student_t", "df": 2.5}]})
        assert made.axes == {"law": ("gaussian", "student_t(df=3)", "student_t(df=2.5)")}

    @pytest.mark.parametrize(
        ("side", "law", "dimension"),
        [("vectors", "law", "df"), ("query", "query_law", "query_df"), ("key", "key_law", "key_df")],
    )
    def test_a_list_in_a_table_is_an_axis_of_its_own(self, side, law, dimension):
        made = sweep(**{side: {"std": [1, 2], "law": {"df": [5, 3], "kind": "student_t"}, "mean": [0, 1]}})
        prefix = dimension.removesuffix("df")
        assert list(made.axes) == [dimension, f"{prefix}mean", f"{prefix}std"]
        assert made.axes[dimension] == (5.0, 3.0)
        assert made.coordinates[law] == "student_t"
        assert Sweep(**made.resolved()) == made

    def test_defaults_are_left_out_of_labels_and_keys(self):
        default, given, other = (
            sweep(key={"law": law})
            for law in ("tilted", {"kind": "tilted", "skew": 0.5}, {"kind": "tilted", "skew": 0})
        )
        assert default.coordinates["key_law"] == given.coordinates["key_law"] == "tilted"
        assert default.cells == given.cells
        assert default.cells[0].draw_fields()["key"] == {"law": "tilted"}
        assert other.cells[0].draw_fields()["key"] == {"law": {"kind": "tilted", "skew": 0.0}}

    def test_scales(self):
        made = sweep(scale=[{"kind": "softcap", "power": 1}, {"kind": "softcap", "cap": 5, "power": 1}, 0.5])
        assert made.scale_labels == ("softcap(power=1)", "softcap(cap=5, power=1)", "0.5")
        assert made.scale[0] == Choice("softcap", (("cap", 50.0), ("power", 1.0)), (("cap", 50.0),))
        assert Sweep(**made.resolved()) == made
        assert sweep(scale=made.scale).scale == made.scale

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"key": {"law": "student_t"}}, r"^key\.law\.df is missing: student_t needs df, a finite number above 2$"),
            ({"key": {"law": {"kind": "student_t"}}}, r"^key\.law\.df is missing"),
            (
                {"key": {"law": {"kind": "student_t", "df": 2}}},
                r"^key\.law\.df = 2 is not allowed: it must be a finite number above 2$",
            ),
            ({"key": {"law": {"kind": "student_t", "df": [3, 1]}}}, r"^key\.law\.df = 1 is not allowed"),
            ({"key": {"law": {"kind": "student_t", "df": True}}}, r"^key\.law\.df = True is not allowed"),
            ({"key": {"law": {"kind": "student_t", "df": "3"}}}, r"^key\.law\.df = '3' is not allowed"),
            ({"key": {"law": {"kind": "student_t", "df": math.inf}}}, r"^key\.law\.df = inf is not allowed"),
            ({"key": {"law": {"kind": "student_t", "df": None}}}, r"^key\.law\.df = None is not allowed"),
            ({"key": {"law": {"kind": "student_t", "df": []}}}, r"^key\.law\.df = \[\] is not allowed: an axis needs"),
            ({"key": {"law": {"kind": "student_t", "df": [3, 3.0]}}}, r"^key\.law\.df has 3\.0 twice"),
            (
                {"key": {"law": {"kind": "student_t", "fd": 3}}},
                r"^key\.law\.fd is unknown: student_t takes df; did you mean 'df'\?$",
            ),
            (
                {"key": {"law": {"kind": ["student_t", "gaussian"], "df": 3}}},
                r"^key\.law\.kind = \['student_t', 'gaussian'\] is not allowed: .*; a list may not stand here$",
            ),
            (
                {"vectors": {"law": ["gaussian", {"kind": "student_t", "df": [3, 5]}]}},
                r"^vectors\.law\.df = \[3, 5\] is not allowed: .*; a list may not stand here$",
            ),
            (
                {"vectors": {"law": [{"kind": "student_t", "df": 3}, {"df": 3.0, "kind": "student_t"}]}},
                r"^vectors\.law has 'student_t\(df=3\)' twice",
            ),
            ({"vectors": {"law": ["tilted", {"kind": "tilted", "skew": 0.5}]}}, r"^vectors\.law has 'tilted' twice"),
            (
                {"scale": {"kind": "softcap", "power": [1, 2]}},
                r"^scale\.power = \[1, 2\] is not allowed: lists may not stand inside a scale table; list the tables",
            ),
            ({"scale": {"kind": "softcap"}}, r"^scale\.power is missing: softcap needs power"),
            ({"scale": [{"kind": "softcap", "power": 1, "cap": 0}]}, r"^scale\.cap = 0 is not allowed: .* above 0$"),
            ({"scale": "softcup"}, r"^scale = 'softcup' .*; did you mean 'softcap'\?$"),
        ],
    )
    def test_refusals(self, fields, message):
        with pytest.raises(InputError, match=message):
            sweep(**fields)


def test_the_bounds_themselves_are_allowed():
    made = sweep(seed=2**63 - 1, d_k=[1, 2**20], n_tokens=[1, 2**31 - 1], trials=2**32 - 1, vectors={"std": 0})
    assert len(made.cells) == 4
    assert sweep(histogram={"low": 0, "high": 1, "bins": 4096}).histogram.bins == 4096


# Identity -----------------------------------------------------------------------------------------

SWEEPS = [
    {},
    {"d_k": [4, 8], "seed": [1, 2]},
    {"vectors": {"law": ["uniform", "rademacher"], "mean": 1}},
    {"query": {"std": [0, 2.5]}, "key": {"law": "uniform"}, "histogram": {"low": 0, "high": 1, "bins": 4}},
    {"n_queries": 1, "n_keys": [1, 2], "n_tokens": None, "observables": ["weights"], "scale": [0.1, "dk"]},
]


def made_from(fields):
    return Sweep(**{name: value for name, value in {**SIZES, **fields}.items() if value is not None})


@pytest.mark.parametrize("fields", SWEEPS)
def test_resolved_rebuilds_the_sweep(fields):
    made = made_from(fields)
    resolved = made.resolved()
    again = Sweep(**json.loads(json.dumps(resolved)))
    assert again == made
    assert hash(again) == hash(made)
    assert again.hash == made.hash
    assert re.fullmatch("[0-9a-f]{16}", made.hash)
    assert again.cells == made.cells
    assert again.axes == made.axes
    assert again.coordinates == made.coordinates
    assert again.resolved() == resolved
    # A dimension or a scalar coordinate for every field of a cell, and never both.
    assert not made.axes.keys() & made.coordinates.keys()


def test_different_sweeps_differ():
    assert len({made_from(fields).hash for fields in SWEEPS}) == len(SWEEPS)
    assert sweep(d_k=4) != sweep(d_k=[4])  # a dimension of length one is not a scalar
    assert sweep(trials=1) != sweep(trials=2)
    assert sweep(scale="dk") == sweep(scale=["dk"])
    assert sweep(vectors={"mean": 1}) == sweep(vectors={"mean": 1.0})
    assert sweep() == sweep(vectors={"law": {"kind": "gaussian"}}, seed=0)
    assert sweep() != "sweep"


def test_replace():
    made = sweep(d_k=[4, 8], key={"mean": 1})
    fewer = made.replace(trials=10, seed=7)
    assert (fewer.trials, fewer.coordinates["seed"]) == (10, 7)
    assert fewer.axes == made.axes
    assert made.trials == 1000
    assert sweep().replace(key={"mean": 1}).coordinates["key_mean"] == 1
    with pytest.raises(InputError, match="contradict"):
        made.replace(vectors={})
    with pytest.raises(InputError, match=r"trials = 0 is not allowed"):
        made.replace(trials=0)


def test_a_sweep_is_immutable():
    fields = {"d_k": [4, 8], "n_tokens": 2, "key": {"mean": [0, 1]}}
    made = Sweep(**fields)
    with pytest.raises(AttributeError):
        made.trials = 3
    with pytest.raises(ValidationError, match="frozen"):
        made.cells[0].d_k = 3
    made.axes.clear()
    made.resolved()["d_k"].append(5)
    fields["d_k"].append(5)
    fields["key"]["mean"].append(2)
    assert made.axes == made.replace(trials=1).axes == {"d_k": (4, 8), "key_mean": (0.0, 1.0)}


def test_copies_equal_the_sweep():
    made = sweep(d_k=[4, 8])
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert other.cells == made.cells


def test_repr_tells_the_size():
    assert repr(sweep(d_k=[4, 8], name="x")) == "<Sweep 'x': 2 cells (d_k: 2), scale none, sqrt_dk, dk, 1000 trials>"
    assert "1 cell," in repr(sweep())


def test_import_is_light():
    # Numba imports the top of scipy for its version; the parts that take time must not come along.
    heavy = ("xarray", "pandas", "matplotlib", "scipy.linalg", "scipy.special", "scipy.stats")
    program = f"import sys, sim.sweep; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
