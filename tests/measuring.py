"""Given vectors or raw scores through the kernels, for tests: ``measured(scores, factors)``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.draw import padded
from sim.given import Given, run_given
from sim.philox import KEY
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
from sim.tally import BINS, PARTS, Layout
from sim.vectors import draw_side, draw_weights

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


def draw_tokens(made: Plan, own: np.uint32, count: int, trial: int, first: int = 0) -> np.ndarray:
    """Return vectors of one side, QUERY or KEY, as the block draws them, (tokens, d_k) in float64."""
    geometry, draw = made.geometry, made.draw
    side = draw.key if own == KEY else draw.query
    out = np.empty((padded(geometry.d_k), count), side.numbers.dtype)
    height = padded(max(draw.query.width, draw.key.width))
    tokens = np.empty(height * count, side.numbers.dtype)
    weights = np.empty((height + 1, geometry.d_k if height else 0), side.numbers.dtype)
    draw_weights(side, own, weights, geometry.d_k, np.uint32(trial), geometry.key)
    draw_side(side, own, draw.query, draw.pair, geometry.d_k, tokens, weights, out, first, trial, geometry.key)
    return out[: geometry.d_k].T.astype(float)


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
    found, where = run_scores(scores, factors, **options)
    return {
        part.name: where.part(found.bins if part.merge == BINS else found.tally, part.name)
        for part in PARTS
        if part.name in where
    }


def each_row(scores: np.ndarray, factors, **options) -> dict[str, np.ndarray]:
    """Return the values of every row of given raw scores, (rows, scales)."""
    found, _ = run_scores(scores, factors, **{"observables": ROW_FAMILIES, **options})
    names = [name for name in VALUES if name != "gradient_query_sq"]
    return {name: found.values[:, VALUES[name]].T for name in names}
