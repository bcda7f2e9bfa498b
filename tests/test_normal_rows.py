"""Rows of normal scores: exact expectations against integrals and simulations written from the definitions.

Simulations are seeded. Their limits are t quantiles for the rows' standard errors, at a false-alarm rate of
FAMILY for all comparisons of a test together.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from sim.cell import Cell, Side
from sim.scales import Rule
from sim.theory.normal_rows import key_gradient_theory, normal_rows, query_gradient_limit, row_limits, row_theory
from sim.theory.row_integrals import RowIntegrals, row_integrals
from tests import plain

FAMILY = 1e-3
FIELDS = RowIntegrals._fields


def quantities(scores):
    """Return max p, entropy, sum p^2, ||J||_F^2 and tr J of every row, on a new first axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    p = np.exp(log_p)
    squared = p * p
    p2, p4 = squared.sum(axis=-1), (squared * squared).sum(axis=-1)
    diagonal = p - squared  # of J; beside it -p_i p_j
    frobenius = (diagonal * diagonal).sum(axis=-1) + p2**2 - p4
    return np.array([p.max(axis=-1), -(p * log_p).sum(axis=-1), p2, frobenius, diagonal.sum(axis=-1)])


def assert_agrees(expected, measured, comparisons):
    """Every field of `expected` is within the limits of the rows `measured` (field, row).

    1e-8 is theory's own error: the trace of nearly uniform rows scatters less.
    """
    rows = measured.shape[1]
    se = measured.std(axis=1, ddof=1) / math.sqrt(rows)
    deviation = measured.mean(axis=1) - expected
    limit = stats.t.isf(FAMILY / comparisons / 2, rows - 1) * se + 1e-8 * np.abs(expected)
    assert np.all(abs(deviation) < limit), dict(zip(FIELDS, deviation / se, strict=True))


def cell(d=1, n=2, query=None, key=None):
    return Cell(d_k=d, n_queries=1, n_keys=n, query=Side(**(query or {})), key=Side(**(key or {})))


def of_sigma(sigma, n):
    """A cell whose rows all have this sigma: one element of +-1, one of the key."""
    return cell(1, n, {"law": "rademacher"}, {"std": sigma})


# Integrals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 1.0, 2.4, 2.6, 4.0, 30.0, 1e3, 1e4])
def test_two_keys_are_one_integral(sigma):
    """D = s_1 - s_2 is normal with variance 2 sigma^2, and p_1 = 1 / (1 + e^-D)."""

    def integrand(x, field):  # over D = x >= 0, twice
        p, q = special.expit(x), special.expit(-x)
        entropy = p * np.log1p(np.exp(-x)) + q * (x + np.log1p(np.exp(-x)))
        # 1 - max p in place of max p: what is left of a frozen row is right too
        values = (q, entropy, 2 * p * q, 4 * (p * q) ** 2, 2 * p * q)
        return 2 * values[field] * stats.norm.pdf(x, scale=math.sqrt(2) * sigma)

    end = min(12 * sigma, 60)
    exact = [integrate.quad(integrand, 0, end, (f,), epsabs=0, epsrel=1e-11, limit=200)[0] for f in range(5)]
    found = row_integrals(sigma, 2)
    np.testing.assert_allclose(1 - found.weight_max, exact[0], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(1 - found.weight_sum_squares, exact[2], rtol=1e-8, atol=1e-12)
    for name, value in zip(FIELDS, exact, strict=True):
        if name not in ("weight_max", "weight_sum_squares"):
            np.testing.assert_allclose(getattr(found, name), value, rtol=1e-8)


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.5, 5.0, 30.0, 1e3])
def test_three_keys_are_two_integrals(sigma):
    """Over the gaps a, b >= 0 between the ordered scores, whose covariance is sigma^2 [[2, -1], [-1, 2]]."""
    end = 16 * sigma
    edges = np.concatenate([[0], np.geomspace(min(sigma, 1) / 2, end, 30)])
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2
    gap, weight = (edges[:-1, None] + half * (nodes + 1)).ravel(), (half * weights).ravel()
    a, b = gap[:, None], gap
    density = np.exp(-(a**2 + a * b + b**2) / (3 * sigma**2)) / (2 * math.pi * math.sqrt(3) * sigma**2)
    measure = 6 * density * np.outer(weight, weight)
    values = quantities(np.stack(np.broadcast_arrays(0 * a * b, -a, -a - b), axis=-1))
    assert measure.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(row_integrals(sigma, 3), (values * measure).sum(axis=(1, 2)), rtol=1e-8)


@pytest.mark.parametrize("n", [2, 5, 64, 4096, 10**6])
def test_trace_and_squares_are_complements(n):
    """They come from different integrals: over single keys, and over pairs."""
    for sigma in np.geomspace(1e-6, 1e5, 23):
        found = row_integrals(sigma, n)
        assert found.jacobian_trace + found.weight_sum_squares == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 16, 128, 1024, 4096, 16384])
def test_rows_agree_with_simulated_ones(n):
    sigmas = [0.05, 0.5, 1.5, 4.0, 10.0, 30.0]
    rng = np.random.default_rng(n)
    z = rng.standard_normal((max(100, 2**19 // n), n))
    expected = normal_rows(np.array(sigmas), n)
    for i, sigma in enumerate(sigmas):
        assert_agrees(expected[:, i], quantities(sigma * z), comparisons=7 * len(sigmas) * 5)


# The grid ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 7, 64, 1000, 65536, 10**6])
def test_interpolation_is_exact_between_the_grid_points(n):
    rng = np.random.default_rng(0)
    sigmas = np.exp(np.concatenate([rng.uniform(math.log(1e-6), math.log(1e4), 12), rng.uniform(-1, 3, 12)]))
    direct = np.array([row_integrals(sigma, n) for sigma in sigmas]).T
    np.testing.assert_allclose(normal_rows(sigmas, n), direct, rtol=2e-8, atol=0)


@pytest.mark.parametrize("n", [1, 2, 64, 10**6])
def test_the_ends_are_uniform_and_frozen(n):
    uniform = [1 / n, math.log(n), 1 / n, (n - 1) / n**2, 1 - 1 / n]
    np.testing.assert_allclose(normal_rows(np.array([0.0]), n)[:, 0], uniform, rtol=1e-14)
    np.testing.assert_allclose(normal_rows(np.array([1e-12]), n)[:, 0], uniform, rtol=1e-7)
    frozen = normal_rows(np.array([1e300, math.inf]), n)
    np.testing.assert_allclose(frozen, np.repeat([[1], [0], [1], [0], [0]], 2, axis=1), atol=1e-7)


# Averages over the law of ||q|| --------------------------------------------------------------------


@pytest.mark.parametrize("d", [100, 301, 2000])
def test_a_stride_over_many_signs_changes_nothing(d):
    n, factor = 1024, 0.1
    b = np.arange(d + 1)
    norms = np.sqrt(b * 1.8**2 + (d - b) * 0.2**2)
    whole = normal_rows(factor * norms, n) @ stats.binom.pmf(b, d, 0.5)
    found = row_theory(cell(d, n, {"law": "rademacher", "mean": 0.8}), Rule(factor))
    np.testing.assert_allclose(found, whole, rtol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_averages_over_chi_are_those_of_adaptive_quadrature(d):
    for factor in (1 / math.sqrt(d), 1.0, 50.0):
        found = row_theory(cell(d, 1024), Rule(factor))
        exact, _ = integrate.quad_vec(
            lambda y, c=factor: normal_rows(c * math.exp(y), 1024) * stats.chi.pdf(math.exp(y), d) * math.exp(y),
            -40,
            math.log(40),
            epsabs=1e-12,
            epsrel=1e-9,
            limit=2000,
        )
        np.testing.assert_allclose(found, exact, rtol=1e-7)


QUERIES = [{}, {"mean": 1.0}, {"law": "rademacher"}, {"law": "rademacher", "mean": -0.5, "std": 0.7}]


@pytest.mark.parametrize("d", [1, 2, 8, 64, 512])
def test_drawn_queries_and_keys_agree(d):
    n, factors = 16, (1.0, 1 / math.sqrt(d), -3 / math.sqrt(d))
    rng = np.random.default_rng(d)
    rows = min(20_000, 10_000_000 // (n * d))
    for query in QUERIES:
        mean, std = query.get("mean", 0.0), query.get("std", 1.0)
        z = rng.standard_normal((rows, d))
        q = mean + std * (np.sign(z) if query.get("law") else z)
        k = 0.4 + 0.8 * rng.standard_normal((rows, n, d))
        scores = np.einsum("rd,rnd->rn", q, k)
        for factor in factors:
            expected = row_theory(cell(d, n, query, {"mean": 0.4, "std": 0.8}), Rule(factor))
            assert_agrees(expected, quantities(factor * scores), comparisons=5 * 4 * 3 * 5)


# Structures under which rows stay normal -----------------------------------------------------------

AR1, EQUI = {"kind": "ar1", "rho": 0.6}, {"kind": "equicorrelated", "rho": 0.3}
POWER, OUTLIERS = {"kind": "power_law", "exponent": 0.8}, {"kind": "outliers", "count": 1, "factor": 4.0}
HALF = {"rho": 0.5}
STRUCTURES = [
    {"key": {"within": AR1}},
    {"query": {"mean": 0.5, "within": EQUI}, "key": {"within": AR1}},
    {"query": {"mean": 0.5, "within": EQUI}, "key": {"within": {"kind": "equicorrelated", "rho": -0.1}}},
    {"query": {"within": POWER}, "key": {"within": POWER, "mean": 2.0}},
    {"query": {"mean": -0.4, "within": OUTLIERS}, "key": {"within": POWER}},
    {"query": {"tokens": HALF}, "key": {"tokens": HALF, "mean": 1.0}},
    {"query": {"dependent": {"kind": "magnitude", "df": 4}}},
    {"query": {"dependent": {"kind": "magnitude", "df": 1.5}, "within": AR1}, "key": {"within": POWER}},
    {"query": {"dependent": "signs"}, "key": {"within": POWER}},
    {"query": {"law": "rademacher", "within": OUTLIERS}, "key": {"within": POWER}},
    {"query": {"normalize": "rms"}, "key": {"std": 0.5}},
    {"query": {"law": "laplace", "mean": 0.4, "normalize": "layer"}},
    {"query": {"law": {"kind": "sparse", "density": 0.2}, "normalize": "rms"}},
    {"query": {"law": {"kind": "two_point", "p": 0.1}, "normalize": "layer"}},
    {"query": {"law": "rademacher", "mean": 1.0, "normalize": "l2"}},
    {"query": {"law": "rademacher", "normalize": {"kind": "l2", "gain": 2.0}}, "key": {"within": OUTLIERS}},
    {"query": {"rotation": {}}, "key": {"rotation": {}}},
    {"query": {"within": AR1, "mean": 0.5}, "key": {"within": EQUI}, "pair": {"kind": "shared", "rho": 0.5}},
    {"score": "iid"},
]


def key_gradients(q, s, factor):
    """Return sum_i factor^2 |q_i|^2 p_ij^2 (1 - 2 p_ij + sum p^2), a mean over the keys of every trial."""
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    of_rows = (q**2).sum(axis=-1)[..., None] * p**2 * (1 - 2 * p + (p**2).sum(axis=-1, keepdims=True))
    return factor**2 * of_rows.sum(axis=1).mean(axis=-1)


@pytest.mark.parametrize("fields", STRUCTURES, ids=str)
def test_structures_under_which_rows_stay_normal(fields):
    n, trials = 9, 20_000
    given = Cell(n_queries=1, n_keys=n, **({} if "score" in fields else {"d_k": 6}), **fields)
    for rule in (Rule(0.3), Rule(-1.0, log_n=True)):
        rng = np.random.default_rng(len(str(fields)))
        if given.has_vectors:
            q, k = plain.queries_and_keys(rng, given, trials)
            raw = np.einsum("tid,tjd->tij", q, k)
        else:
            raw = plain.scores(rng, given, trials)
        s = plain.scaled(raw, rule, given.visible)
        assert_agrees(row_theory(given, rule), quantities(s[:, 0]), comparisons=2 * len(STRUCTURES) * 6)
        expected = key_gradient_theory(given, rule)
        if not math.isnan(expected):
            factor = rule.factor * (math.log(n) if rule.log_n else 1)
            values = key_gradients(q, s, factor)
            se = values.std(ddof=1) / math.sqrt(trials)
            limit = stats.t.isf(FAMILY / (2 * len(STRUCTURES) * 6) / 2, trials - 1)
            assert abs(values.mean() - expected) < limit * se


# What a cell knows ---------------------------------------------------------------------------------


def test_only_normal_rows_have_a_theory():
    known, rule = cell(8, 16), Rule(0.3)
    assert row_theory(known, rule) == row_theory(known, Rule(-0.3))
    assert row_theory(known, rule) == row_theory(cell(8, 16, key={"mean": 5.0}), rule)
    other = cell(8, 16, {"std": 2.0}, {"std": 0.25})
    np.testing.assert_allclose(row_theory(other, Rule(0.6)), row_theory(known, rule), rtol=1e-12)
    uniform = (1 / 16, math.log(16), 1 / 16, 15 / 256, 15 / 16)
    for query, key in [({}, {"law": "rademacher"}), ({"law": "uniform"}, {})]:
        given = cell(8, 16, query, key)
        assert row_theory(given, rule) is None
        assert np.isnan(row_limits(given, rule)).all()
        # all scores of a row are equal, whatever the law
        assert row_theory(given, Rule(0.0)) == pytest.approx(uniform)
        assert row_theory(cell(8, 16, query, key | {"std": 0.0}), rule) == pytest.approx(uniform)
        assert row_theory(cell(8, 1, query, key), rule) == (1, 0, 1, 0, 0)
    assert row_theory(cell(8, 16, {"law": "uniform", "std": 0.0, "mean": 1.0}), rule) is not None


UNKNOWN = [
    {"key": {"normalize": "rms"}},
    {"key": {"dependent": {"kind": "magnitude", "df": 5}}},
    {"pair": {"kind": "paired", "rho": 0.5}},
    {"projection": {"init": "he", "d_model": 4}},
    {"score": "cosine"},
    {"score": {"kind": "additive", "units": 3}},
    {"query": {"rotation": {}}, "key": {"rotation": {}, "mean": 1.0}},
    {"query": {"rotation": {}}, "key": {"rotation": {}, "tokens": HALF}},
    {"query": {"law": "laplace"}, "pair": {"kind": "shared", "rho": 0.5}},
    {"n_queries": 4, "n_keys": 4, "causal": True},
]


@pytest.mark.parametrize("fields", UNKNOWN, ids=str)
def test_rows_that_are_not_normal_or_not_alike_are_blank(fields):
    given = Cell(**({"d_k": 64, "n_queries": 2, "n_keys": 4} | fields))
    assert row_theory(given, Rule(0.3)) is None
    assert np.isnan(row_limits(given, Rule(0.3))).all()
    assert math.isnan(key_gradient_theory(given, Rule(0.3)))
    assert math.isnan(query_gradient_limit(given, Rule(0.3)))


def test_a_soft_cap_and_rows_of_their_own_scale_are_blank():
    assert row_theory(cell(8, 16), Rule(0.3, cap=5.0)) is None
    given = Cell(d_k=8, n_queries=3, n_keys=3, causal=True)
    assert row_theory(given, Rule(1.0, log_n=True)) is None
    np.testing.assert_allclose(
        row_theory(cell(8, 16), Rule(0.1, log_n=True)), row_theory(cell(8, 16), Rule(0.1 * math.log(16)))
    )


def test_keys_that_share_a_part_have_smaller_gradients_across_the_query():
    alone, sharing = cell(64, 16, key={"std": 0.5}), cell(64, 16, key={"tokens": {"rho": 0.75}})
    assert query_gradient_limit(alone, Rule(0.2)) == pytest.approx(query_gradient_limit(sharing, Rule(0.2)))
    assert math.isnan(query_gradient_limit(cell(31, 16), Rule(0.2)))


# Limits --------------------------------------------------------------------------------------------

COUNTS = [2, 3, 10, 63, 64, 90, 128, 300, 1024, 3000, 16384, 60_000, 10**6]


@pytest.mark.parametrize("n", COUNTS)
def test_limits_are_within_five_percent_wherever_they_stand(n):
    for sigma in np.geomspace(0.01, 1e4, 150):
        exact, limit = row_theory(of_sigma(sigma, n), Rule(1.0)), row_limits(of_sigma(sigma, n), Rule(1.0))
        error = np.array(limit) / np.array(exact) - 1
        assert np.all((abs(error) < 0.05) | np.isnan(limit)), (sigma, error)


@pytest.mark.parametrize("d", [4, 64, 1024])
def test_limits_hold_for_drawn_queries(d):
    given = 0
    for n, factor in itertools.product([64, 1024, 16384], np.geomspace(1e-3, 1e3, 60)):
        exact, limit = row_theory(cell(d, n), Rule(factor)), row_limits(cell(d, n), Rule(factor))
        error = np.array(limit) / np.array(exact) - 1
        assert np.all((abs(error) < 0.05) | np.isnan(limit)), (n, factor, error)
        given += np.sum(~np.isnan(limit))
    assert given > 200


# the ends that theory.md states
ENDS = [
    ("weight_entropy", {64: 1.5, 128: 1.6, 1024: 2.25, 16384: 2.9}, "below"),
    ("weight_sum_squares", {64: 0.75, 128: 0.87, 1024: 1.25, 16384: 1.75}, "below"),
    ("weight_entropy", {64: 11.0, 1024: 11.0}, "above"),
    ("weight_sum_squares", {64: 5.0, 1024: 6.0}, "above"),
]


@pytest.mark.parametrize(("name", "ends", "side"), ENDS)
def test_limits_stand_in_their_stated_ranges(name, ends, side):
    for n, sigma in ends.items():
        inside, outside = (0.999, 1.001) if side == "below" else (1.001, 0.999)
        assert math.isfinite(getattr(row_limits(of_sigma(sigma, n), Rule(inside)), name))
        assert math.isnan(getattr(row_limits(of_sigma(sigma, n), Rule(outside)), name))


def test_beyond_the_checked_counts_limits_are_blank():
    assert np.isnan(row_limits(of_sigma(30.0, 10**6 + 1), Rule(1.0))).all()
    assert np.isnan(row_limits(of_sigma(0.01, 63), Rule(1.0))).all()
