"""Quantiles and shares of the scores, from the cell's histogram of raw scores.

One histogram serves every scale rule: a linear rule moves its edges, and a negative factor reverses it.
"""

from __future__ import annotations

import numpy as np

from sim.estimates import jackknife
from sim.theory import Distribution

__all__ = ["per_scale", "quantiles", "scaled_edges", "share_theory", "shares"]


def shares(counts: np.ndarray) -> np.ndarray:
    """Return each bin's share of the scores."""
    return counts / counts.sum(axis=-1, keepdims=True)


def share_theory(distribution: Distribution | None, edges: np.ndarray) -> np.ndarray:
    """Return the probability of every bin [edge, next edge), and of the two open ends."""
    if distribution is None:
        return np.full(len(edges) + 1, np.nan)
    below, _ = distribution(edges)
    return np.diff(np.concatenate([[0.0], below, [1.0]]))


def scaled_edges(edges: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the edges under every scale rule, ascending, of shape (scales, edges)."""
    scaled = np.multiply.outer(factors, edges)
    return np.where(factors[:, None] < 0, scaled[:, ::-1], scaled)


def per_scale(bins: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return bins (..., bins) of raw scores as those of every scale rule, (..., scales, bins)."""
    bins = np.repeat(bins[..., None, :], len(factors), axis=-2)
    return np.where(factors[:, None] < 0, bins[..., ::-1], bins)


def quantiles(
    counts: np.ndarray, sizes: np.ndarray, edges: np.ndarray, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles of the scores and their standard errors (Woodruff 1952).

    The error is that of the distribution function at the quantile, by the jackknife, divided by the
    density there.

    Parameters
    ----------
    counts : array (1 + groups, bins)
        Of the whole, then without each group; the two open ends included.
    sizes : array (groups,)
        Trials in each group.
    edges : array (bins - 1,)
    levels : array (levels,)

    Returns
    -------
    values, errors : arrays (levels,)
        NaN where the quantile lies in an open end.
    """
    p = shares(counts)
    cumulative = np.cumsum(p, axis=-1)
    inside = np.clip(np.searchsorted(cumulative[0], levels), 1, p.shape[-1] - 2)  # the bin that holds it
    share = p[0, inside]
    with np.errstate(invalid="ignore", divide="ignore"):
        position = (levels - cumulative[0, inside - 1]) / share  # within the bin, linearly
        width = edges[inside] - edges[inside - 1]
        values = edges[inside - 1] + position * width
        function = cumulative[:, inside - 1] + position * p[:, inside]
        errors = jackknife(function, sizes) / _density(p[0], edges, inside)
    closed = (position >= 0) & (position <= 1)
    return np.where(closed, values, np.nan), np.where(closed, errors, np.nan)


def _density(p: np.ndarray, edges: np.ndarray, inside: np.ndarray, reach: int = 2) -> np.ndarray:
    """Return the density at each bin, averaged over `reach` bins on either side, whose counts are noisy."""
    low = np.maximum(inside - reach, 1)
    high = np.minimum(inside + reach, len(p) - 2)
    upto = np.concatenate([[0.0], np.cumsum(p)])
    return (upto[high + 1] - upto[low]) / (edges[high] - edges[low - 1])
