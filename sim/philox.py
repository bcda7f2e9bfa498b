"""Random words: Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror and Shaw 2011).

A word depends on its counter (element, token, trial, tensor) and the cell's key alone, so it can be
drawn anywhere, in any order, by any thread or device.

The 32-bit arithmetic is done in uint64 with explicit masks: LLVM then sees that the high halves are
zero and takes one widening multiplication; with uint32 variables it takes three, and a word costs
1.5 ns instead of 0.54 (AVX2).
"""

from __future__ import annotations

import numpy as np

from sim.jit import device

__all__ = [
    "BIAS",
    "COMMON",
    "KEY",
    "MAGNITUDE",
    "QUERY",
    "SCORE",
    "SHARED",
    "UNITS",
    "UNIT_WEIGHT",
    "WEIGHTS",
    "philox4x32",
]

# The tensor that a counter belongs to: queries, keys, what both share, the drawn scores of no vectors, ...
QUERY, KEY, SHARED, SCORE, UNIT_WEIGHT = np.uint32(0), np.uint32(1), np.uint32(2), np.uint32(3), np.uint32(4)
# ... and what is added to a side's own: its projection, the projection's bias, the weights of its additive units,
# the magnitudes of its vectors, and the vector that its tokens have in common.
WEIGHTS, BIAS, UNITS, MAGNITUDE, COMMON = (np.uint32(2**k) for k in (4, 5, 6, 7, 8))

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # the multipliers of the paper's table 2
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)  # and its Weyl increments of the key
_HIGH = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@device
def _round(c0, c1, c2, c3, k0, k1):
    p0 = c0 * _M0
    p1 = c2 * _M1
    return (p1 >> _HIGH) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HIGH) ^ c3 ^ k1, p0 & _LOW


@device
def philox4x32(counter, key):
    """Return the four words at `counter` (four uint32) under `key` (two uint32)."""
    c0, c1, c2, c3 = np.uint64(counter[0]), np.uint64(counter[1]), np.uint64(counter[2]), np.uint64(counter[3])
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(9):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    return np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)
