"""Quantiles and shares of the scores, from the cell's histogram of raw scores.

One histogram serves every scale rule: a rule moves its edges, and a negative factor reverses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sim.estimates import jackknife
from sim.scales import Rule
from sim.theory.scores import Distribution

__all__ = ["medians", "per_scale", "quantiles", "scaled_edges", "share_theory", "shares"]


def shares(counts: np.ndarray) -> np.ndarray:
    """Return each bin's share of the scores."""
    return counts / counts.sum(axis=-1, keepdims=True)


def share_theory(distribution: Distribution | None, edges: np.ndarray) -> np.ndarray:
    """Return the probability of every bin [edge, next edge), and of the two open ends."""
    if distribution is None:
        return np.full(len(edges) + 1, np.nan)
    below, _ = distribution(edges)
    return np.diff(np.concatenate([[0.0], below, [1.0]]))


def scaled_edges(edges: np.ndarray, rules: Sequence[Rule]) -> np.ndarray:
    """Return the edges under every scale rule, ascending, of shape (scales, edges)."""
    return np.array([rule.scaled(edges[::-1] if rule.factor < 0 else edges) for rule in rules])


def per_scale(bins: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return bins (..., bins) of raw scores as those of every scale rule, (..., scales, bins)."""
    bins = np.repeat(bins[..., None, :], len(factors), axis=-2)
    return np.where(factors[:, None] < 0, bins[..., ::-1], bins)


def quantiles(
    counts: np.ndarray, sizes: np.ndarray, edges: np.ndarray, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles of the scores and their standard errors (Woodruff 1952).

    The error is that of the distribution function at the quantile, by the jackknife, divided by the
    density there; on a lattice, at least a bin's width.

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
    holds = np.searchsorted(cumulative[0], levels)  # the bin that holds it
    inside = np.clip(holds, 1, p.shape[-1] - 2)
    share, slope = p[:, inside], _slope(p, inside)
    with np.errstate(invalid="ignore", divide="ignore"):
        # share u + slope (u^2 - u) / 2 = what is left, for the position u within the bin
        left, start = levels - cumulative[0, inside - 1], share[0] - slope[0] / 2
        position = np.clip(2 * left / (start + np.sqrt(np.maximum(start**2 + 2 * slope[0] * left, 0))), 0, 1)
        values = edges[inside - 1] + position * (edges[inside] - edges[inside - 1])
        function = cumulative[:, inside - 1] + share * position + slope * (position**2 - position) / 2
        errors = jackknife(function, sizes) / _density(p[0], edges, inside)
        # between empty bins the scores may all be one value, which is known to a bin's width alone
        is_atom = (p[0, inside - 1] == 0) & (p[0, inside + 1] == 0)
        errors = np.where(is_atom, np.maximum(errors, edges[inside] - edges[inside - 1]), errors)
    closed = holds == inside
    return np.where(closed, values, np.nan), np.where(closed, errors, np.nan)


def medians(counts: np.ndarray, sizes: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median of each histogram and its standard error (Woodruff 1952).

    Parameters
    ----------
    counts : array (groups, histograms, bins)
        The two open ends included.
    sizes : array (groups,)
        Trials in each group.
    edges : array (bins - 1,)

    Returns
    -------
    values, errors : arrays (histograms,)
        NaN where the median lies in an open end.
    """
    found = [_median(counts[:, i], sizes, edges) for i in range(counts.shape[1])]
    values, errors = np.array(found).T
    return values, errors


def _median(groups: np.ndarray, sizes: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    whole = groups.sum(axis=0)
    upto = np.cumsum(whole)[:-1] / whole.sum()  # the share below each edge
    at = int(np.searchsorted(upto, 0.5))  # the bin that holds it, which ends at this edge
    if at in (0, len(edges)):
        return math.nan, math.nan
    position = (0.5 - upto[at - 1]) / (upto[at] - upto[at - 1])
    width = edges[at] - edges[at - 1]
    value = edges[at - 1] + position * width

    below = groups[:, :at].sum(axis=1) + position * groups[:, at]
    function = np.append(0.5, (below.sum() - below) / (whole.sum() - groups.sum(axis=1))) if len(groups) > 1 else [0.5]
    error = float(jackknife(np.asarray(function), sizes))
    # The bins are many and narrow: the density is that between the ends of the interval, two errors away.
    half = max(2 * error, 1 / whole.sum())
    ends = np.clip([0.5 - half, 0.5 + half], upto[0], upto[-1])
    low, high = np.interp(ends, upto, edges)
    error *= (high - low) / (ends[1] - ends[0])
    is_atom = whole[at - 1] == whole[at + 1] == 0
    return value, max(error, width) if is_atom and error >= 0 else error


def _slope(p: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return how much the share per bin grows across each bin, never so steep that the density is negative.

    Next to an open end, which has no width, it is 0. With a density that is constant within a bin, a
    quantile of a normal is wrong by up to 5e-4 standard deviations in bins of 1/16, and intervals from
    2000 trials cover 92 % for 95.
    """
    limit = np.where((inside > 1) & (inside < p.shape[-1] - 2), 2 * p[:, inside], 0)
    return np.clip((p[:, inside + 1] - p[:, inside - 1]) / 2, -limit, limit)


def _density(p: np.ndarray, edges: np.ndarray, inside: np.ndarray, reach: int = 2) -> np.ndarray:
    """Return the density at each bin, averaged over `reach` bins on either side, whose counts are noisy."""
    low = np.maximum(inside - reach, 1)
    high = np.minimum(inside + reach, len(p) - 2)
    upto = np.concatenate([[0.0], np.cumsum(p)])
    return (upto[high + 1] - upto[low]) / (edges[high] - edges[low - 1])
