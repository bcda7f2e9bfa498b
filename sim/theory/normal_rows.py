"""Exact expectations of weights and Jacobian for Gaussian keys, and the limits that explain their shape.

Given q, independent Gaussian keys make a row of n iid normal scores with standard deviation
sigma = |c| std_k (q'S q)^(1/2), S their covariance, whatever they have in common (softmax ignores it). So every
expectation over Q and K is one over rows of a given sigma (:mod:`sim.theory.row_integrals`), averaged over the law of
that length (:mod:`sim.theory.norm_laws`).

As functions of x = sigma / (sigma + 2) the logarithms of the row's expectations are smooth on all of [0, 1], once
what vanishes as 1 / sigma is divided by 1 - x. Chebyshev's interpolation then converges geometrically: one grid
of 26 + 5 ln n points serves every sigma, from 0 to infinity.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev

from sim.blas import one_blas_thread
from sim.cell import Cell
from sim.scales import Rule
from sim.theory.directions import linear
from sim.theory.norm_laws import NormLaw, length_law, norm_law, point
from sim.theory.row_integrals import RowIntegrals, row_integrals

__all__ = [
    "key_gradient_theory",
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
    with one_blas_thread():
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
        In the order of :class:`sim.theory.row_integrals.RowIntegrals`.
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


def _factor(cell: Cell, rule: Rule) -> float | None:
    """Return what all scores are multiplied by; None where rows differ in it or in length, or it is not a factor."""
    if rule.cap != math.inf or (cell.causal and cell.n_queries > 1):
        return None
    return rule.factor * math.log(cell.n_keys) if rule.log_n else rule.factor


def _row_law(cell: Cell, rule: Rule) -> NormLaw | None:
    """Return the law of the standard deviation of a row's scaled scores, None where rows are not normal."""
    factor = _factor(cell, rule)
    if factor is None:
        return None
    if cell.n_keys == 1 or factor == 0:
        return point(0.0)
    if not cell.has_vectors:
        return point(abs(factor)) if cell.score.get("law").kind == "gaussian" else None
    law = _seen_query(cell)
    return law.scaled(abs(factor) * _own_part(cell)) if law else None


def _own_part(cell: Cell) -> float:
    """Return the standard deviation of a key's elements about what it shares with the other keys."""
    if cell.pair.kind == "paired" and cell.pair.get("rho"):
        return cell.key.std
    tokens = cell.key.tokens.rho if cell.key.tokens else 0.0
    shared = cell.pair.get("rho") if cell.pair.kind == "shared" else 0.0
    return cell.key.std * math.sqrt((1 - tokens) * (1 - shared))


def _seen_query(cell: Cell) -> NormLaw | None:
    """Return the law of the query's length as the keys' covariance sees it, None unless rows are normal given it."""
    key = cell.key
    if cell.score.kind != "dot" or cell.projection:
        return None
    if _own_part(cell) == 0 and not key.rotation:  # all scores of a row are equal
        return point(0.0)
    if key.law.kind != "gaussian" or {key.dependent.kind, key.normalize.kind} != {"none"}:
        return None
    if cell.pair.kind == "paired" and cell.pair.get("rho"):
        return None
    if cell.query.rotation or key.rotation:
        common = key.mean or _own_part(cell) != key.std
        if key.within.kind != "none" or (key.rotation and common):
            return None
    query = linear(cell, cell.query)
    if cell.pair.kind == "shared" and cell.pair.get("rho"):
        query = cell.query
        if query.law.kind != "gaussian" or {query.dependent.kind, query.normalize.kind} != {"none"}:
            return None
    if query is None:
        return length_law(cell, cell.query) if key.within.kind == "none" else None
    return norm_law(query, cell.d_k, key.within)


def row_theory(cell: Cell, rule: Rule) -> RowIntegrals | None:
    """Return the exact expectations of a cell's scaled rows, None where none are known."""
    law = _row_law(cell, rule)
    if law is None:
        return None
    return RowIntegrals(*(normal_rows(law.norms, cell.n_keys) * law.weights).sum(axis=1).tolist())


def key_gradient_theory(cell: Cell, rule: Rule) -> float:
    """Return E ||dL/dk||^2, averaged over standard normal dL/dp: factor^2 n_queries / n_keys E ||q||^2 ||J||_F^2.

    NaN where it is not known, as where ||q|| and the scores' standard deviation are not one another's multiples.
    """
    factor, rows = _factor(cell, rule), _row_law(cell, rule)
    if factor is None or rows is None or not cell.has_vectors or cell.projection:
        return math.nan
    length = length_law(cell, cell.query)
    if length is None or (cell.query.dependent.kind == "magnitude" and cell.query.dependent.get("df") <= 2):
        return math.nan
    if cell.key.within.kind == "none":
        sigma = abs(factor) * _own_part(cell) * length.norms
    elif len(rows.norms) == 1:
        sigma = rows.norms
    else:
        return math.nan
    frobenius_sq = normal_rows(sigma, cell.n_keys)[3]
    mean = float((length.weights * length.norms**2 * frobenius_sq).sum())
    return factor**2 * cell.n_queries / cell.n_keys * mean


def query_gradient_limit(cell: Cell, rule: Rule) -> float:
    """Return the part of E ||dL/dq||^2 across the query, factor^2 std_k^2 (d - 1) E ||J||_F^2, of Gaussian keys.

    A lower bound, from 32 elements on within 5 % in the root, and NaN below. Of keys that share a part, std_k is that
    of the rest.
    """
    factor, rows = _factor(cell, rule), row_theory(cell, rule)
    if factor is None or rows is None or not cell.has_vectors or cell.d_k < 32:
        return math.nan
    if (cell.key.law.kind, cell.key.within.kind) != ("gaussian", "none"):
        return math.nan
    return (factor * _own_part(cell)) ** 2 * (cell.d_k - 1) * rows.jacobian_frobenius_sq


def row_limits(cell: Cell, rule: Rule) -> RowIntegrals:
    """Return limiting forms (theory.md), each right to 5 % in its range and NaN outside.

    Below the threshold sqrt(2 ln n): entropy ln n - sigma^2 / 2, sum p^2 = e^(sigma^2) / n, tr J = 1 - sum p^2.
    Frozen, with m = n (n - 1) / sigma int N(z)^2 Phi(z)^(n-2) dz: tr J = m, sum p^2 = 1 - m, entropy =
    psi(1) - psi(1 - m), ||J||_F^2 = m (1 - m) / 3. Averaged over the law of sigma where all but 1e-5 of the rows
    are in range. None is known for the largest weight.
    """
    from scipy.special import psi

    n, law = cell.n_keys, _row_law(cell, rule)
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
