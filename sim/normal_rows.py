"""Exact expectations of weights and Jacobian for Gaussian keys, and the limits that explain their shape.

Given q, independent Gaussian keys make a row of n iid normal scores with standard deviation
sigma = |c| std_k ||q||, whatever their common mean (softmax ignores it). So every expectation over Q and K is
one over rows of a given sigma (:mod:`sim.row_integrals`), averaged over the law of ||q||.

As functions of x = sigma / (sigma + 2) the logarithms of the row's expectations are smooth on all of [0, 1], once
what vanishes as 1 / sigma is divided by 1 - x. Chebyshev's interpolation then converges geometrically: one grid
of 26 + 5 ln n points serves every sigma, from 0 to infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from threadpoolctl import threadpool_limits

from sim.cell import Cell, Side
from sim.row_integrals import RowIntegrals, row_integrals

__all__ = [
    "NormLaw",
    "key_gradient_theory",
    "norm_law",
    "normal_rows",
    "query_gradient_limit",
    "row_limits",
    "row_theory",
]

Array = np.ndarray

_HALFWAY = 2.0  # the sigma at x = 1/2; 4 takes a fifth more points
_VANISHING = np.array([0.0, 1.0, 0.0, 1.0, 1.0])  # the fields of RowIntegrals that fall as 1 / sigma


@cache
def _coefficients(n: int) -> Array:
    """Return the Chebyshev coefficients (degree, field) on the grid of n >= 2 scores."""
    count = 26 + round(5 * math.log(n))
    nodes = np.cos(math.pi * (np.arange(count) + 0.5) / count)
    x = (1 + nodes) / 2
    with threadpool_limits(1, user_api="blas"):  # the same bits for any number of threads
        values = np.array([row_integrals(_HALFWAY * at / (1 - at), n) for at in x])
    logs = np.log(values) - _VANISHING * np.log1p(-x)[:, None]
    angles = np.arange(count)[:, None] * np.arccos(nodes)
    scale = np.where(np.arange(count) == 0, 1, 2) / count
    return np.einsum("kj,jf,k->kf", np.cos(angles), logs, scale)


def normal_rows(sigma: Array, n: int) -> Array:
    """Return the expectations of rows of n iid normal scores, to 1e-8 relative (n below 10^6; 1e-7 to 2^31).

    Parameters
    ----------
    sigma : array
        Standard deviations of at least 0, infinity included.
    n : int
        Number of keys, at least 1.

    Returns
    -------
    array (5, *sigma.shape)
        In the order of :class:`sim.row_integrals.RowIntegrals`.
    """
    sigma = np.asarray(sigma, float)
    uniform = np.array([1 / n, math.log(n), 1 / n, (1 - 1 / n) / n, 1 - 1 / n])
    uniform = np.broadcast_to(uniform.reshape(5, *[1] * sigma.ndim), (5, *sigma.shape))
    if n == 1:
        return uniform.copy()
    rest = _HALFWAY / (_HALFWAY + sigma)  # 1 - x
    logs = chebyshev.chebval(1 - 2 * rest, _coefficients(n))
    vanishing = _VANISHING.reshape(5, *[1] * sigma.ndim)
    return np.where(sigma == 0, uniform, np.exp(logs) * rest**vanishing)


@dataclass(frozen=True)
class NormLaw:
    """A law of ||q|| as a quadrature: points and weights that sum to 1."""

    norms: Array
    weights: Array


def norm_law(side: Side, d: int) -> NormLaw | None:
    """Return the law of a vector's length, None where it is not known in closed form."""
    if abs(side.mean) >= 1e8 * side.std:  # a relative spread below 1e-8, or none
        return _point(abs(side.mean) * math.sqrt(d))
    if side.law.kind == "gaussian":
        return _scaled(_normal_norm(d, side.mean / side.std), side.std)
    if side.law.kind == "rademacher":
        return _scaled(_sign_norm(d, side.mean / side.std), side.std)
    return None


def _point(norm: float) -> NormLaw:
    return NormLaw(np.array([norm]), np.ones(1))


def _scaled(law: NormLaw, factor: float) -> NormLaw:
    return NormLaw(law.norms * factor, law.weights)


@lru_cache(4096)
def _normal_norm(d: int, shift: float) -> NormLaw:
    """||z + shift|| for d standard normals z: the root of a noncentral chi-square, lambda = d shift^2."""
    noncentrality = d * shift**2
    if d + noncentrality < 1000:
        return _chi(d, noncentrality)
    # narrow: Gauss's rule from the cumulants 2^(r-1) (r-1)! (d + r lambda), exact to 11th powers of ||q||^2
    orders = range(1, 2 * _GAUSS_NODES + 1)
    mean, *cumulants = [2 ** (r - 1) * math.factorial(r - 1) * (d + r * noncentrality) for r in orders]
    std = math.sqrt(cumulants[0])
    x, weights = _gauss([k / std**r for r, k in enumerate(cumulants, start=2)])
    return NormLaw(np.sqrt(mean + std * x), weights)


_GAUSS_NODES = 6


def _gauss(cumulants: list[float]) -> tuple[Array, Array]:
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
    return x, vectors[0] ** 2


def _chi(d: int, noncentrality: float) -> NormLaw:
    """Integrate over y = ln ||q|| by the trapezoid; the density is a Poisson mixture of chi's of d + 2j degrees."""
    from scipy.special import gammaln

    radius = math.sqrt(d + noncentrality)
    # ||.|| is Lipschitz, so it deviates less than one normal; and Chernoff's bound on the left for small d
    low = max(math.log(d) / 2 - 6 / math.sqrt(d) - 36 / d, math.log(max(radius - 10, 1e-300)))
    step = min(0.1, 0.4 / radius)
    y = np.arange(low, math.log(radius + 9), step)
    half = noncentrality / 2
    j = np.arange(math.ceil(max(0, half - 9 * math.sqrt(half))), 1 + half + 9 * math.sqrt(half) + 20 * (half > 0))
    k = d + 2 * j
    log_constant = j * math.log(half or 1) - gammaln(j + 1) - half - k / 2 * math.log(2) - gammaln(k / 2)
    density = np.exp(log_constant + k * y[:, None] - np.exp(2 * y[:, None]) / 2).sum(axis=1)
    return NormLaw(np.exp(y), density / density.sum())


@lru_cache(4096)
def _sign_norm(d: int, shift: float) -> NormLaw:
    """||r + shift|| for d signs r: ||.||^2 = d (1 + shift^2) + 2 shift (2 B - d), B binomial(d, 1/2)."""
    from scipy.special import gammaln

    if shift == 0:
        return _point(math.sqrt(d))
    # a stride of half a standard deviation changes no average of a smooth function (Poisson's summation)
    stride = max(1, int(math.sqrt(d) / 4))
    reach = min(d // 2, int(5 * math.sqrt(d))) // stride * stride
    b = np.arange(d // 2 - reach, min(d, d // 2 + reach + stride) + 1, stride)
    log_weight = -gammaln(b + 1) - gammaln(d - b + 1)
    weights = np.exp(log_weight - log_weight.max())
    norms = np.sqrt(b * (1 + shift) ** 2 + (d - b) * (1 - shift) ** 2)
    return NormLaw(norms, weights / weights.sum())


def _row_law(cell: Cell, factor: float) -> NormLaw | None:
    """Return the law of the standard deviation of a row's scaled scores, None where rows are not normal."""
    if cell.causal and cell.n_queries > 1:  # its rows are of different lengths
        return None
    if cell.n_keys == 1 or factor == 0 or cell.key.std == 0:  # all scores of a row are equal
        return _point(0.0)
    law = norm_law(cell.query, cell.d_k) if cell.key.law.kind == "gaussian" else None
    return _scaled(law, abs(factor) * cell.key.std) if law else None


def row_theory(cell: Cell, factor: float) -> RowIntegrals | None:
    """Return the exact expectations of a cell's rows, None where none are known.

    Parameters
    ----------
    cell : Cell
    factor : float
        Of a linear scale.
    """
    law = _row_law(cell, factor)
    if law is None:
        return None
    return RowIntegrals(*(normal_rows(law.norms, cell.n_keys) * law.weights).sum(axis=1).tolist())


def key_gradient_theory(cell: Cell, factor: float) -> float:
    """Return E ||dL/dk||^2, averaged over standard normal dL/dp: factor^2 n_queries / n_keys E ||q||^2 ||J||_F^2.

    NaN where it is not known.
    """
    law = norm_law(cell.query, cell.d_k)
    if _row_law(cell, factor) is None or law is None:
        return math.nan
    frobenius_sq = normal_rows(abs(factor) * cell.key.std * law.norms, cell.n_keys)[3]
    mean = float((law.weights * law.norms**2 * frobenius_sq).sum())
    return factor**2 * cell.n_queries / cell.n_keys * mean


def query_gradient_limit(cell: Cell, factor: float) -> float:
    """Return the part of E ||dL/dq||^2 across the query, factor^2 std_k^2 (d - 1) E ||J||_F^2, of Gaussian keys.

    A lower bound, from 32 elements on within 5 % in the root, and NaN below.
    """
    rows = row_theory(cell, factor)
    if rows is None or cell.key.law.kind != "gaussian" or cell.d_k < 32:
        return math.nan
    return (factor * cell.key.std) ** 2 * (cell.d_k - 1) * rows.jacobian_frobenius_sq


def row_limits(cell: Cell, factor: float) -> RowIntegrals:
    """Return limiting forms (theory.md), each right to 5 % in its range and NaN outside.

    Below the threshold sqrt(2 ln n): entropy ln n - sigma^2 / 2, sum p^2 = e^(sigma^2) / n, tr J = 1 - sum p^2.
    Frozen, with m = n (n - 1) / sigma int N(z)^2 Phi(z)^(n-2) dz: tr J = m, sum p^2 = 1 - m, entropy =
    psi(1) - psi(1 - m), ||J||_F^2 = m (1 - m) / 3. Averaged over the law of sigma where all but 1e-5 of the rows
    are in range. None is known for the largest weight.
    """
    from scipy.special import psi

    n, law = cell.n_keys, _row_law(cell, factor)
    if law is None:
        return RowIntegrals(*[math.nan] * 5)
    sigma = law.norms
    with np.errstate(over="ignore", divide="ignore"):
        m = np.minimum(_frozen_mass(n) / sigma, 0.99)  # whatever lies above is out of range
        squares = np.exp(sigma**2) / n
    spread = {
        "weight_entropy": math.log(n) - sigma**2 / 2,
        "weight_sum_squares": squares,
        "jacobian_trace": 1 - squares,
    }
    frozen = {
        "weight_entropy": psi(1) - psi(1 - m),
        "weight_sum_squares": 1 - m,
        "jacobian_frobenius_sq": m * (1 - m) / 3,
        "jacobian_trace": m,
    }
    found = dict.fromkeys(RowIntegrals._fields, math.nan)
    for forms, ranges, side in ((spread, _SPREAD_UP_TO, 1), (frozen, _FROZEN_FROM, -1)):
        for name, values in forms.items():
            inside = side * sigma <= side * _range_end(ranges[name], n)
            share = law.weights[inside].sum()
            if share > 1 - 1e-5:
                found[name] = float((values * law.weights)[inside].sum() / share)
    return RowIntegrals(**found)


# (n, sigma): where the spread forms end and the frozen ones begin, each checked against the exact values for n
# at and between the points; linear in ln n between them.
_Range = tuple[tuple[int, float], ...]
_SQUARES_UP_TO = ((64, 0.75), (128, 0.87), (1024, 1.25), (16384, 1.75), (2**31, 1.75))
_SPREAD_UP_TO: dict[str, _Range] = {
    "weight_entropy": ((64, 1.5), (128, 1.6), (1024, 2.25), (16384, 2.9), (2**31, 2.9)),
    "weight_sum_squares": _SQUARES_UP_TO,
    "jacobian_trace": _SQUARES_UP_TO,
}
_FROZEN_FROM: dict[str, _Range] = {
    "weight_entropy": ((2, 11.0), (4096, 11.0), (10**6, 12.0)),
    "weight_sum_squares": ((2, 5.0), (64, 5.0), (1024, 6.0), (16384, 7.0), (10**6, 8.0)),
    "jacobian_frobenius_sq": ((2, 11.0), (10**6, 11.0)),
    "jacobian_trace": ((2, 5.2), (64, 5.2), (16384, 6.1), (10**6, 7.0)),
}


def _range_end(ends: _Range, n: int) -> float:
    """Return the end of a range; NaN for n beyond the points, so that nothing is inside."""
    counts, sigmas = np.array(ends).T
    return float(np.interp(math.log(n), np.log(counts), sigmas, math.nan, math.nan))


@cache
def _frozen_mass(n: int) -> float:
    """Return n (n - 1) int N(z)^2 Phi(z)^(n-2) dz: sigma times the mass outside the largest key."""
    from scipy.special import log_ndtr

    step = 0.05
    z = np.arange(-9, 10, step)
    log_density = -(z**2) / 2 - math.log(2 * math.pi) / 2
    return n * (n - 1) * step * math.fsum(np.exp(2 * log_density + (n - 2) * log_ndtr(z)))
