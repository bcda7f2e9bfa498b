"""Seeded random combinations of law, structure, score function and scale, within what closed forms cover."""

import numpy as np

from sim.cell import Cell
from sim.errors import InputError
from sim.scales import read_scale, scale_rule

__all__ = ["combination", "combinations"]

LAWS = [
    "gaussian", "gaussian", "gaussian", "rademacher", "uniform", "laplace", "exponential",
    {"kind": "student_t", "df": 12}, {"kind": "student_t", "df": 30}, {"kind": "two_point", "p": 0.3},
    {"kind": "sparse", "density": 0.4}, {"kind": "lognormal", "shape": 0.25},
]  # fmt: skip
WITHIN = [
    "none", "none", {"kind": "equicorrelated", "rho": 0.3}, {"kind": "equicorrelated", "rho": -0.05},
    {"kind": "ar1", "rho": 0.6}, {"kind": "ar1", "rho": -0.5}, {"kind": "power_law", "exponent": 0.7},
    {"kind": "outliers", "count": 2, "factor": 3.0},
]  # fmt: skip
DEPENDENT = ["none", "none", "none", {"kind": "magnitude", "df": 12}, {"kind": "magnitude", "df": 20}, "signs"]
NORMALIZE = ["l2", "rms", "rms", "layer", {"kind": "rms", "gain": 1.5}]
SCALES = [
    "none", "sqrt_dk", "dk", 0.3, {"kind": "log_n", "factor": 0.4}, {"kind": "log_n", "after": "sqrt_dk"},
    {"kind": "softcap", "cap": 2, "after": "sqrt_dk"}, {"kind": "softcap", "cap": 20},
    {"kind": "power", "exponent": -0.7},
]  # fmt: skip
MEANS = [0.0, 0.0, 0.0, 0.4, -1.0]
PAIRS = [{"kind": "paired", "rho": 0.6}, {"kind": "paired", "rho": -0.8}, {"kind": "shared", "rho": 0.3}]
INITS = ["xavier_uniform", "xavier_normal", "he", "lecun", "torch_linear", "gpt2", "fused_xavier", "t5"]


def _choose(rng, options):
    return options[rng.integers(len(options))]


def _side(rng, structured):
    side = {"law": _choose(rng, LAWS), "mean": _choose(rng, MEANS), "std": _choose(rng, [1.0, 1.0, 0.5, 2.0])}
    if structured and rng.random() < 0.6:
        side["within"] = _choose(rng, WITHIN)
    if structured and rng.random() < 0.4:
        side["dependent"] = _choose(rng, DEPENDENT)
    if rng.random() < 0.3:
        side["tokens"] = {"rho": _choose(rng, [0.2, 0.7])}
    return side


def combination(rng):
    """Return the fields of one random cell, and a scale; it may be one that is refused."""
    n_queries, n_keys = int(rng.integers(1, 7)), int(rng.integers(1, 9))
    fields = {"n_queries": n_queries, "n_keys": n_keys, "causal": bool(rng.random() < 0.25 and n_queries <= n_keys)}
    scale = _choose(rng, SCALES)
    family = _choose(rng, ["plain", "plain", "structured", "structured", "pair", "projection", "normalize", "rotation",
                           "additive", "cosine", "iid"])  # fmt: skip
    if family == "iid":
        return fields | {"score": {"kind": "iid", "law": _choose(rng, LAWS)}}, _choose(rng, ["none", 0.7, 2.5])
    fields |= {"d_k": int(_choose(rng, [2, 4, 6, 10, 16])), "query": _side(rng, family != "plain")}
    fields["key"] = dict(fields["query"]) if rng.random() < 0.4 else _side(rng, family != "plain")
    sides = [fields["query"], fields["key"]]
    if family == "pair":
        fields["pair"] = _choose(rng, PAIRS)
    if family == "projection" or (family in ("normalize", "rotation", "additive", "cosine") and rng.random() < 0.25):
        fields["projection"] = {
            "init": _choose(rng, INITS), "d_model": int(_choose(rng, [3, 8])), "tied": bool(rng.random() < 0.25),
            "attention": _choose(rng, ["self", "cross"]), "bias_std": _choose(rng, [0.0, 0.0, 0.4]),
        }  # fmt: skip
        if fields["projection"]["attention"] == "self":
            fields["n_queries"] = n_keys
            fields["key"] = dict(fields["query"])
            sides = [fields["query"], fields["key"]]
    if family == "normalize" or (family in ("additive", "cosine") and rng.random() < 0.5):
        for side in sides[: 1 + int(rng.random() < 0.7)] if rng.random() < 0.7 else sides[1:]:
            side["normalize"] = _choose(rng, NORMALIZE)
            side["mean"] = _choose(rng, [0.0, 0.0, 0.5])
    if family == "rotation" or (family in ("pair", "normalize") and rng.random() < 0.15):
        rotation = {"base": _choose(rng, [10.0, 10000.0])}
        for side in sides:
            side["rotation"] = rotation
    if family == "additive":
        fields["score"] = {"kind": "additive", "units": int(_choose(rng, [1, 5])), "v_std": _choose(rng, [1.0, 0.5])}
    if family == "cosine":
        fields["score"] = "cosine"
    return fields, scale


def combinations(count=200, seed=0, has_theory=None):
    """Return `count` different pairs of cell and scale that are not refused.

    Parameters
    ----------
    has_theory : function (Cell, Rule) -> bool, optional
        Which to keep.
    """
    rng = np.random.default_rng(seed)
    found = {}
    while len(found) < count:
        fields, scale = combination(rng)
        try:
            cell = Cell(**fields)
            read = read_scale(scale)
        except (InputError, ValueError):
            continue
        if cell.d_k is None and not isinstance(read, float) and read.kind != "none":
            continue
        if has_theory is None or has_theory(cell, scale_rule(read, cell.d_k)):
            found.setdefault((cell, str(scale)), (cell, scale, fields))
    return list(found.values())
