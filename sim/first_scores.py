"""Where the scores of a cell lie if theory does not say: its first thousand scores, drawn once before all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.jit import ensure_compiled
from sim.plan import FIRST_SCORES, HISTOGRAM_BINS, Plan, bin_grid, edges_around, reach_of, unit_of
from sim.sweep import Sweep
from sim.tally import Layout

__all__ = ["first_scores", "settled"]

_IQR_OF_NORMAL = 1.349  # in standard deviations


def first_scores(plan: Plan) -> np.ndarray:
    """Return the first raw scores of a cell, at most a thousand of them that are finite."""
    ensure_compiled(plan.measures.exponents.dtype.name)
    layout = Layout((), {"scale": len(plan.rules)})
    sample = np.full(FIRST_SCORES, np.nan, plan.measures.exponents.dtype)
    blocks = min(plan.blocks, FIRST_SCORES)
    counting_nothing = replace(plan, measures=plan.measures._replace(offsets=layout.offsets))
    counting_nothing.run(0, layout.empty(blocks), layout.empty_bins(1), np.zeros(blocks, np.int64), sample=sample)
    return sample[np.isfinite(sample)].astype(float)


def settled(plan: Plan, sweep: Sweep) -> Plan:
    """Return a plan whose edges and unit are those of theory, or else of the median and the interquartile range."""
    if np.isfinite(plan.theory.mean) and np.isfinite(plan.theory.std):
        return plan
    median, iqr, half = reach_of(first_scores(plan))
    edges = plan.edges if sweep.histogram else edges_around(median, half, HISTOGRAM_BINS)
    measures = plan.measures._replace(
        histogram=bin_grid(edges, plan.measures.exponents.dtype), unit=unit_of(iqr / _IQR_OF_NORMAL)
    )
    return replace(plan, edges=edges, measures=measures)
