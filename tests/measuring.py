"""Drawn or given vectors, or raw scores, through the kernels, for tests: ``measured(scores, factors)``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.block import QUERY_TILE
from sim.draw import LAW_CODES, START, fill, padded
from sim.given import Given, run_given
from sim.philox import KEY, QUERY, SCORE
from sim.plan import Plan, layout, plan
from sim.rows import (
    EFFECTIVE_KEYS,
    ENTROPY,
    FROBENIUS,
    FROBENIUS_SQ,
    GRADIENT_QUERY_SQ,
    SPECTRAL,
    SUM_SQUARES,
    TRACE,
    WEIGHT_MAX,
)
from sim.sweep import Sweep
from sim.tally import BINS, PARTS, Layout, merge_tree
from sim.tiles import TILE
from sim.vectors import draw_side, draw_weights
from sim.views import draw_units, new_units
from tests import oracle

VALUES = {
    "weight_max": WEIGHT_MAX,
    "weight_entropy": ENTROPY,
    "weight_effective_keys": EFFECTIVE_KEYS,
    "weight_sum_squares": SUM_SQUARES,
    "jacobian_frobenius": FROBENIUS,
    "jacobian_frobenius_sq": FROBENIUS_SQ,
    "jacobian_trace": TRACE,
    "jacobian_spectral": SPECTRAL,
    "gradient_query_sq": GRADIENT_QUERY_SQ,
}
ROW_FAMILIES = ["weights", "jacobian", "spectrum"]


def planned(**fields) -> tuple[Plan, Layout]:
    """Return the plan and the layout of a sweep of one cell."""
    sweep = Sweep(**fields)
    (cell,) = sweep.cells
    where = layout(sweep)
    return plan(sweep, cell, where), where


def draw_tokens(made: Plan, own: np.uint32, count: int, trial: int, first: int = 0) -> np.ndarray:
    """Return vectors of one side, QUERY or KEY, in the block's tiles from `first` on, (tokens, d_k) in float64."""
    geometry, draw = made.geometry, made.draw
    side, step = (draw.key, TILE) if own == KEY else (draw.query, QUERY_TILE)
    height, real = padded(max(draw.query.width, draw.key.width)), side.numbers.dtype
    weights = np.empty((height + 4 if height else 0, geometry.d_k), real)
    draw_weights(side, own, weights, np.uint32(trial), geometry.key)
    tiles = []
    for start in range(first, first + count, step):
        n = min(step, first + count - start)
        out, room = np.empty((padded(geometry.d_k), n), real), np.empty(height * n, real)
        draw_side(side, own, draw.query, draw.pair, geometry.d_k, room, weights, out, start, trial, geometry.key)
        tiles.append(out[: geometry.d_k].T.astype(float))
    return np.concatenate(tiles)


def draw_standard(made: Plan, law: str, tensor: int, shape: tuple[int, int], trial: int, constants=()) -> np.ndarray:
    """Return standardised elements as :func:`sim.draw.fill` draws them, of shape (tokens, elements) in float64."""
    tokens, width = shape
    real = made.measures.exponents.dtype
    out = np.empty((padded(width), tokens), real)
    numbers = np.array([0, 1, *constants, 0, 0, 0][:5], real)
    fill(LAW_CODES[law], out, START, START, np.uint32(trial), np.uint32(tensor), made.geometry.key, numbers)
    return out[:width].T.astype(float)


def draw_weights_of_units(made: Plan, trial: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W_q and W_k, (d_k, units), and v, (units,), of additive scores."""
    geometry, score = made.geometry, made.draw.score
    room = np.empty(0, score.constants.dtype)
    units = new_units(score.units, geometry.d_k, 1, 1, room)
    draw_units(score, np.uint32(trial), geometry.key, units)
    weights = (units.query_weights[: geometry.d_k], units.key_weights[: geometry.d_k], units.v[0])
    return tuple(x.astype(float) for x in weights)


def draw_scores(made: Plan, trial: int) -> np.ndarray:
    """Return the raw scores of a trial, (queries, keys), as float64 makes them of what is drawn."""
    geometry, score = made.geometry, made.draw.score
    if made.cell.score.kind == "iid":
        # the counter's four elements are queries, its tokens are keys
        size = (geometry.n_keys, geometry.n_queries)
        law = made.cell.score.get("law").kind
        return draw_standard(made, law, SCORE, size, trial, score.constants[2:]).T
    query = draw_tokens(made, QUERY, geometry.n_queries, trial)
    key = draw_tokens(made, KEY, geometry.n_keys, trial)
    if made.cell.score.kind == "cosine":
        return oracle.cosine(query, key)
    if made.cell.score.kind == "additive":
        return oracle.additive(query, key, *draw_weights_of_units(made, trial))
    return query @ key.T


def run_trials(made: Plan, where: Layout, sample: np.ndarray | None = None, stop: np.ndarray | None = None) -> Given:
    """Return what the kernels make of all the trials of a cell, and what the rows of the last are worth."""
    tallies, bins = where.empty(made.blocks), where.empty_bins(1)
    rows = np.zeros(made.blocks, np.int64)
    values = made.run(0, tallies, bins, rows, keep_values=True, sample=sample, stop=stop)
    merge_tree(tallies, where.segments)
    return Given(tallies[0], bins[0], values)


def parts_of(found: Given, where: Layout) -> dict[str, np.ndarray]:
    """Return every part of a tally and of bins, by name."""
    return {
        part.name: where.part(found.bins if part.merge == BINS else found.tally, part.name)
        for part in PARTS
        if part.name in where
    }


def run_vectors(query, key, factors, change=None, visible=None, **fields) -> tuple[Given, Layout]:
    """Return what the kernels make of Q and K, and the layout; `change` replaces some measures."""
    sizes = {"d_k": query.shape[1], "n_queries": len(query), "n_keys": len(key), "precision": query.dtype.name}
    sweep = Sweep(**{**sizes, "scale": list(factors), **fields})
    where = layout(sweep)
    made = plan(sweep, sweep.cells[0], where)
    made = replace(made, measures=made.measures._replace(**(change or {})))
    if visible is not None:
        made = replace(made, visible=np.asarray(visible, np.int64))
    return run_given(made, where, query, key), where


def run_scores(scores: np.ndarray, factors=(1.0,), **options) -> tuple[Given, Layout]:
    """Return the same of given raw scores (queries, keys): with the unit vectors as keys they are the queries."""
    return run_vectors(scores, np.eye(scores.shape[1], dtype=scores.dtype), factors, **options)


def measured(scores: np.ndarray, factors=(1.0,), **options) -> dict[str, np.ndarray]:
    """Return every part of the tally and of the bins of given raw scores, by name."""
    return parts_of(*run_scores(scores, factors, **options))


def each_row(scores: np.ndarray, factors, **options) -> dict[str, np.ndarray]:
    """Return the values of every row of given raw scores, (rows, scales)."""
    found, _ = run_scores(scores, factors, **{"observables": ROW_FAMILIES, **options})
    names = [name for name in VALUES if name != "gradient_query_sq"]
    return {name: found.values[:, VALUES[name]].T for name in names}
