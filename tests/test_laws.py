"""The variates: goodness of fit, moments and independence, on a million draws and more of every law.

One false-alarm rate for the whole file, 1e-4, is shared among its statistics (Bonferroni): a correct
generator would fail for one seed in 10 000, and the seeds are fixed.
"""

import math

import numpy as np
import pytest
from scipy import stats

import sim
from sim.block import draw_side
from sim.draw import padded
from sim.laws import LAWS
from sim.philox import KEY, QUERY
from sim.plan import layout, plan
from tests import oracle

FALSE_ALARMS = 1e-4
STATISTICS = 200  # at least as many as are compared below; counted by the last test
LEVEL = FALSE_ALARMS / STATISTICS
NORMAL_LIMIT = stats.norm.isf(LEVEL / 2)

D_K, TOKENS, TRIALS = 64, 500, 40
PRECISIONS = ("float32", "float64")
CDF = {
    "gaussian": stats.norm.cdf,
    "uniform": stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf,
}
# E z^r, r = 1 .. 12 (the error of the 6th moment needs the 12th), from the laws' densities
MOMENTS = {
    "rademacher": lambda r: 1.0 - r % 2,
    "gaussian": lambda r: 0.0 if r % 2 else float(math.prod(range(1, r, 2))),
    "uniform": lambda r: 0.0 if r % 2 else 3 ** (r / 2) / (r + 1),
}
compared = []


def check(z: float, what: str):
    """Compare one statistic, standard normal if the draws are right, with the limit."""
    compared.append(what)
    assert abs(z) < NORMAL_LIMIT, f"{what}: {z:.2f} standard errors"


def check_p(p: float, what: str):
    compared.append(what)
    assert p > LEVEL, f"{what}: p = {p:.2e}"


def draws(law, precision="float32", tensor=KEY, tokens=TOKENS, trials=TRIALS, **fields):
    """Return standardised elements (trials, d_k, tokens) of a cell, in float64."""
    sides = {"query": {"law": law}, "key": {"law": law}}
    sweep = sim.Sweep(**{"d_k": D_K, "n_tokens": TOKENS, **sides, "precision": precision, **fields})
    (cell,) = sweep.cells
    made = plan(sweep, cell, layout(sweep))
    side = made.query if tensor == QUERY else made.key
    out = np.empty((trials, padded(cell.d_k), tokens), precision)
    for trial in range(trials):
        draw_side(side, out[trial], 0, trial, tensor, made.geometry.key)
    mean, std = side.numbers[:2].astype(float)
    return (out[:, : cell.d_k].astype(float) - mean) / std


@pytest.fixture(scope="module", params=[(law, precision) for law in LAWS for precision in PRECISIONS])
def sample(request):
    return *request.param, draws(*request.param)


def correlation(x, y):
    """Return the correlation of two standardised samples, in standard errors."""
    product = (x * y).ravel()
    return product.sum() / math.sqrt(product.size)


def test_every_law_has_an_exact_answer_here():
    assert set(MOMENTS) == set(LAWS)
    for law, entry in LAWS.items():
        assert entry.moments(0.0) == pytest.approx([MOMENTS[law](r) for r in range(1, 5)])


def test_goodness_of_fit(sample):
    law, precision, x = sample
    x = x.ravel()
    assert x.size >= 10**6
    if law in CDF:
        check_p(stats.kstest(x, CDF[law]).pvalue, f"Kolmogorov-Smirnov of {law}, {precision}")
        inside = np.linspace(x.min(), x.max(), 202)[1:-1]
        share = np.diff(CDF[law](inside), prepend=0, append=1)
        counts = oracle.histogram(x, inside)
        keep = share * x.size > 10
        counts, share = counts[keep], share[keep]
        share /= share.sum()
    else:
        assert set(np.unique(x)) == {-1.0, 1.0}
        counts, share = np.array([(x < 0).sum(), (x > 0).sum()]), np.array([0.5, 0.5])
    check_p(stats.chisquare(counts, share * counts.sum()).pvalue, f"chi-square of {law}, {precision}")


def test_moments_1_to_6(sample):
    law, precision, x = sample
    for r in range(1, 7):
        exact = MOMENTS[law](r)
        error = math.sqrt((MOMENTS[law](2 * r) - exact**2) / x.size)
        found = (x**r).mean()
        if error == 0:
            assert found == exact
        else:
            check((found - exact) / error, f"moment {r} of {law}, {precision}")


def test_the_gaussian_has_its_tails():
    x = abs(draws("gaussian", trials=200)).ravel()
    for limit in (3.0, 4.0, 5.0):
        expected = 2 * stats.norm.sf(limit) * x.size
        tails = stats.poisson(expected)
        count = (x > limit).sum()
        check_p(2 * min(tails.cdf(count), tails.sf(count - 1)), f"draws beyond {limit}")
    assert x.max() < math.sqrt(64 * math.log(2))


def test_components_tokens_and_trials_are_uncorrelated(sample):
    """Values, and their squares too: Box and Muller's pairs share a radius, tokens a counter's word."""
    law, precision, x = sample
    kinds = {"elements": x}
    if law != "rademacher":
        kinds["squares"] = (x**2 - 1) / math.sqrt(MOMENTS[law](4) - 1)
    for kind, y in kinds.items():
        for lag in (1, 2, 3, 4, 8):
            check(correlation(y[:, lag:], y[:, :-lag]), f"{kind} of components {lag} apart, {law} {precision}")
        for lag in (1, 2, 64):
            check(correlation(y[:, :, lag:], y[:, :, :-lag]), f"{kind} of tokens {lag} apart, {law} {precision}")
        for lag in (1, 7):
            check(correlation(y[lag:], y[:-lag]), f"{kind} of trials {lag} apart, {law} {precision}")
    check(correlation(x[:, ::4], x[:, 1::4] * x[:, 2::4] * x[:, 3::4]), f"a counter's four, {law} {precision}")


@pytest.mark.parametrize("law", LAWS)
def test_sides_and_cells_are_uncorrelated(law):
    base = draws(law)
    others = {
        "the other side": {"tensor": QUERY},
        "another seed": {"seed": 1},
        "another mean": {"key": {"law": law, "mean": 0.5}},
        "another std": {"key": {"law": law, "std": 2}},
        "another number of keys": {"n_tokens": TOKENS + 1},
        "another d_k": {"d_k": D_K + 1},
    }
    for what, fields in others.items():
        check(correlation(base, draws(law, **fields)[:, :D_K]), f"{what}, {law}")


def test_float32_and_float64_elements_agree():
    """The same words: what they differ by is float32's rounding.

    A sign is exact; a uniform is rounded three times, 3e-8 of at most 1.74 each. A normal errs by some
    2e-7 of its radius sqrt(-2 ln u), of at most 6.7, and by 6e-8 / radius, as u has that spacing near 1.
    """
    for law, tolerance in (("rademacher", 0.0), ("uniform", 2e-7)):
        assert abs(draws(law, "float32") - draws(law, "float64")).max() <= tolerance
    single, double = draws("gaussian", "float32"), draws("gaussian", "float64")
    radius = np.hypot(double[:, ::2], double[:, 1::2]).repeat(2, axis=1)
    assert (abs(single - double) <= 2e-7 * radius + 6e-8 / radius).all()


def test_the_limits_count_every_comparison():
    assert len(compared) <= STATISTICS
