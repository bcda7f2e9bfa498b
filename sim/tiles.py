"""Loops over one row of a tile of raw scores (CPU): float32 or float64 inside, float64 out.

Each is one vectorised pass over at most :data:`TILE` scores, which stay in the L1 cache between passes.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from sim.elementary import larger, smaller
from sim.jit import inner, reduction
from sim.rows import term32, term64

__all__ = ["TILE", "central_sums", "count_bins", "count_within", "extremes_and_sum", "weight_sums"]

TILE = 512  # keys; a multiple of 64, never taken from memory, threads or device


def _term(x):
    raise NotImplementedError("compiled code only")


@overload(_term, inline="always")
def _term_by_precision(x):
    return (lambda x: term32(x)) if x == types.float32 else (lambda x: term64(x))


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
def count_within(s, center, limits):
    """Return how many scores have abs(s - center) <= limit, for three limits."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    first, second, third = limits[0], limits[1], limits[2]
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
        counts[index[j]] += 1.0


@reduction
def weight_sums(s, extremum, factor):
    """Return (T1, T2, D) of :mod:`sim.rows` for the scores factor * s of one tile.

    `extremum` is the tile's own largest score (its smallest for a negative factor). Keys that tie with
    it have x = 0 exactly, so all but one of them are added back as ones.
    """
    zero, one = s.dtype.type(0), s.dtype.type(1)
    t1, t2, fall, ties = zero, zero, zero, zero
    for j in range(s.shape[0]):
        x = factor * (s[j] - extremum)
        e, square, weighted = _term(x)
        t1 += e
        t2 += square
        fall -= weighted
        ties += zero if x < zero else one
    others = np.float64(ties) - 1.0
    return np.float64(t1) + others, np.float64(t2) + others, np.float64(fall)
