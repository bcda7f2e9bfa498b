"""What an observable is: name, unit, definition, estimator, error and closed form, in one entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.estimates import Tallies, jackknife
from sim.plan import Plan

__all__ = ["Estimate", "Observable", "factors_of"]

Values = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """Values (scales, ...) with standard errors, exact and asymptotic forms; None where there never is one."""

    value: Values
    se: Values | None = None
    theory: Values | None = None
    limit: Values | None = None


@dataclass(frozen=True, kw_only=True)
class Observable:
    """One named estimate.

    Attributes
    ----------
    family : str
        What it is computed and left out with.
    definition, units : str
    estimate : function (tallies, plan) -> array (1 + groups, scales, ...)
        Of the whole, then without each group.
    dims : tuple of str
        Dimensions after `scale`.
    has_scale : bool
        Whether there is a value for each scale rule, along the dimension `scale`.
    order : int
        r for an r-th moment, whose error needs 2r finite moments; 0 where all is bounded.
    of_vectors : bool
        Whether that moment is of the vectors, which a rule that bounds the scores leaves as they are.
    needs : str, optional
        A part of the tally that only some sweeps have, and without which the observable is left out.
    error : function (values, sizes) -> array, or None
        None where no error is honest: an extreme grows with the trials.
    theory, limit : function plan -> array (scales, ...), or None
        The exact form, and an asymptotic one that is NaN outside its range.
    special : function (tallies, plan, levels) -> (values, errors), or None
        In place of `estimate` and `error`, where the replicates are not values of the observable.
    """

    family: str
    long_name: str
    definition: str
    units: str = "1"
    dims: tuple[str, ...] = ()
    has_scale: bool = True
    order: int = 0
    of_vectors: bool = False
    needs: str | None = None
    estimate: Callable[[Tallies, Plan], Values] | None = None
    error: Callable[[Values, Values], Values] | None = jackknife
    theory: Callable[[Plan], Values] | None = None
    limit: Callable[[Plan], Values] | None = None
    special: Callable[[Tallies, Plan, Sequence[float]], tuple[Values, Values]] | None = None


def factors_of(plan: Plan) -> Values:
    """Return the slopes of the scale rules at 0, (scales,)."""
    return np.array(plan.factors)
