"""Elementary functions against NumPy in extended precision, over their ranges, as loops compile them."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from sim import elementary
from sim.jit import inner

exp2_32, exp2_64, log32, log1p64 = elementary.exp2_32, elementary.exp2_64, elementary.log32, elementary.log1p64
cos_sin_turn32, larger, smaller = elementary.cos_sin_turn32, elementary.larger, elementary.smaller


def loop(function):
    @inner
    def over(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    return over


def loop_of_pairs(function):
    @inner
    def over(x, first, second):
        for i in range(x.size):
            first[i], second[i] = function(x[i])

    return over


exp2_32_of, exp2_64_of, log32_of, log1p64_of, log64_of = map(loop, (exp2_32, exp2_64, log32, log1p64, elementary.log64))


cos_sin_of = loop_of_pairs(cos_sin_turn32)


def relative_error(function, x, exact):
    out = np.empty_like(x)
    function(x, out)
    return abs((out - exact) / exact)


def long(x):
    return x.astype(np.longdouble)


def test_exp2_32():
    ranges = [np.linspace(-125, 126, 1_000_001), np.linspace(-1.5, 1.5, 1_000_001), np.geomspace(1e-8, 1, 1000), [0.0]]
    y = np.concatenate(ranges).astype(np.float32)
    assert relative_error(exp2_32_of, y, np.exp2(long(y))).max() < 2.2e-7  # 1.72e-7; 1.94e-7 without fused products
    assert exp2_32(np.float32(0)) == 1


def test_exp2_64():
    y = np.concatenate([np.linspace(-1021, 1022, 1_000_001), np.geomspace(1e-17, 1, 1000), [0.0]])
    assert relative_error(exp2_64_of, y, np.exp2(long(y))).max() < 3e-16  # 1.25e-16; 1.71e-16 without fused products
    assert exp2_64(0.0) == 1


def test_log32():
    x = np.exp(np.linspace(np.log(2.0**-126), np.log(3e38), 1_000_001)).astype(np.float32)
    near = np.linspace(0.5, 2, 300_001).astype(np.float32)
    for numbers in (x, near):
        out = np.empty_like(numbers)
        log32_of(numbers, out)
        exact = np.log(long(numbers))
        assert (abs(out - exact) / np.maximum(abs(exact), 1)).max() < 1.3e-7
    assert log32(np.float32(1)) == 0


def test_log1p64():
    t = np.concatenate([np.geomspace(1e-300, 1e300, 1_000_001), np.linspace(0, 3, 300_001)[1:]])
    assert relative_error(log1p64_of, t, np.log1p(long(t))).max() < 6e-16
    assert elementary.log1p64(0.0) == 0


def test_log64():
    x = np.exp(np.linspace(np.log(2.0**-1022), np.log(1.7e308), 1_000_001))
    for numbers in (x, np.linspace(0.5, 2, 300_001)):
        out = np.empty_like(numbers)
        log64_of(numbers, out)
        exact = np.log(long(numbers))
        assert (abs(out - exact) / np.maximum(abs(exact), 1)).max() < 4e-16
    assert elementary.log64(1.0) == 0


def both_signs(low, high, real):
    """Return numbers of all sizes within the limits, denser where functions bend."""
    sizes = np.concatenate([np.geomspace(low, high, 500_001), np.linspace(0.01, min(4, high), 500_001)])
    return np.clip(np.concatenate([sizes, -sizes]), -high, high).astype(real)


@pytest.mark.parametrize(
    ("function", "low", "high", "real", "error"),
    [
        (elementary.expm1_32, 1e-37, 87, np.float32, 2.5e-7),
        (elementary.expm1_64, 1e-300, 708, np.float64, 4e-16),
    ],
)
def test_expm1(function, low, high, real, error):
    x = both_signs(low, high, real)
    assert relative_error(loop(function), x, np.expm1(long(x))).max() < error
    assert function(real(0)) == 0
    last = real({np.float32: 88, np.float64: 709}[real])
    assert function(last) == pytest.approx(math.expm1(last), rel=error)


@pytest.mark.parametrize(
    ("name", "low", "high", "real", "error", "slope_error"),
    [("32", 1e-37, 43, np.float32, 3e-7, 5e-7), ("64", 1e-300, 350, np.float64, 6e-16, 1e-15)],
)
def test_tanh_and_its_slope(name, low, high, real, error, slope_error):
    tanh, both = (getattr(elementary, f"{word}{name}") for word in ("tanh", "tanh_slope"))
    x = both_signs(low, high, real)
    assert relative_error(loop(tanh), x, np.tanh(long(x))).max() < error
    value, slope = np.empty((2, x.size), real)
    loop_of_pairs(both)(x, value, slope)
    exact = 1 / np.cosh(long(x)) ** 2
    assert abs((slope - exact) / exact).max() < slope_error
    assert both(real(0)) == (0, 1)
    for beyond in (high, 2 * high, np.finfo(real).max, math.inf):  # the slope ends with the normal numbers
        for sign in (1, -1):
            found, end = both(real(sign * beyond))
            assert found == sign
            assert np.finfo(real).tiny < end < 16 * math.exp(-2 * high)
    assert np.isnan(both(real(math.nan))).all()
    assert math.isnan(tanh(real(math.nan)))


def test_cos_and_sin_of_a_turn():
    random = np.random.default_rng(0)
    edges = (np.arange(9)[:, None] * 2**29 + np.arange(-3, 4)).ravel() % 2**32
    words = np.concatenate([random.integers(2**32, size=1_000_000), edges]).astype(np.uint32)
    cosine, sine = np.empty((2, words.size), np.float32)
    cos_sin_of(words, cosine, sine)
    angle = 2 * np.arccos(np.longdouble(-1)) * words / 2**32
    assert abs(cosine - np.cos(angle)).max() < 2e-7
    assert abs(sine - np.sin(angle)).max() < 2e-7


@pytest.mark.parametrize(
    ("sine", "real", "error"), [(elementary.sine32, "float32", 2e-7), (elementary.sine64, "float64", 4e-16)]
)
def test_sine_of_a_half_turn(sine, real, error):
    edges = (np.arange(5)[:, None] * 2**30 + np.arange(-3, 4)).ravel() % 2**32
    words = np.concatenate([np.random.default_rng(0).integers(2**32, size=1_000_000), edges]).astype(np.uint32)
    out = np.empty(words.size, real)
    loop(sine)(words, out)
    exact = np.sin(np.arccos(np.longdouble(-1)) * (long(words.astype(np.int32)) + 0.5) / 2**32)
    assert abs(out - exact).max() < error
    assert abs(out / exact - 1).max() < 1.5 * error  # near 0, too


@pytest.mark.parametrize(("word", "cosine", "sine"), [(0, 1, 0), (2**30, 0, 1), (2**31, -1, 0), (3 * 2**30, 0, -1)])
def test_quarter_turns_are_exact(word, cosine, sine):
    assert cos_sin_turn32(np.uint32(word)) == (cosine, sine)


@inner
def pick(x, y, out):
    out[0], out[1] = larger(x[0], y[0]), smaller(x[0], y[0])


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_larger_and_smaller(real):
    for x, y in ((1, 2), (2, 1), (-1, -3), (0, 0), (np.inf, 1), (-np.inf, 5)):
        out = np.empty(2, real)
        pick(np.array([x], real), np.array([y], real), out)
        assert out.tolist() == [max(x, y), min(x, y)]


# Rounding to narrower types: NumPy's own float16, and ml_dtypes' bfloat16 --------------------------

ROUNDINGS = {
    "float16": (loop(elementary.round_float16), np.float16),
    "bfloat16": (loop(elementary.round_bfloat16), ml_dtypes.bfloat16),
}


def rounds_alike(name, x):
    """Return whether every float32 is rounded to the bit as the type itself does; NaN is NaN."""
    ours, narrow = ROUNDINGS[name]
    found = np.empty_like(x)
    ours(x, found)
    with np.errstate(all="ignore"):
        expected = x.astype(narrow).astype(np.float32)
    same = found.view(np.uint32) == expected.view(np.uint32)
    return bool((same | (np.isnan(found) & np.isnan(expected))).all())


def every_value_and_tie(dropped):
    """Return all numbers of a type that drops so many bits, as long as it is normal, and its ties; neighbours, too."""
    kept = np.arange(0, 2**32, 2**dropped, dtype=np.uint64)[:, None]
    half = 2 ** (dropped - 1)
    return (kept + np.array([0, 1, half - 1, half, half + 1, 2**dropped - 1], np.uint64)).astype(np.uint32).ravel()


@pytest.mark.parametrize(("name", "dropped"), [("float16", 13), ("bfloat16", 16)])
def test_rounding(name, dropped):
    assert rounds_alike(name, every_value_and_tie(dropped).view(np.float32))  # infinities, NaN and all exponents too
    random = np.random.default_rng(0)
    assert rounds_alike(name, random.integers(2**32, size=1_000_000).astype(np.uint32).view(np.float32))
    # subnormals of the type and the least normal ones: half steps and their neighbours
    step = float(ml_dtypes.finfo(ROUNDINGS[name][1]).smallest_subnormal)
    half_steps = (np.arange(5000) * (step / 2)).astype(np.float32)
    for x in (half_steps, np.nextafter(half_steps, np.float32(1)), np.nextafter(half_steps, np.float32(-1))):
        assert rounds_alike(name, x)
        assert rounds_alike(name, -x)


@pytest.mark.parametrize(
    ("name", "last", "first_infinite"),
    [("float16", 65504, 65520), ("bfloat16", 2.0**127 * (2 - 2**-7), 2.0**127 * (2 - 2**-8))],
)
def test_rounding_overflows_to_infinity(name, last, first_infinite):
    below = np.nextafter(np.float32(first_infinite), np.float32(0))
    x = np.array([last, below, first_infinite, np.finfo(np.float32).max, math.inf, -math.inf, -0.0, 1e-45], np.float32)
    out = np.empty_like(x)
    ROUNDINGS[name][0](x, out)
    smallest = 0.0 if name == "float16" else out[-1]
    assert out.tolist() == [last, last, math.inf, math.inf, math.inf, -math.inf, 0, smallest]
    assert np.signbit(out).tolist() == [False] * 5 + [True] * 2 + [False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDINGS)
def test_rounding_of_every_float32(name):
    """Some 6 minutes of a core for float16, nearly all in NumPy's own conversion; its threads run side by side."""

    def differs(first):
        x = np.arange(first, first + 2**24, dtype=np.uint64).astype(np.uint32).view(np.float32)
        return not rounds_alike(name, x)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, 2**32, 2**24)
        assert [hex(start) for start, wrong in zip(starts, pool.map(differs, starts), strict=True) if wrong] == []
