"""Streaming rows of raw scores into a tally, a tile of keys at a time (CPU).

Every scale rule sees the same raw scores. A row's state is a few sums (:mod:`sim.rows`), merged from tile
to tile in float64, so that memory does not grow with the number of keys. A family that is left out has
offset -1 and costs a comparison.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.jit import inner, kernel
from sim.moments import MOMENT_FIELDS, forget, merge_moments, pool_rows, scale_moments
from sim.rows import effective_keys, rise, sum_squares, weight_entropy, weight_max
from sim.tiles import TILE, central_sums, count_bins, count_within, extremes_and_sum, weight_sums

__all__ = ["Measures", "Rows", "add_tile", "begin_block", "finish_block", "finish_trial", "new_rows", "tally_scores"]


class Measures(NamedTuple):
    """What is measured and where it goes; arrays of "real" are in the precision of the scores.

    Attributes
    ----------
    offsets : Offsets
        Where each part of the tally starts.
    factors : float64 (scales,)
    real_factors : real (scales,)
    thresholds : float64 (thresholds,)
    window : real (4,)
        Center and three limits of ``score_within_sigma``; NaN where there is no theory.
    unit : float64
        A power of two near 1 / (standard deviation of the raw score): fourth powers then stay in range.
    histogram : real (2,)
        Lower edge of the first bin, and bins per unit of raw score.
    bins : int
        The two open ends counted.
    """

    offsets: Any
    factors: np.ndarray
    real_factors: np.ndarray
    thresholds: np.ndarray
    window: np.ndarray
    unit: float
    histogram: np.ndarray
    bins: int


class Rows(NamedTuple):
    """The state of the rows of one trial, and the work space of a tile."""

    low: np.ndarray  # (rows,)
    high: np.ndarray  # (rows,)
    moments: np.ndarray  # (3, rows): n, mean, M2
    sums: np.ndarray  # (scales, 3, rows): T1, T2, D
    values: np.ndarray  # (4, rows): max p, entropy, effective keys, sum p^2 under one scale rule
    tile_sums: np.ndarray  # (5, rows of a tile)
    places: np.ndarray  # (TILE,) int32: the bins of a row's scores
    block: np.ndarray  # (5,): moments of the block's raw scores so far
    pooled: np.ndarray  # (5,): those of a tile


@kernel
def new_rows(n_rows, tile_rows, n_scales):
    """Return the state for trials of `n_rows` rows, of which `tile_rows` come at a time."""
    return Rows(
        np.empty(n_rows),
        np.empty(n_rows),
        np.empty((3, n_rows)),
        np.empty((n_scales, 3, n_rows)),
        np.empty((4, n_rows)),
        np.empty((MOMENT_FIELDS, tile_rows)),
        np.empty(TILE, np.int32),
        np.zeros(MOMENT_FIELDS),
        np.empty(MOMENT_FIELDS),
    )


@kernel
def begin_block(rows):
    """Forget the scores of the last block."""
    forget(rows.block)


@kernel
def _add_weights(s, low, high, row, is_first, rows, measures):
    for k in range(measures.factors.shape[0]):
        factor = measures.factors[k]
        t1, t2, d = weight_sums(s, high if factor >= 0.0 else low, measures.real_factors[k])
        sums = rows.sums[k]
        if not is_first:
            # Of two maxima the lower one rises to the higher, and its key joins the sums.
            ours, tiles = (rows.high[row], high) if factor >= 0.0 else (rows.low[row], low)
            delta = factor * (np.float64(tiles) - ours)
            old1, old2, old = sums[0, row], sums[1, row], sums[2, row]
            if delta >= 0.0:
                old1, old2, old = rise(old1, old2, old, delta)
            else:
                t1, t2, d = rise(t1, t2, d, -delta)
            t1, t2, d = t1 + old1, t2 + old2, d + old
        sums[0, row] = t1
        sums[1, row] = t2
        sums[2, row] = d


@inner
def _merge_row_variances(rows, first, tile_sums, n, is_first):
    for i in range(tile_sums.shape[1]):
        row = first + i
        before = 0.0 if is_first else rows.moments[0, row]
        mean = 0.0 if is_first else rows.moments[1, row]
        m2 = 0.0 if is_first else rows.moments[2, row]
        total = before + n
        delta = tile_sums[0, i] - mean
        rows.moments[0, row] = total
        rows.moments[1, row] = mean + delta * n / total
        rows.moments[2, row] = m2 + tile_sums[1, i] + delta * delta * before * n / total


@kernel
def add_tile(scores, first, is_first, rows, measures, tally):
    """Add a tile of raw scores, of shape (rows, keys), that holds the rows `first` ...

    `is_first` says that it holds the rows' first keys.
    """
    at = measures.offsets
    keys = scores.shape[1]
    real = scores.dtype.type
    has_moments, has_bins, has_weights = at.score_moments >= 0, at.score_histogram >= 0, at.weight_max >= 0
    tile_sums = rows.tile_sums[:, : scores.shape[0]]
    for i in range(scores.shape[0]):
        s = scores[i]
        low, high, total = extremes_and_sum(s)
        if has_moments:
            center = total / real(keys)
            tile_sums[0, i] = center
            tile_sums[1, i], tile_sums[2, i], tile_sums[3, i], tile_sums[4, i] = central_sums(
                s, center, real(measures.unit)
            )
            n1, n2, n3 = count_within(s, measures.window[0], measures.window[1:])
            tally[at.score_within_sigma] += n1
            tally[at.score_within_sigma + 1] += n2
            tally[at.score_within_sigma + 2] += n3
        if has_bins:
            counts = tally[at.score_histogram : at.score_histogram + measures.bins]
            count_bins(s, measures.histogram[0], measures.histogram[1], rows.places, counts)
        if has_weights:
            _add_weights(s, low, high, first + i, is_first, rows, measures)
        rows.low[first + i] = low if is_first else min(rows.low[first + i], low)
        rows.high[first + i] = high if is_first else max(rows.high[first + i], high)
    if has_moments:
        pool_rows(tile_sums, np.float64(keys), measures.unit, rows.pooled)
        merge_moments(rows.block, rows.pooled)
        _merge_row_variances(rows, first, tile_sums, np.float64(keys), is_first)


@inner
def _finish_scores(rows, measures, tally):
    at = measures.offsets
    low, high, variance = np.inf, -np.inf, 0.0
    for row in range(rows.low.shape[0]):
        low = min(low, rows.low[row])
        high = max(high, rows.high[row])
        variance += rows.moments[2, row] / (rows.moments[0, row] - 1.0)  # one key: 0 / 0, blank
    for k in range(measures.factors.shape[0]):
        factor = measures.factors[k]
        ends = factor * low, factor * high
        tally[at.score_min + k] = min(tally[at.score_min + k], min(ends))
        tally[at.score_max + k] = max(tally[at.score_max + k], max(ends))
        tally[at.score_trial_max + k] += max(abs(ends[0]), abs(ends[1]))
        tally[at.score_row_variance + k] += factor * factor * variance


@inner
def _row_weights(sums, values):
    # the four quantities of every row: a loop of independent steps, so that it vectorises
    for row in range(sums.shape[1]):
        t1 = sums[0, row]
        entropy = weight_entropy(t1, sums[2, row])
        values[0, row] = weight_max(t1)
        values[1, row] = entropy
        values[2, row] = effective_keys(entropy)
        values[3, row] = sum_squares(t1, sums[1, row])


@inner
def _total(values):
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    for row in range(values.shape[1]):
        first += values[0, row]
        second += values[1, row]
        third += values[2, row]
        fourth += values[3, row]
    return first, second, third, fourth


@inner
def _count_from(values, threshold):
    count = 0
    for row in range(values.shape[0]):
        count += 1 if values[row] >= threshold else 0
    return count


@kernel
def finish_trial(rows, measures, tally):
    """Add the finished rows of one trial to the tally."""
    at = measures.offsets
    tally[at.trials] += 1.0
    tally[at.rows] += rows.low.shape[0]
    if at.score_moments >= 0:
        _finish_scores(rows, measures, tally)
    if at.weight_max >= 0:
        n_thresholds = measures.thresholds.shape[0]
        for k in range(measures.factors.shape[0]):
            _row_weights(rows.sums[k], rows.values)
            for j in range(n_thresholds):
                tally[at.saturated + k * n_thresholds + j] += _count_from(rows.values[0], measures.thresholds[j])
            largest, entropy, effective, squares = _total(rows.values)
            tally[at.weight_max + k] += largest
            tally[at.weight_entropy + k] += entropy
            tally[at.weight_effective_keys + k] += effective
            tally[at.weight_sum_squares + k] += squares


@kernel
def finish_block(rows, measures, tally):
    """Write the block's score moments under every scale rule."""
    at = measures.offsets
    if at.score_moments >= 0:
        for k in range(measures.factors.shape[0]):
            start = at.score_moments + k * MOMENT_FIELDS
            scale_moments(rows.block, measures.factors[k], tally[start : start + MOMENT_FIELDS])


@kernel
def tally_scores(scores, tile_rows, measures, tally):
    """Tally given raw scores (queries, keys) as one trial, streamed as the block streams its own."""
    rows = new_rows(scores.shape[0], tile_rows, measures.factors.shape[0])
    begin_block(rows)
    for j in range(0, scores.shape[1], TILE):
        for i in range(0, scores.shape[0], tile_rows):
            tile = np.ascontiguousarray(scores[i : i + tile_rows, j : j + TILE])
            add_tile(tile, i, j == 0, rows, measures, tally)
    finish_trial(rows, measures, tally)
    finish_block(rows, measures, tally)
