"""Given vectors through the kernels that drawn ones take: one trial, and what each of its rows is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim.arguments import given_side
from sim.jit import ensure_compiled
from sim.plan import Plan
from sim.tally import Layout

__all__ = ["Given", "run_given"]


class Given(NamedTuple):
    """What the kernels found: a tally, a row of bins, and the values of :mod:`sim.finish` (scales, values, rows)."""

    tally: np.ndarray
    bins: np.ndarray
    values: np.ndarray


def run_given(plan: Plan, layout: Layout, query: np.ndarray, key: np.ndarray) -> Given:
    """Run one trial of `plan` on given vectors.

    Parameters
    ----------
    plan : Plan
        Of a cell of these sizes; its laws are not used.
    layout : Layout
    query, key : array (tokens, d_k)
        Cast to the cell's precision.
    """
    ensure_compiled(plan.measures.exponents.dtype.name)
    tallies, bins = layout.empty(1), layout.empty_bins(1)
    draw = plan.draw._replace(query=given_side(plan.draw.query, query), key=given_side(plan.draw.key, key))
    of_one_trial = replace(plan, draw=draw, geometry=plan.geometry._replace(trials=1))
    values = of_one_trial.run(0, tallies, bins, np.zeros(1, np.int64), keep_values=True)
    return Given(tallies[0], bins[0], values)
