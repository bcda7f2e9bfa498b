"""Closed forms of the raw score s = q.k, exact for every law, mean and standard deviation.

With q_i = mu_q + a and k_i = mu_k + b, the elements independent, the cumulants of s are d_k times those
of the product q_i k_i (cumulants of independent terms add). These follow from the central moments of a
and b: q_i k_i - mu_q mu_k = mu_q b + mu_k a + ab has no large constant left to cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.cell import Cell, Side
from sim.laws import LAWS

__all__ = ["Distribution", "ScoreTheory", "score_theory"]

Distribution = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ScoreTheory:
    """What is known of the raw scores of a cell; NaN (or None) where nothing is.

    Attributes
    ----------
    mean, variance, skewness, excess_kurtosis : float
        Of one score, over Q and K.
    row_variance : float
        Expectation of the variance across the keys of one row; NaN for a single key.
    moments : float
        How many moments of the score are finite.
    distribution : function x -> (P(s < x), P(s <= x)), or None
    """

    mean: float
    variance: float
    row_variance: float
    skewness: float
    excess_kurtosis: float
    moments: float
    distribution: Distribution | None = None

    @property
    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)


def _central_moments(side: Side) -> list[float]:
    # E (x - mean)^r for r = 0 .. 4
    standardised = LAWS[side.law.kind].moments(side.shape)
    return [1.0, *(side.std**r * moment for r, moment in enumerate(standardised, start=1))]


def _product_moment(r: int, query: Side, key: Side, a: list[float], b: list[float]) -> float:
    """Return E (mu_q b + mu_k a + ab)^r by the multinomial theorem."""
    total = 0.0
    for i in range(r + 1):
        for j in range(r - i + 1):
            k = r - i - j  # powers of mu_q b, of mu_k a, of ab
            ways = math.factorial(r) // (math.factorial(i) * math.factorial(j) * math.factorial(k))
            total += ways * query.mean**i * key.mean**j * a[j + k] * b[i + k]
    return total


def score_theory(cell: Cell) -> ScoreTheory:
    """Return the closed forms of a cell's raw score."""
    query, key, d = cell.query, cell.key, cell.d_k
    a, b = _central_moments(query), _central_moments(key)
    m2, m3, m4 = (_product_moment(r, query, key, a, b) for r in (2, 3, 4))
    varies = m2 > 0
    return ScoreTheory(
        mean=d * query.mean * key.mean,
        variance=d * m2,
        # given q the keys of a row are independent, with variance d std_k^2 q_i^2 on average
        row_variance=d * b[2] * (a[2] + query.mean**2) if cell.n_keys > 1 else math.nan,
        skewness=m3 / m2**1.5 / math.sqrt(d) if varies else math.nan,
        excess_kurtosis=(m4 / m2**2 - 3) / d if varies else math.nan,
        moments=math.inf,
        distribution=_distribution(cell) if varies else None,
    )


def _distribution(cell: Cell) -> Distribution | None:
    """Return the score's exact distribution, where a law pair with zero means has one in closed form."""
    query, key = cell.query, cell.key
    if query.mean != 0 or key.mean != 0:
        return None
    std = query.std * key.std
    laws = {query.law.kind, key.law.kind}
    if laws == {"rademacher"}:
        return _binomial(cell.d_k, std)
    if laws == {"rademacher", "gaussian"}:  # a sum of d normals with their signs redrawn: normal
        return _normal(std * math.sqrt(cell.d_k))
    if laws == {"gaussian"}:
        return _normal_product(cell.d_k, std)
    return None


def _binomial(d: int, step: float) -> Distribution:
    """s = step (2 B - d), B binomial(d, 1/2)."""

    def distribution(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import bdtr

        b = (np.asarray(x, float) / step + d) / 2
        # float noise in x / step must not move x off the lattice
        b = np.where(abs(b - np.round(b)) < 1e-6, np.round(b), b)

        def up_to(count: np.ndarray) -> np.ndarray:  # P(B <= count) for any real number
            inside = bdtr(np.clip(count, 0, d), d, 0.5)
            return np.where(count < 0, 0.0, np.where(count >= d, 1.0, inside))

        return up_to(np.ceil(b) - 1), up_to(np.floor(b))

    return distribution


def _normal(std: float) -> Distribution:
    def distribution(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import ndtr

        p = ndtr(np.asarray(x, float) / std)
        return p, p

    return distribution


def _normal_product(d: int, std: float) -> Distribution:
    """Given q, s is normal with standard deviation std |z|, and |z|^2 is chi-square of d degrees.

    Integrated over y = ln |z|^2 by the trapezoid rule, which converges geometrically for this smooth,
    rapidly falling density (400 points: 1e-12, checked against 4000).
    """

    def distribution(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import ndtr
        from scipy.stats import chi2

        low, high = max(chi2.ppf(1e-15, d), 1e-300), chi2.isf(1e-15, d)
        y = np.linspace(math.log(low), math.log(high), 400)
        weight = chi2.pdf(np.exp(y), d) * np.exp(y)
        weight /= weight.sum()
        p = ndtr(np.asarray(x, float)[..., None] / (std * np.exp(y / 2))) @ weight
        return p, p

    return distribution
