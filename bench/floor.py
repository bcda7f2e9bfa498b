"""The engine's floor: what its steps cost when each is done alone, by one thread, on tiles that stay in the cache.

Random words, the normals made of them, the product of matrices and one pass of exp for each scale rule: the parts
without which no trial can be done in this way, each a loop over the device functions of the engine itself. The rest
of the engine's time goes to moments, row sums, merging and memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy.linalg  # noqa: F401  (loads the BLAS that compiled code calls)
from threadpoolctl import threadpool_limits

from bench.work import SEED, Row, factors
from sim.draw import fill_words
from sim.elementary import LOG2_E
from sim.jit import inner, kernel
from sim.laws import LAWS
from sim.philox import QUERY
from sim.tiles import exponentials, product

__all__ = ["PARTS", "one_thread", "seconds", "steps"]

PARTS = ("words", "normals", "product", "exp")

_ROWS, _KEYS = 128, 512  # a tile of scores is then 256 kB, within the L2 cache
_NO_CONSTANTS = (np.float32(0), np.float32(0), np.float32(0))
_PHILOX_KEY = (np.uint32(SEED), np.uint32(0))

_gaussian = LAWS["gaussian"].float32


@inner
def _normals(words, out):
    for t in range(words.shape[1]):
        a, b, c, d = words[0, t], words[1, t], words[2, t], words[3, t]
        out[0, t], out[1, t] = _gaussian(a, b, c, d, _NO_CONSTANTS)
        out[2, t], out[3, t] = _gaussian(c, d, a, b, _NO_CONSTANTS)


@kernel
def draw_words(trials, tiles, quads, words):
    """Draw the words of `trials` trials: `tiles` tiles of tokens, `quads` counters a token."""
    for trial in range(trials):
        for _ in range(tiles):
            for e in range(quads):
                fill_words(words, np.uint32(e), 0, np.uint32(trial), QUERY, _PHILOX_KEY)


@kernel
def make_normals(trials, tiles, quads, words, out):
    """Make the normals of `trials` trials, of the same words each time."""
    for _ in range(trials * tiles):
        for e in range(quads):
            _normals(words, out[4 * e : 4 * e + 4])


@kernel
def multiply(trials, tiles, queries, keys, scores):
    """Multiply tiles of queries and keys, both (d_k, tokens)."""
    for _ in range(trials * tiles):
        product(queries, keys, scores)


@kernel
def exponential_passes(trials, tiles, scores, tops, scales, out):
    """Do one pass of exp over tiles of raw scores for each scale rule."""
    for _ in range(trials * tiles):
        for i in range(scores.shape[0]):
            for k in range(scales.shape[0]):
                exponentials(scores, i, scores.shape[1], tops[i], scales[k], out, 0)


def steps(row: Row) -> dict[str, Callable[[int], None]]:
    """Return the parts of the floor, each a function of a number of trials."""
    rng = np.random.default_rng(SEED)
    n_rows, n_keys = min(_ROWS, row.n_queries), min(_KEYS, row.n_keys)
    quads = -(-row.d_k // 4)
    token_tiles = -(-(row.n_queries + row.n_keys) // n_keys)
    score_tiles = -(-row.n_queries // n_rows) * -(-row.n_keys // n_keys)
    words = rng.integers(2**32, size=(4, n_keys), dtype=np.uint32)
    vectors = np.empty((4 * quads, n_keys), np.float32)
    queries = rng.standard_normal((row.d_k, n_rows), np.float32)
    keys = rng.standard_normal((row.d_k, n_keys), np.float32)
    scores = queries.T @ keys
    room, out = np.empty_like(scores), np.empty((1, n_keys), np.float32)
    tops, scales = scores.max(axis=1), np.float32(LOG2_E) * np.array(factors(row.d_k), np.float32)
    return {
        "words": lambda trials: draw_words(trials, token_tiles, quads, words.copy()),
        "normals": lambda trials: make_normals(trials, token_tiles, quads, words, vectors),
        "product": lambda trials: multiply(trials, score_tiles, queries, keys, room),
        "exp": lambda trials: exponential_passes(trials, score_tiles, scores, tops, scales, out),
    }


def one_thread() -> threadpool_limits:
    """Hold the BLAS to one thread."""
    return threadpool_limits(1, user_api="blas")


def seconds(step: Callable[[int], None], trials: int) -> float:
    """Return the seconds of CPU time that one trial of `step` takes this thread."""
    with one_thread():
        step(1)  # the BLAS may set itself up anew for one thread
        start = time.thread_time()
        step(trials)
        return (time.thread_time() - start) / trials
