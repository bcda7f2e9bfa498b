"""All observables by name, and their values in a cell.

An observable computed from sums that exist is one entry in :mod:`sim.score_observables` or :mod:`sim.row_observables`;
a new sum is one more part in :mod:`sim.tally`, filled in :mod:`sim.stream`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.estimates import Tallies
from sim.observable import Estimate, Observable
from sim.plan import Plan
from sim.row_observables import ROW_OBSERVABLES
from sim.score_observables import SCORE_OBSERVABLES
from sim.sweep import Sweep
from sim.tally import Layout

__all__ = ["OBSERVABLES", "Estimate", "Observable", "evaluate", "observed", "value_of"]

OBSERVABLES: dict[str, Observable] = {**SCORE_OBSERVABLES, **ROW_OBSERVABLES}


def observed(sweep: Sweep, layout: Layout) -> list[str]:
    """Return the names of the observables of a sweep, whose tallies have this layout."""
    return [
        name
        for name, entry in OBSERVABLES.items()
        if entry.family in sweep.observables and (entry.needs is None or entry.needs in layout)
    ]


def value_of(name: str, tallies: Tallies, plan: Plan, levels: Sequence[float]) -> np.ndarray:
    """Return the estimate alone of one observable of one cell; the arguments are those of :func:`evaluate`."""
    entry = OBSERVABLES[name]
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the blank of a constant score
        if entry.special is not None:
            return entry.special(tallies, plan, levels)[0]
        assert entry.estimate is not None
        return entry.estimate(tallies, plan)[0]


def evaluate(name: str, tallies: Tallies, plan: Plan, levels: Sequence[float]) -> Estimate:
    """Return one observable of one cell.

    Parameters
    ----------
    name : str
    tallies : Tallies
        The cell's.
    plan : Plan
        The cell's.
    levels : sequence of float
        At which quantiles are asked for.
    """
    entry = OBSERVABLES[name]
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the blank of a constant score
        if entry.special is not None:
            value, se = entry.special(tallies, plan, levels)
            return Estimate(value, se)
        assert entry.estimate is not None
        values = entry.estimate(tallies, plan)
        theory = entry.theory(plan) if entry.theory else None
        limit = entry.limit(plan) if entry.limit else None
        if entry.error is None:
            return Estimate(values[0], None, theory, limit)
        se = entry.error(values, tallies.sizes)
        return Estimate(values[0], np.where(_has_moments(entry, plan, se), se, np.nan), theory, limit)


def _has_moments(entry: Observable, plan: Plan, se: np.ndarray) -> np.ndarray:
    """Return whether the moments that an error needs are finite, for every scale rule if there are any."""
    of_rules = [plan.theory.moments if entry.of_vectors else scaled.moments for scaled in plan.scaled]
    enough = np.array(of_rules) >= 2 * entry.order
    return enough.reshape(-1, *[1] * (se.ndim - 1)) if entry.has_scale else np.array(True)
