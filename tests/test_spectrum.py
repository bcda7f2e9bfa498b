"""The largest eigenvalue of J of given rows against LAPACK on the explicit matrix, and against halving."""

import numpy as np
import pytest

from sim.spectrum import MAX_PASSES, _next, _start
from sim.tiles import TILE
from tests import oracle
from tests.measuring import each_row

PRECISIONS = ("float32", "float64")
# In float32 an exponent of 60 is rounded to 4e-6; iteration stops at changes of 1e-6 and of 1e-12.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def eigenvalues(scores, factors=(1.0,), **options):
    """Return those found, (rows, scales)."""
    return each_row(scores, factors, **options)["jacobian_spectral"]


def check(scores, factors=(1.0,), exact=oracle.spectral_of_many, relative=None):
    found = eigenvalues(scores, factors)
    for k, factor in enumerate(factors):
        expected = [exact(factor * row.astype(np.longdouble)) for row in scores]
        np.testing.assert_allclose(found[:, k], expected, relative or TOLERANCE[scores.dtype.name], 1e-30)


@pytest.mark.parametrize("n", [2, 3, 4, 20, 100])
def test_the_two_oracles_agree(n):
    random = np.random.default_rng(n)
    rows = [random.standard_normal(n) * std for std in (1e-3, 0.3, 1, 3, 10)]
    tied = np.round(random.standard_normal(n))
    tied[:2] = 2
    near = random.standard_normal(n)
    near[:2] = 3, 3 - 1e-9
    for row in (*rows, tied, near):
        assert oracle.spectral_of_many(row) == pytest.approx(oracle.spectral(row), rel=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [2, 3, 7, 64, 200])
def test_rows_of_every_spread_agree_with_the_explicit_matrix(n, precision):
    rows = np.random.default_rng(n).standard_normal((7, n))
    rows *= np.array([[1e-4], [0.1], [1], [3], [8], [20], [60]])
    check(rows.astype(precision), (1.0, -0.4), oracle.spectral)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [TILE - 1, TILE, TILE + 1, 3000])
def test_keys_in_several_tiles_agree_with_halving(n, precision):
    rows = np.random.default_rng(n).standard_normal((7, n))
    rows *= np.array([[1e-4], [0.1], [1], [3], [8], [20], [60]])
    check(rows.astype(precision), (1.0, -0.4))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [2, 50, TILE + 50])
def test_ties_have_the_eigenvalue_of_their_weight(n, precision):
    rows = np.full((4, n), -2.0)
    rows[0] = 0.3  # all equal
    rows[1, [0, -1]] = 1.0  # two, in different tiles
    rows[2, : n // 2 + 1] = 40.0
    rows[3, [n // 3, -1]] = 1e4
    scores = rows.astype(precision)
    expected = oracle.row_quantities(scores)["weight_max"].astype(float)
    np.testing.assert_allclose(eigenvalues(scores)[:, 0], expected, TOLERANCE[precision])
    check(scores, (1.0, -1.0, 0.0))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("others", [-50.0, -3.0, 0.0])
def test_near_ties_converge_as_well(others, precision):
    """Two largest keys 1e-3 to 1e-12 apart, alone or among 40 others, the root squeezed between two poles."""
    gaps = 10.0 ** -np.arange(13)
    rows = np.full((13, 42), others)
    rows[:, 7] = 5.0
    rows[:, 30] = 5.0 - gaps
    check(rows.astype(precision), (1.0, 0.3), oracle.spectral)
    rows[:, 11] = 5.0 - 2 * gaps  # and three
    check(rows.astype(precision), (1.0, 0.3), oracle.spectral)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_keys_have_two_p_q(precision):
    gaps = np.linspace(0, 40, 30)
    scores = np.stack([0 * gaps, -gaps], axis=1).astype(precision)
    p, _ = oracle.softmax(scores)
    np.testing.assert_allclose(eigenvalues(scores)[:, 0], (2 * p[:, 0] * p[:, 1]).astype(float), TOLERANCE[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_hot_rows_and_one_key_have_none(precision):
    scores = np.full((2, 30), -1e4, precision)
    scores[[0, 1], [0, 29]] = 1e4
    assert (eigenvalues(scores) < 1e-30).all()
    assert (eigenvalues(scores[:, :1]) == 0).all()
    assert eigenvalues(scores, (0.0,)) == pytest.approx(1 / 30, rel=1e-7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_saturated_rows_keep_their_relative_precision(precision):
    rows = np.random.default_rng(0).standard_normal((40, 60))
    rows[np.arange(40), np.arange(40)] = np.linspace(0, 80, 40)
    check(rows.astype(precision), (1.0,), oracle.spectral)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bounds_of_the_theory_hold(precision):
    random = np.random.default_rng(6)
    scores = (random.standard_normal((400, 30)) * random.uniform(0, 15, (400, 1))).astype(precision)
    found = each_row(scores, (1.0,))
    top, spectral, trace, norm = (
        found[name][:, 0] for name in ("weight_max", "jacobian_spectral", "jacobian_trace", "jacobian_frobenius")
    )
    rest = oracle.row_quantities(scores)["weight_max"]
    delta = (1 - rest).astype(float)
    slack = 1 + TOLERANCE[precision]
    assert (top * delta <= spectral * slack).all()
    assert (spectral <= np.minimum(top, 2 * top * delta) * slack).all()
    assert (spectral <= 0.5 * slack).all()
    # eigenvalues are not negative: the largest is no more than the trace or the norm, and no less than their ratio
    assert (spectral <= norm * slack).all()
    assert (norm <= trace * slack).all()
    assert (norm**2 <= spectral * trace * slack).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_hidden_keys_take_no_part(precision):
    scores = np.random.default_rng(7).standard_normal((30, TILE + 60)).astype(precision)
    visible = np.linspace(1, TILE + 60, 30).astype(int)
    scores[np.arange(TILE + 60) >= visible[:, None]] = 1e4
    found = eigenvalues(scores, visible=visible)
    assert found[0] == 0
    for row, count in enumerate(visible[1:], 1):
        expected = oracle.spectral_of_many(scores[row, :count])
        assert found[row, 0] == pytest.approx(expected, rel=TOLERANCE[precision])


def hard_rows() -> np.ndarray:
    """Return rows of many spreads, near ties and saturated ones, of 50 keys each."""
    random = np.random.default_rng(8)
    rows = random.standard_normal((600, 50)) * np.geomspace(1e-3, 60, 600)[:, None]
    rows[::3, 4] = rows[::3].max(axis=1) - 10.0 ** -random.integers(0, 15, len(rows[::3]))
    rows[1::3, 6] += random.uniform(0, 80, len(rows[1::3]))
    return rows


def passes_of(row: np.ndarray, tolerance: float) -> int:
    """Return how many passes a row takes by the steps of sim.spectrum."""
    e = np.exp(np.delete(row, row.argmax()) - row.max())
    second = e.max()
    if second == 1:
        return 1
    mu = _start(second, float(e.sum()))
    for number in range(2, MAX_PASSES + 1):
        old = mu
        mu = _next(old, second, float((e / (old - e)).sum()), float((e / (old - e) ** 2).sum()))
        if abs(mu - old) <= tolerance * mu:
            return number
    raise AssertionError("the limit of the passes was the reason to stop")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_handful_of_passes_is_enough(precision):
    """So that the limit of the passes is never the reason to stop: hard rows agree, and take far fewer."""
    rows = hard_rows().astype(precision)
    check(rows, exact=oracle.spectral)
    passes = [passes_of(row.astype(float), {"float32": 1e-6, "float64": 1e-12}[precision]) for row in rows]
    assert max(passes) <= 8 < MAX_PASSES, np.bincount(passes)
