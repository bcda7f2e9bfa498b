"""The block on the CPU: draws Q and K of its trials and streams the keys through in tiles.

All buffers are allocated once a call and reused by its trials; the order of the loops (keys outside,
queries inside) draws each tile of keys once and holds none but that one. The spectrum alone takes further
passes, each of which draws the keys again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.draw import draw_side, padded
from sim.finish import finish_block, finish_trial
from sim.gradients import add_gradients, end_tile, new_keys, prepare_keys
from sim.jit import inner, kernel, part
from sim.moments import forget
from sim.philox import KEY, QUERY
from sim.spectrum import MAX_PASSES, add_pass, begin_pass, end_pass, new_secular
from sim.stream import add_tile, add_weights, merge_ends, needs_weights, new_rows
from sim.tiles import TILE

__all__ = ["Geometry", "product", "run_blocks"]

QUERY_TILE = 128  # rows of raw scores at a time: at most 256 kB in float32, within the L2 cache
DIRECT_ROWS = 4  # up to so many queries a plain loop beats BLAS, which spends its time packing K


class Geometry(NamedTuple):
    """The sizes of a cell's trials and blocks, and the key of its random words."""

    n_queries: int
    n_keys: int
    d_k: int
    trials: int
    block_trials: int
    key: tuple[np.uint32, np.uint32]


class Work(NamedTuple):
    """All that the trials of a call reuse; arrays of "real" are in the precision of the scores."""

    rows: Any
    keys: Any
    secular: Any
    queries: np.ndarray  # real (padded d * n_queries,): tile after tile
    query_norms: np.ndarray  # float64 (n_queries,), for gradients alone
    some_keys: np.ndarray  # real (padded d * TILE,)
    scores: np.ndarray  # real (QUERY_TILE * TILE,)


@part
def _new_work(geometry, measures, keep_values):
    height, width, tile_rows = padded(geometry.d_k), min(TILE, geometry.n_keys), min(QUERY_TILE, geometry.n_queries)
    at, n_queries, real = measures.offsets, geometry.n_queries, measures.exponents.dtype
    has_gradients = at.gradient_query_sq >= 0
    return Work(
        new_rows(n_queries, tile_rows, width, measures, keep_values),
        new_keys(has_gradients, n_queries, tile_rows, geometry.n_keys, geometry.d_k, measures.exponents),
        new_secular(measures.factors.shape[0], n_queries if at.jacobian_spectral >= 0 else 0),
        np.empty(height * n_queries, real),
        np.empty(n_queries if has_gradients else 0),
        np.empty(height * width, real),
        np.empty(tile_rows * width, real),
    )


@inner
def _direct_product(queries, keys, scores):
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] = scores.dtype.type(0)
        for e in range(queries.shape[0]):
            q = queries[e, i]
            for j in range(scores.shape[1]):
                scores[i, j] += q * keys[e, j]


@kernel
def product(queries, keys, scores):
    """Write queries^T keys; both are (d_k, tokens) and contiguous."""
    if scores.shape[0] <= DIRECT_ROWS:
        _direct_product(queries, keys, scores)
    else:
        np.dot(queries.T, keys, scores)


@inner
def _find_norms(tile, d_k, norms):
    for t in range(norms.shape[0]):
        norms[t] = 0.0
    for e in range(d_k):
        for t in range(norms.shape[0]):
            norms[t] += np.float64(tile[e, t]) * np.float64(tile[e, t])


@part
def _draw_queries(trial, query, geometry, work):
    height = padded(geometry.d_k)
    for i in range(0, geometry.n_queries, QUERY_TILE):
        width = min(QUERY_TILE, geometry.n_queries - i)
        tile = work.queries[height * i : height * (i + width)].reshape(height, width)
        draw_side(query, tile, i, trial, QUERY, geometry.key)
        if work.query_norms.shape[0] > 0:
            _find_norms(tile, geometry.d_k, work.query_norms[i : i + width])


@part
def _add_keys(number, j, n, geometry, visible, work, measures, tally, bins):
    """Take the keys j ... j + n - 1, which are drawn, through all tiles of queries, in pass `number`."""
    d_k, height, rows = geometry.d_k, padded(geometry.d_k), work.rows
    keys = work.some_keys[: d_k * n].reshape(d_k, n)
    has_gradients = number == 0 and measures.offsets.gradient_query_sq >= 0
    if has_gradients:
        prepare_keys(keys, j == 0, work.keys)
    for i in range(0, geometry.n_queries, QUERY_TILE):
        n_rows = min(QUERY_TILE, geometry.n_queries - i)
        if visible[i + n_rows - 1] <= j and j + n < geometry.n_keys:  # the last row sees no fewer than the others
            continue
        queries = work.queries[height * i : height * i + d_k * n_rows].reshape(d_k, n_rows)
        scores = work.scores[: n_rows * n].reshape(n_rows, n)
        product(queries, keys, scores)
        if number > 0:
            add_pass(number, scores, i, j, visible, rows, measures, work.secular)
            continue
        add_tile(scores, i, j, visible, rows, measures, tally, bins)
        if has_gradients:
            is_last = j + n == geometry.n_keys
            for k in range(measures.factors.shape[0]):
                add_weights(scores, i, j == 0, k, rows, measures)
                add_gradients(k, i, n_rows, n, j == 0, is_last, rows, measures.factors[k], work.keys)
            end_tile(i, n_rows, n, j == 0, rows, work.keys)
        elif needs_weights(measures.offsets):
            add_weights(scores, i, j == 0, -1, rows, measures)
        merge_ends(rows, i, n_rows, j == 0)


@part
def _run_trial(trial, query, key, geometry, visible, work, measures, tally, bins, stop):
    """Draw one trial and add it to `tally`; returns early, with the tally unfinished, once `stop` is set."""
    height = padded(geometry.d_k)
    has_spectrum = measures.offsets.jacobian_spectral >= 0
    _draw_queries(trial, query, geometry, work)
    for number in range(1 + MAX_PASSES if has_spectrum else 1):
        if number > 0:
            begin_pass(number, work.secular)
        for j in range(0, geometry.n_keys, TILE):
            if stop[0]:
                return
            n = min(TILE, geometry.n_keys - j)
            draw_side(key, work.some_keys[: height * n].reshape(height, n), j, trial, KEY, geometry.key)
            _add_keys(number, j, n, geometry, visible, work, measures, tally, bins)
        if number > 0 and end_pass(number, work.rows, work.secular):
            break
    finish_trial(work.rows, work.query_norms, geometry.n_keys, measures, tally, bins)


@kernel
def run_blocks(first_block, query, key, geometry, visible, measures, tallies, bins, bin_rows, keep_values, stop):
    """Run one block for each row of `tallies`, which start as empty tallies.

    Parameters
    ----------
    first_block : int
        Its number in the cell; the last block of a cell may be short.
    query, key : Side
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
    stop : uint8 array (1,)
        Set by another thread to end early; the tallies are then worth nothing.

    Returns
    -------
    float64 array (scales, N_VALUES, n_queries)
        If `keep_values`.
    """
    work = _new_work(geometry, measures, keep_values)
    for b in range(tallies.shape[0]):
        start = (first_block + b) * geometry.block_trials
        forget(work.rows.block)
        for trial in range(start, min(start + geometry.block_trials, geometry.trials)):
            _run_trial(trial, query, key, geometry, visible, work, measures, tallies[b], bins[bin_rows[b]], stop)
            if stop[0]:
                return work.rows.values
        finish_block(work.rows, measures, tallies[b])
    return work.rows.values
