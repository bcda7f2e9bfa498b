"""Closed forms of scores of every structure and scale rule against scores drawn in plain NumPy.

Each trial of a cell gives one value of the mean over its block of (s - E s)^r, and of the variance within rows, so
that t quantiles hold whatever scores share. All comparisons of a test raise a false alarm with probability FAMILY.
"""

import math

import numpy as np
import pytest
from scipy import stats

from sim.cell import Cell
from sim.scales import Rule, read_scale, scale_rule
from sim.theory import scaled_theory, score_theory
from tests import plain
from tests.combinations import combinations
from tests.structured_cases import CASES, LIMITS, both, projected

FAMILY = 1e-3

RULES = [Rule(0.5), Rule(-1.0, log_n=True)]
ORDERS = {"m": 1, "v": 2, "r": 2, "s": 3, "k": 4}
NAMES = {"m": "mean", "v": "variance", "r": "row_variance", "s": "skewness", "k": "excess_kurtosis"}


def cell_of(fields):
    counts = {"n_queries": 3, "n_keys": 4}
    return Cell(**counts | ({} if "iid" in str(fields.get("score")) else {"d_k": 4}) | fields)


def statistics(s, exact):
    """Return by name an unbiased estimate (trials,) and what is expected of it, where theory says so."""
    seen = np.isfinite(s)
    count = seen.sum(axis=(1, 2))
    off = np.where(seen, s - exact.mean, 0.0)
    powers = {r: (off**r).sum(axis=(1, 2)) / count for r in (1, 2, 3, 4)}
    several = seen.sum(axis=2) > 1
    several_keys = np.where(several[..., None], s, [0.0, 0.0, *[np.nan] * (s.shape[2] - 2)]) if several.any() else s
    found = {
        "m": (powers[1], 0.0),
        "v": (powers[2], exact.variance),
        "s": (powers[3], exact.skewness * exact.variance**1.5),
        "k": (powers[4], (exact.excess_kurtosis + 3) * exact.variance**2),
    }
    if several.any():
        of_rows = np.nanvar(several_keys, axis=2, ddof=1)  # 0 of a row of one key
        found["r"] = (of_rows.sum(axis=1) / several.sum(axis=1), exact.row_variance)
    return {name: of for name, of in found.items() if not math.isnan(of[1])}


def assert_agrees(cell, rule, trials, comparisons, seed=0):
    """Everything that theory says is within the limits; returns the letters of what it says."""
    known = scaled_theory(cell, rule)
    s = plain.scaled(plain.scores(np.random.default_rng(seed), cell, trials), rule, cell.visible)
    found = statistics(s, known.exact)
    for name, (values, expected) in found.items():
        if known.moments < 4 * ORDERS[name]:  # the mean of so heavy a tail is not normal
            continue
        se = values.std(ddof=1) / math.sqrt(trials)
        limit = stats.t.isf(FAMILY / comparisons / 2, trials - 1) * se + 1e-9 * (abs(expected) + abs(known.exact.mean))
        assert abs(values.mean() - expected) < limit, (NAMES[name], values.mean(), expected, se)
    return set(found)


@pytest.mark.parametrize("name", CASES)
def test_moments_of_structured_scores(name):
    fields, known = CASES[name]
    for i, rule in enumerate(RULES):
        found = assert_agrees(cell_of(fields), rule, 20_000, len(CASES) * len(RULES) * 5, seed=i + len(name))
        assert found == set(known), (name, rule)


def test_random_combinations():
    cases = combinations(120, seed=1, has_theory=lambda cell, rule: scaled_theory(cell, rule).exact.variance > 0)
    for i, (cell, scale, _) in enumerate(cases):
        assert_agrees(cell, scale_rule(read_scale(scale), cell.d_k), 4000, 120 * 5, seed=i)


def test_rules_multiply_what_they_multiply():
    cell = cell_of(CASES["paired, causal"][0])
    raw, halved = score_theory(cell), scaled_theory(cell, Rule(-0.5)).exact
    assert (halved.mean, halved.variance) == (-0.5 * raw.mean, 0.25 * raw.variance)
    assert halved.row_variance == pytest.approx(0.25 * raw.row_variance)
    assert halved.skewness == -raw.skewness
    assert halved.excess_kurtosis == pytest.approx(raw.excess_kurtosis)
    zero = scaled_theory(cell, Rule(0.0)).exact
    assert (zero.mean, zero.variance, zero.row_variance) == (0, 0, 0)
    assert math.isnan(zero.skewness)


def test_a_whole_row_of_one_key_has_no_variance_within():
    cell = cell_of({"n_keys": 1, "n_queries": 3})
    assert math.isnan(score_theory(cell).row_variance)
    assert math.isnan(scaled_theory(cell, Rule(1.0, cap=2.0)).exact.row_variance)
    # of causal rows the first sees one key: it has no part in the mean over rows
    causal = cell_of({"n_queries": 3, "n_keys": 3, "causal": True})
    assert score_theory(causal).row_variance == pytest.approx(4.0)


# How many moments are finite ------------------------------------------------------------------------

T5 = {"kind": "student_t", "df": 5}
FINITE = [
    ({}, math.inf),
    ({"query": {"law": T5}}, 4),
    ({"query": {"law": {"kind": "student_t", "df": 4.5}}, "key": {"law": {"kind": "student_t", "df": 3}}}, 2),
    ({"key": {"dependent": {"kind": "magnitude", "df": 3.5}}}, 3),
    ({"query": {"law": T5}, "pair": {"kind": "paired", "rho": 0.5}}, 2),
    ({"key": {"law": T5}, "pair": {"kind": "paired", "rho": 0.5}}, 4),
    ({"query": {"law": T5}, "pair": {"kind": "shared", "rho": 0.0}}, 4),
    (projected(attention="self") | both(law=T5) | {"n_queries": 4}, 2),
    (projected() | both(law=T5), 4),
    ({"query": {"law": T5, "normalize": "rms"}, "key": {"law": {"kind": "student_t", "df": 3}}}, 2),
    ({"score": "cosine", **both(law={"kind": "student_t", "df": 1})}, math.inf),
    ({"score": {"kind": "additive", "units": 2}, **both(law={"kind": "student_t", "df": 1})}, math.inf),
    ({"score": {"kind": "iid", "law": T5}}, 4),
    ({"query": {"law": T5, "std": 0.0, "mean": 1.0}}, math.inf),
]


@pytest.mark.parametrize(("fields", "count"), FINITE, ids=str)
def test_how_many_moments_are_finite(fields, count):
    cell = cell_of(fields)
    found = score_theory(cell)
    assert found.moments == count
    values = {"mean": 1, "variance": 2, "skewness": 3, "excess_kurtosis": 4}
    for name, order in values.items():
        assert count >= order or math.isnan(getattr(found, name)), name
    assert scaled_theory(cell, Rule(1.0, cap=3.0)).moments == math.inf


# Limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_within_five_percent(name):
    fields, rule = LIMITS[name]
    cell, trials = cell_of(fields), 20_000
    limit = scaled_theory(cell, rule).limit
    s = plain.scaled(plain.scores(np.random.default_rng(len(name)), cell, trials), rule, cell.visible)
    found, given = statistics(s, limit), 0
    for letter, (values, expected) in found.items():
        se = values.std(ddof=1) / math.sqrt(trials)
        slack = stats.t.isf(FAMILY / len(LIMITS) / 5 / 2, trials - 1) * se
        scale = {"m": abs(limit.mean), "s": limit.variance**1.5}.get(letter, abs(expected))
        assert abs(values.mean() - expected) < 0.05 * scale + slack, (letter, values.mean(), expected)
        given += 1
    assert given >= 4


@pytest.mark.parametrize("d", [16, 24, 64, 500])
@pytest.mark.parametrize(
    "sides", [{}, both(law="rademacher"), both(within={"kind": "power_law", "exponent": 0.3})], ids=str
)
def test_limits_of_a_soft_cap_near_the_exact_ones(d, sides):
    cell = cell_of({"d_k": d, **sides})
    std, compared = score_theory(cell).std, 0
    for steepness in np.geomspace(0.01, 100, 25):
        exact, limit, _ = scaled_theory(cell, Rule(1.0, cap=std / steepness))
        assert exact.row_variance == exact.variance
        if not math.isnan(limit.variance):
            compared += 1
            assert limit.variance == pytest.approx(exact.variance, rel=0.01)
            assert limit.row_variance == pytest.approx(exact.row_variance, rel=0.01)
            assert limit.excess_kurtosis + 3 == pytest.approx(exact.excess_kurtosis + 3, rel=0.02)
    assert compared > 10 or score_theory(cell).excess_kurtosis > 0.5


def test_limits_are_blank_outside_their_ranges():
    rule = Rule(1.0, cap=3.0)
    short, heavy = cell_of({"d_k": 8}), cell_of({"d_k": 64, "key": {"dependent": {"kind": "magnitude", "df": 5}}})
    lattice = cell_of({"d_k": 16, **both(law="rademacher")})
    for cell, steep in ((short, rule), (heavy, rule), (lattice, Rule(1.0, cap=0.1))):
        assert math.isnan(scaled_theory(cell, steep).limit.variance)
        assert scaled_theory(cell, steep).exact.mean == 0
    saturated = cell_of({"d_k": 64, **both(mean=1.0)})
    limit = scaled_theory(saturated, Rule(1.0, cap=8.0)).limit
    assert limit.mean == pytest.approx(8.0, rel=1e-3)
    assert math.isnan(limit.variance)
