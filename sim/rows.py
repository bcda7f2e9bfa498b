"""Row formulas: one row's softmax from sums that leave its largest key out (scalars, every device).

Notation, for a row of scaled scores s with maximum m, taken at one key (others may tie with it):

    x = s - m <= 0      e = exp(x)      sums over all keys but that one:
    T1 = sum e          T2 = sum e^2    D = sum e (m - s)       A = 1 + T1

With the largest key left out nothing cancels: 1 - max p = T1 / A keeps its relative precision when
the row is saturated, where 1 - 1/A of the full sum would be rounding noise.
"""

from __future__ import annotations

import math

import numpy as np

from sim.elementary import exp32, exp64, larger, log1p64
from sim.jit import device

__all__ = ["effective_keys", "rise", "sum_squares", "term32", "term64", "weight_entropy", "weight_max"]

_ZERO32 = np.float32(0)
# exp leaves the normal numbers below LAST: smaller terms count as e^LAST (1.6e-38, 3e-308). The square
# of a term below TINY would be denormal, and denormals cost three times the pass.
_LAST32, _TINY32 = np.float32(-87), np.float32(1.1e-19)
_LAST64, _TINY64 = -708.0, 1.5e-154


@device
def term32(x):
    """Return (e, e^2, -e (m - s)) in float32 for x <= 0; (0, ~0, 0) for a key that ties with the largest."""
    y = larger(x, _LAST32)
    e = exp32(y)
    e = e if x < _ZERO32 else _ZERO32
    big = larger(e, _TINY32)
    return e, big * big, e * y


@device
def term64(x):
    """Return (e, e^2, -e (m - s)) in float64 for x <= 0; (0, ~0, 0) for a key that ties with the largest."""
    y = larger(x, _LAST64)
    e = exp64(y)
    e = e if x < 0.0 else 0.0
    big = larger(e, _TINY64)
    return e, big * big, e * y


@device
def rise(t1, t2, d, delta):
    """Return (T1, T2, D) after the maximum rose by `delta` >= 0: the old largest key joins the sums."""
    r = math.exp(-delta)
    return r * (1.0 + t1), r * r * (1.0 + t2), (r * (d + (1.0 + t1) * delta) if r > 0.0 else 0.0)


@device
def weight_max(t1):
    """Return max p."""
    return 1.0 / (1.0 + t1)


@device
def sum_squares(t1, t2):
    """Return the sum of p^2."""
    a = 1.0 + t1
    return (1.0 + t2) / (a * a)


@device
def weight_entropy(t1, d):
    """Return -sum p log p, in nats."""
    return log1p64(t1) + d / (1.0 + t1)


@device
def effective_keys(entropy):
    """Return exp(entropy), the number of keys that share the weight evenly at this entropy."""
    return exp64(entropy)
