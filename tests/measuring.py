"""Given raw scores through the streamed kernels, for tests: ``measured(scores, factors)``."""

from __future__ import annotations

import numpy as np

from sim.plan import layout, plan
from sim.stream import tally_scores
from sim.sweep import Sweep
from sim.tally import Layout


def measures_for(scores: np.ndarray, factors, change=None, **fields):
    """Return (measures, layout) for scores of this shape and precision; `change` replaces some measures."""
    sizes = {"d_k": 16, "n_queries": scores.shape[0], "n_keys": scores.shape[1], "precision": scores.dtype.name}
    sweep = Sweep(**{**sizes, "scale": list(factors), **fields})
    where = layout(sweep)
    return plan(sweep, sweep.cells[0], where).measures._replace(**(change or {})), where


def tally_of(scores: np.ndarray, factors=(1.0,), tile_rows: int | None = None, **fields) -> tuple[np.ndarray, Layout]:
    """Return the tally of `scores` (queries, keys) as one trial, and its layout."""
    measures, where = measures_for(scores, factors, **fields)
    tally = where.empty(1)[0]
    tally_scores(scores, tile_rows or len(scores), measures, tally)
    return tally, where


def measured(scores: np.ndarray, factors=(1.0,), **fields) -> dict[str, np.ndarray]:
    """Return every part of that tally by name."""
    tally, where = tally_of(scores, factors, **fields)
    return {name: where.part(tally, name) for name in where.offsets._fields if name in where}


def each_row(scores: np.ndarray, factors, **fields) -> dict[str, np.ndarray]:
    """Return the weights' quantities of every row by itself, (rows, scales)."""
    names = ["weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"]
    one = scores[:1]
    measures, where = measures_for(one, factors, observables=["weights"], **fields)
    tallies = where.empty(len(scores))
    for row, tally in zip(scores, tallies, strict=True):
        tally_scores(row[None], 1, measures, tally)
    return {name: where.part(tallies, name) for name in names}
