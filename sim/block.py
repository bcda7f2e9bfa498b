"""The block on the CPU: draws Q and K of its trials and streams the keys through in tiles.

All buffers are allocated once a call and reused by its trials; the order of the loops (keys outside,
queries inside) draws each tile of keys once and holds none but that one. Rounded weights and the spectrum alone take
further passes, each of which draws the keys again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.draw import padded
from sim.finish import finish_block, finish_trial
from sim.gradients import add_gradients, end_tile, new_keys, prepare_keys
from sim.jit import entry, inner, kernel, part
from sim.moments import forget
from sim.philox import KEY, QUERY
from sim.rounded import add_rounded, begin_rounded, needs_rounding, new_rounded
from sim.slopes import add_slopes, new_slopes
from sim.spectrum import MAX_PASSES, add_pass, begin_pass, end_pass, new_secular
from sim.stream import ALL, RAW, add_tile, add_weights, find_lost, merge_ends, needs_weights, new_rows, view_of
from sim.tiles import TILE, product
from sim.vectors import Pair, Side, draw_side, draw_weights, find_norms, normalize
from sim.views import (
    AT_SCORES,
    COSINE,
    Score,
    Transform,
    derive,
    draw_units,
    new_units,
    raw_scores,
    round_all,
    scaled_product,
)

__all__ = ["QUERY_TILE", "Draw", "Geometry", "run_blocks"]

QUERY_TILE = 128  # rows of raw scores at a time: at most 256 kB in float32, within the L2 cache
# What a pass over the keys is for: to find the rows with an infinite score before any of their tiles is added, to add
# all tiles, to round the weights; those of the secular equation are numbered on.
LOSSES, FIRST, ROUNDING, SECULAR = range(-1, 3)


class Geometry(NamedTuple):
    """The sizes of a cell's trials and blocks, and the key of its random words."""

    n_queries: int
    n_keys: int
    d_k: int  # 0 of scores without vectors
    trials: int
    block_trials: int
    key: tuple[np.uint32, np.uint32]


class Draw(NamedTuple):
    """What is drawn, and what the scale rules make of it."""

    query: Side
    key: Side
    pair: Pair
    score: Score
    transform: Transform


class Work(NamedTuple):
    """All that the trials of a call reuse; arrays of "real" are in the precision of the scores."""

    rows: Any
    keys: Any
    slopes: Any
    rounded: Any
    secular: Any
    units: Any
    queries: np.ndarray  # real (padded d * n_queries,): tile after tile
    query_norms: np.ndarray  # float64 (n_queries,): ||q||^2, before the cosine brings it to 1
    key_norms: np.ndarray  # float64 (TILE,)
    some_keys: np.ndarray  # real (padded d * TILE,)
    scores: np.ndarray  # real (padded QUERY_TILE * TILE,)
    seen: np.ndarray  # real (QUERY_TILE * TILE,): the scores as one rule sees them
    scaled: np.ndarray  # real: vectors that are scaled before the product
    tokens: np.ndarray  # real: a tile of tokens before they are projected
    weights: np.ndarray  # real (padded(d_model) + 1, d): the projection of the side that is drawn
    sampled: np.ndarray  # int64 (1,): how many scores have been kept as a sample


@part
def _new_work(draw, geometry, measures, keep_values):
    d, n_queries, n_keys = geometry.d_k, geometry.n_queries, geometry.n_keys
    height, width, tile_rows = padded(d), min(TILE, n_keys), min(QUERY_TILE, n_queries)
    at, real, n_scales = measures.offsets, measures.exponents.dtype, measures.factors.shape[0]
    has_gradients, has_views = at.gradient_query_sq >= 0, measures.n_views > 1
    is_sloped = has_gradients and measures.is_sloped.any()
    has_norms = has_gradients or draw.score.kind == COSINE
    is_scaled, rounding = draw.transform.place != AT_SCORES, draw.transform.rounding
    room = padded(max(draw.query.width, draw.key.width))
    return Work(
        new_rows(n_queries, tile_rows, width, measures, keep_values),
        new_keys(has_gradients, is_sloped, n_queries, tile_rows, n_keys, d, measures.exponents),
        new_slopes(has_views, is_sloped, n_queries, tile_rows, n_keys, d, draw.score.units, measures.exponents),
        new_rounded(rounding, n_scales, n_queries if needs_rounding(rounding, at) else 0),
        new_secular(n_scales, n_queries if at.jacobian_spectral >= 0 else 0),
        new_units(draw.score.units, d, n_queries, n_keys, measures.exponents),
        np.empty(height * n_queries, real),
        np.empty(n_queries if has_norms else 0),
        np.empty(width if has_norms else 0),
        np.empty(height * width, real),
        np.empty(padded(tile_rows) * width, real),
        np.empty(tile_rows * width if has_views else 0, real),
        np.empty(d * (tile_rows + width) if is_scaled else 0, real),
        np.empty(room * max(width, tile_rows) if room > 0 else 0, real),
        np.empty((room + 1, d if room > 0 else 0), real),
        np.zeros(1, np.int64),
    )


@kernel
def _draw_tile(own, first, trial, draw, geometry, work, tile, norms):
    """Write vectors as the score sees them, and the squares of their lengths before the cosine brings them to 1."""
    side, d_k = draw.key if own == KEY else draw.query, geometry.d_k
    draw_side(side, own, draw.query, draw.pair, d_k, work.tokens, work.weights, tile, first, trial, geometry.key)
    if draw.score.kind == COSINE:
        normalize(tile, d_k, 1.0, norms)
    round_all(tile, draw.transform.rounding)
    if draw.score.kind != COSINE and norms.shape[0] > 0:
        find_norms(tile, d_k, norms)


@part
def _draw_queries(trial, draw, geometry, work):
    height = padded(geometry.d_k)
    draw_units(draw.score, np.uint32(trial), geometry.key, work.units)
    draw_weights(draw.query, QUERY, work.weights, geometry.d_k, np.uint32(trial), geometry.key)
    for i in range(0, geometry.n_queries, QUERY_TILE):
        width = min(QUERY_TILE, geometry.n_queries - i)
        tile = work.queries[height * i : height * (i + width)].reshape(height, width)
        _draw_tile(QUERY, i, trial, draw, geometry, work, tile, work.query_norms[i : i + width])
        if draw.score.units > 0:
            of_queries = work.units.of_queries[draw.score.units * i : draw.score.units * (i + width)]
            out = of_queries.reshape(draw.score.units, width)
            product(work.units.query_weights[: geometry.d_k], tile[: geometry.d_k], out)
    draw_weights(draw.key, KEY, work.weights, geometry.d_k, np.uint32(trial), geometry.key)


@part
def _draw_keys(j, n, trial, draw, geometry, work):
    height = padded(geometry.d_k)
    tile = work.some_keys[: height * n].reshape(height, n)
    _draw_tile(KEY, j, trial, draw, geometry, work, tile, work.key_norms[:n])
    if draw.score.units > 0:
        out = work.units.of_keys[: draw.score.units * n].reshape(draw.score.units, n)
        product(work.units.key_weights[: geometry.d_k], tile[: geometry.d_k], out)


@inner
def _keep_sample(scores, first, start, visible, sampled, sample, stop):
    # the first scores of the cell, in the order of drawing; enough of them end the call
    for i in range(scores.shape[0]):
        for j in range(min(scores.shape[1], visible[first + i] - start)):
            if sampled[0] < sample.shape[0]:
                sample[sampled[0]] = scores[i, j]
                sampled[0] += 1
    if sampled[0] >= sample.shape[0]:
        stop[0] = 1


@part
def _add_view(view, tile, raw, i, j, is_last, visible, queries, draw, measures, work, tally, bins):
    """Take a tile of the scores of a view through the first pass; `raw` is the tile of raw scores."""
    rows, at = view_of(work.rows, view), measures.offsets
    n_rows, n = tile.shape
    add_tile(tile, i, j, visible, view, rows, measures, tally, bins)
    if at.gradient_query_sq >= 0:
        norms = work.query_norms[i : i + n_rows]
        for k in range(measures.factors.shape[0]):
            if measures.views[k] != view:
                continue
            add_weights(tile, i, j == 0, view, k, rows, measures)
            factor = measures.factors[k]
            if not measures.is_sloped[k]:
                add_gradients(k, i, n_rows, n, j == 0, is_last, rows, factor, work.keys)
                continue
            if view == RAW:  # a linear rule, of another score function than the dot product
                work.slopes.slopes[: n_rows * n] = factor
            args = (queries, norms, draw.score, work.units, work.slopes)
            add_slopes(k, raw, i, j == 0, is_last, rows, factor, work.keys, *args)
        if view == RAW:
            end_tile(i, n_rows, n, j == 0, rows, work.keys)
    elif needs_weights(at):
        add_weights(tile, i, j == 0, view, ALL, rows, measures)
    merge_ends(rows, i, n_rows, j == 0)


@part
def _see(number, view, tile, raw, i, j, n, geometry, visible, queries, draw, measures, work, tally, bins):
    """Take a tile of the scores of a view through pass `number`."""
    if number == FIRST:
        is_last = j + n == geometry.n_keys
        _add_view(view, tile, raw, i, j, is_last, visible, queries, draw, measures, work, tally, bins)
    elif number == ROUNDING:
        rows = view_of(work.rows, view)
        add_rounded(tile, i, j, visible, view, rows, measures, work.rounded)
    elif number == LOSSES:
        find_lost(tile, i, j, visible, view_of(work.rows, view))
    else:
        add_pass(number - SECULAR + 1, tile, i, j, visible, view, view_of(work.rows, view), measures, work.secular)


@part
def _add_keys(number, j, n, trial, draw, geometry, visible, work, measures, tally, bins, sample, stop):
    """Take the keys j ... j + n - 1, which are drawn, through all tiles of queries, in pass `number`."""
    d_k, height, transform = geometry.d_k, padded(geometry.d_k), draw.transform
    keys = work.some_keys[: d_k * n].reshape(d_k, n)
    if number == FIRST and measures.offsets.gradient_query_sq >= 0:
        prepare_keys(keys, j == 0, work.keys)
        if work.slopes.norms.shape[0] > 0:
            _take_key_norms(keys, draw.score.kind, work.key_norms, work.slopes.norms[:n])
    for i in range(0, geometry.n_queries, QUERY_TILE):
        n_rows = min(QUERY_TILE, geometry.n_queries - i)
        if visible[i + n_rows - 1] <= j and j + n < geometry.n_keys:  # the last row sees no fewer than the others
            continue
        queries = work.queries[height * i : height * i + d_k * n_rows].reshape(d_k, n_rows)
        raw = raw_scores(
            draw.score, work.units, queries, keys, i, j, trial, geometry.key, transform.rounding, work.scores
        )
        if number == FIRST and sample.shape[0] > 0:
            _keep_sample(raw, i, j, visible, work.sampled, sample, stop)
        tile, slopes = raw, work.slopes.slopes[: n_rows * n if measures.n_views > 1 else 0].reshape(-1, n)
        for k in range(-1, measures.factors.shape[0]):  # the raw scores first, then the rules that see others
            view = measures.views[k] if k >= 0 else RAW
            if k >= 0:
                if view == RAW:
                    continue
                tile = work.seen[: n_rows * n].reshape(n_rows, n)
                is_scaled = transform.place != AT_SCORES
                if is_scaled:
                    scaled_product(queries, keys, k, i, visible, transform, work.scaled, tile)
                derive(tile if is_scaled else raw, k, i, visible, transform, is_scaled, tile, slopes)
            _see(number, view, tile, raw, i, j, n, geometry, visible, queries, draw, measures, work, tally, bins)


@inner
def _take_key_norms(keys, kind, key_norms, out):
    if kind == COSINE:  # of the vectors before they were brought to length 1
        for t in range(out.shape[0]):
            out[t] = key_norms[t]
    else:
        find_norms(keys, keys.shape[0], out)


@part
def _run_trial(trial, draw, geometry, visible, work, measures, tally, bins, sample, stop):
    """Draw one trial and add it to `tally`; returns early, with the tally unfinished, once `stop` is set."""
    has_spectrum = measures.offsets.jacobian_spectral >= 0
    work.rows.is_lost[:] = 0
    begin_rounded(work.rounded)
    _draw_queries(trial, draw, geometry, work)
    # in one tile, or in types that hold any likely score, the first pass finds them itself
    start = LOSSES if draw.transform.rounding > 0 and geometry.n_keys > TILE else FIRST
    for number in range(start, SECULAR + MAX_PASSES if has_spectrum else SECULAR):
        if number == ROUNDING and work.rounded.sums.shape[2] == 0:
            continue
        if number >= SECULAR:
            begin_pass(number - SECULAR + 1, work.secular)
        for j in range(0, geometry.n_keys, TILE):
            if stop[0]:
                return
            n = min(TILE, geometry.n_keys - j)
            _draw_keys(j, n, trial, draw, geometry, work)
            _add_keys(
                number, j, n, np.uint32(trial), draw, geometry, visible, work, measures, tally, bins, sample, stop
            )
        if number >= SECULAR and end_pass(number - SECULAR + 1, work.rows, work.secular):
            break
    finish_trial(work.rows, work.slopes, work.rounded, work.query_norms, geometry.n_keys, measures, tally, bins)


@entry
def run_blocks(first_block, draw, geometry, visible, measures, tallies, bins, bin_rows, keep_values, sample, stop):
    """Run one block for each row of `tallies`, which start as empty tallies.

    Parameters
    ----------
    first_block : int
        Its number in the cell; the last block of a cell may be short.
    draw : Draw
    geometry : Geometry
    visible : int64 array (n_queries,)
        How many keys each row sees, at least 1, in no falling order within a tile of queries.
    measures : Measures
    tallies : float64 array (blocks, fields)
    bins : int64 array (nodes, bin fields)
        Added to.
    bin_rows : int64 array (blocks,)
        The row of `bins` that a block counts in.
    keep_values : bool
        Whether to keep what the last trial's rows are worth.
    sample : real array
        Filled with the first raw scores, unless it is of no length; when it is full, the call ends.
    stop : uint8 array (1,)
        Set by another thread to end early; the tallies are then worth nothing.

    Returns
    -------
    float64 array (scales, N_VALUES, n_queries)
        If `keep_values`.
    """
    work = _new_work(draw, geometry, measures, keep_values)
    for b in range(tallies.shape[0]):
        start = (first_block + b) * geometry.block_trials
        for view in range(measures.n_views):
            forget(work.rows.block[view])
        for trial in range(start, min(start + geometry.block_trials, geometry.trials)):
            _run_trial(trial, draw, geometry, visible, work, measures, tallies[b], bins[bin_rows[b]], sample, stop)
            if stop[0]:
                return work.rows.values
        finish_block(work.rows, measures, tallies[b])
    return work.rows.values
