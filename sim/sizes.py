"""Bins for the sizes of row quantities, from which their medians are taken: 150 in every factor of two.

Between powers of two, x = 2^e (1 + t), a bin's number is the whole part of 150 (e + t + t (1 - t) / 3): so near to
the logarithm that the bins are 0.44 to 0.5 % wide, and neither logarithm nor search.
"""

from __future__ import annotations

import numpy as np

from sim.elementary import bits_of_float64, float_of_bits64
from sim.jit import device

__all__ = ["SIZE_BINS", "size_bin", "size_edges"]

_OCTAVES = 32  # from 2^-32 (2.3e-10) to 1
_PER_OCTAVE = 150
SIZE_BINS = _OCTAVES * _PER_OCTAVE + 2  # with the open ends: below, and from 1 on

_MANTISSA = np.int64((1 << 52) - 1)
_ONE = np.int64(1023 << 52)
_LAST = np.int64(SIZE_BINS - 1)


@device
def size_bin(value):
    """Return the bin of a float64 of at least 0: 0 below the first edge, the last from 1 on."""
    bits = bits_of_float64(value)
    t = float_of_bits64((bits & _MANTISSA) | _ONE) - 1.0
    within = np.int64(_PER_OCTAVE * (t + t * (1.0 - t) / 3.0))
    place = ((bits >> np.int64(52)) - np.int64(1023 - _OCTAVES)) * np.int64(_PER_OCTAVE) + within + np.int64(1)
    place = place if place > np.int64(0) else np.int64(0)
    return place if place < _LAST else _LAST


def size_edges() -> np.ndarray:
    """Return the edges of the bins, of shape (SIZE_BINS - 1,)."""
    t = 2 - np.sqrt(4 - 3 * np.arange(_PER_OCTAVE) / _PER_OCTAVE)
    return np.append(np.ldexp(1 + t, np.arange(-_OCTAVES, 0)[:, None]).ravel(), 1.0)
