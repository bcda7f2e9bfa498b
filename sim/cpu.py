"""Who runs the blocks on this machine: threads of one process, each calling a kernel without the GIL.

Plain threads rather than Numba's own parallel loops: a batch goes to whichever thread is free, Ctrl-C is
seen at once, kernels compile several times faster, and none of its threading layers can be upset by a
fork or by a second Python thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from sim.blas import one_blas_thread
from sim.jit import ensure_compiled, mark_compiled
from sim.plan import Plan, layout, plan
from sim.sweep import Sweep
from sim.tally import Layout, Node, aligned_runs, merge_tree

Array = np.ndarray

__all__ = ["available_threads", "compile_into_cache", "compile_kernels", "run_batches"]


def available_threads() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_kernels(plan: Plan, layout: Layout) -> None:
    """Compile what `plan` needs if no process did so before, and load it from the disk cache."""
    ensure_compiled(plan.measures.exponents.dtype.name)
    _run_nothing(plan, layout)
    merge_tree(layout.empty(2), layout.segments)


def _run_nothing(plan: Plan, layout: Layout) -> None:
    plan.run(0, layout.empty(0), layout.empty_bins(0), np.empty(0, np.int64))


def compile_into_cache(precision: str) -> None:
    """Compile the kernels of one precision, in a process of its own, and leave them in the disk cache for others."""
    sweep = Sweep(d_k=1, n_tokens=1, trials=1, precision=precision)
    tally_layout = layout(sweep)
    _run_nothing(plan(sweep, sweep.cells[0], tally_layout), tally_layout)
    mark_compiled(precision)


def run_batches(plans: Iterable[Plan], layout: Layout, threads: int) -> Iterator[tuple[Plan, list[Node]]]:
    """Run every block of `plans` and yield the merged nodes of each batch, in order.

    Parameters
    ----------
    plans : iterable of Plan
        Consumed as threads become free, so that it may be long.
    layout : Layout
    threads : int

    Yields
    ------
    plan, nodes : Plan, list of Node
    """
    stop = np.zeros(1, np.uint8)
    waiting: deque[tuple[Plan, Future[list[Node]]]] = deque()
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            for plan in plans:
                for first in range(0, plan.blocks, plan.batch_blocks):
                    waiting.append((plan, pool.submit(_run_batch, plan, layout, first, stop)))
                    if len(waiting) > 4 * threads:
                        yield _next(waiting)
            while waiting:
                yield _next(waiting)
        finally:  # an interrupt, an error or a caller that lost interest: threads end within a tile
            stop[0] = 1
            pool.shutdown(cancel_futures=True)


def _next(waiting: deque[tuple[Plan, Future[list[Node]]]]) -> tuple[Plan, list[Node]]:
    plan, future = waiting.popleft()
    return plan, future.result()


def _run_batch(plan: Plan, layout: Layout, first: int, stop: np.ndarray) -> list[Node]:
    count = min(plan.batch_blocks, plan.blocks - first)
    is_short = first + count == plan.blocks and plan.trials % plan.block_trials != 0
    runs = list(aligned_runs(first, count, plan.group_blocks, is_short))
    bin_rows = np.repeat(np.arange(len(runs)), [size for _, size in runs])
    tallies, bins = layout.empty(count), layout.empty_bins(len(runs))
    plan.run(first, tallies, bins, bin_rows, stop=stop)
    return list(_nodes(first, runs, is_short, tallies, bins, layout))


def _nodes(
    first: int, runs: Sequence[tuple[int, int]], is_short: bool, tallies: Array, bins: Array, layout: Layout
) -> Iterator[Node]:
    """Merge the blocks of each aligned run."""
    for (at, size), counts in zip(runs, bins, strict=True):
        merge_tree(tallies[at : at + size], layout.segments)
        blocks = 0 if is_short and at + size == len(tallies) else size
        yield Node(first + at, blocks, tallies[at].copy(), counts)
