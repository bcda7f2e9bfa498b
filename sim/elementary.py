"""Elementary functions as branch-free polynomials on bit patterns, so that loops over them vectorise.

Numba has no SVML: ``math.exp`` in a loop is one scalar call after another. The errors stated here are
relative and are held by the tests against NumPy in extended precision.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sim.jit import device

__all__ = [
    "LOG2_E",
    "bits_of_float64",
    "cos_sin_turn32",
    "exp2_32",
    "exp2_64",
    "expm1_32",
    "expm1_64",
    "float_of_bits64",
    "larger",
    "log1p64",
    "log32",
    "log64",
    "round_bfloat16",
    "round_float16",
    "sine32",
    "sine64",
    "smaller",
    "tanh32",
    "tanh64",
    "tanh_slope32",
    "tanh_slope64",
]


def _bitcast(source, target):
    @intrinsic
    def cast(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), codegen

    return cast


# `np.float32.view` of a scalar does not compile for CUDA; an intrinsic compiles for both.
_float_of_bits32 = _bitcast(types.int32, types.float32)
_bits_of_float32 = _bitcast(types.float32, types.int32)
float_of_bits64 = _bitcast(types.int64, types.float64)
bits_of_float64 = _bitcast(types.float64, types.int64)


def _call_llvm(builder, name, args, flags=()):
    real = args[0].type
    function = builder.module.declare_intrinsic(name, [real], ir.FunctionType(real, [real] * len(args)))
    return builder.call(function, args, fastmath=flags)


def _unary(name):
    @intrinsic
    def call(typingctx, x):
        return x(x), lambda context, builder, signature, args: _call_llvm(builder, name, args)

    return call


def _binary(name):
    @intrinsic
    def call(typingctx, x, y):
        return x(x, x), lambda context, builder, signature, args: _call_llvm(builder, name, args, ("nnan", "nsz"))

    return call


# `np.floor` of a scalar does not compile for CUDA, and `math.floor` gives an integer.
_floor = _unary("llvm.floor")

# Numba's own min and max are a comparison and a branch, and a loop over them stays scalar (0.6 ns a
# score, so 0.1). A NaN may be passed over: sums show it.
smaller = _binary("llvm.minnum")
larger = _binary("llvm.maxnum")

_ONE32, _TWO32, _HALF32 = np.float32(1), np.float32(2), np.float32(0.5)
_LN2_32, _LN2_64 = np.float32(math.log(2)), math.log(2)
LOG2_E = 1 / math.log(2)

# 2^r on [-1/2, 1/2] with 2^0 = 1 exactly: minimax of degree 5 (Lawson's weights), error 9.2e-8.
_E1, _E2, _E3, _E4, _E5 = (
    np.float32(c) for c in (0.6931469776, 0.2402224209, 0.05550733743, 0.00967151264, 0.00132647272)
)


@device
def exp2_32(y):
    """Return 2^y for a float32 -125 <= y <= 126, error 2.2e-7, and exactly 1 at 0; the caller clamps."""
    n = _floor(y + _HALF32)
    r = y - n
    p = _ONE32 + r * (_E1 + r * (_E2 + r * (_E3 + r * (_E4 + r * _E5))))
    return p * _float_of_bits32((np.int32(n) + np.int32(127)) << np.int32(23))


_F1, _F2, _F3, _F4, _F5, _F6, _F7, _F8, _F9, _F10, _F11, _F12, _F13 = (
    math.log(2) ** k / math.factorial(k) for k in range(1, 14)
)


@device
def exp2_64(y):
    """Return 2^y for a float64 -1021 <= y <= 1022, error 3e-16, and exactly 1 at 0; the caller clamps."""
    n = _floor(y + 0.5)
    r = y - n
    p = _F9 + r * (_F10 + r * (_F11 + r * (_F12 + r * _F13)))
    p = _F4 + r * (_F5 + r * (_F6 + r * (_F7 + r * (_F8 + r * p))))
    p = 1.0 + r * (_F1 + r * (_F2 + r * (_F3 + r * p)))
    return p * float_of_bits64((np.int64(n) + np.int64(1023)) << np.int64(52))


# log: x = 2^n m with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh((m-1)/(m+1)) as its own series.
_SQRT_HALF_BITS32 = np.int32(np.float32(math.sqrt(0.5)).view(np.int32))
_SQRT_HALF_BITS64 = np.int64(np.float64(math.sqrt(0.5)).view(np.int64))
_A1, _A2, _A3, _A4 = (np.float32(2 / (2 * k + 1)) for k in range(1, 5))


@device
def log32(x):
    """Return log(x) for a positive normal float32, error 1.3e-7 (absolute near 1)."""
    bits = _bits_of_float32(x)
    n = (bits - _SQRT_HALF_BITS32) >> np.int32(23)
    m = _float_of_bits32(bits - (n << np.int32(23)))
    s = (m - _ONE32) / (m + _ONE32)
    z = s * s
    return np.float32(n) * _LN2_32 + s * (_TWO32 + z * (_A1 + z * (_A2 + z * (_A3 + z * _A4))))


_B1, _B2, _B3, _B4, _B5, _B6, _B7, _B8, _B9, _B10 = (2 / (2 * k + 1) for k in range(1, 11))


@device
def _log_of_parts64(n, above, m):
    """Return log(2^n m), `above` being m - 1."""
    s = above / (m + 1.0)
    z = s * s
    p = _B5 + z * (_B6 + z * (_B7 + z * (_B8 + z * (_B9 + z * _B10))))
    p = 2.0 + z * (_B1 + z * (_B2 + z * (_B3 + z * (_B4 + z * p))))
    return np.float64(n) * _LN2_64 + s * p


@device
def log64(x):
    """Return log(x) for a positive normal float64, error 4e-16 (absolute near 1)."""
    bits = bits_of_float64(x)
    n = (bits - _SQRT_HALF_BITS64) >> np.int64(52)
    m = float_of_bits64(bits - (n << np.int64(52)))
    return _log_of_parts64(n, m - 1.0, m)


@device
def log1p64(t):
    """Return log(1 + t) for a float64 t >= 0, error 6e-16."""
    bits = bits_of_float64(1.0 + t)
    n = (bits - _SQRT_HALF_BITS64) >> np.int64(52)
    m = float_of_bits64(bits - (n << np.int64(52)))
    # m - 1 without what 1 + t rounds off. Kahan's log(a) t / (a - 1) would be reordered to log(a) in loops
    # that may reassociate.
    above = t if n == np.int64(0) else m - 1.0
    return _log_of_parts64(n, above, m)


# cos and sin of a turn given as a word: the quadrant is exact integer arithmetic, the rest is a
# Taylor polynomial on [-pi/4, pi/4] (next terms 2.5e-8 and 1.8e-9).
_RADIANS_PER_WORD32 = np.float32(2 * math.pi / 2**32)
_C2, _C4, _C6, _C8 = (np.float32((-1) ** k / math.factorial(2 * k)) for k in range(1, 5))
_S3, _S5, _S7, _S9 = (np.float32((-1) ** k / math.factorial(2 * k + 1)) for k in range(1, 5))


@device
def cos_sin_turn32(word):
    """Return (cos t, sin t) in float32 for t = 2 pi `word` / 2^32, absolute error 2e-7."""
    quadrant = np.uint32(np.uint32(word + np.uint32(0x20000000)) >> np.uint32(30))
    rest = np.int32(np.uint32(word - np.uint32(quadrant << np.uint32(30))))
    t = np.float32(rest) * _RADIANS_PER_WORD32
    z = t * t
    cosine = _ONE32 + z * (_C2 + z * (_C4 + z * (_C6 + z * _C8)))
    sine = t * (_ONE32 + z * (_S3 + z * (_S5 + z * (_S7 + z * _S9))))
    swap = (quadrant & np.uint32(1)) != np.uint32(0)
    c = sine if swap else cosine
    s = cosine if swap else sine
    c = -c if np.uint32(quadrant + np.uint32(1)) & np.uint32(2) else c
    s = -s if quadrant & np.uint32(2) else s
    return c, s


# sin on a half turn, the only one that gives every value once: Taylor, next terms 5.7e-8 and 1.3e-18.
_RADIANS_PER_STEP64 = math.pi / 2**32
_RADIANS_PER_STEP32 = np.float32(_RADIANS_PER_STEP64)
_S11 = np.float32(-1 / math.factorial(11))
_D3, _D5, _D7, _D9, _D11, _D13, _D15, _D17, _D19, _D21 = ((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 11))


@device
def sine32(word):
    """Return sin t in float32, t = pi (`word` as a signed number + 1/2) / 2^32 in (-pi/2, pi/2), error 2e-7."""
    t = (np.float32(np.int32(word)) + _HALF32) * _RADIANS_PER_STEP32
    z = t * t
    return t * (_ONE32 + z * (_S3 + z * (_S5 + z * (_S7 + z * (_S9 + z * _S11)))))


@device
def sine64(word):
    """Return the same in float64, error 4e-16."""
    t = (np.float64(np.int32(word)) + 0.5) * _RADIANS_PER_STEP64
    z = t * t
    p = _D11 + z * (_D13 + z * (_D15 + z * (_D17 + z * (_D19 + z * _D21))))
    return t * (1.0 + z * (_D3 + z * (_D5 + z * (_D7 + z * (_D9 + z * p)))))


# exp: x = n ln 2 + r with |r| <= ln(2)/2, and e^r - 1 as its own series (next terms 1.5e-8 and 1.2e-17 of it).
# n ln 2 is taken off in two parts, the first of which has no rounding.
_LOG2_E32 = np.float32(LOG2_E)
_LN2_HIGH32, _LN2_LOW32 = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
_LN2_HIGH64, _LN2_LOW64 = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_G2, _G3, _G4, _G5, _G6, _G7 = (np.float32(1 / math.factorial(k)) for k in range(2, 8))
_H2, _H3, _H4, _H5, _H6, _H7, _H8, _H9, _H10, _H11, _H12, _H13 = (1 / math.factorial(k) for k in range(2, 14))


@device
def _exp_parts32(x):
    """Return (2^n, e^r - 1)."""
    n = _floor(x * _LOG2_E32 + _HALF32)
    r = (x - n * _LN2_HIGH32) - n * _LN2_LOW32
    p = r + r * r * (_G2 + r * (_G3 + r * (_G4 + r * (_G5 + r * (_G6 + r * _G7)))))
    return _float_of_bits32((np.int32(n) + np.int32(127)) << np.int32(23)), p


@device
def _exp_parts64(x):
    n = _floor(x * LOG2_E + 0.5)
    r = (x - n * _LN2_HIGH64) - n * _LN2_LOW64
    p = _H8 + r * (_H9 + r * (_H10 + r * (_H11 + r * (_H12 + r * _H13))))
    p = _H2 + r * (_H3 + r * (_H4 + r * (_H5 + r * (_H6 + r * (_H7 + r * p)))))
    return float_of_bits64((np.int64(n) + np.int64(1023)) << np.int64(52)), r + r * r * p


@device
def expm1_32(x):
    """Return e^x - 1 for a float32 -87 <= x <= 88, error 2.5e-7; the caller clamps."""
    scale, p = _exp_parts32(x)
    return scale * p + (scale - _ONE32)


@device
def expm1_64(x):
    """Return e^x - 1 for a float64 -708 <= x <= 709, error 4e-16; the caller clamps."""
    scale, p = _exp_parts64(x)
    return scale * p + (scale - 1.0)


# tanh and its slope from e = e^{-2|x|}: tanh |x| = (1 - e) / (1 + e), slope 4e / (1 + e)^2. Both 1 - e near 0 and e
# far from it are at hand without a difference. From the limits on tanh is 1 and the slope stays at its last value
# (2e-37, 4e-304): smaller ones would be denormal.
_TWICE_TANH_LIMIT32, _TWICE_TANH_LIMIT64 = np.float32(86), 700.0
_FOUR32 = np.float32(4)


@device
def tanh_slope32(x):
    """Return (tanh x, 1 - tanh^2 x) for any float32, errors 3e-7 and 5e-7 for abs(x) <= 43."""
    twice = abs(x) * _TWO32
    scale, p = _exp_parts32(-(twice if twice < _TWICE_TANH_LIMIT32 else _TWICE_TANH_LIMIT32))
    rise = scale * p + (scale - _ONE32)
    inverse = _ONE32 / (_TWO32 + rise)
    negative = rise * inverse
    signed = -negative if x > np.float32(0) else negative
    slope = _FOUR32 * (scale * p + scale) * (inverse * inverse)
    return (signed if x == x else x), (slope if x == x else x)


@device
def tanh_slope64(x):
    """Return (tanh x, 1 - tanh^2 x) for any float64, errors 6e-16 and 1e-15 for abs(x) <= 350."""
    twice = abs(x) * 2.0
    scale, p = _exp_parts64(-(twice if twice < _TWICE_TANH_LIMIT64 else _TWICE_TANH_LIMIT64))
    rise = scale * p + (scale - 1.0)
    inverse = 1.0 / (2.0 + rise)
    negative = rise * inverse
    signed = -negative if x > 0.0 else negative
    slope = 4.0 * (scale * p + scale) * (inverse * inverse)
    return (signed if x == x else x), (slope if x == x else x)


@device
def tanh32(x):
    """Return tanh(x) for any float32, error 3e-7."""
    return tanh_slope32(x)[0]


@device
def tanh64(x):
    """Return tanh(x) for any float64, error 6e-16."""
    return tanh_slope64(x)[0]


# Rounding to narrower types, as the value that they hold. Signs go by their bits: `nsz` leaves those of zeros open.
_SIGN32, _MAGNITUDE32 = np.int32(-(2**31)), np.int32(2**31 - 1)
_LAST_BIT_BF16, _BELOW_HALF_BF16, _KEPT_BF16 = np.int32(1), np.int32(0x7FFF), np.int32(-(2**16))
_EXPONENT32 = np.int32(0x7F800000)
_LEAST_BITS_F16, _MOST_BITS_F16 = (np.int32((127 + exponent) << 23) for exponent in (-14, 16))
# 1.5 * 2^13, as what its bits add to those of a power of two
_SHIFT_BITS_F16 = np.int32((13 << 23) + (1 << 22))
_BEYOND_F16, _INFINITY32 = np.float32(65536), np.float32(math.inf)


@device
def round_bfloat16(x):
    """Return a float32 as the nearest bfloat16, ties to even; beyond 3.396e38 infinity; NaN stays NaN."""
    bits = _bits_of_float32(x)
    rounded = (bits + _BELOW_HALF_BF16 + ((bits >> np.int32(16)) & _LAST_BIT_BF16)) & _KEPT_BF16
    return _float_of_bits32(rounded) if x == x else x


@device
def round_float16(x):
    """Return a float32 as the nearest float16, ties to even, subnormals kept; from 65520 on infinity; NaN stays NaN.

    Adding 1.5 * 2^(e + 13), where the type's numbers near x are 2^(e - 10) apart, rounds to these.
    """
    bits = _bits_of_float32(x)
    exponent = bits & _EXPONENT32
    exponent = exponent if exponent > _LEAST_BITS_F16 else _LEAST_BITS_F16
    exponent = exponent if exponent < _MOST_BITS_F16 else _MOST_BITS_F16
    shift = _float_of_bits32(exponent + _SHIFT_BITS_F16)
    size = (_float_of_bits32(bits & _MAGNITUDE32) + shift) - shift
    size = _INFINITY32 if size >= _BEYOND_F16 else size
    return _float_of_bits32(_bits_of_float32(size) | (bits & _SIGN32))
