"""Who runs the blocks on this machine: threads of one process, each calling a kernel without the GIL.

Plain threads rather than Numba's own parallel loops: a batch goes to whichever thread is free, Ctrl-C is
seen at once, kernels compile several times faster, and none of its threading layers can be upset by a
fork or by a second Python thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import scipy.linalg  # noqa: F401  (loads the BLAS that kernels call, so that it can be held to one thread)
from threadpoolctl import threadpool_info, threadpool_limits

from sim.block import run_blocks
from sim.plan import Plan
from sim.tally import Layout, Node, merge_tree

__all__ = ["available_threads", "blas_name", "compile_kernels", "run_batches"]


def available_threads() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def blas_name() -> str:
    """Return the BLAS that computes the scores: ``openblas 0.3.30 Zen``."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    # Wheels of NumPy bring one of their own, which the kernels do not call.
    ours = [library for library in libraries if "scipy.libs" in library["filepath"]] or libraries
    if not ours:
        return "unknown"
    return f"{ours[0]['internal_api']} {ours[0]['version']} {ours[0].get('architecture', '')}".strip()


def compile_kernels(plan: Plan, layout: Layout) -> None:
    """Compile what `plan` needs, or load it from the disk cache."""
    stop = np.zeros(1, np.uint8)
    run_blocks(0, plan.query, plan.key, plan.geometry, plan.measures, layout.empty(0), stop)
    merge_tree(layout.empty(2), layout.segments)


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
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
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
    tallies = layout.empty(count)
    run_blocks(first, plan.query, plan.key, plan.geometry, plan.measures, tallies, stop)
    is_short = first + count == plan.blocks and plan.trials % plan.block_trials != 0
    return list(_nodes(tallies, first, plan.group_blocks, is_short, layout))


def _nodes(tallies: np.ndarray, first: int, group_blocks: int, is_short: bool, layout: Layout) -> Iterator[Node]:
    """Merge a run of blocks into the largest aligned nodes within it."""
    full = len(tallies) - is_short
    at = 0
    while at < full:
        aligned = (first + at) & -(first + at) or group_blocks
        size = min(group_blocks, aligned, 1 << ((full - at).bit_length() - 1))
        node = tallies[at : at + size]
        merge_tree(node, layout.segments)
        yield first + at, size, node[0].copy()
        at += size
    if is_short:
        yield first + full, 0, tallies[-1].copy()
