"""Laws: the distribution of one standardised element (mean 0, variance 1).

A law turns the four words of a counter into the four elements 4e .. 4e+3 of a vector, where e is the
counter's first number. It is branch-free, so that a loop over tokens vectorises, and written once for
every device. Adding a law is one entry in :data:`LAWS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.elementary import cos_sin_turn32, log32
from sim.jit import device
from sim.kinds import Kind

__all__ = ["LAWS", "Law"]


@dataclass(frozen=True, kw_only=True)
class Law(Kind):
    """One law.

    Attributes
    ----------
    float32, float64 : device functions (a, b, c, d, shape) -> four elements
        The same elements in both precisions, from the same four words; `shape` is the law's
        parameter, 0 where it has none.
    moments : function (shape) -> (E z, E z^2, E z^3, E z^4)
        Of the standardised element.
    discrete : bool
        Whether z takes a few values only, so that scores can tie with a limit exactly.
    """

    float32: Any
    float64: Any
    moments: Callable[[float], tuple[float, float, float, float]]
    discrete: bool = False


_TOP_BIT = np.uint32(0x80000000)
_ONE32 = np.float32(1)


@device
def _sign32(word):
    return _ONE32 if word & _TOP_BIT else -_ONE32


@device
def _rademacher32(a, b, c, d, shape):
    return _sign32(a), _sign32(b), _sign32(c), _sign32(d)


@device
def _rademacher64(a, b, c, d, shape):
    a, b, c, d = _rademacher32(a, b, c, d, shape)
    return np.float64(a), np.float64(b), np.float64(c), np.float64(d)


# A word read as a signed integer is uniform on [-2^31, 2^31); the half makes it symmetric.
_STEP64 = math.sqrt(3) / 2**31
_STEP32, _HALF32 = np.float32(_STEP64), np.float32(0.5)


@device
def _uniform32(a, b, c, d, shape):
    return (
        (np.float32(np.int32(a)) + _HALF32) * _STEP32,
        (np.float32(np.int32(b)) + _HALF32) * _STEP32,
        (np.float32(np.int32(c)) + _HALF32) * _STEP32,
        (np.float32(np.int32(d)) + _HALF32) * _STEP32,
    )


@device
def _uniform64(a, b, c, d, shape):
    return (
        (np.float64(np.int32(a)) + 0.5) * _STEP64,
        (np.float64(np.int32(b)) + 0.5) * _STEP64,
        (np.float64(np.int32(c)) + 0.5) * _STEP64,
        (np.float64(np.int32(d)) + 0.5) * _STEP64,
    )


# Box and Muller (1958). 31 bits of the first word, as a signed conversion vectorises and an unsigned
# one does not on AVX2: the largest normal is sqrt(64 ln 2) = 6.66, exceeded once in 4e10 draws.
_UNIT64 = 2.0**-31
_UNIT32, _MINUS_TWO32 = np.float32(_UNIT64), np.float32(-2)
_SHIFT1 = np.uint32(1)
_TURN64 = 2 * math.pi / 2**32


@device
def _normal_pair32(radial, angular):
    u = (np.float32(np.int32(radial >> _SHIFT1)) + _HALF32) * _UNIT32
    radius = math.sqrt(_MINUS_TWO32 * log32(u))  # np.sqrt of a scalar does not compile for CUDA
    cosine, sine = cos_sin_turn32(angular)
    return radius * cosine, radius * sine


@device
def _normal_pair64(radial, angular):
    radius = math.sqrt(-2 * math.log((np.float64(np.int32(radial >> _SHIFT1)) + 0.5) * _UNIT64))
    angle = np.float64(angular) * _TURN64
    return radius * math.cos(angle), radius * math.sin(angle)


@device
def _gaussian32(a, b, c, d, shape):
    x0, x1 = _normal_pair32(a, b)
    x2, x3 = _normal_pair32(c, d)
    return x0, x1, x2, x3


@device
def _gaussian64(a, b, c, d, shape):
    x0, x1 = _normal_pair64(a, b)
    x2, x3 = _normal_pair64(c, d)
    return x0, x1, x2, x3


LAWS: dict[str, Law] = {
    "rademacher": Law(
        float32=_rademacher32, float64=_rademacher64, moments=lambda _: (0.0, 1.0, 0.0, 1.0), discrete=True
    ),
    "gaussian": Law(float32=_gaussian32, float64=_gaussian64, moments=lambda _: (0.0, 1.0, 0.0, 3.0)),
    "uniform": Law(float32=_uniform32, float64=_uniform64, moments=lambda _: (0.0, 1.0, 0.0, 9 / 5)),
}
