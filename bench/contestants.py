"""Who takes part: the engine as its users call it, with all threads and with one, and the peers that are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import sim
from bench.rounds import fastest
from bench.work import PEERS, SCALES, SEED, THRESHOLD, Peer, Row

__all__ = ["ENGINE", "INSTALL", "ONE_THREAD", "Contestant", "engine_runner", "enter", "installed"]

ENGINE, ONE_THREAD = "engine", "engine, one thread"
INSTALL = ".venv/bin/pip install -e '.[bench]'"
_FAMILIES = ("scores", "weights", "jacobian")


@dataclass(frozen=True)
class Contestant:
    """One that takes part in one row.

    Attributes
    ----------
    run : function of a number of trials
    batch : int
        Trials come in multiples of it.
    """

    run: Callable[[int], Any]
    batch: int = 1


def engine_runner(row: Row, threads: int) -> Callable[[int], Any]:
    """Return what simulates a number of trials with the engine, from the sweep to the dataset."""
    observables = [*_FAMILIES, "gradients"] if row.gradients else list(_FAMILIES)

    def run(trials: int) -> Any:
        sweep = sim.Sweep(
            d_k=row.d_k,
            n_queries=row.n_queries,
            n_keys=row.n_keys,
            trials=trials,
            seed=SEED,
            scale=list(SCALES),
            observables=observables,
            threshold=[THRESHOLD],
        )
        return sim.run(sweep, threads=threads)

    return run


def installed(names: Sequence[str] = PEERS) -> tuple[dict[str, Peer], list[str]]:
    """Return the peers that can be imported, and the names of the others."""
    found, missing = {}, []
    for name in names:
        try:
            found[name] = cast(Peer, import_module(f"bench.peers_{name}"))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            missing.append(name)
    return found, missing


def enter(row: Row, peers: dict[str, Peer], threads: int, trial_seconds: float) -> dict[str, Contestant]:
    """Return the contestants of a row, each peer with the fastest of its batches (NumPy: one trial at a time).

    With `trial_seconds` 0 the middle size is taken untried.
    """
    entered = {ENGINE: Contestant(engine_runner(row, threads)), ONE_THREAD: Contestant(engine_runner(row, 1))}
    for name, peer in peers.items():
        batches = (1,) if name == "numpy" else row.batches if trial_seconds else row.batches[1:2]
        runs = {batch: peer.runner(row, batch) for batch in batches}
        batch = fastest(runs, trial_seconds) if len(runs) > 1 else batches[0]
        entered[name] = Contestant(runs[batch], batch)
    return entered
