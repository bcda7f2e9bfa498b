"""Loops over the first n scores of row i of a tile of raw scores (CPU): float32 or float64 inside, float64 out.

Each is one vectorised pass over at most :data:`TILE` scores, which stay in the L1 cache between passes. Rows come by
their number: a slice of an array counts references, some 10 ns each.
"""

from __future__ import annotations

import numpy as np

from sim.elementary import larger, smaller
from sim.jit import by_precision, device, inner, kernel, owner, reduction
from sim.rows import exponential32, exponential64, powers32, powers64

__all__ = [
    "TILE",
    "central_sums",
    "count_beyond",
    "count_bins",
    "count_within",
    "dot",
    "exponentials",
    "extremes_and_sum",
    "matmul",
    "place_of",
    "power_sums",
    "product",
    "seen_keys",
    "squares",
    "transpose",
    "weights",
    "wide_central_sums",
]

TILE = 512  # keys; a multiple of 64, never taken from memory, threads or device
_SMALL = -60.0  # exponents below it are raised by as much, so that they stay above the least that is taken
DIRECT_ROWS = 4  # up to so many rows a plain loop beats BLAS, which spends its time packing the columns


_exponential = by_precision(exponential32, exponential64)
_powers = by_precision(powers32, powers64)


@inner
def _direct_product(queries, keys, scores):
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] = scores.dtype.type(0)
        for e in range(queries.shape[0]):
            q = queries[e, i]
            for j in range(scores.shape[1]):
                scores[i, j] += q * keys[e, j]


@owner
def matmul(a, b, out):
    """Write a b by BLAS; all are contiguous."""
    np.dot(a, b, out)  # returns `out`, and with it a reference


@kernel
def product(queries, keys, scores):
    """Write queries^T keys, (queries, keys); both are (d_k, tokens) and contiguous."""
    if scores.shape[0] <= DIRECT_ROWS:
        _direct_product(queries, keys, scores)
    else:
        matmul(queries.T, keys, scores)


@device
def seen_keys(visible, row, start, width):
    """Return how many of the keys `start` ... of a tile of `width` a row sees."""
    return max(min(width, visible[row] - start), 0)


@inner
def transpose(a, out):
    """Write the first columns of `a`^T."""
    for j in range(out.shape[0]):
        for e in range(out.shape[1]):
            out[j, e] = a[e, j]


@reduction
def extremes_and_sum(scores, i, n):
    """Return (min, max, sum) of the scores."""
    low, high, total = scores[i, 0], scores[i, 0], scores.dtype.type(0)
    for j in range(n):
        low = smaller(low, scores[i, j])
        high = larger(high, scores[i, j])
        total += scores[i, j]
    return low, high, total


@reduction
def central_sums(scores, i, n, center, unit):
    """Return the sums of d, d^2, d^3, d^4 with d = unit (s - center)."""
    zero = scores.dtype.type(0)
    d1, d2, d3, d4 = zero, zero, zero, zero
    for j in range(n):
        d = (scores[i, j] - center) * unit
        square = d * d
        d1 += d
        d2 += square
        d3 += square * d
        d4 += square * square
    return np.float64(d1), np.float64(d2), np.float64(d3), np.float64(d4)


@reduction
def wide_central_sums(scores, i, n, center, unit):
    """Return the same sums in float64, whatever the precision of the scores."""
    d1, d2, d3, d4 = 0.0, 0.0, 0.0, 0.0
    for j in range(n):
        d = (np.float64(scores[i, j]) - center) * unit
        square = d * d
        d1 += d
        d2 += square
        d3 += square * d
        d4 += square * square
    return d1, d2, d3, d4


@reduction
def count_within(scores, i, n, center, first, second, third):
    """Return how many scores have abs(s - center) <= limit, for three limits."""
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    n1, n2, n3 = zero, zero, zero
    for j in range(n):
        away = abs(scores[i, j] - center)
        n1 += one if away <= first else zero
        n2 += one if away <= second else zero
        n3 += one if away <= third else zero
    return n1, n2, n3


@inner
def count_bins(scores, i, n, low, per_width, index, counts):
    """Add the scores to `counts`: below, bins of equal width from `low` on, above.

    `index` is room for one int32 per score: it is filled in a vectorised pass, the counting is scalar.
    """
    top = scores.dtype.type(counts.shape[0] - 1)
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    for j in range(n):
        place = np.floor((scores[i, j] - low) * per_width) + one
        place = place if place > zero else zero  # a NaN is counted below
        index[j] = np.int32(place if place < top else top)
    for j in range(n):
        counts[index[j]] += 1


@reduction
def place_of(scores, i, n, extremum):
    """Return where `extremum` stands among the scores: the first place of several."""
    last = np.int32(n - 1)  # also where a NaN hides it
    at = last
    for j in range(n):
        here = np.int32(j) if scores[i, j] == extremum else last
        at = here if here < at else at
    return at


@inner
def exponentials(scores, i, n, extremum, factor, out, at):
    """Write e = 2^(factor (s - extremum)) of :mod:`sim.rows` into row `at` of `out`; `factor` has log2 e in it."""
    for j in range(n):
        out[at, j] = _exponential(factor * (scores[i, j] - extremum))


@inner
def weights(scores, i, n, extremum, factor, inverse, out, at):
    """Write `inverse` e into row `at` of `out`, small ones too: down to the smallest number of the type, and to 0."""
    real = scores.dtype.type
    for j in range(n):
        y = factor * (scores[i, j] - extremum)
        is_small = y < real(_SMALL)
        e = _exponential(y - real(_SMALL) if is_small else y) * (real(2.0**_SMALL) if is_small else real(1))
        out[at, j] = inverse * e


@reduction
def power_sums(e, at, scores, i, n, extremum):
    """Return (T1, T2, T3, sum e (s - extremum)) of exponentials in which the largest key's is set to 0.

    A pass of its own: with the exponentials in one loop, the sums run out of AVX2's 16 registers (0.96 ns a
    score, so 0.39; the same with AVX-512's 32).
    """
    zero = scores.dtype.type(0)
    least_square, least_cube = _powers(zero)  # which the largest key's 0 counts as
    t1, t2, t3, fall = zero, -least_square, -least_cube, zero
    for j in range(n):
        square, cube = _powers(e[at, j])
        t1 += e[at, j]
        t2 += square
        t3 += cube
        fall += e[at, j] * (scores[i, j] - extremum)
    return np.float64(t1), np.float64(t2), np.float64(t3), np.float64(fall)


@inner
def squares(e, at, n, to):
    """Write e^2, above the denormal numbers, from row `at` into row `to` of `e`."""
    for j in range(n):
        e[to, j], _ = _powers(e[at, j])


@reduction
def dot(a, i, b, k):
    """Return the product of row `i` of `a` and row `k` of `b`, of the length of a's rows."""
    total = a.dtype.type(0)
    for j in range(a.shape[1]):
        total += a[i, j] * b[k, j]
    return total


@reduction
def count_beyond(scores, i, n, limit):
    """Return how many scores have abs(s) >= limit."""
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    count = zero
    for j in range(n):
        count += one if abs(scores[i, j]) >= limit else zero
    return count
