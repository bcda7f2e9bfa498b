"""Row formulas: one row's softmax from sums that leave its largest key out (scalars, every device).

Notation, for a row of scaled scores s with maximum m, taken at one key (others may tie with it):

    x = s - m <= 0      e = exp(x)      sums over all keys but that one:
    T1 = sum e      T2 = sum e^2      T3 = sum e^3      D = sum e (m - s)      A = 1 + T1

With the largest key left out nothing cancels: 1 - max p = T1 / A keeps its relative precision when
the row is saturated, where 1 - 1/A of the full sum would be rounding noise. J = diag(p) - p p'.
"""

from __future__ import annotations

import math

import numpy as np

from sim.elementary import LOG2_E, exp2_32, exp2_64, larger, log1p64
from sim.jit import device

__all__ = [
    "EFFECTIVE_KEYS",
    "ENTROPY",
    "FROBENIUS",
    "FROBENIUS_SQ",
    "GRADIENT_QUERY_SQ",
    "N_VALUES",
    "SPECTRAL",
    "SUM_SQUARES",
    "TRACE",
    "WEIGHT_MAX",
    "effective_keys",
    "exponential32",
    "exponential64",
    "frobenius_sq",
    "powers32",
    "powers64",
    "rise",
    "sum_squares",
    "trace",
    "weight_entropy",
    "weight_max",
]

# What a row is worth under one scale rule: the places of its values.
N_VALUES = 9
WEIGHT_MAX, ENTROPY, EFFECTIVE_KEYS, SUM_SQUARES, FROBENIUS, FROBENIUS_SQ, TRACE, SPECTRAL, GRADIENT_QUERY_SQ = range(
    N_VALUES
)

# Smaller terms count as e = 2^LAST (7.5e-37, 9e-302), and squares and cubes of terms below SQUARE and CUBE as
# 2^LAST too: denormal numbers cost three times the pass, and such sums are far below what any float shows of a row.
# A cube counts as no more than the square, or ||J||_F^2 would be negative: -1000 is no multiple of 3.
_LAST32, _SQUARE32, _CUBE32 = np.float32(-120), np.float32(2.0**-60), np.float32(2.0**-40)
_LAST64, _SQUARE64, _CUBE64 = -1000.0, 2.0**-500, 2.0**-334


@device
def exponential32(y):
    """Return 2^y in float32 for y = x log2 e <= 0."""
    return exp2_32(larger(y, _LAST32))


@device
def exponential64(y):
    """Return 2^y in float64 for y = x log2 e <= 0."""
    return exp2_64(larger(y, _LAST64))


@device
def powers32(e):
    """Return (e^2, e^3) in float32."""
    square, cube = larger(e, _SQUARE32), larger(e, _CUBE32)
    return square * square, cube * cube * cube


@device
def powers64(e):
    """Return (e^2, e^3) in float64."""
    square, cube = larger(e, _SQUARE64), larger(e, _CUBE64)
    return square * square, cube * cube * cube


@device
def rise(t1, t2, t3, d, delta):
    """Return (T1, T2, T3, D) after the maximum rose by `delta` >= 0: the old largest key joins the sums."""
    r = math.exp(-delta)
    return (
        r * (1.0 + t1),
        r * r * (1.0 + t2),
        r * r * r * (1.0 + t3),
        (r * (d + (1.0 + t1) * delta) if r > 0.0 else 0.0),
    )


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
    return exp2_64(entropy * LOG2_E)


@device
def trace(t1, t2):
    """Return tr J = 1 - sum p^2."""
    a = 1.0 + t1
    return (2.0 * t1 + (t1 * t1 - t2)) / (a * a)


@device
def frobenius_sq(t1, t2, t3):
    """Return ||J||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2, every difference in it being of like sign."""
    a = 1.0 + t1
    square = a * a
    return (t1 * t1 * (1.0 + t2) + 2.0 * t1 * (t2 - t3) + (t2 * (3.0 + t2) - 2.0 * t3)) / (square * square)
