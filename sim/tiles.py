"""Loops over one row of a tile of raw scores (CPU): float32 or float64 inside, float64 out.

Each is one vectorised pass over at most :data:`TILE` scores, which stay in the L1 cache between passes.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from sim.elementary import larger, smaller
from sim.jit import inner, reduction
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
    "place_of",
    "power_sums",
    "squares",
]

TILE = 512  # keys; a multiple of 64, never taken from memory, threads or device


def _exponential(y):
    raise NotImplementedError("compiled code only")


def _powers(e):
    raise NotImplementedError("compiled code only")


@overload(_exponential, inline="always")
def _exponential_by_precision(y):
    return (lambda y: exponential32(y)) if y == types.float32 else (lambda y: exponential64(y))


@overload(_powers, inline="always")
def _powers_by_precision(e):
    return (lambda e: powers32(e)) if e == types.float32 else (lambda e: powers64(e))


@reduction
def extremes_and_sum(s):
    """Return (min, max, sum) of `s`."""
    low, high, total = s[0], s[0], s.dtype.type(0)
    for j in range(s.shape[0]):
        low = smaller(low, s[j])
        high = larger(high, s[j])
        total += s[j]
    return low, high, total


@reduction
def central_sums(s, center, unit):
    """Return the sums of d, d^2, d^3, d^4 with d = unit (s - center)."""
    zero = s.dtype.type(0)
    d1, d2, d3, d4 = zero, zero, zero, zero
    for j in range(s.shape[0]):
        d = (s[j] - center) * unit
        square = d * d
        d1 += d
        d2 += square
        d3 += square * d
        d4 += square * square
    return d1, d2, d3, d4


@reduction
def count_within(s, center, first, second, third):
    """Return how many scores have abs(s - center) <= limit, for three limits."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    n1, n2, n3 = zero, zero, zero
    for j in range(s.shape[0]):
        away = abs(s[j] - center)
        n1 += one if away <= first else zero
        n2 += one if away <= second else zero
        n3 += one if away <= third else zero
    return n1, n2, n3


@inner
def count_bins(s, low, per_width, index, counts):
    """Add the scores to `counts`: below, bins of equal width from `low` on, above.

    `index` is room for one int32 per score: it is filled in a vectorised pass, the counting is scalar.
    """
    top = s.dtype.type(counts.shape[0] - 1)
    zero, one = s.dtype.type(0), s.dtype.type(1)
    for j in range(s.shape[0]):
        place = np.floor((s[j] - low) * per_width) + one
        place = place if place > zero else zero  # a NaN is counted below
        index[j] = np.int32(place if place < top else top)
    for j in range(s.shape[0]):
        counts[index[j]] += 1


@reduction
def place_of(s, extremum):
    """Return where `extremum` stands in `s`: the first place of several."""
    last = np.int32(s.shape[0] - 1)  # also where a NaN hides it
    at = last
    for j in range(s.shape[0]):
        here = np.int32(j) if s[j] == extremum else last
        at = here if here < at else at
    return at


@inner
def exponentials(s, extremum, factor, out):
    """Write e = 2^(factor (s - extremum)) of :mod:`sim.rows`; `factor` has log2 e in it."""
    for j in range(s.shape[0]):
        out[j] = _exponential(factor * (s[j] - extremum))


@reduction
def power_sums(e, s, extremum):
    """Return (T1, T2, T3, sum e (s - extremum)) of exponentials in which the largest key's is set to 0.

    A pass of its own: with the exponentials in one loop, the sums run out of AVX2's 16 registers (0.96 ns a
    score, so 0.39).
    """
    zero = s.dtype.type(0)
    least_square, least_cube = _powers(zero)  # which the largest key's 0 counts as
    t1, t2, t3, fall = zero, -least_square, -least_cube, zero
    for j in range(s.shape[0]):
        square, cube = _powers(e[j])
        t1 += e[j]
        t2 += square
        t3 += cube
        fall += e[j] * (s[j] - extremum)
    return np.float64(t1), np.float64(t2), np.float64(t3), np.float64(fall)


@inner
def squares(e, out):
    """Write e^2, above the denormal numbers."""
    for j in range(e.shape[0]):
        out[j], _ = _powers(e[j])


@reduction
def dot(a, b):
    """Return the sum of a b."""
    total = a.dtype.type(0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@reduction
def count_beyond(s, limit):
    """Return how many scores have abs(s) >= limit."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    count = zero
    for j in range(s.shape[0]):
        count += one if abs(s[j]) >= limit else zero
    return count
