"""Streaming rows of raw scores into a tally, a tile of keys at a time (CPU).

A view is the scores as some scale rules see them: view 0 is the raw scores, which all linear rules share, each with
its factor; a rule that is more than a factor has a view of its own (:mod:`sim.views`), with the factor 1. A row's
state is a few sums (:mod:`sim.rows`), merged from tile to tile in float64, so that memory does not grow with the number
of keys. A family that is left out has offset -1 and costs a comparison. What a trial's finished rows are worth is in
:mod:`sim.finish`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sim.jit import inner, kernel, part
from sim.moments import MOMENT_FIELDS, merge_moments, pool_rows
from sim.rows import N_VALUES, rise
from sim.tiles import (
    TILE,
    central_sums,
    count_beyond,
    count_bins,
    count_within,
    exponentials,
    extremes_and_sum,
    place_of,
    power_sums,
    seen_keys,
    squares,
    wide_central_sums,
)

__all__ = [
    "ALL",
    "OVERFLOWS",
    "RAW",
    "Measures",
    "Rows",
    "add_tile",
    "add_weights",
    "find_lost",
    "merge_ends",
    "needs_weights",
    "new_rows",
    "view_of",
]

# Typed, as Numba would compile what takes them once more for every literal.
RAW, ALL = np.int64(0), np.int64(-1)  # the view of the raw scores; all rules of a view
# The smallest values that round to infinity in float16 and in float32.
OVERFLOWS = (65520.0, 2.0**128 - 2.0**103)


class Measures(NamedTuple):
    """What is measured and where it goes; arrays of "real" are in the precision of the scores.

    Attributes
    ----------
    offsets : Offsets
        Where each part of the tally starts, or of the bins.
    factors : float64 (scales,)
        What a rule multiplies the scores of its view by.
    views : int64 (scales,)
        The view that a rule sees; `n_views` in all.
    is_sloped : uint8 (scales,)
        Whether the gradients under a rule are those of :mod:`sim.slopes`.
    exponents : real (scales,)
        factor * log2 e, so that 2^(exponent s) is exp(factor s).
    thresholds, gradient_thresholds : float64
    window : real (4,)
        Center and three limits of ``score_within_sigma``; NaN where there is no theory.
    unit : float64
        A power of two near 1 / (standard deviation of the raw score): fourth powers then stay in range.
    is_wide : bool
        Whether fourth powers would leave the precision of the scores all the same, and are summed in float64.
    histogram : real (2,)
        Lower edge of the first bin, and bins per unit of raw score.
    bins : int
        The two open ends counted.
    gradient_units : float64 (scales,)
        What the bins of :mod:`sim.sizes` take as 1 for ||dL/dq||, without the factor.
    partners : int
        The first queries have each a key of their own, of the same number: so many.
    """

    offsets: Any
    factors: np.ndarray
    views: np.ndarray
    n_views: int
    is_sloped: np.ndarray
    exponents: np.ndarray
    thresholds: np.ndarray
    gradient_thresholds: np.ndarray
    window: np.ndarray
    unit: float
    is_wide: bool
    histogram: np.ndarray
    bins: int
    gradient_units: np.ndarray
    partners: int


class Rows(NamedTuple):
    """The state of the rows of one trial, and the work space of a tile.

    What there is of each view has an axis of views in front, and none where the state is that of one (:func:`view_of`).
    """

    ends: np.ndarray  # (2, rows): the smallest and the largest score
    moments: np.ndarray  # (3, rows): n, mean, M2
    block: np.ndarray  # (5,): moments of the block's scores so far
    partners: np.ndarray  # (rows,): the score of a query and its own key; of no length where there are none
    is_lost: np.ndarray  # uint8 (rows,): a score of the row is infinite
    sums: np.ndarray  # (scales, 4, rows): T1, T2, T3, D
    values: np.ndarray  # (1 or scales, N_VALUES, rows): what a finished row is worth
    gradients: np.ndarray  # (scales, rows): sum p^2 ||k - mean k||^2
    spectral: np.ndarray  # (scales, rows): the largest eigenvalue of J
    tile_sums: np.ndarray  # (6, rows of a tile)
    tile_ends: np.ndarray  # (2, rows of a tile)
    totals: np.ndarray  # (rows of a tile,): the sum of their scores
    tile_places: np.ndarray  # (2, rows of a tile) int32: where they stand in the tile
    tile_keys: np.ndarray  # (rows of a tile,) int64: how many of the tile's keys a row sees
    places: np.ndarray  # (TILE,) int32: the bins of a row's scores
    exponentials: np.ndarray  # real: e of one row, or for gradients of a tile's rows, and e^2 of all below them
    pooled: np.ndarray  # (5,): those of a tile


@inner
def needs_weights(at):
    """Return whether any family needs the sums of a row's weights."""
    return (
        at.weight_max >= 0
        or at.jacobian_trace >= 0
        or at.jacobian_spectral >= 0
        or at.gradient_query_sq >= 0
        or at.zero_weights >= 0
    )


def new_rows(n_rows, tile_rows, tile_keys, measures, keep_values):
    """Return the state for trials of `n_rows` rows, of which `tile_rows` come at a time, with `tile_keys` keys."""
    at, n_scales, n_views = measures.offsets, measures.factors.shape[0], measures.n_views
    kept = 2 * tile_rows * tile_keys if at.gradient_query_sq >= 0 else tile_keys
    return Rows(
        np.empty((n_views, 2, n_rows)),
        np.empty((n_views, 3, n_rows)),
        np.zeros((n_views, MOMENT_FIELDS)),
        np.empty((n_views, n_rows if measures.partners > 0 else 0)),
        np.zeros((n_views, n_rows), np.uint8),
        np.empty((n_scales, 4, n_rows)),
        np.zeros((n_scales if keep_values else 1, N_VALUES, n_rows)),
        np.empty((n_scales, n_rows if at.gradient_query_sq >= 0 else 0)),
        np.empty((n_scales, n_rows if at.jacobian_spectral >= 0 else 0)),
        np.empty((MOMENT_FIELDS + 1, tile_rows)),
        np.empty((2, tile_rows)),
        np.empty(tile_rows),
        np.empty((2, tile_rows), np.int32),
        np.empty(tile_rows, np.int64),
        np.empty(TILE, np.int32),
        np.empty(kept, measures.exponents.dtype),
        np.empty(MOMENT_FIELDS),
    )


@part
def view_of(rows, view):
    """Return the state as that of one view."""
    return Rows(
        rows.ends[view],
        rows.moments[view],
        rows.block[view],
        rows.partners[view],
        rows.is_lost[view],
        rows.sums,
        rows.values,
        rows.gradients,
        rows.spectral,
        rows.tile_sums,
        rows.tile_ends,
        rows.totals,
        rows.tile_places,
        rows.tile_keys,
        rows.places,
        rows.exponentials,
        rows.pooled,
    )


@inner
def _merge_row_variances(rows, first, tile_sums, is_first):
    for i in range(tile_sums.shape[1]):
        row = first + i
        n = tile_sums[5, i]
        before = 0.0 if is_first else rows.moments[0, row]
        mean = 0.0 if is_first else rows.moments[1, row]
        m2 = 0.0 if is_first else rows.moments[2, row]
        total = before + n
        delta = tile_sums[0, i] - mean
        rows.moments[0, row] = total
        rows.moments[1, row] = mean + delta * n / total
        rows.moments[2, row] = m2 + tile_sums[1, i] + delta * delta * before * n / total


@kernel
def _add_scores(scores, tile_keys, totals, unit, is_wide, tile_sums):
    """Write the sums of every row of a tile."""
    real = scores.dtype.type
    for i in range(scores.shape[0]):
        keys = tile_keys[i]
        tile_sums[5, i] = keys
        if keys == 0:
            for r in range(MOMENT_FIELDS):
                tile_sums[r, i] = 0.0
            continue
        center = real(totals[i]) / real(keys)
        tile_sums[0, i] = center
        if is_wide:
            sums = wide_central_sums(scores, i, keys, np.float64(center), unit)
        else:
            sums = central_sums(scores, i, keys, center, real(unit))
        for r in range(4):
            tile_sums[1 + r, i] = sums[r]


@inner
def _add_within(scores, tile_keys, window, counts):
    for i in range(scores.shape[0]):
        n1, n2, n3 = count_within(scores, i, tile_keys[i], window[0], window[1], window[2], window[3])
        counts[0] += n1
        counts[1] += n2
        counts[2] += n3


@inner
def _find_ends(scores, first, start, visible, tile_keys, tile_ends, totals):
    for i in range(scores.shape[0]):
        keys = seen_keys(visible, first + i, start, scores.shape[1])
        tile_keys[i] = keys
        if keys > 0:
            low, high, total = extremes_and_sum(scores, i, keys)
            tile_ends[0, i] = low
            tile_ends[1, i] = high
            totals[i] = total


@inner
def _drop_lost(tile_keys, totals, first, is_lost):
    # A row with an infinite score has no softmax; from this tile on it is taken to see no key, and in the end left out.
    for i in range(tile_keys.shape[0]):
        if tile_keys[i] > 0 and (is_lost[first + i] or not math.isfinite(totals[i])):
            is_lost[first + i] = 1
            tile_keys[i] = 0


@inner
def find_lost(scores, first, start, visible, rows):
    """Mark the rows of a tile that have an infinite score in it."""
    keys = rows.tile_keys[: scores.shape[0]]
    _find_ends(scores, first, start, visible, keys, rows.tile_ends, rows.totals)
    _drop_lost(keys, rows.totals, first, rows.is_lost)


@inner
def _find_partners(scores, first, start, count, partners):
    for row in range(max(first, start), min(first + scores.shape[0], start + scores.shape[1], count)):
        partners[row] = scores[row - first, row - start]


@inner
def _find_places(scores, tile_keys, tile_ends, tile_places):
    real = scores.dtype.type
    for i in range(scores.shape[0]):
        if tile_keys[i] > 0:
            tile_places[0, i] = place_of(scores, i, tile_keys[i], real(tile_ends[0, i]))
            tile_places[1, i] = place_of(scores, i, tile_keys[i], real(tile_ends[1, i]))


@inner
def _add_bins(scores, tile_keys, histogram, places, counts):
    for i in range(scores.shape[0]):
        count_bins(scores, i, tile_keys[i], histogram[0], histogram[1], places, counts)


@inner
def _add_overflows(scores, tile_keys, tile_ends, counts):
    for i in range(scores.shape[0]):
        for k in range(len(OVERFLOWS)):
            if tile_keys[i] > 0 and max(-tile_ends[0, i], tile_ends[1, i]) >= OVERFLOWS[k]:
                counts[k] += count_beyond(scores, i, tile_keys[i], OVERFLOWS[k])


@part
def _add_raw(scores, rows, measures, tally, bins):
    """Add what is counted of raw scores alone, infinite ones too."""
    at, keys = measures.offsets, rows.tile_keys
    if at.scores >= 0:
        for i in range(scores.shape[0]):
            tally[at.scores] += keys[i]
        _add_overflows(scores, keys, rows.tile_ends, tally[at.score_overflows : at.score_overflows + 2])
    if at.score_within_sigma >= 0:
        _add_within(scores, keys, measures.window, tally[at.score_within_sigma : at.score_within_sigma + 3])
    if at.score_histogram >= 0:
        counts = bins[at.score_histogram : at.score_histogram + measures.bins]
        _add_bins(scores, keys, measures.histogram, rows.places, counts)


@kernel
def add_tile(scores, first, start, visible, view, rows, measures, tally, bins):
    """Add a tile of the scores of a view, of shape (rows, keys), that holds the rows `first` ... and keys `start` ...

    Of all keys a row sees the first ``visible[row]``, at least one. `rows` is the state of the view.
    """
    at, is_first = measures.offsets, start == 0
    keys = rows.tile_keys[: scores.shape[0]]
    _find_ends(scores, first, start, visible, keys, rows.tile_ends, rows.totals)
    if view == RAW:
        _add_raw(scores, rows, measures, tally, bins)
    _drop_lost(keys, rows.totals, first, rows.is_lost)
    if rows.partners.shape[0] > 0:
        _find_partners(scores, first, start, measures.partners, rows.partners)
    if at.score_moments >= 0:
        tile_sums = rows.tile_sums[:, : scores.shape[0]]
        _add_scores(scores, keys, rows.totals, measures.unit, measures.is_wide, tile_sums)
        pool_rows(tile_sums, measures.unit, rows.pooled)
        merge_moments(rows.block, rows.pooled)
        _merge_row_variances(rows, first, tile_sums, is_first)
    if needs_weights(at):
        _find_places(scores, keys, rows.tile_ends, rows.tile_places)


@kernel
def add_weights(scores, first, is_first, view, scale, rows, measures):
    """Add the tile to the sums of its rows' weights: under rule `scale` alone, its exponentials kept, or ALL."""
    start, stop = max(scale, 0), measures.factors.shape[0] if scale < 0 else scale + 1
    real, keep = scores.dtype.type, scale >= 0
    n_rows, width = rows.tile_keys.shape[0], scores.shape[1]
    slots = 2 * n_rows if keep else 1
    exps, sums = rows.exponentials[: slots * width].reshape(slots, width), rows.sums
    for i in range(scores.shape[0]):
        n, at = rows.tile_keys[i], i if keep else 0
        if n == 0:
            continue
        for k in range(start, stop):
            if measures.views[k] != view:
                continue
            factor = measures.factors[k]
            end = 1 if factor >= 0.0 else 0
            extremum = real(rows.tile_ends[end, i])
            exponentials(scores, i, n, extremum, measures.exponents[k], exps, at)
            exps[at, rows.tile_places[end, i]] = real(0)
            t1, t2, t3, fall = power_sums(exps, at, scores, i, n, extremum)
            d = -factor * fall
            if keep:
                squares(exps, at, n, at + n_rows)
                for j in range(n, width):  # keys that the row does not see
                    exps[at, j] = real(0)
                    exps[at + n_rows, j] = real(0)
            row = first + i
            if not is_first:
                # Of two maxima the lower one rises to the higher, and its key joins the sums.
                delta = factor * (rows.tile_ends[end, i] - rows.ends[end, row])
                old1, old2, old3, old = sums[k, 0, row], sums[k, 1, row], sums[k, 2, row], sums[k, 3, row]
                if delta >= 0.0:
                    old1, old2, old3, old = rise(old1, old2, old3, old, delta)
                else:
                    t1, t2, t3, d = rise(t1, t2, t3, d, -delta)
                t1, t2, t3, d = t1 + old1, t2 + old2, t3 + old3, d + old
            sums[k, 0, row] = t1
            sums[k, 1, row] = t2
            sums[k, 2, row] = t3
            sums[k, 3, row] = d


@inner
def merge_ends(rows, first, n_rows, is_first):
    """Let the ends of the last tile's rows enter those of the rows; the last step of a tile."""
    for i in range(n_rows):
        if rows.tile_keys[i] > 0:
            row = first + i
            low, high = rows.tile_ends[0, i], rows.tile_ends[1, i]
            rows.ends[0, row] = low if is_first else min(rows.ends[0, row], low)
            rows.ends[1, row] = high if is_first else max(rows.ends[1, row], high)
