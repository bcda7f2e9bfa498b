"""The scores of a block as a mixture: kinds of scores, how many of each, and the moments of all of them together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.theory.cumulants import Cumulants
from sim.theory.token_pairs import Rows

__all__ = ["Block", "ScoreMoments", "block_of_kinds"]

Array = np.ndarray


@dataclass(frozen=True)
class ScoreMoments:
    """Moments of the scores of a block; NaN where one is not known, or not finite.

    Attributes
    ----------
    mean, variance, skewness, excess_kurtosis : float
        Of all scores together, the variance about the grand mean.
    row_variance : float
        Expectation of the variance across the keys of one row, n - 1 in the denominator; NaN for a single key.
    """

    mean: float = math.nan
    variance: float = math.nan
    row_variance: float = math.nan
    skewness: float = math.nan
    excess_kurtosis: float = math.nan

    @property
    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class Block:
    """The scores of a block.

    Attributes
    ----------
    kinds : Cumulants of arrays (kinds,)
    shares : array (kinds, classes)
        Of the block's scores, by classes of rows; of one class where nothing is known of single rows.
    keys, weights, row_variances : array (classes,)
        Keys of a row, how many rows there are, and the variance across the keys.
    """

    kinds: Cumulants
    shares: Array
    keys: Array
    weights: Array
    row_variances: Array

    def moments(self, factors: Array | float = 1.0) -> ScoreMoments:
        """Return the moments of the scores, those of each class of rows multiplied by a factor."""
        factors = np.broadcast_to(np.asarray(factors, float), self.weights.shape)
        mean, variance, third, fourth = (float(value) for value in self._pooled(factors))
        varies = variance > 0
        return ScoreMoments(
            mean=mean,
            variance=variance,
            row_variance=self._row_variance(factors),
            skewness=third / variance**1.5 if varies else math.nan,
            excess_kurtosis=fourth / variance**2 if varies else math.nan,
        )

    def _pooled(self, factors: Array) -> Cumulants:
        alike = (factors == factors[0]).all()
        if len(self.shares) == 1 and alike:
            return Cumulants(*(factors[0] ** r * value[0] for r, value in enumerate(self.kinds, start=1)))
        if alike:
            factors = factors[:1]
        elif self.shares.shape[1] != len(factors):
            return Cumulants(*np.full(4, math.nan))
        mean, variance, third, fourth = (
            np.asarray(value)[:, None] * factors**r for r, value in enumerate(self.kinds, start=1)
        )
        grand = (self.shares * mean).sum()
        off = mean - grand
        m2 = (self.shares * (variance + off**2)).sum()
        m3 = (self.shares * (third + 3 * off * variance + off**3)).sum()
        m4 = (self.shares * (fourth + 3 * variance**2 + 4 * off * third + 6 * off**2 * variance + off**4)).sum()
        return Cumulants(grand, m2, m3, m4 - 3 * m2**2)

    def _row_variance(self, factors: Array) -> float:
        several = self.keys > 1
        if not several.any():
            return math.nan
        weights = self.weights[several]
        return float((factors[several] ** 2 * self.row_variances[several]) @ weights / weights.sum())


def block_of_kinds(kinds: Cumulants, covariances: Array, rows: Rows) -> Block:
    """Return the block of rows that hold several kinds of keys.

    Parameters
    ----------
    kinds : Cumulants of arrays (kinds,)
    covariances : array (kinds, kinds, classes)
        Of two scores of a row, with different keys; NaN where one is not known. The classes may be missing.
    rows : Rows
    """
    counts, keys = rows.counts, rows.keys
    pairs = counts[:, None] * counts - np.eye(len(counts), dtype=int)[:, :, None] * counts
    covariances = np.where(pairs > 0, covariances.reshape(*covariances.shape[:2], -1), 0.0)
    together = np.maximum(keys * (keys - 1.0), 1.0)
    average = kinds.mean @ counts / keys
    between = (counts * (kinds.mean[:, None] - average) ** 2).sum(axis=0)
    # the mean of the variances less that of the covariances, and the variance of the means
    within = kinds.variance @ counts / keys - np.einsum("klr,klr->r", covariances, pairs) / together
    return Block(kinds, rows.shares, keys, rows.weights, within + between / np.maximum(keys - 1, 1))
