"""Single rows of given raw scores against the oracle: weights and Jacobians that cancel nowhere, in both precisions.

The promise is 1e-3 relative wherever ||J||_F >= 1e-9; held here are the tighter figures below. In float32 a term e
counts as at least 2^-120, and e (m - s) of n such terms as n 2^-120 (m - s): 6e-29 in all at 1100 keys that lie 6e4
below, which is 1e-5 of what is below 6e-24. An exponent of 60 is rounded to 4e-6 in float32.
"""

import numpy as np
import pytest

from sim import rows
from sim.tiles import TILE
from tests import oracle
from tests.measuring import each_row

FACTORS = (1.0, -0.5, 0.0, 3.0)
TOLERANCE = {"float32": 1e-5, "float64": 2e-13}
SMALLEST = {"float32": 1e-23, "float64": 1e-285}  # its square root for ||J||_F: 3e-12 in float32


def kinds_of_rows(n: int) -> dict[str, np.ndarray]:
    """Every kind of row that has gone wrong somewhere, of n keys; the shape is (rows, n)."""
    random = np.random.default_rng(1)
    normal = random.standard_normal((8, n))
    lifted = np.zeros((40, n))
    lifted[np.arange(40), random.integers(n, size=40)] = np.arange(1, 41) * 2.0  # ever more saturated
    one_hot = np.full((6, n), -1e4)
    one_hot[np.arange(6), [0, n - 1, n // 2, n // 3, 1 % n, n - 1]] = 1e4
    return {
        "ordinary": normal,
        "wide": 12 * normal,
        "saturated": lifted + normal[0],
        "hardly saturated at all": 1e-3 * normal,
        "tied": np.round(1.5 * normal),
        "two tied far above": np.where(np.isin(np.arange(n), [0, n - 1]), 50.0, normal),
        "signs": np.where(normal > 0, 8.0, -8.0),
        "all equal": np.repeat([[0.0], [1e4], [-1e4], [0.1]], n, axis=1),
        "one hot": one_hot,
        "around 1e4": 1e4 + normal,
        "around -1e4": -1e4 + 3 * normal,
        "between -1e4 and 1e4": random.uniform(-1e4, 1e4, (8, n)),
    }


def check(found, expected, precision, message):
    """Hold values (rows,) of each name to their tolerance, and those too small for it to that size."""
    for name, values in expected.items():
        smallest = SMALLEST[precision] ** (0.5 if name == "jacobian_frobenius" else 1)
        there = np.abs(values) > smallest
        error = np.abs(found[name] - values)
        assert (error[there] / values[there]).max(initial=0) < TOLERANCE[precision], f"{name} of {message}"
        assert error[~there].max(initial=0) < smallest, f"{name} of {message}"


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 64, TILE, TILE + 1, 1100])
def test_single_rows_agree_with_the_oracle(n, precision):
    for kind, given in kinds_of_rows(n).items():
        scores = given.astype(precision)
        found = each_row(scores, FACTORS)
        for k, factor in enumerate(FACTORS):
            scaled = factor * scores.astype(np.longdouble)
            expected = oracle.row_quantities(scaled)
            if n <= 64:  # the oracle's eigenvalue is that of an explicit matrix
                expected["jacobian_spectral"] = np.array([oracle.spectral(row) for row in scaled])
            of_factor = {name: values[:, k] for name, values in found.items()}
            check(of_factor, expected, precision, f"{kind} rows at {n=}, {factor=}")


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 5, 64, TILE + 40])
def test_causal_rows_are_those_of_the_keys_that_they_see(n, precision):
    """However large the keys are that a row does not see."""
    for kind, given in kinds_of_rows(n).items():
        scores = given.astype(precision)
        visible = np.sort(np.random.default_rng(2).integers(1, n + 1, size=len(scores)))
        scores[np.arange(n) >= visible[:, None]] = 1e4
        found = each_row(scores, FACTORS, visible=visible)
        for k, factor in enumerate(FACTORS):
            for row, count in enumerate(visible):
                scaled = factor * scores[row : row + 1, :count].astype(np.longdouble)
                expected = oracle.row_quantities(scaled)
                if count <= 64:
                    expected["jacobian_spectral"] = np.array([oracle.spectral(scaled[0])])
                of_row = {name: values[row : row + 1, k] for name, values in found.items()}
                check(of_row, expected, precision, f"{kind} rows, {count} keys seen of {n}, {factor=}")


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_promise_holds_for_every_size_of_jacobian_that_it_names(precision):
    """Right to 1e-3 wherever ||J||_F >= 1e-9: rows of every size from there to 1/2, the largest that there is."""
    random = np.random.default_rng(4)
    lifts = np.linspace(0, 28, 200)
    rows = 0.1 * random.standard_normal((200, 40))
    rows[np.arange(200), random.integers(40, size=200)] = lifts
    pairs = np.full((200, 40), -60.0)
    pairs[:, 3], pairs[:, 30] = 0.0, -lifts
    scores = np.concatenate([rows, pairs]).astype(precision)
    found = each_row(scores, (1.0,))
    expected = oracle.row_quantities(scores)
    expected["jacobian_spectral"] = np.array([oracle.spectral(row) for row in scores])
    sizes = expected["jacobian_frobenius"].astype(float)
    assert np.histogram(sizes, [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.51])[0].min() > 10
    check({name: values[:, 0] for name, values in found.items()}, expected, precision, "rows of every size")


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_key_far_below_changes_nothing_and_nothing_overflows(precision):
    row = np.array([[3e4, 3e4, -3e4, 0.0]], precision)
    found = each_row(row, (1.0, 1e3))
    assert np.allclose(found["weight_max"], 0.5)
    assert np.allclose(found["weight_entropy"], np.log(2))
    assert np.allclose(found["weight_sum_squares"], 0.5)
    assert np.allclose(found["jacobian_frobenius_sq"], 0.25)
    assert np.allclose(found["jacobian_trace"], 0.5)
    assert np.allclose(found["jacobian_spectral"], 0.5)


def test_the_weights_and_the_jacobian_of_a_row_of_given_sums():
    # p = (1/2, 1/4, 1/4): the largest key is left out of T1 = 1/2 + 1/2, T2 = 1/4 + 1/4, T3 = 1/8 + 1/8, D = ln 2
    assert rows.weight_max(1.0) == 0.5
    assert rows.sum_squares(1.0, 0.5) == 0.375
    assert rows.trace(1.0, 0.5) == 0.625
    assert rows.frobenius_sq(1.0, 0.5, 0.25) == 0.203125  # sum p^2 = 3/8, sum p^3 = 5/32
    assert rows.weight_entropy(1.0, np.log(2)) == pytest.approx(1.5 * np.log(2), rel=1e-15)
    assert rows.effective_keys(1.5 * np.log(2)) == pytest.approx(2**1.5, rel=1e-14)


def test_a_rise_is_the_sum_about_the_new_maximum():
    s = np.array([0.3, -1.0, 0.9, 2.0, 1.1])
    for delta in (0.0, 1e-9, 0.7, 30.0, 800.0):
        x = s - s.max()
        e = np.exp(np.delete(x, 3))
        t1, t2, t3, d = rows.rise(e.sum(), (e**2).sum(), (e**3).sum(), -(e * np.delete(x, 3)).sum(), delta)
        e, x = np.exp(x - delta), x - delta  # now the old largest key is one of the others
        assert t1 == pytest.approx(e.sum(), rel=1e-14)
        assert t2 == pytest.approx((e**2).sum(), rel=1e-14, abs=1e-300)
        assert t3 == pytest.approx((e**3).sum(), rel=1e-14, abs=1e-300)
        assert d == pytest.approx(-(e * x).sum(), rel=1e-13, abs=1e-300)
