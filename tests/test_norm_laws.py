"""Laws of lengths and of quadratic forms: their moments, special cases in closed form, and enumerations."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

import sim.theory.quadratic_forms
from sim.kinds import Choice
from sim.side import Side
from sim.theory.covariances import covariance
from sim.theory.norm_laws import norm_law
from sim.theory.quadratic_forms import quadratic_form


def choice(kind, **parameters):
    return Choice(kind, tuple(parameters.items()))


# Quadratic forms -----------------------------------------------------------------------------------

FORMS = [  # factors, counts, sums of squared shifts
    ([1.0], [3], [0.0]),
    ([1.0, 0.01], [1, 99], [0.0, 0.0]),
    ([1.0, 1e-6], [1, 5], [0.0, 0.0]),
    ([100.0, 1.0], [2, 62], [0.0, 0.0]),
    ([3.0, 2.0, 1.0], [1, 1, 1], [5.0, 0.0, 1.0]),
    ([1e3, 1.0], [1, 1000], [0.0, 0.0]),
    ([2.0], [1], [30.0]),
    ([1.0], [5000], [0.0]),
    (1 / np.arange(1, 400), np.ones(399), np.zeros(399)),
    (np.arange(1, 300) ** -2.0, np.ones(299), np.full(299, 0.5)),
]


def cumulants(factors, counts, shifts):
    factors, counts, shifts = map(np.array, (factors, counts, shifts))
    return [2 ** (r - 1) * math.factorial(r - 1) * factors**r @ (counts + r * shifts) for r in range(1, 5)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{len(form[0])} factors")
def test_a_form_has_its_cumulants(form):
    found = quadratic_form(*map(np.array, form))
    mean, variance, third, fourth = cumulants(*form)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert (found.points > 0).all()
    off = found.points - mean
    assert found.weights @ found.points == pytest.approx(mean, rel=1e-9)
    assert found.weights @ off**2 == pytest.approx(variance, rel=1e-8)
    assert found.weights @ off**3 == pytest.approx(third, rel=1e-7)
    assert found.weights @ off**4 == pytest.approx(fourth + 3 * variance**2, rel=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 300])
def test_chi_squares_have_their_fractional_moments(n):
    found = quadratic_form(np.array([2.0]), np.array([n]), np.array([0.0]))
    for r in (-0.2, 0.5, 1.5):
        exact = 4.0**r * math.exp(special.gammaln(n / 2 + r) - special.gammaln(n / 2))
        assert found.weights @ found.points**r == pytest.approx(exact, rel=1e-7)


def test_two_different_squares_are_one_integral():
    """E f(a x^2 + b y^2) over the angle and the radius, for a function that is not a polynomial."""
    a, b = 1.0, 0.03

    def of_angle(angle):
        size = a * math.cos(angle) ** 2 + b * math.sin(angle) ** 2
        # of an exponential variable 2e: E 1 / (1 + e 2 size)
        x = 1 / (2 * size)
        return x * math.exp(x) * special.exp1(x) / math.pi

    exact, _ = integrate.quad(of_angle, 0, math.pi, epsrel=1e-12)
    found = quadratic_form(np.array([a, b]), np.array([1, 1]), np.zeros(2))
    assert found.weights @ (1 / (1 + found.points)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("form", [FORMS[7], ([1.0], [1000], [50.0]), ([1.0, 0.5], [900, 900], [1.0, 900.0])])
def test_both_ways_agree_on_narrow_laws(form, monkeypatch):
    form = [np.array(part) for part in form]
    monkeypatch.setattr(sim.theory.quadratic_forms, "_NARROW", 1.0)
    rule = quadratic_form(*form)
    monkeypatch.setattr(sim.theory.quadratic_forms, "_NARROW", 0.0)
    density = quadratic_form(*form)
    assert len(rule.points) == 6 < len(density.points)
    mean, variance, *_ = cumulants(*form)
    assert variance < 2e-3 * mean**2
    for function in (np.sqrt, np.log, lambda x: 1 / x, lambda x: np.exp(-x / mean)):
        one, other = rule.weights @ function(rule.points), density.weights @ function(density.points)
        assert one == pytest.approx(other, rel=1e-9)


def test_many_factors_are_few_terms_of_the_same_law(monkeypatch):
    form = np.arange(1, 600) ** -1.0, np.ones(599), np.full(599, 0.3)
    few = quadratic_form(*form)
    monkeypatch.setattr(sim.theory.quadratic_forms, "_compressed", lambda *parts: parts)
    all_of = quadratic_form(*form)
    for r in (-1.0, 0.5, 3.0):
        assert few.weights @ few.points**r == pytest.approx(all_of.weights @ all_of.points**r, rel=1e-10)


# Lengths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
@pytest.mark.parametrize("d", [1, 2, 3, 10, 64, 999, 1000, 4096, 2**20])
def test_the_squared_norm_has_its_moments(d, law):
    kurtosis = 3 if law == "gaussian" else 1
    for mean, std in [(0.0, 1.0), (1.0, 1.0), (-0.01, 2.0), (30.0, 0.5), (1e9, 1.0), (2.0, 0.0), (0.0, 0.0)]:
        found = norm_law(Side(law=law, mean=mean, std=std), d)
        second = d * (mean**2 + std**2)
        variance = d * ((kurtosis - 1) * std**4 + 4 * mean**2 * std**2)
        squares = found.norms**2
        assert found.weights.sum() == pytest.approx(1, abs=1e-12)
        assert found.weights @ squares == pytest.approx(second, rel=1e-9)
        if std > 1e-8 * abs(mean):
            assert found.weights @ (squares - second) ** 2 == pytest.approx(variance, rel=1e-6)


def test_few_signs_are_enumerated():
    found = norm_law(Side(law="rademacher", mean=0.5, std=2.0), 6)
    vectors = 0.5 + 2.0 * np.array(list(itertools.product([-1, 1], repeat=6)))
    norms, counts = np.unique(np.round((vectors**2).sum(axis=1), 9), return_counts=True)
    order = np.argsort(found.norms)
    np.testing.assert_allclose(found.norms[order] ** 2, norms)
    np.testing.assert_allclose(found.weights[order], counts / 64)


WITHIN = ["none", {"kind": "ar1", "rho": -0.7}, {"kind": "equicorrelated", "rho": 0.4},
          {"kind": "power_law", "exponent": 1.5}, {"kind": "outliers", "count": 2, "factor": 6.0}]  # fmt: skip


@pytest.mark.parametrize(("within", "seen_by"), list(itertools.product(WITHIN, repeat=2)), ids=str)
@pytest.mark.parametrize("mean", [0.0, 0.6])
def test_a_length_that_a_covariance_sees_has_its_moments(within, seen_by, mean):
    """E x'Sx = std^2 tr ST + mean^2 1'S1 of x = mean + std A z, AA' = T; its variance is that of normal vectors."""
    d, std = 7, 1.5
    side, metric = Side(within=within, mean=mean, std=std), Side(within=seen_by).within
    s, t = (covariance(kind, d).matrix @ covariance(kind, d).matrix.T for kind in (metric, side.within))
    found = norm_law(side, d, metric)
    squares = found.norms**2
    expected = std**2 * np.trace(s @ t) + mean**2 * s.sum()
    variance = 2 * std**4 * np.trace(s @ t @ s @ t) + 4 * (mean * std) ** 2 * (s @ t @ s).sum()
    assert found.weights @ squares == pytest.approx(expected, rel=1e-9)
    assert found.weights @ (squares - expected) ** 2 == pytest.approx(variance, rel=1e-8)


def test_common_magnitudes_multiply_the_length():
    """The length of a multivariate t, over its degrees of freedom an F variable."""
    d, df = 5, 7.0
    found = norm_law(Side(dependent=choice("magnitude", df=df), std=2.0), d)
    scale = 4.0 * (df - 2) / df * d  # of F: |x|^2 = std^2 (df - 2) / df t't
    for r in (0.5, 1.0, 2.0):
        expected = stats.f(d, df).expect(lambda x, r=r: (scale * x) ** r)
        assert found.weights @ found.norms ** (2 * r) == pytest.approx(expected, rel=1e-6)
    signs = norm_law(Side(dependent="signs"), 9)
    assert signs.weights @ signs.norms == pytest.approx(3 * math.sqrt(2 / math.pi), rel=1e-8)


def test_other_lengths_are_not_known():
    for side in (
        Side(law="laplace"),
        Side(law="rademacher", tokens={"rho": 0.5}),
        Side(law="rademacher", mean=1.0, within={"kind": "ar1", "rho": 0.5}),
        Side(dependent=choice("magnitude", df=5.0), mean=1.0),
        Side(law="uniform", dependent="signs"),
    ):
        assert norm_law(side, 8) is None
    assert norm_law(Side(law="laplace", std=0.0, mean=2.0), 9).norms == [6.0]
