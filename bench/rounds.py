"""Timing: every contestant once a round, in an order that moves on from round to round.

What disturbs the machine for a while then disturbs all of them, and the ratio within a round says more than two times
measured minutes apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Timing", "calibrate", "fastest", "order", "timed"]

Run = Callable[[int], Any]
PAUSE = 0.05  # seconds; threads of the last contestant that still spin for work have gone to sleep by then


class Timing(NamedTuple):
    """Seconds of one trial: on the clock, and of CPU in all threads."""

    wall: float
    cpu: float


def timed(run: Run, trials: int) -> Timing:
    """Time one run of `trials` trials."""
    time.sleep(PAUSE)
    start, start_cpu = time.perf_counter(), time.process_time()
    run(trials)
    cpu, wall = time.process_time() - start_cpu, time.perf_counter() - start
    return Timing(wall / trials, cpu / trials)


def calibrate(run: Run, budget: float, step: int = 1) -> int:
    """Return how many trials, a multiple of `step`, take about `budget` seconds; at least one step.

    The first run is not counted: it compiles. Then the number grows until a run takes most of the budget, for a call
    has a cost of its own, beside which few trials say nothing. Each number is run twice: more trials may take a path
    that is compiled, or a closed form that is computed, at its first use.
    """
    run(step)
    trials = step
    while True:
        spent = min(timed(run, trials).wall for _ in range(2)) * trials
        wanted = max(1, round(trials * budget / spent / step)) * step
        if spent >= 0.6 * budget:
            return wanted
        trials = min(max(wanted, 2 * trials), 16 * trials)


def fastest(runs: Mapping[int, Run], seconds: float) -> int:
    """Return the batch, a key of `runs`, whose trials take least; each is tried twice for about `seconds`."""
    tried = {}
    for batch, run in runs.items():
        trials = calibrate(run, seconds, batch)
        tried[batch] = min(timed(run, trials).wall for _ in range(2))
    return min(tried, key=tried.__getitem__)


def order(names: Sequence[str], number: int) -> list[str]:
    """Return the contestants in the order of a round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]
