"""The block on the CPU: draws Q and K of its trials and streams the keys through in tiles.

All buffers are allocated once a call and reused by its trials; the order of the loops (keys outside,
queries inside) draws each tile of keys once and holds none but that one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.draw import fill, padded
from sim.jit import inner, kernel
from sim.philox import KEY, QUERY
from sim.stream import add_tile, begin_block, finish_block, finish_trial, new_rows
from sim.tiles import TILE

__all__ = ["Geometry", "Side", "draw_side", "run_blocks"]

QUERY_TILE = 128  # rows of raw scores at a time: at most 256 kB in float32, within the L2 cache
DIRECT_ROWS = 4  # up to so many queries a plain loop beats BLAS, which spends its time packing K


class Side(NamedTuple):
    """One side's law, and (mean, std, the law's parameter) in the precision of the draw."""

    law: int
    numbers: np.ndarray


class Geometry(NamedTuple):
    """The sizes of a cell's trials and blocks, and the key of its random words."""

    n_queries: int
    n_keys: int
    d_k: int
    trials: int
    block_trials: int
    key: tuple[np.uint32, np.uint32]


@kernel
def draw_side(side, out, first, trial, tensor, key):
    """Draw the tokens `first` ... of one side into `out`, of shape (padded(d_k), tokens)."""
    fill(side.law, out, first, np.uint32(trial), tensor, key, side.numbers[0], side.numbers[1], side.numbers[2])


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
def _product(queries, keys, scores):
    """Write queries^T keys; both are (d_k, tokens) and contiguous."""
    if scores.shape[0] <= DIRECT_ROWS:
        _direct_product(queries, keys, scores)
    else:
        np.dot(queries.T, keys, scores)


@kernel
def run_trial(trial, query, key, geometry, measures, rows, buffers, tally, stop):
    """Draw one trial and add it to `tally`; returns early, with the tally unfinished, once `stop` is set."""
    all_queries, some_keys, some_scores = buffers
    d_k, height = geometry.d_k, padded(geometry.d_k)
    for i in range(0, geometry.n_queries, QUERY_TILE):
        width = min(QUERY_TILE, geometry.n_queries - i)
        tile = all_queries[height * i : height * (i + width)].reshape(height, width)
        draw_side(query, tile, i, trial, QUERY, geometry.key)
    for j in range(0, geometry.n_keys, TILE):
        if stop[0]:
            return
        width = min(TILE, geometry.n_keys - j)
        draw_side(key, some_keys[: height * width].reshape(height, width), j, trial, KEY, geometry.key)
        keys = some_keys[: d_k * width].reshape(d_k, width)
        for i in range(0, geometry.n_queries, QUERY_TILE):
            n_rows = min(QUERY_TILE, geometry.n_queries - i)
            queries = all_queries[height * i : height * i + d_k * n_rows].reshape(d_k, n_rows)
            scores = some_scores[: n_rows * width].reshape(n_rows, width)
            _product(queries, keys, scores)
            add_tile(scores, i, j == 0, rows, measures, tally)
    finish_trial(rows, measures, tally)


@kernel
def run_blocks(first_block, query, key, geometry, measures, tallies, stop):
    """Run one block for each row of `tallies`, which start as empty tallies.

    Parameters
    ----------
    first_block : int
        Its number in the cell; the last block of a cell may be short.
    query, key : Side
    geometry : Geometry
    measures : Measures
    tallies : float64 array (blocks, fields)
    stop : uint8 array (1,)
        Set by another thread to end early; the tallies are then worth nothing.
    """
    tile_rows = min(QUERY_TILE, geometry.n_queries)
    rows = new_rows(geometry.n_queries, tile_rows, measures.factors.shape[0])
    height, width, real = padded(geometry.d_k), min(TILE, geometry.n_keys), query.numbers.dtype
    buffers = (
        np.empty(height * geometry.n_queries, real),
        np.empty(height * width, real),
        np.empty(tile_rows * width, real),
    )
    for b in range(tallies.shape[0]):
        start = (first_block + b) * geometry.block_trials
        begin_block(rows)
        for trial in range(start, min(start + geometry.block_trials, geometry.trials)):
            run_trial(trial, query, key, geometry, measures, rows, buffers, tallies[b], stop)
            if stop[0]:
                return
        finish_block(rows, measures, tallies[b])
