"""The engine: a sweep in, a labelled dataset out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from sim.blas import blas_name
from sim.cpu import available_threads, compile_kernels, run_batches
from sim.dataset import Collector, provenance
from sim.errors import InputError
from sim.estimates import Tallies
from sim.first_scores import settled
from sim.observables import Estimate, evaluate, observed
from sim.plan import Plan, layout, plan
from sim.quantiles import scaled_edges
from sim.sweep import Sweep
from sim.tally import Layout, TreeNodes

__all__ = ["run"]


def run(
    sweep: Sweep,
    threads: int | None = None,
    device: str = "cpu",
    *,
    progress: Callable[[float], None] | None = None,
    command: str | None = None,
) -> xr.Dataset:
    """Run every cell of `sweep`.

    Parameters
    ----------
    sweep : Sweep
    threads : int, optional
        As many as there are processors unless given. Never changes a number.
    device : {"cpu"}
    progress : function, optional
        Called with the share that is done, 0 first (kernels are then compiled or loaded).
    command : str, optional
        Kept in the dataset's attributes.

    Returns
    -------
    xarray.Dataset
        The estimates along the sweep's axes and `scale`, each with `_se` and `_theory`.

    Raises
    ------
    InputError
        For an unknown device or a number of threads below 1.
    """
    if device != "cpu":
        raise InputError(f"device: got {device!r}; this version computes on 'cpu' alone")
    if not isinstance(sweep, Sweep):
        raise InputError(f"sweep: got {type(sweep).__name__}; allowed: a sim.Sweep, as from sim.Sweep.from_toml(path)")
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 1024):
        raise InputError(f"threads: got {threads!r}; allowed: a whole number from 1 to 1024")
    threads = threads or available_threads()
    start = time.perf_counter()
    tally_layout = layout(sweep)
    names = observed(sweep, tally_layout)
    collector = Collector(sweep, tally_layout)
    for fraction, cell_plan, nodes in _finished_cells(sweep, tally_layout, threads):
        if progress:
            progress(fraction)
        if nodes:
            estimates, bookkeeping = _summarize(nodes, cell_plan, tally_layout, names, sweep)
            collector.add(estimates, bookkeeping, nodes.nodes)
    attributes = {"device": device, "threads": threads, "blas": blas_name(), "command": command or ""}
    elapsed = {"elapsed_seconds": round(time.perf_counter() - start, 3)}
    return collector.dataset(provenance(sweep) | attributes | elapsed)


def _finished_cells(sweep: Sweep, tally_layout: Layout, threads: int) -> Iterator[tuple[float, Plan, TreeNodes | None]]:
    """Yield (share done, plan, nodes) after every batch, the nodes once their cell is complete."""
    plans = (settled(plan(sweep, cell, tally_layout), sweep) for cell in sweep.cells)
    first = {cell.computes_in: cell for cell in reversed(sweep.cells)}
    for cell in first.values():
        sample = plan(sweep, cell, tally_layout)
        yield 0.0, sample, None
        compile_kernels(sample, tally_layout)
    done_cells, done_blocks = 0, 0
    tree: TreeNodes | None = None
    for cell_plan, nodes in run_batches(plans, tally_layout, threads):
        tree = tree or TreeNodes(cell_plan.group_blocks, tally_layout.segments)
        for node in nodes:
            tree.push(node)
            done_blocks += max(node.blocks, 1)
        if done_blocks < cell_plan.blocks:
            yield (done_cells + done_blocks / cell_plan.blocks) / len(sweep.cells), cell_plan, None
        else:
            done_cells += 1
            yield done_cells / len(sweep.cells), cell_plan, tree
            tree, done_blocks = None, 0


def _summarize(
    tree: TreeNodes, cell_plan: Plan, tally_layout: Layout, names: Sequence[str], sweep: Sweep
) -> tuple[dict[str, Estimate], dict[str, Any]]:
    """Return the estimates of one cell, and the variables that are no estimates."""
    tallies = Tallies(*tree.groups(), tally_layout)
    estimates = {name: evaluate(name, tallies, cell_plan, sweep.quantile) for name in names}
    factors = np.array(cell_plan.factors)
    bookkeeping: dict[str, Any] = {
        "trials": np.int64(tallies.trials),
        "groups": np.int64(len(tallies.sizes)),
        "scale_factor": factors,
        "score_moments": cell_plan.theory.moments,
    }
    if "distribution" in sweep.observables:
        bookkeeping["score_bin_edge"] = scaled_edges(cell_plan.edges, cell_plan.rules)
    return estimates, bookkeeping
