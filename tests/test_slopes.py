"""Gradients under rules with a slope for every score, and of every score function, against explicit formulas."""

import math

import numpy as np
import pytest

from sim.philox import KEY, QUERY
from tests import oracle
from tests.measuring import (
    VALUES,
    draw_scores,
    draw_tokens,
    draw_weights_of_units,
    parts_of,
    planned,
    run_trials,
    run_vectors,
)
from tests.oracle import Rule

PRECISIONS = ("float32", "float64")
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}

DOT = [
    ({"kind": "softcap", "cap": 3.0}, Rule(1.0, cap=3.0)),
    ({"kind": "softcap", "cap": 20.0}, Rule(1.0, cap=20.0)),
    ({"kind": "softcap", "cap": 5.0, "after": -0.3}, Rule(-0.3, cap=5.0)),
    ({"kind": "softcap", "cap": 2.0, "after": 0}, Rule(0.0, cap=2.0)),
    ({"kind": "log_n", "factor": 0.3}, Rule(0.3, log_n=True)),
    ({"kind": "log_n", "factor": -0.1}, Rule(-0.1, log_n=True)),
    (0.5, Rule(0.5)),
    (-1.0, Rule(-1.0)),
]
OTHERS = [
    ("none", Rule(1.0)),
    (20.0, Rule(20.0)),
    (-5.0, Rule(-5.0)),
    (0, Rule(0.0)),
    ({"kind": "softcap", "cap": 0.6}, Rule(1.0, cap=0.6)),
    ({"kind": "softcap", "cap": 8.0, "after": 15}, Rule(15.0, cap=8.0)),
    ({"kind": "log_n", "factor": 2.0}, Rule(2.0, log_n=True)),
]


def made_of(rules, **fields):
    """Return the plan of one cell, of one trial unless told otherwise, and its layout."""
    return planned(**{"trials": 1, "observables": ["gradients"], **fields}, scale=[scale for scale, _ in rules])


# The derivatives of raw scores ---------------------------------------------------------------------


def of_dot(query, key):
    return lambda i: key, lambda i: np.broadcast_to(query[i], key.shape)


def of_cosine(query, key):
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, key))

    def by_query(i):
        return (k - (k @ q[i])[:, None] * q[i]) / np.linalg.norm(query[i])

    def by_key(i):
        return (q[i] - (k @ q[i])[:, None] * k) / np.linalg.norm(key, axis=1, keepdims=True)

    return by_query, by_key


def of_additive(query, key, w_q, w_k, v):
    def falls(i):
        return v / np.cosh(query[i] @ w_q + key @ w_k) ** 2

    return lambda i: falls(i) @ w_q.T, lambda i: falls(i) @ w_k.T


def derivatives_of(made, trial):
    """Return (by query, by key) of the raw scores of a trial, functions of the row."""
    sizes = made.geometry
    query, key = draw_tokens(made, QUERY, sizes.n_queries, trial), draw_tokens(made, KEY, sizes.n_keys, trial)
    if made.cell.score.kind == "additive":
        return of_additive(query, key, *draw_weights_of_units(made, trial))
    return of_cosine(query, key) if made.cell.score.kind == "cosine" else of_dot(query, key)


# The oracle ----------------------------------------------------------------------------------------


def weights(query, key, score_of, rule, visible):
    s = oracle.hidden(oracle.scaled(score_of(query, key), rule, visible), visible).astype(float)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("rule", [Rule(1.3), Rule(-2.0, cap=1.5), Rule(0.9, log_n=True), Rule(0.7, True, 2.0)])
@pytest.mark.parametrize("kind", ["dot", "cosine", "additive"])
def test_the_oracle_is_what_numerical_differentiation_gives(kind, rule):
    """||dL/dq||^2 summed over all unit vectors g is its average over standard normal g, and so for scores and keys."""
    random = np.random.default_rng(4)
    query, key, visible, step = (
        random.standard_normal((3, 4)),
        random.standard_normal((6, 4)),
        np.array([1, 4, 6]),
        1e-5,
    )
    w = random.standard_normal((4, 5)), random.standard_normal((4, 5)), random.standard_normal(5)
    score_of = {
        "dot": lambda q, k: q @ k.T,
        "cosine": oracle.cosine,
        "additive": lambda q, k: oracle.additive(q, k, *w),
    }[kind]
    by_query, by_key = {"dot": of_dot, "cosine": of_cosine, "additive": of_additive}[kind](
        query, key, *(w if kind == "additive" else ())
    )
    numeric = {"query": np.zeros(3), "key": np.zeros(6), "score": np.zeros(3)}
    for name, x in (("query", query), ("key", key)):
        for token, element in np.ndindex(x.shape):
            x[token, element] += step
            above = weights(query, key, score_of, rule, visible)
            x[token, element] -= 2 * step
            below = weights(query, key, score_of, rule, visible)
            x[token, element] += step
            numeric[name][token] += (((above - below) / (2 * step)) ** 2).sum()
    raw = score_of(query, key)
    for i, j in np.ndindex(raw.shape):
        bump = np.zeros_like(raw)
        bump[i, j] = step
        above, below = (weights(query, key, lambda q, k, b=b: raw + b, rule, visible) for b in (bump, -bump))
        numeric["score"][i] += (((above - below) / (2 * step)) ** 2).sum()
    s = oracle.hidden(oracle.scaled(raw, rule, visible), visible)
    found = oracle.sloped_gradients(s, oracle.slopes(raw, rule, visible), by_query, by_key)
    for name, values in numeric.items():
        np.testing.assert_allclose(found[name], values, 1e-6, 1e-14, err_msg=name)


def test_the_oracle_is_that_of_linear_rules():
    random = np.random.default_rng(1)
    query, key = random.standard_normal((4, 5)), random.standard_normal((20, 5))
    raw, visible = query @ key.T, np.array([3, 9, 15, 20])
    for factor in (1.0, -4.0):
        s = oracle.hidden(factor * raw, visible)
        found = oracle.sloped_gradients(s, np.full_like(raw, factor), *of_dot(query, key))
        for name, values in oracle.gradients(query, key, factor, visible).items():
            np.testing.assert_allclose(found[name], values, 1e-13)


# The kernels ---------------------------------------------------------------------------------------


def check(rules, tolerance=None, **fields):
    """Hold the gradients of a cell under every rule to the oracle's: all sums, and the last trial's rows."""
    made, where = made_of(rules, **fields)
    found, visible = run_trials(made, where), made.cell.visible
    parts, tolerance = parts_of(found, where), tolerance or TOLERANCE[made.cell.computes_in]
    raws = [draw_scores(made, trial) for trial in range(made.trials)]
    derivatives = [derivatives_of(made, trial) for trial in range(made.trials)]
    for k, (scale, rule) in enumerate(rules):
        message, expected = f"{scale} of {made.cell}", []
        for raw, (by_query, by_key) in zip(raws, derivatives, strict=True):
            s = oracle.hidden(oracle.scaled(raw, rule, visible), visible)
            expected.append(oracle.sloped_gradients(s, oracle.slopes(raw, rule, visible), by_query, by_key))
        rows = found.values[k, VALUES["gradient_query_sq"]]
        np.testing.assert_allclose(rows, expected[-1]["query"], tolerance, 1e-28, err_msg=f"by query, {message}")
        for name in expected[-1]:
            total = sum(values[name].mean() if name == "key" else values[name].sum() for values in expected)
            one = parts[f"gradient_{name}_sq"][k]
            np.testing.assert_allclose(one, total, tolerance, 1e-28, err_msg=f"by {name}, {message}")
        assert parts["gradient_query_sizes"][k].sum() == len(visible) * made.trials


def with_fixed_log(rules, n_keys):
    """Return the rules with ln n in their factors, where every row sees as many keys."""
    fixed = [
        rule._replace(factor=rule.factor * (math.log(n_keys) if rule.log_n else 1), log_n=False) for _, rule in rules
    ]
    return [(scale, rule) for (scale, _), rule in zip(rules, fixed, strict=True)]


# (queries, keys, d_k, causal): one key, one tile, several of queries, and of keys
SHAPES = [(1, 1, 3, False), (3, 2, 1, False), (5, 40, 8, False), (140, 140, 16, True)]
LONG = [(3, 700, 6, False), (5, 1300, 9, True), (135, 700, 4, True)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [*SHAPES, *LONG], ids=str)
def test_dot_products_agree_with_the_oracle(shape, precision):
    n_queries, n_keys, d_k, causal = shape
    rules = DOT if causal else with_fixed_log(DOT, n_keys)
    sides = {"query": {"std": 0.7}, "key": {"mean": 0.5}}
    check(rules, **sides, n_queries=n_queries, n_keys=n_keys, d_k=d_k, causal=causal, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("score", ["cosine", {"kind": "additive", "units": 7, "v_std": 2.0}], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES[2:], *LONG], ids=str)
def test_other_score_functions_agree_with_the_oracle(shape, score, precision):
    n_queries, n_keys, d_k, causal = shape
    rules = OTHERS if causal else with_fixed_log(OTHERS, n_keys)
    sides = {"query": {"mean": 0.4}, "key": {"std": 2.0}}
    sizes = {"n_queries": n_queries, "n_keys": n_keys, "d_k": d_k, "causal": causal}
    check(rules, **sides, **sizes, score=score, precision=precision)


def test_every_trial_has_its_own_vectors_and_units():
    for score, rules in (("dot", DOT), ("cosine", OTHERS), ({"kind": "additive", "units": 3}, OTHERS)):
        sizes = {"n_queries": 3, "n_keys": 520, "d_k": 5, "trials": 11}
        check(with_fixed_log(rules, 520), **sizes, score=score, precision="float64")


@pytest.mark.parametrize("n_keys", [50, 700])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_saturated_rows_agree_with_the_oracle(precision, n_keys):
    """Weights other than the largest down to 1e-10: nothing cancels in the sums."""
    rules = [
        ({"kind": "softcap", "cap": 40.0}, Rule(1.0, cap=40.0)),
        ({"kind": "softcap", "cap": 200.0, "after": 2}, Rule(2.0, cap=200.0)),
        (1.0, Rule(1.0)),
    ]
    sides = {"query": {"std": 2.0}, "key": {"std": 1.5}}
    tolerance = {"float32": 4e-4, "float64": 1e-10}[precision]  # scores of 40, each to 3e-7 of themselves
    check(rules, tolerance, **sides, n_queries=30, n_keys=n_keys, d_k=30, precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", ["query", "both"])
def test_the_place_of_the_scale_makes_no_difference(place, precision):
    check(DOT, n_queries=5, n_keys=600, d_k=6, scale_at=place, causal=True, precision=precision)


def test_equal_slopes_are_the_linear_rule():
    """A cap far beyond the scores is none; and a causal log n with one number of keys is its factor."""
    random = np.random.default_rng(2)
    query, key = random.standard_normal((9, 6)), random.standard_normal((600, 6)) + 1
    found, where = run_vectors(
        query, key, [0.3, {"kind": "softcap", "cap": 1e8, "after": 0.3}], observables=["gradients"]
    )
    np.testing.assert_allclose(found.values[1], found.values[0], 1e-9)
    for name in ("gradient_score_sq", "gradient_key_sq"):
        np.testing.assert_allclose(*where.part(found.tally, name), 1e-9)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cosine_without_direction_has_no_gradient(precision):
    random = np.random.default_rng(2)
    query, key = random.standard_normal((4, 5)).astype(precision), random.standard_normal((30, 5)).astype(precision)
    query[1], key[[0, 7]] = 0, 0
    found, where = run_vectors(
        query, key, [3.0, {"kind": "softcap", "cap": 1.0}], score="cosine", observables=["gradients"]
    )
    parts = parts_of(found, where)
    for name in ("gradient_score_sq", "gradient_query_sq", "gradient_key_sq"):
        assert np.isfinite(parts[name]).all()
    assert (found.values[:, VALUES["gradient_query_sq"], 1] == 0).all()
    assert (found.values[:, VALUES["gradient_query_sq"], [0, 2, 3]] > 0).all()


UNITS = [
    {"score": "cosine", "query": {"std": 1e-3}},
    {"score": "cosine", "query": {"std": 1e3, "mean": 1e3}},
    {"score": {"kind": "additive", "units": 64, "v_std": 100.0}, "scale": 0.01},
    {"key": {"normalize": {"kind": "rms", "gain": 1e4}, "std": 1e-3}, "query": {"std": 1e-4}},
    {"key": {"std": 1.0, "mean": 90.0}, "query": {"std": 0.01}, "scale": {"kind": "softcap", "cap": 5.0}},
    {"projection": {"init": "he", "d_model": 400}, "key": {"std": 30.0}, "query": {"std": 0.01}},
    {"key": {"std": 0.0, "mean": 100.0, "rotation": {"base": 3}}, "query": {"std": 1e-3}},
    {"precision": "float16", "key": {"std": 100.0}, "query": {"std": 0.01}},
]


@pytest.mark.parametrize("fields", UNITS, ids=str)
def test_gradients_lie_within_their_bins(fields):
    """The median is in a bin with two edges, however long the vectors are."""
    rules = [(fields.get("scale", "none"), None)]
    rest = {name: value for name, value in fields.items() if name != "scale"}
    made, where = made_of(rules, **{"d_k": 16, "n_queries": 20, "n_keys": 30, **rest})
    found = run_trials(made, where)
    sizes = parts_of(found, where)["gradient_query_sizes"][0]
    assert sizes.sum() == 20
    assert sizes[1:-1].sum() == 20
