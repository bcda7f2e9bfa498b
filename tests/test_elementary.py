"""Elementary functions against NumPy in extended precision, over their ranges, as loops compile them."""

import numpy as np
import pytest

from sim import elementary
from sim.jit import inner

exp2_32, exp2_64, log32, log1p64 = elementary.exp2_32, elementary.exp2_64, elementary.log32, elementary.log1p64
cos_sin_turn32, larger, smaller = elementary.cos_sin_turn32, elementary.larger, elementary.smaller


@inner
def exp2_32_of(y, out):
    for i in range(y.size):
        out[i] = exp2_32(y[i])


@inner
def exp2_64_of(y, out):
    for i in range(y.size):
        out[i] = exp2_64(y[i])


@inner
def log32_of(x, out):
    for i in range(x.size):
        out[i] = log32(x[i])


@inner
def log1p64_of(x, out):
    for i in range(x.size):
        out[i] = log1p64(x[i])


@inner
def cos_sin_of(words, cosine, sine):
    for i in range(words.size):
        cosine[i], sine[i] = cos_sin_turn32(words[i])


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


def test_cos_and_sin_of_a_turn():
    random = np.random.default_rng(0)
    edges = (np.arange(9)[:, None] * 2**29 + np.arange(-3, 4)).ravel() % 2**32
    words = np.concatenate([random.integers(2**32, size=1_000_000), edges]).astype(np.uint32)
    cosine, sine = np.empty((2, words.size), np.float32)
    cos_sin_of(words, cosine, sine)
    angle = 2 * np.arccos(np.longdouble(-1)) * words / 2**32
    assert abs(cosine - np.cos(angle)).max() < 2e-7
    assert abs(sine - np.sin(angle)).max() < 2e-7


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
