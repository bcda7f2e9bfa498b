"""Expectations over one softmax row of n iid normal scores with standard deviation sigma, by quadrature.

Notation: scores s_j = sigma z_j; p the softmax of the row; J = diag(p) - p p'; y = v + s for a score s, w = e^y;
N and Phi the density and distribution of z. With 1/Z^k = 1/Gamma(k) int t^(k-1) e^(-tZ) dt and v = ln t,

    E sum p^2   = n int B_2 phi^(n-1) dv,                  B_k(v) = E w^k e^-w,   phi(v) = E e^-w
    E tr J      = E sum_ij p_i p_j = n (n-1) int B_1^2 phi^(n-2) dv                               (i != j)
    E ||J||_F^2 = E sum_ij p_i^2 p_j (1 - p_i) + p_i^2 p_j^2
                = n (n-1) int (B_1 B_2 / 2 - B_1 B_3 / 6 + B_2^2 / 6) phi^(n-2) dv
    E entropy   = n int E[(psi(1) - y) w e^-w] phi^(n-1) dv
    E max p     = n int E[w e^-w G(v, z)^(n-1)] dv,        G(v, z) = E[e^-w'; z' <= z]

These are the integrals of theory.md, arranged so that nothing large cancels in a saturated row: the Jacobian over
pairs of keys, the entropy as -d/dk E sum p^k at k = 1. In the last, t of theory.md is w, so that G serves all z
of one v. The outer integral is a trapezoid: its integrand is analytic and falls off at both ends, so the error
falls geometrically. The inner ones are panels of Gauss-Legendre nodes, in z while e^-w is the smoother factor
(small sigma), in y else.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

__all__ = ["RowIntegrals", "row_integrals"]

Array = np.ndarray

_NEGLIGIBLE = 37.0  # e^-37 is 1e-16
_IN_SCORES = 2.5  # below this sigma the inner integrals run over z, above over y
_STEP = 0.33  # of v, in widths of the integrand: an error of e^(-pi^2 / 0.33)
_PANEL_NODES = 10
# (from, to, width); the normal law is below 1e-18 outside, and so is w e^-w
_Z_PANELS = ((-9.0, 9.5, 0.5),)
_Y_PANELS = ((-40.0, -12.0, 2.0), (-12.0, 5.0, 1.0))


class RowIntegrals(NamedTuple):
    """Expectations of max p, the entropy (nats), sum p^2, ||J||_F^2 and tr J."""

    weight_max: float
    weight_entropy: float
    weight_sum_squares: float
    jacobian_frobenius_sq: float
    jacobian_trace: float


class _Panels(NamedTuple):
    """Composite Gauss-Legendre: points, weights, half a panel's width, integrals from a panel's left end."""

    points: Array
    weights: Array
    half: Array
    partial: Array

    def up_to(self, values: Array) -> Array:
        """Return the integral of `values` (..., x) from the left end up to every point."""
        split = (values * self.half).reshape(*values.shape[:-1], -1, _PANEL_NODES)
        whole = split @ (self.weights[:_PANEL_NODES] / self.half[0])
        before = np.cumsum(whole, axis=-1) - whole
        return (split @ self.partial + before[..., None]).reshape(values.shape)


@cache
def _panels(runs: tuple[tuple[float, float, float], ...]) -> _Panels:
    x, weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    # integrals of the Lagrange polynomials from -1 to each node, by the antiderivatives of Legendre's
    vandermonde = np.polynomial.legendre.legvander(x, _PANEL_NODES - 1)
    antiderivative = np.polynomial.legendre.legint(np.eye(_PANEL_NODES), lbnd=-1, axis=0)
    integrals = np.polynomial.legendre.legvander(x, _PANEL_NODES) @ antiderivative
    partial = np.linalg.solve(vandermonde.T, integrals.T)  # (node of the value, node up to which)
    edges = np.concatenate([np.arange(low, high, width) for low, high, width in runs] + [[runs[-1][1]]])
    half = np.diff(edges) / 2
    points = (edges[:-1, None] + half[:, None] * (x + 1)).ravel()
    return _Panels(points, np.outer(half, weights).ravel(), np.repeat(half, _PANEL_NODES), partial)


def _trapezoid(sigma: float, n: int) -> tuple[Array, float]:
    """Return the points and the step in v."""
    from scipy.special import ndtri

    tail = -ndtri(1e-16 / n)
    # n E w falls below e^-37 either by the mean of w, or as no score reaches beyond sigma * tail
    low = max(-math.log(n) - sigma**2 / 2, -sigma * tail) - _NEGLIGIBLE
    highs = [_Y_PANELS[-1][1] + 9 * sigma]  # beyond it every w is so large that e^-w is 0
    if n > 200:  # phi^(n-1) < e^-40, as half of the scores are positive, or as 50 in n reach sigma * z
        highs += [math.log(-math.log1p(-80 / (n - 1))), 1 + sigma * float(ndtri(50 / n))]
    high = min(highs)
    step = _STEP * max(1.0, sigma / math.sqrt(2 * math.log(n) + 2))
    count = math.ceil((high - low) / step) + 1
    return low + step * np.arange(count), step


def row_integrals(sigma: float, n: int) -> RowIntegrals:
    """Return the expectations for n >= 2 scores with sigma > 0, to about 1e-10 relative."""
    v, step = _trapezoid(sigma, n)
    averages, dies, top = (_inner_in_scores if sigma < _IN_SCORES else _inner_in_logs)(v, sigma, n)
    b1, b2, b3, surprise = averages
    log_phi = np.log1p(-np.minimum(dies, 1 - 1e-16))
    others, two_fewer = np.exp((n - 1) * log_phi), np.exp((n - 2) * log_phi)

    def outer(values: Array) -> float:
        return n * step * math.fsum(values)

    # over pairs of different keys: tr J = sum p_i p_j, ||J||_F^2 = sum p_i^2 p_j (1 - p_i) + p_i^2 p_j^2
    pairs = (n - 1) * two_fewer
    return RowIntegrals(
        weight_max=outer(top),
        weight_entropy=outer(surprise * others),
        weight_sum_squares=outer(b2 * others),
        jacobian_frobenius_sq=outer((b1 * b2 / 2 - b1 * b3 / 6 + b2**2 / 6) * pairs),
        jacobian_trace=outer(b1**2 * pairs),
    )


def _kernels(y: Array, w: Array, survives: Array) -> tuple[Array, ...]:
    # w^k e^-w for k = 1, 2, 3, and what averages to the entropy
    first = w * survives
    second = first * w
    return first, second, second * w, (-np.euler_gamma - y) * first


def _power(short: Array, n: int) -> Array:
    # G^(n-1) from 1 - G
    return np.exp((n - 1) * np.log1p(-np.minimum(short, 1 - 1e-16)))


def _inner_in_scores(v: Array, sigma: float, n: int) -> tuple[list[Array], Array, Array]:
    """Return the averages of the kernels, 1 - phi, and E[w e^-w G^(n-1)], each at every v."""
    from scipy.special import ndtr

    panels = _panels(_Z_PANELS)
    z = panels.points
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    weights = density * panels.weights
    y = v[:, None] + sigma * z
    w = np.exp(np.minimum(y, 7.0))  # e^-w is 0 from there on
    dies = -np.expm1(-w)
    kernels = _kernels(y, w, 1 - dies)
    averages = [kernel @ weights for kernel in kernels]
    # all of 1 - G is summed from positive terms, so that n (1 - G) is right for large n
    short = ndtr(-z) + panels.up_to(dies * density)
    return averages, dies @ weights, (kernels[0] * _power(short, n)) @ weights


def _inner_in_logs(v: Array, sigma: float, n: int) -> tuple[list[Array], Array, Array]:
    """Return the same by integrals over y, at whose points the kernels are the same for every v."""
    from scipy.special import ndtr

    panels = _panels(_Y_PANELS)
    y, w = panels.points, np.exp(panels.points)
    kernels = _kernels(y, w, np.exp(-w))
    z = (y - v[:, None]) / sigma
    density = np.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * sigma)
    averages = [density @ (kernel * panels.weights) for kernel in kernels]
    above = ndtr(-z)
    # by parts, so that the step of e^-w becomes a smooth bump: 1 - phi = int w e^-w Phi(-z) dy
    bump = kernels[0] * above
    short = np.exp(-w) * above + panels.up_to(bump)
    return averages, bump @ panels.weights, (density * _power(short, n)) @ (kernels[0] * panels.weights)
