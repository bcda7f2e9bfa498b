"""The vectors of one side, from the law of an element to what the score sees, a tile of tokens at a time (CPU).

The order is that of :mod:`sim.structure`: law, dependent, within, tokens, pair, std and mean, projection, normalize,
rotation. Tiles are (element, token), so that every step is a loop over tokens that vectorises. Each number still
depends on its place alone: what several tiles need, such as the vector that all tokens share, is drawn again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.draw import LAW_CODES, START, fill, padded
from sim.jit import device, inner, kernel, owner, part
from sim.philox import BIAS, COMMON, KEY, MAGNITUDE, QUERY, SHARED, philox4x32
from sim.tiles import product

__all__ = ["GIVEN", "Pair", "Side", "draw_side", "draw_weights", "find_norms", "normalize"]

GIVEN = np.int64(-1)  # in the place of a law's code: the vectors are not drawn, they are there
MAGNITUDES, SIGNS = 1, 2  # of Side.dependent
DIAGONAL, EQUICORRELATED, AR1 = 1, 2, 3  # of Side.within
L2, RMS, LAYER = 1, 2, 3  # of Side.normalize
PAIRED, SHARING = 1, 2  # of Pair.kind

_RADEMACHER, _GAUSSIAN = LAW_CODES["rademacher"], LAW_CODES["gaussian"]


class Side(NamedTuple):
    """How the vectors of one side are drawn; codes are the constants above, 0 for none, "real" is the draw's precision.

    Attributes
    ----------
    law : int64
        A value of LAW_CODES, or GIVEN.
    numbers, standard : real (5,)
        (mean, std, the law's constants), and the same with mean 0 and std 1.
    given : real (tokens, d_k)
        The vectors if they are given, else of no length.
    width : int
        Of the tokens that are projected; 0 without a projection.
    tensor : uint32
        Of the tokens: a projection to queries and keys may take both from the same.
    weight_law, weight_tensor, weights, bias : int64, uint32, real (5,), real (5,)
        Of the projection; both sides may have one matrix.
    dependent, df : int, float
    within, rho, diagonal : int, float, real (width,)
    common : float
        Correlation between tokens.
    normalize, gain : int, float
    offset, rates, turns : int, float64 (planes,), real (2, planes, TILE)
        The position of token 0, the angle of each plane a token, and cosine and sine of its first multiples.
    """

    law: np.int64
    numbers: np.ndarray
    standard: np.ndarray
    given: np.ndarray
    width: int
    tensor: np.uint32
    weight_law: np.int64
    weight_tensor: np.uint32
    weights: np.ndarray
    bias: np.ndarray
    dependent: int
    df: float
    within: int
    rho: float
    diagonal: np.ndarray
    common: float
    normalize: int
    gain: float
    offset: int
    rates: np.ndarray
    turns: np.ndarray


class Pair(NamedTuple):
    """Dependence between the sides: `pairs` is the number of pairs."""

    kind: int
    rho: float
    pairs: int


@device
def _gamma(shape, token, trial, tensor, key):
    """Return a gamma variate of `shape` by the squeeze of Marsaglia and Tsang (2000), from a token's own words."""
    boosted = shape if shape >= 1.0 else shape + 1.0
    d = boosted - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    unit, value = 2.0**-32, -1.0
    attempt = np.uint32(0)
    while value < 0.0:
        a, b, u, _ = philox4x32((attempt, token, trial, tensor), key)
        x = math.sqrt(-2.0 * math.log((np.float64(a) + 0.5) * unit)) * math.cos(2.0 * math.pi * unit * np.float64(b))
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log((np.float64(u) + 0.5) * unit) < 0.5 * x * x + d - d * v + d * math.log(v):
            value = d * v
        attempt = np.uint32(attempt + np.uint32(1))
    if shape < 1.0:  # a word of no attempt
        _, _, _, u = philox4x32((np.uint32(0xFFFFFFFF), token, trial, tensor), key)
        value *= ((np.float64(u) + 0.5) * unit) ** (1.0 / shape)
    return value


@inner
def _find_magnitudes(df, first, trial, tensor, key, out):
    # (df - 2) / chi^2 has mean 1; without a variance the scale is that of t itself
    scale = df - 2.0 if df > 2.0 else df
    for t in range(out.shape[0]):
        out[t] = math.sqrt(scale / (2.0 * _gamma(0.5 * df, np.uint32(first + t), trial, tensor, key)))


@inner
def _multiply_tokens(x, factors):
    for e in range(x.shape[0]):
        for t in range(x.shape[1]):
            x[e, t] *= abs(factors[t])


@inner
def _multiply_components(x, factors):
    for e in range(factors.shape[0]):
        for t in range(x.shape[1]):
            x[e, t] *= factors[e]


@inner
def _add_up(x, width, total):
    for t in range(x.shape[1]):
        total[t] = 0.0
    for e in range(width):
        for t in range(x.shape[1]):
            total[t] += x[e, t]


@inner
def _equicorrelate(x, width, rho, total):
    # the symmetric root of (1 - rho) I + rho 11': exact down to rho = -1 / (width - 1)
    real = x.dtype.type
    _add_up(x, width, total)
    own = math.sqrt(1.0 - rho)
    shared = (math.sqrt(max(1.0 + (width - 1) * rho, 0.0)) - own) / width
    for e in range(width):
        for t in range(x.shape[1]):
            x[e, t] = real(own) * x[e, t] + real(shared * total[t])


@inner
def _autoregress(x, width, rho):
    real = x.dtype.type
    step, new = real(rho), real(math.sqrt(1.0 - rho * rho))
    for e in range(1, width):
        for t in range(x.shape[1]):
            x[e, t] = step * x[e - 1, t] + new * x[e, t]


@inner
def _mix_with_common(x, own, share, common):
    for e in range(x.shape[0]):
        for t in range(x.shape[1]):
            x[e, t] = own * x[e, t] + share * common[e, 0]


@inner
def _mix_with_partners(x, own, share, partners):
    for e in range(x.shape[0]):
        for t in range(partners.shape[1]):
            x[e, t] = own * x[e, t] + share * partners[e, t]


@owner
def _draw_independent(side, width, x, first, trial, tensor, key):
    """Write standardised vectors that are independent of each other."""
    if side.dependent == 0:
        fill(side.law, x, START, first, trial, tensor, key, side.standard)
    else:
        magnitudes = np.empty((4, x.shape[1]), x.dtype)
        own = np.uint32(tensor + MAGNITUDE)
        if side.dependent == SIGNS:
            fill(_RADEMACHER, x, START, first, trial, tensor, key, side.standard)
            fill(side.law, magnitudes, START, first, trial, own, key, side.standard)
        else:
            fill(side.law, x, START, first, trial, tensor, key, side.standard)
            _find_magnitudes(side.df, first, trial, own, key, magnitudes[0])
        _multiply_tokens(x, magnitudes[0])
    if side.within == DIAGONAL:
        _multiply_components(x, side.diagonal)
    elif side.within == EQUICORRELATED:
        _equicorrelate(x, width, side.rho, np.empty(x.shape[1]))
    elif side.within == AR1:
        _autoregress(x, width, side.rho)


@part
def _draw_common(side, width, rho, x, trial, tensor, key):
    """Give the vectors `x` a correlation rho with each other, by one more vector drawn alike."""
    real = x.dtype.type
    common = np.empty((x.shape[0], 1), x.dtype)
    _draw_independent(side, width, common, START, trial, tensor, key)
    _mix_with_common(x, real(math.sqrt(1.0 - rho)), real(math.sqrt(rho)), common)


@part
def _draw_standard(side, width, x, first, trial, tensor, key):
    """Write standardised vectors, which may have one vector of the trial in common."""
    _draw_independent(side, width, x, first, trial, tensor, key)
    if side.common > 0.0:
        _draw_common(side, width, side.common, x, trial, np.uint32(tensor + COMMON), key)


@part
def _join_sides(pair, query, width, own, x, first, trial, key):
    real = x.dtype.type
    if pair.kind == PAIRED and own == KEY:
        count = min(x.shape[1], pair.pairs - first)
        if count > 0:
            partners = np.empty((x.shape[0], count), x.dtype)
            _draw_standard(query, width, partners, first, trial, QUERY, key)
            _mix_with_partners(x, real(math.sqrt(1.0 - pair.rho * pair.rho)), real(pair.rho), partners)
    elif pair.kind == SHARING:
        _draw_common(query, width, pair.rho, x, trial, SHARED, key)


@inner
def _shift(x, numbers):
    for e in range(x.shape[0]):
        for t in range(x.shape[1]):
            x[e, t] = numbers[0] + numbers[1] * x[e, t]


@part
def _draw_tokens(side, query, pair, width, own, x, first, trial, key):
    """Write the tokens `first` ..., complete but for projection, normalization and rotation."""
    if side.dependent == 0 and side.within == 0 and side.common == 0.0 and pair.kind == 0:
        fill(side.law, x, START, first, trial, side.tensor, key, side.numbers)
    else:
        _draw_standard(side, width, x, first, trial, side.tensor, key)
        _join_sides(pair, query, width, own, x, first, trial, key)
        _shift(x, side.numbers)


@part
def draw_weights(side, own, weights, trial, key):
    """Write the projection of one side for a trial, (padded(width), d_k), and below it (4, d_k), the bias in front."""
    if side.width > 0:
        height = padded(side.width)
        fill(side.weight_law, weights[:height], START, START, trial, side.weight_tensor, key, side.weights)
        fill(_GAUSSIAN, weights[height:], START, START, trial, np.uint32(own + BIAS), key, side.bias)


@kernel
def _project(tokens, weights, width, out):
    product(weights[:width], tokens[:width], out)
    bias = weights[padded(width)]
    for e in range(out.shape[0]):
        for t in range(out.shape[1]):
            out[e, t] += bias[e]


@inner
def find_norms(x, d_k, norms):
    """Write ||x||^2 of every vector."""
    for t in range(norms.shape[0]):
        norms[t] = 0.0
    for e in range(d_k):
        for t in range(norms.shape[0]):
            norms[t] += np.float64(x[e, t]) * np.float64(x[e, t])
    for t in range(norms.shape[0]):  # an infinite vector moves no score that is finite: its slope is 0
        norms[t] = norms[t] if math.isfinite(norms[t]) else 0.0


@inner
def _subtract_means(x, d_k, total):
    # the first component is taken off before, so that nothing is left of equal ones
    for e in range(d_k - 1, -1, -1):
        for t in range(x.shape[1]):
            x[e, t] -= x[0, t]
    _add_up(x, d_k, total)
    for e in range(d_k):
        for t in range(x.shape[1]):
            x[e, t] -= x.dtype.type(total[t] / d_k)


@owner
def normalize(x, d_k, length, norms):
    """Give every vector this length, and write into `norms` what ||x||^2 was; a vector of no length stays as it is."""
    real = x.dtype.type
    find_norms(x, d_k, norms)
    factors = np.empty(x.shape[1], x.dtype)
    for t in range(x.shape[1]):
        factors[t] = real(length / math.sqrt(norms[t])) if norms[t] > 0.0 else real(0)
    for e in range(d_k):
        for t in range(x.shape[1]):
            x[e, t] *= factors[t]


@kernel
def _rotate(x, side, first):
    """Turn plane p, the components 2p and 2p + 1, of the token at position m by m times its angle."""
    real = x.dtype.type
    for p in range(side.rates.shape[0]):
        angle = side.rates[p] * (side.offset + first)  # the rest of a tile's angles are in a table
        c, s = real(math.cos(angle)), real(math.sin(angle))
        for t in range(x.shape[1]):
            cosine = c * side.turns[0, p, t] - s * side.turns[1, p, t]
            sine = s * side.turns[0, p, t] + c * side.turns[1, p, t]
            a, b = x[2 * p, t], x[2 * p + 1, t]
            x[2 * p, t] = cosine * a - sine * b
            x[2 * p + 1, t] = sine * a + cosine * b


@inner
def _copy_given(given, first, out):
    for e in range(given.shape[1]):
        for t in range(out.shape[1]):
            out[e, t] = given[first + t, e]


@owner
def draw_side(side, own, query, pair, d_k, room, weights, out, first, trial, key):
    """Write the tokens `first` ... of one side into `out`, of shape (padded(d_k), tokens).

    Parameters
    ----------
    side, own : Side, uint32
        The side, and whether it is QUERY or KEY.
    query, pair : Side, Pair
        What keys may depend on.
    d_k : int
    room : real (padded(width) * tokens,)
        For the tokens before they are projected.
    weights : real (padded(width) + 4, d_k)
        Of :func:`draw_weights`.
    """
    trial = np.uint32(trial)
    if side.law == GIVEN:
        _copy_given(side.given, first, out)
        return
    tokens, width = out, d_k
    if side.width > 0:
        n, height, width = out.shape[1], padded(side.width), side.width
        tokens = room[: height * n].reshape(height, n)
    _draw_tokens(side, query, pair, width, own, tokens, first, trial, key)
    if side.width > 0:
        _project(tokens, weights, width, out[:d_k])
    if side.normalize > 0:
        of_tokens = np.empty(out.shape[1])
        if side.normalize == LAYER:
            _subtract_means(out, d_k, of_tokens)
        length = side.gain if side.normalize == L2 else side.gain * math.sqrt(d_k)
        normalize(out, d_k, length, of_tokens)
    if side.rates.shape[0] > 0:
        _rotate(out, side, first)
