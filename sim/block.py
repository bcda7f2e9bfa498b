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
from sim.jit import entry, inner, part
from sim.moments import forget
from sim.philox import KEY, QUERY
from sim.rounded import add_rounded, begin_rounded, needs_rounding, new_rounded
from sim.slopes import add_slopes, new_slopes
from sim.spectrum import MAX_PASSES, add_pass, begin_pass, end_pass, new_secular
from sim.stream import (
    ALL,
    RAW,
    Measures,
    add_tile,
    add_weights,
    find_lost,
    merge_ends,
    needs_weights,
    new_rows,
    view_of,
)
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

__all__ = ["QUERY_TILE", "Draw", "Geometry", "new_work", "run_blocks"]

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


class Vectors(NamedTuple):
    """The queries of a trial and a tile of its keys; arrays of "real" are in the precision of the scores."""

    units: Any
    queries: np.ndarray  # real (padded d * n_queries,): tile after tile
    query_norms: np.ndarray  # float64 (n_queries,): ||q||^2, before the cosine brings it to 1
    keys: np.ndarray  # real (padded d * TILE,)
    key_norms: np.ndarray  # float64 (TILE,)
    tokens: np.ndarray  # real: a tile of tokens before they are projected
    weights: np.ndarray  # real (padded(d_model) + 4, d): the projection of the side that is drawn


class Work(NamedTuple):
    """All that the trials of a call reuse."""

    vectors: Vectors
    rows: Any
    keys: Any
    slopes: Any
    rounded: Any
    secular: Any
    scores: np.ndarray  # real (padded QUERY_TILE * TILE,)
    seen: np.ndarray  # real (QUERY_TILE * TILE,): the scores as one rule sees them
    scaled: np.ndarray  # real: vectors that are scaled before the product
    sampled: np.ndarray  # int64 (1,): how many scores have been kept as a sample


def new_work(draw: Draw, geometry: Geometry, measures: Measures, keep_values: bool) -> Work:
    """Return what :func:`run_blocks` works in; `keep_values` says that the values of rows are asked for afterwards."""
    d, n_queries, n_keys = geometry.d_k, geometry.n_queries, geometry.n_keys
    height, width, tile_rows = padded(d), min(TILE, n_keys), min(QUERY_TILE, n_queries)
    at, real, n_scales = measures.offsets, measures.exponents.dtype, measures.factors.shape[0]
    has_gradients, has_views = at.gradient_query_sq >= 0, measures.n_views > 1
    is_sloped = has_gradients and measures.is_sloped.any()
    has_norms = has_gradients or draw.score.kind == COSINE
    is_scaled, rounding = draw.transform.place != AT_SCORES, draw.transform.rounding
    room = padded(max(draw.query.width, draw.key.width))
    vectors = Vectors(
        new_units(draw.score.units, d, n_queries, n_keys, measures.exponents),
        np.empty(height * n_queries, real),
        np.empty(n_queries if has_norms else 0),
        np.empty(height * width, real),
        np.empty(width if has_norms else 0),
        np.empty(room * max(width, tile_rows) if room > 0 else 0, real),
        np.empty((room + 4 if room > 0 else 0, d), real),
    )
    return Work(
        vectors,
        new_rows(n_queries, tile_rows, width, measures, keep_values),
        new_keys(has_gradients, is_sloped, n_queries, tile_rows, n_keys, d, measures.exponents),
        new_slopes(has_views, is_sloped, n_queries, tile_rows, n_keys, d, draw.score.units, measures.exponents),
        new_rounded(rounding, n_scales, n_queries if needs_rounding(rounding, at) else 0),
        new_secular(n_scales, n_queries if at.jacobian_spectral >= 0 else 0),
        np.empty(padded(tile_rows) * width, real),
        np.empty(tile_rows * width if has_views else 0, real),
        np.empty(d * (tile_rows + width) if is_scaled else 0, real),
        np.zeros(1, np.int64),
    )


@part
def _draw_tile(own, first, trial, draw, geometry, tokens, weights, tile, norms):
    """Write vectors as the score sees them, and the squares of their lengths before the cosine brings them to 1."""
    side, d_k = draw.key if own == KEY else draw.query, geometry.d_k
    draw_side(side, own, draw.query, draw.pair, d_k, tokens, weights, tile, first, trial, geometry.key)
    if draw.score.kind == COSINE:
        normalize(tile, d_k, 1.0, norms)
    round_all(tile, draw.transform.rounding)
    if draw.score.kind != COSINE and norms.shape[0] > 0:
        find_norms(tile, d_k, norms)


@part
def _draw_queries(trial, draw, geometry, vectors):
    d_k, height, units, weights = geometry.d_k, padded(geometry.d_k), draw.score.units, vectors.weights
    draw_units(draw.score, np.uint32(trial), geometry.key, vectors.units)
    draw_weights(draw.query, QUERY, weights, np.uint32(trial), geometry.key)
    for i in range(0, geometry.n_queries, QUERY_TILE):
        width = min(QUERY_TILE, geometry.n_queries - i)
        tile = vectors.queries[height * i : height * (i + width)].reshape(height, width)
        norms = vectors.query_norms[i : i + width]
        _draw_tile(QUERY, i, trial, draw, geometry, vectors.tokens, weights, tile, norms)
        if units > 0:
            out = vectors.units.of_queries[units * i : units * (i + width)].reshape(units, width)
            product(vectors.units.query_weights[:d_k], tile[:d_k], out)
    draw_weights(draw.key, KEY, weights, np.uint32(trial), geometry.key)


@part
def _draw_keys(j, n, trial, draw, geometry, vectors):
    d_k, height, units = geometry.d_k, padded(geometry.d_k), draw.score.units
    tile = vectors.keys[: height * n].reshape(height, n)
    _draw_tile(KEY, j, trial, draw, geometry, vectors.tokens, vectors.weights, tile, vectors.key_norms[:n])
    if units > 0:
        out = vectors.units.of_keys[: units * n].reshape(units, n)
        product(vectors.units.key_weights[:d_k], tile[:d_k], out)


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
def _first_pass(view, tile, raw, i, j, is_last, visible, queries, score, measures, work, tally, bins):
    """Take a tile of the scores of a view through the first pass; `raw` is the tile of raw scores."""
    rows, at = view_of(work.rows, view), measures.offsets
    n_rows, n = tile.shape
    add_tile(tile, i, j, visible, view, rows, measures, tally, bins)
    if at.gradient_query_sq >= 0:
        norms = work.vectors.query_norms[i : i + n_rows]
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
            args = (queries, norms, score, work.vectors.units, work.slopes)
            add_slopes(k, raw, i, j == 0, is_last, rows, factor, work.keys, *args)
        if view == RAW:
            end_tile(i, n_rows, n, j == 0, rows, work.keys)
    elif needs_weights(at):
        add_weights(tile, i, j == 0, view, ALL, rows, measures)
    merge_ends(rows, i, n_rows, j == 0)


@part
def _derive_view(k, raw, queries, keys, i, visible, transform, room, tile, slopes):
    """Write a tile of the scores as rule `k` sees them, and their slopes."""
    is_scaled = transform.place != AT_SCORES
    if is_scaled:
        scaled_product(queries, keys, k, i, visible, transform, room, tile)
    derive(tile if is_scaled else raw, k, i, visible, transform, is_scaled, tile, slopes)


@part
def _add_keys(number, j, n, trial, score, transform, geometry, visible, work, measures, tally, bins, sample, stop):
    """Take the keys j ... j + n - 1, which are drawn, through all tiles of queries, in pass `number`."""
    d_k, height, vectors = geometry.d_k, padded(geometry.d_k), work.vectors
    keys = vectors.keys[: d_k * n].reshape(d_k, n)
    if number == FIRST and measures.offsets.gradient_query_sq >= 0:
        prepare_keys(keys, j == 0, work.keys)
        if work.slopes.norms.shape[0] > 0:
            _take_key_norms(keys, score.kind, vectors.key_norms, work.slopes.norms[:n])
    for i in range(0, geometry.n_queries, QUERY_TILE):
        n_rows = min(QUERY_TILE, geometry.n_queries - i)
        if visible[i + n_rows - 1] <= j and j + n < geometry.n_keys:  # the last row sees no fewer than the others
            continue
        queries = vectors.queries[height * i : height * i + d_k * n_rows].reshape(d_k, n_rows)
        raw = raw_scores(
            score, vectors.units, queries, keys, i, j, trial, geometry.key, transform.rounding, work.scores
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
                _derive_view(k, raw, queries, keys, i, visible, transform, work.scaled, tile, slopes)
            if number == FIRST:
                is_last = j + n == geometry.n_keys
                _first_pass(view, tile, raw, i, j, is_last, visible, queries, score, measures, work, tally, bins)
                continue
            rows = view_of(work.rows, view)
            if number == LOSSES:
                find_lost(tile, i, j, visible, rows)
            elif number == ROUNDING:
                add_rounded(tile, i, j, visible, view, rows, measures, work.rounded)
            else:
                add_pass(number - SECULAR + 1, tile, i, j, visible, view, rows, measures, work.secular)


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
    _draw_queries(trial, draw, geometry, work.vectors)
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
            _draw_keys(j, n, trial, draw, geometry, work.vectors)
            _add_keys(
                number,
                j,
                n,
                np.uint32(trial),
                draw.score,
                draw.transform,
                geometry,
                visible,
                work,
                measures,
                tally,
                bins,
                sample,
                stop,
            )
        if number >= SECULAR and end_pass(number - SECULAR + 1, work.rows, work.secular):
            break
    norms = work.vectors.query_norms
    finish_trial(work.rows, work.slopes, work.rounded, norms, geometry.n_keys, measures, tally, bins)


@entry
def run_blocks(first_block, draw, geometry, visible, measures, work, tallies, bins, bin_rows, sample, stop):
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
    work : Work
        Of :func:`new_work`; ``work.rows.values`` is then what the rows of the last trial are worth.
    tallies : float64 array (blocks, fields)
    bins : int64 array (nodes, bin fields)
        Added to.
    bin_rows : int64 array (blocks,)
        The row of `bins` that a block counts in.
    sample : real array
        Filled with the first raw scores, unless it is of no length; when it is full, the call ends.
    stop : uint8 array (1,)
        Set by another thread to end early; the tallies are then worth nothing.
    """
    for b in range(tallies.shape[0]):
        start = (first_block + b) * geometry.block_trials
        for view in range(measures.n_views):
            forget(work.rows.block[view])
        for trial in range(start, min(start + geometry.block_trials, geometry.trials)):
            _run_trial(trial, draw, geometry, visible, work, measures, tallies[b], bins[bin_rows[b]], sample, stop)
            if stop[0]:
                return
        finish_block(work.rows, measures, tallies[b])
