"""Moments of softly capped scores, g(s) = cap tanh(factor s / cap): exact ones, and limits.

Exact by the scores' distribution where it is known. Else by a normal law of the score's mean and variance, corrected
by its skewness and kurtosis (Edgeworth's series to the order 1/d): right to 5 % where both are below a half.
"""

from __future__ import annotations

import math

import numpy as np

from sim.scales import Rule
from sim.theory.distributions import Binomial, Distribution, NormalMixture
from sim.theory.mixtures import Block, ScoreMoments
from sim.theory.tanh_moments import even_moments

__all__ = ["capped", "capped_limit"]

Array = np.ndarray

_LEAST = 16  # components from which on there are limits,
_LEAST_OF_ROWS = 64  # and of rows that differ in what all their scores have in common
_LARGEST_SHAPE = 0.5  # skewness and excess kurtosis
_MOST = 2**22  # kinds times nodes
_REACH = 9.0


def capped(distribution: Distribution | None, rule: Rule) -> ScoreMoments:
    """Return the exact moments, but for those within rows."""
    slope = abs(rule.factor) / rule.cap
    if isinstance(distribution, NormalMixture):
        second, fourth = (distribution.sigma.weights @ m for m in even_moments(slope * distribution.sigma.norms))
    elif isinstance(distribution, Binomial):
        values, weights = distribution.atoms()
        square = np.tanh(slope * values) ** 2
        second, fourth = weights @ square, weights @ square**2
    else:
        return ScoreMoments()
    return ScoreMoments(
        mean=0.0,
        variance=rule.cap**2 * float(second),
        skewness=0.0 if second > 0 else math.nan,
        excess_kurtosis=float(fourth / second**2 - 3) if second > 0 else math.nan,
    )


def capped_limit(block: Block, rule: Rule, d: int, are_centered: bool, on_lattice: bool) -> ScoreMoments:
    """Return limits of the moments, each right to 5 % where it stands (of the kurtosis itself, not the excess).

    Parameters
    ----------
    block : Block
        Of the raw scores.
    rule : Rule
    d : int
        Components of a vector.
    are_centered : bool
        Whether two scores of a row are uncorrelated, and stay so capped.
    on_lattice : bool
        Whether scores take values so far apart that a steep cap could tell them from a continuous law.
    """
    shares = block.shares.sum(axis=1)
    mean, variance, third, fourth = (np.asarray(value, float) for value in block.kinds)
    if d < _LEAST or not (variance > 0).all():
        return ScoreMoments()
    std, slope = np.sqrt(variance), rule.factor / rule.cap
    skewness, excess = third / std**3, fourth / variance**2
    near_normal = (np.abs(skewness) <= _LARGEST_SHAPE) & (np.abs(excess) <= _LARGEST_SHAPE)
    steep = on_lattice and 2 * abs(slope) * std.max() > math.sqrt(d)
    step = min(0.05, 0.2 / max(1e-300, abs(slope) * std.max()))
    if not near_normal.all() or steep or len(mean) * 2 * _REACH / step > _MOST:
        return ScoreMoments()
    z = np.arange(-_REACH, _REACH + step, step)
    weights = np.exp(-(z**2) / 2)
    weights = weights / weights.sum() * _edgeworth(z, skewness[:, None], excess[:, None])
    values = np.tanh(slope * (mean[:, None] + std[:, None] * z))
    grand = float(shares @ (weights * values).sum(axis=1))
    # in a tail that is capped there is nothing left of the variance but what the series has wrong
    if (np.minimum(abs(slope * mean), 2 * abs(mean) / std) > 1).any():
        return ScoreMoments(mean=rule.cap * grand)
    m2, m3, m4 = (float(shares @ (weights * (values - grand) ** r).sum(axis=1)) for r in (2, 3, 4))
    known = are_centered or d >= _LEAST_OF_ROWS
    return ScoreMoments(
        mean=rule.cap * grand,
        variance=rule.cap**2 * m2,
        row_variance=rule.cap**2 * _row_variance(block, slope, z, m2, are_centered) if known else math.nan,
        skewness=m3 / m2**1.5,
        excess_kurtosis=m4 / m2**2 - 3,
    )


def _edgeworth(z: Array, skewness: Array, excess: Array) -> Array:
    """Return the ratio of the density to the normal one, to the first order in 1/d."""
    he3, he4 = z**3 - 3 * z, z**4 - 6 * z**2 + 3
    he6 = z**6 - 15 * z**4 + 45 * z**2 - 15
    return 1 + skewness / 6 * he3 + excess / 24 * he4 + skewness**2 / 72 * he6


def _row_variance(block: Block, slope: float, z: Array, variance: float, are_centered: bool) -> float:
    """Return E Var of tanh (slope s) across a row: of all, less that of E tanh given what a row has in common."""
    several = block.keys > 1
    if not several.any() or len(block.kinds.mean) > 1:
        return math.nan
    if are_centered:
        return variance
    mean, total = float(block.kinds.mean[0]), float(block.kinds.variance[0])
    within = float(block.row_variances[several][0])
    if not 0 <= within <= total * (1 + 1e-12) or np.ptp(block.row_variances[several]) > 1e-9 * total:
        return math.nan
    coarse = z[:: max(1, len(z) // 400)]
    density = np.exp(-(coarse**2) / 2)
    density /= density.sum()
    common = mean + math.sqrt(max(0.0, total - within)) * coarse
    expected = np.tanh(slope * (common[:, None] + math.sqrt(within) * coarse)) @ density
    return variance - float(density @ expected**2 - (density @ expected) ** 2)
