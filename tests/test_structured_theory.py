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
from sim.structure import INITS
from sim.theory.directions import probability_of_vector
from sim.theory.scores import scaled_theory, score_theory
from tests import plain
from tests.combinations import combinations
from tests.structured_cases import AR1, CASES, LIMITS, SPARSE, TWO_POINT, both, projected

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


ZERO_OR_NOT = [
    (both(law=SPARSE, normalize="rms"), 1 - 0.5**4),
    (both(law=SPARSE, mean=1.0, normalize="rms"), 1.0),
    (both(law="rademacher", normalize="layer"), 1 - 2 * 0.5**4),
    (both(law="rademacher", mean=-1.0, normalize="rms"), 1 - 0.5**4),
    (both(law="rademacher", mean=0.5, normalize="rms"), 1.0),
    (both(law=TWO_POINT, std=2.0, mean=-2 * (7 / 3) ** 0.5, normalize="l2"), 1 - 0.3**4),
    (both(law="rademacher", tokens={"rho": 0.5}, normalize="rms"), None),
    (both(law="rademacher", tokens={"rho": 0.4}, normalize="rms"), 1.0),
    (both(law=TWO_POINT, mean=1.0, within=AR1, normalize="rms"), None),
    (projected() | both(law=SPARSE, normalize="rms"), 1 - 0.5**4),
    (projected(bias_std=0.1) | both(law=SPARSE, normalize="rms"), 1.0),
    (projected(attention="self") | both(law=SPARSE, normalize="rms") | {"n_keys": 3}, None),
]


@pytest.mark.parametrize(("fields", "probability"), ZERO_OR_NOT, ids=str)
def test_how_often_a_vector_has_a_direction(fields, probability):
    cell = cell_of(fields)
    found = probability_of_vector(cell, cell.query)
    assert found == (probability if probability is None else pytest.approx(probability, rel=1e-12))
    assert found is not None or math.isnan(score_theory(cell).variance)


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


# Formulas that have names -----------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [-0.9, 0.3, 1.0])
@pytest.mark.parametrize("d", [1, 8, 100])
def test_pairs_of_normal_vectors(d, rho):
    """A pair alone, and pooled over a block in which a share of the scores are of pairs."""
    pair = {"kind": "paired", "rho": rho}
    alone = score_theory(Cell(d_k=d, n_queries=1, n_keys=1, pair=pair))
    assert alone.mean == pytest.approx(d * rho)
    assert alone.variance == pytest.approx(d * (1 + rho**2))
    assert alone.skewness == pytest.approx((6 * rho + 2 * rho**3) / (math.sqrt(d) * (1 + rho**2) ** 1.5))
    assert alone.excess_kurtosis == pytest.approx(6 * (1 + 6 * rho**2 + rho**4) / (d * (1 + rho**2) ** 2))
    block = score_theory(Cell(d_k=d, n_queries=5, n_keys=8, pair=pair))
    share = 5 / 40
    assert block.mean == pytest.approx(share * d * rho)
    assert block.variance == pytest.approx(d + share * d * rho**2 + share * (1 - share) * d**2 * rho**2)


def test_effective_dimension_of_correlated_components():
    """Of normal vectors the excess kurtosis is 6 tr M^2 / (tr M)^2, M the product of the covariances."""
    lag = np.abs(np.subtract.outer(range(12), range(12)))
    m = 0.5**lag @ np.where(lag == 0, 1, 0.2)
    within = {"kind": "ar1", "rho": 0.5}, {"kind": "equicorrelated", "rho": 0.2}
    found = score_theory(cell_of({"d_k": 12, "query": {"within": within[0]}, "key": {"within": within[1]}}))
    assert found.variance == pytest.approx(np.trace(m))
    assert found.excess_kurtosis == pytest.approx(6 * np.trace(m @ m) / np.trace(m) ** 2)


@pytest.mark.parametrize("d", [4, 4096])
def test_the_kurtosis_of_a_common_magnitude_stays(d):
    found = score_theory(cell_of({"d_k": d, **both(dependent={"kind": "magnitude", "df": 10})}))
    assert found.excess_kurtosis == pytest.approx(3 * (1 + 2 / d) * (8 / 6) ** 2 - 3)


def test_independent_elements_of_student_t():
    found = score_theory(cell_of({"d_k": 50, **both(law={"kind": "student_t", "df": 7})}))
    assert found.variance == pytest.approx(50)
    assert found.excess_kurtosis == pytest.approx((9 * (5 / 3) ** 2 - 3) / 50)


PER_D_K = {
    "xavier_uniform": lambda d, k: (2 * d / (d + k)) ** 2,
    "xavier_normal": lambda d, k: (2 * d / (d + k)) ** 2,
    "he": lambda d, k: 4.0,
    "lecun": lambda d, k: 1.0,
    "torch_linear": lambda d, k: 1 / 9,
    "gpt2": lambda d, k: (0.02**2 * d) ** 2,
    "fused_xavier": lambda d, k: 1 / 4,
    "t5": lambda d, k: 1 / k,
}


@pytest.mark.parametrize("init", INITS)
def test_initialisations(init):
    """The variance over d_k of signs, whose length is constant; tied, their means add d_k s^2 x.y."""
    d, k = 24, 6
    fields = {"d_k": k, "projection": {"init": init, "d_model": d}, **both(law="rademacher")}
    assert score_theory(cell_of(fields)).variance == pytest.approx(k * PER_D_K[init](d, k))
    if init == "torch_linear":  # its default bias, of the same law
        bias = {"init": init, "d_model": d, "bias_std": 1 / math.sqrt(3 * d)}
        assert score_theory(cell_of(fields | {"projection": bias})).variance == pytest.approx(
            k * ((1 + 1 / d) / 3) ** 2
        )
    if init != "t5":
        tied = {"init": init, "d_model": d, "tied": True, "attention": "self"}
        found = score_theory(cell_of(fields | {"projection": tied, "n_queries": 4}))
        assert found.mean == pytest.approx(
            k * math.sqrt(PER_D_K[init](d, k)) / 4
        )  # a quarter is of a token with itself


@pytest.mark.parametrize("d", [2, 64])
def test_normalized_normal_vectors_lie_on_a_sphere(d):
    found = score_theory(cell_of({"d_k": d, **both(normalize="rms")}))
    assert found.variance == pytest.approx(d)
    assert found.excess_kurtosis == pytest.approx(-6 / (d + 2))
    below, _ = found.distribution(np.array([-d - 1e-9, 0.0, d + 1e-9]))
    np.testing.assert_allclose(below, [0, 0.5, 1], atol=1e-12)


def test_a_shift_of_the_keys_is_visible_once_rotated():
    """Softmax does not see what all keys of a row share: E s alike for every key, or not."""
    still, turned = (
        score_theory(cell_of({"d_k": 64, "query": {"mean": 1.0, **turn}, "key": {"mean": 1.0, "std": 1e-9, **turn}}))
        for turn in ({}, {"rotation": {"base": 10000.0}})
    )
    assert still.row_variance == pytest.approx(0, abs=1e-9)
    angles = 10000.0 ** (-np.arange(32) / 32)
    places = np.subtract.outer(np.arange(3) + 1, np.arange(4))
    means = 2 * np.cos(places[..., None] * angles).sum(axis=-1)
    assert turned.mean == pytest.approx(means.mean())
    # and the queries' noise of variance 1 sees the turned mean
    seen = 2 * np.stack([np.cos(places[..., None] * angles), np.sin(places[..., None] * angles)], axis=-1).var(
        axis=1, ddof=1
    )
    assert turned.row_variance == pytest.approx(means.var(axis=1, ddof=1).mean() + seen.sum(axis=(1, 2)).mean())
