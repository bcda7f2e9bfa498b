"""Single rows of given raw scores against the oracle: weights that cancel nowhere, in both precisions.

The promise is 1e-3 relative wherever a quantity is representable; held here are the tighter figures
below. In float32 a term e^x is at least e^-87, which n keys make visible (to 1e-5) below 1e-28.
"""

import numpy as np
import pytest

from sim import rows
from sim.tiles import TILE
from tests import oracle
from tests.measuring import each_row

FACTORS = (1.0, 0.125, -0.5, 0.0, 130**-0.5, 3.0)
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
SMALLEST = {"float32": 1e-28, "float64": 1e-300}


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


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 64, TILE - 1, TILE, TILE + 1, 1300])
def test_single_rows_agree_with_the_oracle(n, precision):
    for kind, given in kinds_of_rows(n).items():
        scores = given.astype(precision)
        found = each_row(scores, FACTORS)
        for k, factor in enumerate(FACTORS):
            expected = oracle.row_quantities(factor * scores.astype(np.longdouble))
            for name, values in expected.items():
                there = np.abs(values) > SMALLEST[precision]
                error = np.abs(found[name][:, k] - values)
                relative = error[there] / values[there]
                message = f"{name} of {kind} rows at {n=}, {factor=}"
                assert relative.max(initial=0) < TOLERANCE[precision], message
                assert error[~there].max(initial=0) < SMALLEST[precision], message


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_key_far_below_changes_nothing_and_nothing_overflows(precision):
    row = np.array([[3e4, 3e4, -3e4, 0.0]], precision)
    found = each_row(row, (1.0, 1e3))
    assert np.allclose(found["weight_max"], 0.5)
    assert np.allclose(found["weight_entropy"], np.log(2))
    assert np.allclose(found["weight_sum_squares"], 0.5)


def test_the_weights_of_a_row_of_given_sums():
    # p = (1/2, 1/4, 1/4): the largest key is left out of T1 = 1/2 + 1/2, T2 = 1/4 + 1/4, D = ln 2
    assert rows.weight_max(1.0) == 0.5
    assert rows.sum_squares(1.0, 0.5) == 0.375
    assert rows.weight_entropy(1.0, np.log(2)) == pytest.approx(1.5 * np.log(2), rel=1e-15)
    assert rows.effective_keys(1.5 * np.log(2)) == pytest.approx(2**1.5, rel=1e-14)


def test_a_rise_is_the_sum_about_the_new_maximum():
    s = np.array([0.3, -1.0, 0.9, 2.0, 1.1])
    for delta in (0.0, 1e-9, 0.7, 30.0, 800.0):
        x = s - s.max()
        e = np.exp(np.delete(x, 3))
        t1, t2, d = rows.rise(e.sum(), (e**2).sum(), -(e * np.delete(x, 3)).sum(), delta)
        e, x = np.exp(x - delta), x - delta  # now the old largest key is one of the others
        assert t1 == pytest.approx(e.sum(), rel=1e-14)
        assert t2 == pytest.approx((e**2).sum(), rel=1e-14, abs=1e-300)
        assert d == pytest.approx(-(e * x).sum(), rel=1e-13, abs=1e-300)
