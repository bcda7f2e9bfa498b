"""Covariances within a vector: every sum that moments are made of against the matrices themselves."""

import itertools

import numpy as np
import pytest

from sim.kinds import Choice
from sim.structure import WITHIN
from sim.theory.covariances import componentwise, covariance, spectra, trace_product


def within(kind, **parameters):
    return Choice(kind, tuple(parameters.items()))


KINDS = [
    within("none"),
    within("equicorrelated", rho=0.4),
    within("equicorrelated", rho=-0.12),
    within("ar1", rho=0.7),
    within("ar1", rho=-0.5),
    within("power_law", exponent=1.3),
    within("outliers", count=2, factor=5.0),
]


def test_every_kind_is_here():
    assert {kind.kind for kind in KINDS} == set(WITHIN)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("width", [1, 2, 7])
def test_sums_are_those_of_the_matrix(kind, width):
    if kind.kind == "outliers" and width < 2:
        return
    of = covariance(kind, width)
    a = of.matrix
    s = a @ a.T
    assert np.trace(s) == pytest.approx(width)
    columns = of.columns
    for r, name in enumerate(("sums", "squares", "cubes", "fourths"), start=1):
        np.testing.assert_allclose(np.repeat(getattr(columns, name), columns.counts), (a**r).sum(axis=0), atol=1e-12)
    assert of.total == pytest.approx(s.sum())
    assert of.over_columns(squares=2) == pytest.approx((np.diag(a.T @ a) ** 2).sum())
    assert of.over_columns(squares=1, sums=1) == pytest.approx(np.diag(a.T @ a) @ a.sum(axis=0))
    assert of.is_identity == np.allclose(s, np.eye(width))


def test_the_covariance_is_the_stated_one():
    lag = np.abs(np.subtract.outer(range(5), range(5)))
    stated = {
        within("equicorrelated", rho=-0.2): np.where(lag == 0, 1, -0.2),
        within("ar1", rho=0.6): 0.6**lag,
        within("power_law", exponent=2.0): np.diag(5 / np.arange(1.0, 6) ** 2 / (1 / np.arange(1.0, 6) ** 2).sum()),
        within("outliers", count=1, factor=3.0): np.diag([9, 1, 1, 1, 1]) * 5 / 13,
    }
    for kind, expected in stated.items():
        a = covariance(kind, 5).matrix
        np.testing.assert_allclose(a @ a.T, expected, atol=1e-12)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(KINDS, repeat=2)), ids=lambda kind: kind.kind)
def test_two_covariances(a, b):
    a, b = covariance(a, 6), covariance(b, 6)
    s, t = a.matrix @ a.matrix.T, b.matrix @ b.matrix.T
    assert trace_product(a, b) == pytest.approx(np.trace(s @ t))
    assert componentwise(a, b) == pytest.approx(np.diag(s) @ np.diag(t))
    if common := spectra(a, b):
        first, second = common.eigenvalues
        for p, q in itertools.product(range(3), repeat=2):  # all words in S and T that a vector of ones sees
            product = np.linalg.matrix_power(s, p) @ np.linalg.matrix_power(t, q)
            assert common.counts @ (first**p * second**q) == pytest.approx(np.trace(product))
            assert common.counts @ (common.ones**2 * first**p * second**q) == pytest.approx(product.sum(), abs=1e-9)
    else:
        assert not np.allclose(s @ t, t @ s)


def test_wide_vectors_cost_no_matrix():
    width = 2**20
    for a, b in itertools.pairwise(KINDS[3:]):
        assert trace_product(covariance(a, width), covariance(b, width)) > 0.4 * width
