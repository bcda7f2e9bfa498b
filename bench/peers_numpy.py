"""The documents' way: plain NumPy, one trial at a time, softmax as exp over sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from bench.work import SEED, THRESHOLD, Row, Sums, add, factors

__all__ = ["measure", "runner", "start", "version"]

version = np.__version__


def start(threads: int) -> None:
    """Let the BLAS use so many threads."""
    threadpool_limits(threads, user_api="blas")


def _backward(
    p: np.ndarray, upstream: np.ndarray, query: np.ndarray, key: np.ndarray, factor: np.float32
) -> tuple[float, ...]:
    """Return the squared norms of ∂L/∂s, ∂L/∂q and ∂L/∂k."""
    inward = p * upstream
    ds = factor * (inward - p * inward.sum(axis=-1, keepdims=True))
    return tuple(float(np.vdot(x, x)) for x in (ds, ds @ key, ds.T @ query))


def _trial(query: np.ndarray, key: np.ndarray, upstream: np.ndarray | None) -> Sums:
    raw = query @ key.T
    square = raw * raw
    powers = [raw.sum(), square.sum(), (square * raw).sum(), (square * square).sum()]
    weights, gradients = np.zeros((5, 3)), np.zeros((3, 3))
    for k, factor in enumerate(np.array(factors(query.shape[1]), np.float32)):
        scores = factor * raw
        x = scores - scores.max(axis=-1, keepdims=True)
        e = np.exp(x)
        total = e.sum(axis=-1, keepdims=True)
        p = e / total
        largest = p.max(axis=-1)
        p2 = p * p
        squares, cubes = p2.sum(axis=-1), (p2 * p).sum(axis=-1)
        entropy = np.log(total[:, 0]) - (p * x).sum(axis=-1)
        jacobian = squares - 2 * cubes + squares * squares
        saturated = largest >= THRESHOLD
        weights[:, k] = [each.sum() for each in (largest, squares, entropy, jacobian, saturated)]
        if upstream is not None:
            gradients[:, k] = _backward(p, upstream, query, key, factor)
    return Sums(np.array(powers, float), weights, gradients)


def _empty() -> Sums:
    return Sums(np.zeros(4), np.zeros((5, 3)), np.zeros((3, 3)))


def measure(query: np.ndarray, key: np.ndarray, upstream: np.ndarray | None) -> Sums:
    """Measure given vectors (trials, tokens, d_k)."""
    sums = _empty()
    for i in range(len(query)):
        sums = add(sums, _trial(query[i], key[i], None if upstream is None else upstream[i]))
    return sums


def runner(row: Row, batch: int) -> Callable[[int], Sums]:
    """Return what draws and measures a number of trials; `batch` has no meaning here."""
    rng = np.random.default_rng(SEED)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    def run(trials: int) -> Sums:
        sums = _empty()
        for _ in range(trials):
            query, key = normal(row.n_queries, row.d_k), normal(row.n_keys, row.d_k)
            upstream = normal(row.n_queries, row.n_keys) if row.gradients else None
            sums = add(sums, _trial(query, key, upstream))
        return sums

    return run
