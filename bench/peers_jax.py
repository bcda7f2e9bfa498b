"""JAX: one compiled function for each batch of trials, the backward pass by ``jax.vjp``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.work import SEED, THRESHOLD, Row, Sums, add, factors

__all__ = ["measure", "runner", "start", "version"]

version = jax.__version__

jax.config.update("jax_platforms", "cpu")  # a GPU would be another race


def start(threads: int) -> None:
    """Do nothing: JAX has a pool of its own, of as many threads as the process has processors."""


def _scores(query: Any, key: Any) -> Any:
    return jnp.einsum("bid,bjd->bij", query, key)


def _dot(x: Any, y: Any) -> Any:
    """Return the sums of x y along the rows: as products of matrices they run on all cores, a reduction on one."""
    return jnp.einsum("bij,bij->bi", x, y)


def _powers(raw: Any) -> list[Any]:
    flat = raw.reshape(len(raw), 1, -1)
    square = flat * flat
    return [each[:, 0] for each in (flat.sum(-1), _dot(flat, flat), _dot(square, flat), _dot(square, square))]


def _row_sums(x: Any, e: Any, factor: float) -> list[Any]:
    """Return the sums over rows of what is measured of the weights e / Σe, with e = exp(factor x), x <= 0."""
    total, moved = e.sum(-1), _dot(e, x)
    squares, cubes = _dot(e, e), _dot(e, e * e)
    largest = 1 / total
    squares, cubes = squares * largest**2, cubes * largest**3
    entropy = jnp.log(total) - factor * moved * largest
    jacobian = squares - 2 * cubes + squares * squares
    saturated = (largest >= THRESHOLD).astype(jnp.float32)
    return [each.sum(-1) for each in (largest, squares, entropy, jacobian, saturated)]


def _measure(query: Any, key: Any, upstream: Any) -> tuple[Any, Any, Any]:
    """Return the sums of each trial, in the shapes of :class:`bench.work.Sums` with the trials behind."""
    raw, pull_vectors = jax.vjp(_scores, query, key)
    x = raw - raw.max(-1, keepdims=True)
    weights, gradients = [], []
    for factor in factors(query.shape[-1]):
        # Without the barrier every one of the sums computes the exponentials again.
        e = jax.lax.optimization_barrier(jnp.exp(factor * x))
        weights.append(_row_sums(x, e, factor))
        if upstream is not None:
            _, pull_scores = jax.vjp(lambda scores, factor=factor: jax.nn.softmax(factor * scores), raw)
            (ds,) = pull_scores(upstream)
            gradients.append([(each * each).sum((-2, -1)) for each in (ds, *pull_vectors(ds))])
    backward = jnp.array(gradients) if gradients else jnp.zeros((3, 3, len(query)))
    return jnp.array(_powers(raw)), jnp.array(weights).swapaxes(0, 1), backward.swapaxes(0, 1)


def _to_sums(parts: tuple[Any, Any, Any]) -> Sums:
    return Sums(*(np.asarray(part).sum(-1, dtype=float) for part in parts))


def measure(query: np.ndarray, key: np.ndarray, upstream: np.ndarray | None) -> Sums:
    """Measure given vectors (trials, tokens, d_k)."""
    return _to_sums(jax.jit(_measure)(query, key, upstream))


@partial(jax.jit, static_argnames=("row", "batch"))
def _step(row: Row, batch: int, seed: Any) -> tuple[Any, Any, Any]:
    first, second, third = jax.random.split(seed, 3)
    query = jax.random.normal(first, (batch, row.n_queries, row.d_k))
    key = jax.random.normal(second, (batch, row.n_keys, row.d_k))
    upstream = jax.random.normal(third, (batch, row.n_queries, row.n_keys)) if row.gradients else None
    return _measure(query, key, upstream)


def runner(row: Row, batch: int) -> Callable[[int], Sums]:
    """Return what draws and measures a number of trials, a multiple of `batch`."""
    root = jax.random.key(SEED)

    def run(trials: int) -> Sums:
        parts = [_step(row, batch, jax.random.fold_in(root, i)) for i in range(trials // batch)]
        return reduce(add, map(_to_sums, jax.block_until_ready(parts)))

    return run
