"""The run itself: rows one after the other, in each a few interleaved rounds of all contestants and of the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import floor
from bench.contestants import Contestant, enter
from bench.rounds import Timing, calibrate, order, timed
from bench.work import Peer, Row

__all__ = ["Effort", "Result", "race"]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    rounds : int
    budget : float
        Seconds of one run of one contestant.
    trial_budget : float
        Seconds of one run when batch sizes are tried; 0 takes the middle one untried.
    floor_budget : float
        Seconds of one run of a part of the floor.
    """

    rounds: int = 5
    budget: float = 0.4
    trial_budget: float = 0.15
    floor_budget: float = 0.05


# Too short for numbers that mean something, long enough to show that everything runs.
QUICK = Effort(rounds=2, budget=0.12, trial_budget=0.0, floor_budget=0.02)


@dataclass(frozen=True)
class Result:
    """What was measured of one row.

    Attributes
    ----------
    timings : dict
        By contestant, one timing a round.
    trials, batches : dict
        By contestant, the trials of one run, and how many of them at a time.
    floor : dict
        By part, seconds of CPU a trial, one a round; empty for rows with gradients, whose floor is another.
    """

    row: Row
    timings: dict[str, list[Timing]]
    trials: dict[str, int]
    batches: dict[str, int]
    floor: dict[str, list[float]]


def _floor_steps(row: Row, budget: float) -> dict[str, tuple[Callable[[int], None], int]]:
    steps = {} if row.gradients else floor.steps(row)
    with floor.one_thread():
        return {part: (step, calibrate(step, budget)) for part, step in steps.items()}


def race(row: Row, peers: dict[str, Peer], threads: int, effort: Effort) -> Result:
    """Measure one row."""
    entered: dict[str, Contestant] = enter(row, peers, threads, effort.trial_budget)
    trials = {name: calibrate(each.run, effort.budget, each.batch) for name, each in entered.items()}
    steps = _floor_steps(row, effort.floor_budget)
    timings: dict[str, list[Timing]] = {name: [] for name in entered}
    alone: dict[str, list[float]] = {part: [] for part in steps}
    for number in range(effort.rounds):
        for name in order(list(entered), number):
            timings[name].append(timed(entered[name].run, trials[name]))
        for part, (step, count) in steps.items():
            alone[part].append(floor.seconds(step, count))
    return Result(row, timings, trials, {name: each.batch for name, each in entered.items()}, alone)
