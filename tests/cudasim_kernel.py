"""Run by test_cudasim.py in a process of its own: the shared device functions inside CUDA kernels.

Prints nothing; saves the words, elements and rows of tiny grids to the file it is given.
"""

import sys

import numpy as np
from numba import cuda

from sim.draw import SECOND_FOUR
from sim.elementary import LOG2_E
from sim.laws import LAWS
from sim.philox import KEY, philox4x32
from sim.rows import (
    effective_keys,
    exponential32,
    frobenius_sq,
    powers32,
    rise,
    sum_squares,
    trace,
    weight_entropy,
    weight_max,
)
from tests.oracle import SHAPES

TOKENS, QUADS, TRIAL = 8, 2, 7
CELL_KEY = (np.uint32(0x12345678), np.uint32(0x9ABCDEF0))
ROWS, KEYS = 6, 33
FACTORS = (1.0, 0.25, -0.5, 40.0)


def words_and_elements(law, constants):
    """Return the kernel of one law, with one thread for each counter: token × quad of elements."""
    transform = law.float32
    constants = tuple(map(np.float32, constants))

    @cuda.jit
    def fill(words, elements):
        token, quad = cuda.grid(2)
        if token < words.shape[0] and quad < words.shape[1]:
            at = np.uint32(quad), np.uint32(token), np.uint32(TRIAL)
            a, b, c, d = philox4x32((*at, KEY), CELL_KEY)
            e, f, g, h = philox4x32((*at, np.uint32(KEY + SECOND_FOUR)), CELL_KEY)
            words[token, quad, 0], words[token, quad, 1], words[token, quad, 2], words[token, quad, 3] = a, b, c, d
            elements[token, quad, 0], elements[token, quad, 1] = transform(a, b, e, f, constants)
            elements[token, quad, 2], elements[token, quad, 3] = transform(c, d, g, h, constants)

    return fill


@cuda.jit
def rows_of_scores(scores, factors, out):
    """One block for each row and rule, one thread for every 8 keys; the threads' sums meet in shared memory."""
    row, rule = cuda.blockIdx.x, cuda.blockIdx.y
    thread = cuda.threadIdx.x
    sums = cuda.shared.array((8, 5), np.float64)  # of each thread: its maximum, T1, T2, T3, D
    factor = factors[rule]
    exponent = np.float32(factor * LOG2_E)
    at, end = thread * 8, min(thread * 8 + 8, scores.shape[1])
    if at < end:
        largest = at
        for j in range(at, end):
            if factor * scores[row, j] > factor * scores[row, largest]:
                largest = j
        t1, t2, t3, d = 0.0, 0.0, 0.0, 0.0
        for j in range(at, end):
            if j != largest:
                fall = scores[row, j] - scores[row, largest]
                e = exponential32(exponent * fall)
                square, cube = powers32(e)
                t1, t2, t3, d = t1 + e, t2 + square, t3 + cube, d - factor * (e * fall)
        sums[thread, 0] = factor * np.float64(scores[row, largest])
        sums[thread, 1], sums[thread, 2], sums[thread, 3], sums[thread, 4] = t1, t2, t3, d
    cuda.syncthreads()
    if thread == 0:
        m, t1, t2, t3, d = sums[0, 0], sums[0, 1], sums[0, 2], sums[0, 3], sums[0, 4]
        for other in range(1, (scores.shape[1] + 7) // 8):
            n, u1, u2, u3, f = sums[other, 0], sums[other, 1], sums[other, 2], sums[other, 3], sums[other, 4]
            if n > m:
                t1, t2, t3, d = rise(t1, t2, t3, d, n - m)
                m = n
            else:
                u1, u2, u3, f = rise(u1, u2, u3, f, m - n)
            t1, t2, t3, d = t1 + u1, t2 + u2, t3 + u3, d + f
        entropy = weight_entropy(t1, d)
        out[row, rule, 0] = weight_max(t1)
        out[row, rule, 1] = entropy
        out[row, rule, 2] = effective_keys(entropy)
        out[row, rule, 3] = sum_squares(t1, t2)
        out[row, rule, 4] = trace(t1, t2)
        out[row, rule, 5] = frobenius_sq(t1, t2, t3)


def scores_of_rows() -> np.ndarray:
    """Return the raw scores of the last grid: ordinary, wide, tied, equal, one-hot, near 1e4."""
    scores = np.random.default_rng(0).standard_normal((ROWS, KEYS)).astype(np.float32)
    scores[1] *= 10
    scores[2] = np.round(scores[2])
    scores[3] = 3
    scores[4] = -1e4
    scores[4, 20] = 1e4
    scores[5] += 1e4
    return scores


def main(path: str) -> None:
    """Launch the grids and save what they wrote."""
    words = np.zeros((TOKENS, QUADS, 4), np.uint32)
    elements = np.zeros((len(LAWS), TOKENS, QUADS, 4), np.float32)
    for of_law, (name, law) in zip(elements, LAWS.items(), strict=True):
        words_and_elements(law, law.constants(SHAPES.get(name, 0.0)))[(2, 1), (4, 2)](words, of_law)
    rows = np.zeros((ROWS, len(FACTORS), 6))
    rows_of_scores[(ROWS, len(FACTORS)), 8](scores_of_rows(), np.array(FACTORS), rows)
    np.savez(path, words=words, elements=elements, rows=rows)


if __name__ == "__main__":
    main(sys.argv[1])
