"""Where the scores of a cell lie if theory does not say: its first thousand scores, drawn once before all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.block import run_blocks
from sim.jit import ensure_compiled
from sim.plan import HISTOGRAM_BINS, HISTOGRAM_WIDTHS, Plan, bin_grid, edges_around, unit_of
from sim.sweep import Sweep
from sim.tally import Layout

__all__ = ["first_scores", "settled"]

_COUNT = 1000
_IQR_OF_NORMAL = 1.349  # in standard deviations


def first_scores(plan: Plan) -> np.ndarray:
    """Return the first raw scores of a cell, at most a thousand of them that are finite."""
    ensure_compiled(plan.measures.exponents.dtype.name)
    layout = Layout((), {"scale": len(plan.rules)})
    sample = np.full(_COUNT, np.nan, plan.measures.exponents.dtype)
    blocks = min(plan.blocks, _COUNT)
    run_blocks(
        0,
        plan.draw,
        plan.geometry,
        plan.visible,
        plan.measures._replace(offsets=layout.offsets),
        layout.empty(blocks),
        layout.empty_bins(1),
        np.zeros(blocks, np.int64),
        False,
        sample,
        np.zeros(1, np.uint8),
    )
    return sample[np.isfinite(sample)].astype(float)


def settled(plan: Plan, sweep: Sweep) -> Plan:
    """Return a plan whose edges and unit are those of theory, or else of the median and the interquartile range."""
    if np.isfinite(plan.theory.mean) and np.isfinite(plan.theory.std):
        return plan
    scores = first_scores(plan)
    low, median, high = np.quantile(scores, [0.25, 0.5, 0.75]) if len(scores) else (0.0, 0.0, 0.0)
    iqr = high - low
    edges = plan.edges
    if sweep.histogram is None:
        edges = edges_around(median, HISTOGRAM_WIDTHS * (iqr or max(1.0, abs(median))), HISTOGRAM_BINS)
    measures = plan.measures._replace(
        histogram=bin_grid(edges, plan.measures.exponents.dtype), unit=unit_of(iqr / _IQR_OF_NORMAL)
    )
    return replace(plan, edges=edges, measures=measures)
