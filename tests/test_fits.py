"""Weighted straight lines: least squares by another route, honest intervals, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from sim.fits import weighted_line

X = np.log(2.0 ** np.arange(3, 11))
SE = np.array([0.08, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01])
FREEDOM = np.full(8, 62.0)


def test_points_on_a_line_give_the_line() -> None:
    line = weighted_line(X, 2 - 3 * X, SE, FREEDOM)
    np.testing.assert_allclose([line.intercept, line.slope, line.chi_square], [2, -3, 0], atol=1e-12)


def test_it_is_numpy_s_weighted_least_squares() -> None:
    y = X + np.random.default_rng(1).normal(0, SE)
    (slope, intercept), covariance = np.polyfit(X, y, 1, w=1 / SE, cov="unscaled")
    line = weighted_line(X, y, SE, FREEDOM)
    np.testing.assert_allclose([line.slope, line.intercept], [slope, intercept], rtol=1e-10)
    np.testing.assert_allclose(line.slope_se, np.sqrt(covariance[0, 0]), rtol=1e-10)
    np.testing.assert_allclose(line.chi_square, (((y - slope * X - intercept) / SE) ** 2).sum(), rtol=1e-10)


def test_degrees_of_freedom_are_one_point_s_or_all_together() -> None:
    # With two points at equal errors each carries half the variance: Satterthwaite gives the sum.
    assert weighted_line([0, 1], [0, 1], [0.1, 0.1], [7, 7]).freedom == pytest.approx(14)
    assert weighted_line([0, 1], [0, 1], [0.1, 1e-4], [7, 7]).freedom == pytest.approx(7, rel=1e-5)


def test_intervals_cover_when_the_errors_are_themselves_measured() -> None:
    """Nominal 95 %; measured weights cost up to 0.6 %. Limits: the binomial's at a false-alarm rate of 1e-6."""
    rng, lines = np.random.default_rng(2), []
    for _ in range(4000):
        se = SE * np.sqrt(rng.chisquare(62, 8) / 62)
        lines.append(weighted_line(X, rng.normal(0, SE), se, FREEDOM))
    slope, se, freedom = np.array([(line.slope, line.slope_se, line.freedom) for line in lines]).T
    covered = (abs(slope) < t.ppf(0.975, freedom) * se).mean()
    slack = 4.9 * np.sqrt(0.95 * 0.05 / len(lines))
    assert 0.944 - slack < covered < 0.95 + slack


def test_half_width_is_student_s_t() -> None:
    line = weighted_line([0, 1], [0, 1], [0.1, 0.1], [5, 5])
    assert line.half_width() == pytest.approx(2.2281 * np.hypot(0.1, 0.1), rel=1e-4)  # table: 10 degrees of freedom


@pytest.mark.parametrize("se", [[0.1, 0.0], [0.1, np.nan]])
def test_a_point_without_an_error_is_refused(se: list[float]) -> None:
    with pytest.raises(ValueError, match="every point needs a standard error above 0"):
        weighted_line([0, 1], [0, 1], se, [5, 5])


def test_one_place_makes_no_line() -> None:
    with pytest.raises(ValueError, match="a line needs two different values"):
        weighted_line([1, 1], [0, 1], [0.1, 0.1], [5, 5])
