"""PyTorch: batches of trials, buffers reused, the backward pass by autograd.

``torch.compile`` is left out: it needs a C++ compiler, which is not there for everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.work import SEED, THRESHOLD, Row, Sums, add, factors

__all__ = ["measure", "runner", "start", "version"]

version = str(torch.__version__)  # a class of its own otherwise


def start(threads: int) -> None:
    """Use so many threads within an operation, all of which take denormal numbers as 0.

    Weights of saturated rows are denormal, and products of matrices with them several times slower. JAX takes them
    as 0 by itself; here threads inherit it from the one that starts them, so the first operation is done here.
    """
    torch.set_num_threads(threads)
    with _no_denormals():
        torch.ones(1 << 20).exp_()


@contextmanager
def _no_denormals() -> Iterator[None]:
    """Set the switch for the time of a run only: the other contestants share this thread."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Buffers(NamedTuple):
    """Room for one batch: without it every step would ask the system for fresh pages (101 µs a trial, so 68)."""

    query: Tensor  # (batch, queries, d_k)
    key: Tensor  # (batch, keys, d_k)
    raw: Tensor  # (batch, queries, keys), and so the others
    weights: Tensor
    work: Tensor


def _buffers(batch: int, n_queries: int, n_keys: int, d_k: int) -> Buffers:
    scores = [torch.empty(batch, n_queries, n_keys) for _ in range(3)]
    return Buffers(torch.empty(batch, n_queries, d_k), torch.empty(batch, n_keys, d_k), *scores)


def _powers(raw: Tensor, work: Tensor) -> list[Tensor]:
    square = torch.mul(raw, raw, out=work).view(-1)
    flat = raw.view(-1)
    return [flat.sum(), square.sum(), torch.dot(square, flat), torch.dot(square, square)]


def _row_sums(largest: Tensor, squares: Tensor, cubes: Tensor, entropy: Tensor) -> list[Tensor]:
    jacobian = squares - 2 * cubes + squares * squares
    saturated = (largest >= THRESHOLD).float()
    return [each.sum() for each in (largest, squares, entropy, jacobian, saturated)]


def _to_sums(powers: Sequence[Tensor], weights: Sequence[Sequence[Tensor]], gradients: Sequence[Tensor]) -> Sums:
    """Return the sums of a batch; `weights` and `gradients` hold the scale rules one after the other."""
    numbers = torch.stack([*powers, *(each for rule in weights for each in rule), *gradients]).double().numpy()
    backward = numbers[19:].reshape(3, 3).T if len(gradients) else np.zeros((3, 3))
    return Sums(numbers[:4], numbers[4:19].reshape(3, 5).T, backward)


@torch.no_grad()
def _forward(buffers: Buffers) -> Sums:
    """Measure the vectors in `buffers`, whose other parts are overwritten."""
    query, key, raw, e, work = buffers
    torch.bmm(query, key.transpose(1, 2), out=raw)
    powers = _powers(raw, work)
    x = raw.sub_(raw.amax(-1, keepdim=True))
    weights = []
    for factor in factors(query.shape[-1]):
        torch.mul(x, factor, out=e).exp_()
        total, moved = e.sum(-1), torch.mul(e, x, out=work).sum(-1)
        squares, cubes = torch.mul(e, e, out=work).sum(-1), work.mul_(e).sum(-1)
        largest = total.reciprocal()
        entropy = total.log() - factor * moved * largest
        weights.append(_row_sums(largest, squares * largest**2, cubes * largest**3, entropy))
    return _to_sums(powers, weights, [])


def _forward_and_backward(query: Tensor, key: Tensor, upstream: Tensor, work: Tensor) -> Sums:
    query.requires_grad_()
    key.requires_grad_()
    raw = torch.bmm(query, key.transpose(1, 2))
    with torch.no_grad():
        powers = _powers(raw, work)
        top = raw.amax(-1)
    weights, gradients = [], []
    for factor in factors(query.shape[-1]):
        scores = raw * factor
        p = torch.softmax(scores, -1)
        backward = torch.autograd.grad(p, (raw, query, key), upstream, retain_graph=True)
        gradients += [each.square().sum() for each in backward]
        with torch.no_grad():
            largest = p.amax(-1)
            moved = torch.mul(p, scores, out=work).sum(-1)
            squares, cubes = torch.mul(p, p, out=work).sum(-1), work.mul_(p).sum(-1)
            entropy = factor * top - largest.log() - moved
            weights.append(_row_sums(largest, squares, cubes, entropy))
    return _to_sums(powers, weights, gradients)


def measure(query: np.ndarray, key: np.ndarray, upstream: np.ndarray | None) -> Sums:
    """Measure given vectors (trials, tokens, d_k)."""
    buffers = _buffers(len(query), query.shape[1], key.shape[1], query.shape[2])
    buffers.query.copy_(torch.from_numpy(query))
    buffers.key.copy_(torch.from_numpy(key))
    if upstream is None:
        return _forward(buffers)
    return _forward_and_backward(buffers.query, buffers.key, torch.from_numpy(upstream), buffers.work)


def runner(row: Row, batch: int) -> Callable[[int], Sums]:
    """Return what draws and measures a number of trials, a multiple of `batch`."""
    buffers = _buffers(batch, row.n_queries, row.n_keys, row.d_k)
    generator = torch.Generator().manual_seed(SEED)

    def step() -> Sums:
        with torch.no_grad():
            buffers.query.normal_(generator=generator)
            buffers.key.normal_(generator=generator)
            if row.gradients:
                buffers.weights.normal_(generator=generator)
        if row.gradients:
            return _forward_and_backward(buffers.query, buffers.key, buffers.weights, buffers.work)
        return _forward(buffers)

    def run(trials: int) -> Sums:
        with _no_denormals():
            sums = step()
            for _ in range(trials // batch - 1):
                sums = add(sums, step())
        return sums

    return run
