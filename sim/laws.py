"""Laws: the distribution of one standardised element (mean 0, variance 1).

A law turns the random words of a counter into the four elements 4e .. 4e+3 of a vector, where e is the
counter's first number. It is branch-free, so that a loop over tokens vectorises, and written once for
every device. Adding a law is one entry in :data:`LAWS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.elementary import cos_sin_turn32, expm1_32, expm1_64, log32, log64, sine32, sine64
from sim.jit import device
from sim.kinds import Choice, Kind, Parameter

__all__ = ["LAWS", "Law", "law_shape"]

Moments = tuple[float, ...]
Constants = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Law(Kind):
    """One law; `shape` is its parameter, 0 where it has none.

    Attributes
    ----------
    float32, float64 : device functions (a, b, c, d, constants) -> two elements
        The same elements in both precisions, from the same words: c and d are random where `words` is 8 alone.
    moments : function (shape) -> (E z, E z^2, ..., E z^8)
        Of the standardised element: infinite, or NaN, where they do not exist.
    words : int
        Random words for four elements, 4 or 8.
    constants : function (shape) -> three numbers
        What the transforms need of `shape`, in float64; they get it in their own precision.
    finite : function (shape) -> float
        The number of finite moments.
    symmetric : bool
        Whether -z has the same law, whatever the shape.
    discrete : bool
        Whether z takes a few values only, so that scores can tie with a limit exactly.
    """

    float32: Any
    float64: Any
    moments: Callable[[float], Moments]
    words: int = 4
    constants: Callable[[float], Constants] = lambda shape: (0.0, 0.0, 0.0)
    finite: Callable[[float], float] = lambda shape: math.inf
    symmetric: bool = True
    discrete: bool = False


_TOP_BIT = np.uint32(0x80000000)
_ONE32 = np.float32(1)


@device
def _sign32(word):
    return _ONE32 if word & _TOP_BIT else -_ONE32


@device
def _rademacher32(a, b, c, d, constants):
    return _sign32(a), _sign32(b)


@device
def _rademacher64(a, b, c, d, constants):
    return np.float64(_sign32(a)), np.float64(_sign32(b))


# A word read as a signed integer is uniform on [-2^31, 2^31); the half makes it symmetric.
_STEP64 = math.sqrt(3) / 2**31
_STEP32, _HALF32 = np.float32(_STEP64), np.float32(0.5)


@device
def _uniform32(a, b, c, d, constants):
    return (np.float32(np.int32(a)) + _HALF32) * _STEP32, (np.float32(np.int32(b)) + _HALF32) * _STEP32


@device
def _uniform64(a, b, c, d, constants):
    return (np.float64(np.int32(a)) + 0.5) * _STEP64, (np.float64(np.int32(b)) + 0.5) * _STEP64


# Box and Muller (1958). 31 bits of the first word, as a signed conversion vectorises and an unsigned
# one does not on AVX2: the largest normal is sqrt(64 ln 2) = 6.66, exceeded once in 4e10 draws.
_UNIT64 = 2.0**-31
_UNIT32, _MINUS_TWO32 = np.float32(_UNIT64), np.float32(-2)
_SHIFT1 = np.uint32(1)
_TURN64 = 2 * math.pi / 2**32


@device
def _log_uniform32(word):
    return log32((np.float32(np.int32(word >> _SHIFT1)) + _HALF32) * _UNIT32)


@device
def _gaussian32(radial, angular, c, d, constants):
    radius = math.sqrt(_MINUS_TWO32 * _log_uniform32(radial))  # np.sqrt of a scalar does not compile for CUDA
    cosine, sine = cos_sin_turn32(angular)
    return radius * cosine, radius * sine


@device
def _gaussian64(radial, angular, c, d, constants):
    radius = math.sqrt(-2 * math.log((np.float64(np.int32(radial >> _SHIFT1)) + 0.5) * _UNIT64))
    angle = np.float64(angular) * _TURN64
    return radius * math.cos(angle), radius * math.sin(angle)


# As the radius of a normal, so these: a logarithm of at least -22.2.
@device
def _log_uniform64(word):
    return log64((np.float64(np.int32(word >> _SHIFT1)) + 0.5) * _UNIT64)


@device
def _exponential32(a, b, c, d, constants):
    return -_log_uniform32(a) - _ONE32, -_log_uniform32(b) - _ONE32


@device
def _exponential64(a, b, c, d, constants):
    return -_log_uniform64(a) - 1.0, -_log_uniform64(b) - 1.0


_LAST_BIT, _SQRT_HALF64 = np.uint32(1), math.sqrt(0.5)
_SQRT_HALF32 = np.float32(_SQRT_HALF64)


@device
def _signed(word, size):
    return size if word & _LAST_BIT else -size


@device
def _laplace32(a, b, c, d, constants):
    return _signed(a, _log_uniform32(a) * _SQRT_HALF32), _signed(b, _log_uniform32(b) * _SQRT_HALF32)


@device
def _laplace64(a, b, c, d, constants):
    return _signed(a, _log_uniform64(a) * _SQRT_HALF64), _signed(b, _log_uniform64(b) * _SQRT_HALF64)


# Bailey (1994): T = sqrt(df (U^(-2/df) - 1)) cos(2 pi V), where the cosine of a turn has the law of the sine of a
# half turn. The turn's own sine would not be an independent second. U is at least 2^-32.
@device
def _student32(radial, angular, constants):
    return math.sqrt(constants[1] * expm1_32(constants[0] * _log_uniform32(radial))) * sine32(angular)


@device
def _student64(radial, angular, constants):
    return math.sqrt(constants[1] * expm1_64(constants[0] * _log_uniform64(radial))) * sine64(angular)


@device
def _student_t32(a, b, c, d, constants):
    return _student32(a, c, constants), _student32(b, d, constants)


@device
def _student_t64(a, b, c, d, constants):
    return _student64(a, c, constants), _student64(b, d, constants)


# One of two values: the constants are the rarer, the other, and how many of the 2^32 words give the rarer.
@device
def _pick(word, constants):
    return constants[0] if word < np.uint32(constants[2]) else constants[1]


@device
def _two_point(a, b, c, d, constants):
    return _pick(a, constants), _pick(b, constants)


@device
def _sparse32(a, b, c, d, constants):
    x, y = _gaussian32(a, b, c, d, constants)
    return x * _pick(c, constants), y * _pick(d, constants)


@device
def _sparse64(a, b, c, d, constants):
    x, y = _gaussian64(a, b, c, d, constants)
    return x * _pick(c, constants), y * _pick(d, constants)


# Of a normal of at most 6.66: a shape of 2 loses 0.4 % of its variance to that.
@device
def _lognormal32(a, b, c, d, constants):
    shape, slope, shift = constants
    x, y = _gaussian32(a, b, c, d, constants)
    return slope * expm1_32(shape * x) - shift, slope * expm1_32(shape * y) - shift


@device
def _lognormal64(a, b, c, d, constants):
    shape, slope, shift = constants
    x, y = _gaussian64(a, b, c, d, constants)
    return slope * expm1_64(shape * x) - shift, slope * expm1_64(shape * y) - shift


def _even(*moments: float) -> Callable[[float], Moments]:
    """Return the moments of a symmetric law without a parameter from E z^2, E z^4, E z^6, E z^8."""
    second, fourth, sixth, eighth = moments
    return lambda _: (0.0, second, 0.0, fourth, 0.0, sixth, 0.0, eighth)


_normal_moments = _even(1.0, 3.0, 15.0, 105.0)


def _eight(moment: Callable[[int], float]) -> Moments:
    return tuple(map(moment, range(1, 9)))


def _student_scale(df: float) -> float:
    """Return the square of what T is multiplied by: to variance 1, where there is one."""
    return (df - 2) / df if df > 2 else 1.0


def _student_finite(df: float) -> float:
    return math.ceil(df) - 1


def _student_moments(df: float) -> Moments:
    def moment(r: int) -> float:
        if r >= df:
            return math.nan if r % 2 else math.inf
        pairs = range(1, r // 2 + 1)
        return 0.0 if r % 2 else math.prod(df * _student_scale(df) * (2 * i - 1) / (df - 2 * i) for i in pairs)

    return _eight(moment)


def _two_values(p: float, value: float, other: float) -> Constants:
    """Return the constants of :func:`_pick`; their count is a number that float32 holds, too."""
    if p > 0.5:
        p, value, other = 1 - p, other, value
    return value, other, float(np.float32(round(p * 2**32)))


def _two_point_moments(p: float) -> Moments:
    q = 1 - p
    return _eight(lambda r: p ** (1 - r / 2) * q ** (r / 2) + (-1) ** r * (q ** (1 - r / 2) * p ** (r / 2)))


def _sparse_moments(density: float) -> Moments:
    return _eight(lambda r: density ** (1 - r / 2) * _normal_moments(0)[r - 1])


def _lognormal_moments(shape: float) -> Moments:
    """From the raw ones, e^{k^2 shape^2 / 2}, with v = e^{shape^2} - 1.

    E (x - E x)^r is proportional to sum_k (-1)^(r-k) C(r,k) (1+v)^C(k,2): of its powers of v the coefficients are
    summed as integers, so that nothing cancels (they count the graphs of r points, none of them without an edge).
    """
    v = math.expm1(shape**2)

    def moment(r: int) -> float:
        graphs = {
            edges: sum((-1) ** (r - k) * math.comb(r, k) * math.comb(math.comb(k, 2), edges) for k in range(r + 1))
            for edges in range(math.comb(r, 2) + 1)
        }
        return float(sum(count * v ** (edges - r / 2) for edges, count in graphs.items() if count))

    return _eight(moment)


def _lognormal_constants(shape: float) -> Constants:
    std = math.exp(shape**2 / 2) * math.sqrt(math.expm1(shape**2))
    return shape, 1 / std, math.expm1(shape**2 / 2) / std


_LEAST = 1e-6  # of a probability: to 1e-4, it is a whole number of the 2^32 words

LAWS: dict[str, Law] = {
    "rademacher": Law(float32=_rademacher32, float64=_rademacher64, moments=_even(1.0, 1.0, 1.0, 1.0), discrete=True),
    "gaussian": Law(float32=_gaussian32, float64=_gaussian64, moments=_normal_moments),
    "uniform": Law(float32=_uniform32, float64=_uniform64, moments=_even(1.0, 9 / 5, 27 / 7, 9.0)),
    "laplace": Law(float32=_laplace32, float64=_laplace64, moments=_even(1.0, 6.0, 90.0, 2520.0)),
    "student_t": Law(
        parameters={"df": Parameter(None, "a number from 1 to 1e9", lambda df: 1 <= df <= 1e9)},
        float32=_student_t32,
        float64=_student_t64,
        words=8,
        constants=lambda df: (-2 / df, df * _student_scale(df), 0.0),
        moments=_student_moments,
        finite=_student_finite,
    ),
    "exponential": Law(
        float32=_exponential32,
        float64=_exponential64,
        moments=lambda _: (0.0, 1.0, 2.0, 9.0, 44.0, 265.0, 1854.0, 14833.0),  # derangements
        symmetric=False,
    ),
    "two_point": Law(
        parameters={
            "p": Parameter(None, f"a number from {_LEAST:g} to 1 - {_LEAST:g}", lambda p: min(p, 1 - p) >= _LEAST)
        },
        float32=_two_point,
        float64=_two_point,
        constants=lambda p: _two_values(p, math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p))),
        moments=_two_point_moments,
        symmetric=False,
        discrete=True,
    ),
    "sparse": Law(
        parameters={"density": Parameter(None, f"a number from {_LEAST:g} to 1", lambda x: _LEAST <= x <= 1)},
        float32=_sparse32,
        float64=_sparse64,
        words=8,
        constants=lambda density: _two_values(density, 1 / math.sqrt(density), 0.0),
        moments=_sparse_moments,
    ),
    "lognormal": Law(
        parameters={"shape": Parameter(None, f"a number from {_LEAST:g} to 2", lambda x: _LEAST <= x <= 2)},
        float32=_lognormal32,
        float64=_lognormal64,
        constants=_lognormal_constants,
        moments=_lognormal_moments,
        symmetric=False,
    ),
}


def law_shape(law: Choice) -> float:
    """Return a law's parameter, 0 where it has none."""
    return next((float(value) for _, value in law.parameters), 0.0)
