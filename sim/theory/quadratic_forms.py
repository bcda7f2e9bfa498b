"""The law of a positive quadratic form in normal variables, Q = sum_i l_i (z_i + d_i)^2, as a quadrature.

Its cumulant function is K(s) = sum_i -ln(1 - 2 l_i s) / 2 + d_i^2 l_i s / (1 - 2 l_i s). A narrow law is Gauss's rule
of its cumulants (Golub and Welsch 1969). Else the density comes from the inversion integral through the saddlepoint,
K'(s) = x, along a hyperbola about the cut of K, close to the path of steepest descent (Rice 1980; Weideman and
Trefethen 2007): integrand and density are analytic and die at both ends, so that the trapezoid rule converges
geometrically in both. Averages of smooth functions are right to 1e-9.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

__all__ = ["Quadrature", "gauss_rule", "quadratic_form"]

Array = np.ndarray

_GAUSS_NODES = 6
_NARROW = 2 / 1000  # relative variance up to which Gauss's rule will do
_STEP = 0.2  # of the outer integral, in local standard deviations
_ANGLE = 1.2  # of the inner integral's hyperbola
_CONTOUR_STEP = 0.1


class Quadrature(NamedTuple):
    """Points and weights that sum to 1."""

    points: Array
    weights: Array


def quadratic_form(factors: Array, counts: Array, shifts: Array) -> Quadrature:
    """Return the law of Q.

    Parameters
    ----------
    factors : array (terms,)
        l, positive.
    counts : array (terms,)
        How many squares have this factor.
    shifts : array (terms,)
        The sum of d^2 over these squares.
    """
    factors, counts, shifts = _compressed(factors, counts, shifts)
    cumulants = [
        2 ** (r - 1) * math.factorial(r - 1) * float(factors**r @ (counts + r * shifts))
        for r in range(1, 2 * _GAUSS_NODES + 1)
    ]
    mean, variance = cumulants[:2]
    if variance < _NARROW * mean**2:
        std = math.sqrt(variance)
        x, weights = gauss_rule([k / std**r for r, k in enumerate(cumulants[1:], start=2)])
        return Quadrature(mean + std * x, weights)
    return _inverted(factors / mean, counts, shifts, mean)


def gauss_rule(cumulants: list[float]) -> Quadrature:
    """Return Gauss's rule for a law of mean 0 and the cumulants from the second on (Golub and Welsch 1969)."""
    moments = [1.0]
    for r in range(1, 2 * _GAUSS_NODES + 1):
        moments.append(sum(math.comb(r - 1, i - 1) * cumulants[i - 2] * moments[r - i] for i in range(2, r + 1)))
    index = np.arange(_GAUSS_NODES + 1)
    upper = np.linalg.cholesky(np.array(moments)[index[:, None] + index]).T
    diagonal, beside = np.diag(upper), np.diag(upper, 1)
    ratio = beside / diagonal[:-1]
    alpha = np.diff(ratio, prepend=0.0)
    beta = diagonal[1:-1] / diagonal[:-2]
    x, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(beta, 1) + np.diag(beta, -1))
    return Quadrature(x, vectors[0] ** 2)


def _compressed(factors: Array, counts: Array, shifts: Array) -> tuple[Array, Array, Array]:
    """Return fewer terms of the same law: many factors within a tenth become three, by Gauss's rule for their sums.

    Not those near the largest, next to whose pole K must be right; factors below 1e-12 of it are left out.
    """
    keep = factors > factors.max() * 1e-12
    factors, counts, shifts = (np.asarray(x, float)[keep] for x in (factors, counts, shifts))
    bins = np.floor(np.log(factors.max() / factors) / math.log(1.1))
    bins[factors > factors.max() / 4] = -1
    found = [(factors[bins < 0], counts[bins < 0], shifts[bins < 0])]
    for at in np.unique(bins[bins >= 0]):
        inside = bins == at
        terms = factors[inside], counts[inside], shifts[inside]
        found.append(_three_terms(*terms) if inside.sum() > 3 else terms)
    of_factors, of_counts, of_shifts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return of_factors, of_counts, of_shifts


def _three_terms(factors: Array, counts: Array, shifts: Array) -> tuple[Array, Array, Array]:
    middle, half = (factors.max() + factors.min()) / 2, (factors.max() - factors.min()) / 2
    if half < 1e-12 * middle:
        return factors[:1], counts.sum(keepdims=True), shifts.sum(keepdims=True)
    u = (factors - middle) / half
    powers = u ** np.arange(6)[:, None]
    moments = powers @ counts / counts.sum()
    upper = np.linalg.cholesky(moments[np.add.outer(range(3), range(3))]).T
    # the orthogonal polynomial of degree 3 over 1, u, u^2: its roots are the nodes
    rest = np.linalg.solve(upper.T @ upper, -moments[3:6])
    nodes = np.sort(np.roots([1.0, *rest[::-1]]).real)
    inverse = np.linalg.inv(nodes ** np.arange(3)[:, None])
    return middle + half * nodes, inverse @ (powers[:3] @ counts), inverse @ (powers[:3] @ shifts)


class _Cumulant:
    """K and its derivatives at real or complex s, of terms on the last axis."""

    def __init__(self, factors: Array, counts: Array, shifts: Array) -> None:
        self.factors, self.counts, self.shifts = factors, counts, shifts

    def __call__(self, s: Array) -> Array:
        rest = 1 - 2 * np.multiply.outer(s, self.factors)
        return (-self.counts / 2 * np.log(rest) + self.shifts / 2 * (1 / rest - 1)).sum(axis=-1)

    def derivative(self, order: int, s: Array) -> Array:
        ratio = 2 * self.factors / (1 - 2 * np.multiply.outer(s, self.factors))
        powers = ratio**order * (self.counts + order * self.shifts * (ratio / (2 * self.factors)))
        return math.factorial(order - 1) / 2 * powers.sum(axis=-1)


def _inverted(factors: Array, counts: Array, shifts: Array, unit: float) -> Quadrature:
    cumulant = _Cumulant(factors, counts, shifts)
    s = _saddlepoints(cumulant)
    x = cumulant.derivative(1, s)
    second = cumulant.derivative(2, s)
    size = np.minimum(1 / (2 * factors.max()) - s, 2 / np.sqrt(second))
    density = np.zeros_like(x)
    v = _CONTOUR_STEP / 2
    while v < 25:
        # s + size (cosh (v + i phi) - cos phi), and its derivative by v
        path = s + size * (np.cosh(v + 1j * _ANGLE) - math.cos(_ANGLE))
        values = (np.exp(cumulant(path) - path * x) * size * np.sinh(v + 1j * _ANGLE)).imag
        density += values
        v += _CONTOUR_STEP
        if (abs(values) < 1e-17 * abs(density)).all():
            break
    # the points are evenly spaced in a variable by which x grows at the rate sqrt(K'')
    weights = density * np.sqrt(second)
    return Quadrature(unit * x, weights / weights.sum())


def _saddlepoints(cumulant: _Cumulant) -> Array:
    """Return saddlepoints at even steps of the variable t with ds/dt = 1 / sqrt(K''), where the density is not 0."""
    end = 1 / (2 * cumulant.factors.max())
    found = []
    for sign in (1, -1):
        s, points = 0.0, []
        while True:
            at = np.array(s)
            log_density = float(cumulant(at) - s * cumulant.derivative(1, at))
            if log_density < -40:
                break
            points.append(s)
            s = _advance(cumulant, s, sign * _STEP, end)
        found.append(points)
    return np.array(found[1][:0:-1] + found[0])


def _advance(cumulant: _Cumulant, s: float, step: float, end: float) -> float:
    """Return s a step of t further, by Runge and Kutta's method for the logarithm of the distance from the pole."""
    parts = 8

    def slope(log_rest: float) -> float:
        rest = math.exp(log_rest)
        return -1 / (rest * math.sqrt(float(cumulant.derivative(2, np.array(end - rest)))))

    y, h = math.log(end - s), step / parts
    for _ in range(parts):
        a = slope(y)
        b = slope(y + h / 2 * a)
        c = slope(y + h / 2 * b)
        d = slope(y + h * c)
        y += h / 6 * (a + 2 * b + 2 * c + d)
    return end - math.exp(y)
