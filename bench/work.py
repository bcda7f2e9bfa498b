"""The work that every contestant does, and the record in which the peers return it.

A trial draws Q and K (standard normal, float32) and evaluates three scale rules on the same raw scores s = q·k.
Of the scores the first four moments are kept; of every row of weights p = softmax(c s) the largest, Σp², the
entropy, ‖J‖_F² = Σp² − 2Σp³ + (Σp²)² and whether it is saturated; with gradients, for L = Σ g·p with a standard
normal g, the squared norms of ∂L/∂s, ∂L/∂q and ∂L/∂k. A peer goes backwards with a g that it draws; the engine
averages over g in closed form, so that the two agree within the peer's noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["PEERS", "ROWS", "SCALES", "SEED", "THRESHOLD", "Peer", "Row", "Sums", "add", "estimates", "factors"]

SCALES = ("none", "sqrt_dk", "dk")
THRESHOLD = 0.99  # of saturation
SEED = 1
PEERS = ("numpy", "torch", "jax")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    batches : tuple of int
        Trials at a time, three sizes from which each peer takes its fastest.
    target, aim : float
        How many times as fast as the fastest peer the engine has to be, and is meant to be.
    gradients : bool
        Whether the backward pass is part of the work.
    """

    d_k: int
    n_queries: int
    n_keys: int
    batches: tuple[int, int, int]
    target: float
    aim: float = np.nan
    gradients: bool = False

    @property
    def name(self) -> str:
        """What the row is called: ``64, 128×128``."""
        return f"{self.d_k}, {self.n_queries}×{self.n_keys}" + (" gradients" if self.gradients else "")


ROWS = (
    Row(d_k=64, n_queries=128, n_keys=128, batches=(4, 16, 64), target=5, aim=8),
    Row(d_k=512, n_queries=128, n_keys=128, batches=(4, 16, 64), target=4, aim=6),
    Row(d_k=64, n_queries=1024, n_keys=1024, batches=(1, 2, 4), target=6, aim=10),
    Row(d_k=128, n_queries=1, n_keys=131072, batches=(1, 2, 4), target=6, aim=8),
    Row(d_k=64, n_queries=128, n_keys=128, batches=(4, 16, 64), target=3, gradients=True),
    Row(d_k=512, n_queries=128, n_keys=128, batches=(4, 16, 64), target=3, gradients=True),
    Row(d_k=64, n_queries=1024, n_keys=1024, batches=(1, 2, 4), target=3, gradients=True),
)


def factors(d_k: int) -> tuple[float, ...]:
    """Return what the three scale rules multiply by."""
    return 1.0, d_k**-0.5, 1 / d_k


class Sums(NamedTuple):
    """Sums over trials, in float64.

    Attributes
    ----------
    powers : array (4,)
        Σs, Σs², Σs³, Σs⁴ over the raw scores. The mean is 0, so that nothing cancels.
    weights : array (5, scales)
        Largest weight, Σp², entropy, ‖J‖_F² and saturated, each summed over the rows.
    gradients : array (3, scales)
        Squared norms of ∂L/∂s, ∂L/∂q and ∂L/∂k, summed over queries, queries and keys; 0 without gradients.
    """

    powers: np.ndarray
    weights: np.ndarray
    gradients: np.ndarray


class Peer(Protocol):
    """A library that does the same work; one module each."""

    version: str

    def start(self, threads: int) -> None:
        """Use so many threads from now on."""

    def measure(self, query: np.ndarray, key: np.ndarray, upstream: np.ndarray | None) -> Sums:
        """Measure given vectors (trials, tokens, d_k); `upstream` is g (trials, queries, keys), or None."""

    def runner(self, row: Row, batch: int) -> Callable[[int], Sums]:
        """Return what draws and measures a number of trials, a multiple of `batch`."""


def add(first: Sums, second: Sums) -> Sums:
    """Return the sums over both sets of trials."""
    return Sums(*(a + b for a, b in zip(first, second, strict=True)))


def estimates(sums: Sums, row: Row, trials: int) -> dict[str, np.ndarray]:
    """Return the estimates, each (scales,), under the names that the engine gives them."""
    n = trials * row.n_queries * row.n_keys
    mean, second, third, fourth = sums.powers / n
    variance = second - mean**2
    skewness = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4) / variance**2 - 3
    c = np.array(factors(row.d_k))
    names = ("weight_max", "weight_sum_squares", "weight_entropy", "jacobian_frobenius_sq", "saturation_rate")
    result = {
        "score_mean": c * mean,
        "score_variance": c**2 * variance,
        "score_skewness": np.full(len(c), skewness),
        "score_excess_kurtosis": np.full(len(c), kurtosis),
        **dict(zip(names, sums.weights / (trials * row.n_queries), strict=True)),
    }
    if row.gradients:
        counts = trials * np.array([row.n_queries, row.n_queries, row.n_keys])
        backward = ("gradient_score", "gradient_query", "gradient_key")
        result |= dict(zip(backward, np.sqrt(sums.gradients / counts[:, None]), strict=True))
    return result
