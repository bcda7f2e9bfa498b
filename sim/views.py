"""Tiles of scores: raw, and as the scale rules see them that are more than a factor (CPU).

A rule has a view of its own if it caps the scores, if its factor depends on how many keys a row sees, if scores are
rounded to a narrow type, or if it scales the vectors rather than the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.draw import LAW_CODES, START, fill, padded
from sim.elementary import round_bfloat16, round_float16, tanh_slope32, tanh_slope64
from sim.jit import by_precision, inner, kernel, owner, part
from sim.philox import KEY, QUERY, SCORE, UNIT_WEIGHT, UNITS
from sim.tiles import TILE, product, transpose

__all__ = [
    "ADDITIVE",
    "AT_BOTH",
    "AT_QUERY",
    "AT_SCORES",
    "BFLOAT16",
    "COSINE",
    "DOT",
    "FLOAT16",
    "IID",
    "Score",
    "Transform",
    "Units",
    "derive",
    "draw_units",
    "new_units",
    "raw_scores",
    "round_all",
    "scaled_product",
    "unit_slopes",
]

DOT, COSINE, ADDITIVE, IID = range(4)  # of Score.kind
FLOAT16, BFLOAT16 = 1, 2  # of Transform.rounding
AT_SCORES, AT_QUERY, AT_BOTH = range(3)  # of Transform.place

_GAUSSIAN = LAW_CODES["gaussian"]
_tanh_slope = by_precision(tanh_slope32, tanh_slope64)
_QUERY_UNITS, _KEY_UNITS = np.uint32(QUERY + UNITS), np.uint32(KEY + UNITS)


class Score(NamedTuple):
    """A score function.

    Attributes
    ----------
    kind : int
    units : int
        Of additive scores, else 0.
    numbers : real (2, 5)
        Mean, std and constants of the weights W_q and W_k of the units, and of v.
    law, constants : int64, real (5,)
        Of scores that are drawn themselves: a value of LAW_CODES, mean 0, std 1 and its constants.
    """

    kind: int
    units: int
    numbers: np.ndarray
    law: np.int64
    constants: np.ndarray


class Transform(NamedTuple):
    """What the rules make of scores: ``cap tanh(factor s / cap)``.

    Attributes
    ----------
    factors : float64 (scales,)
    log_n : uint8 (scales,)
        Whether the factor is times ln of the number of keys that the row sees.
    caps : float64 (scales,)
        Infinite where nothing is capped.
    rounding : int
        To which type vectors, raw and scaled scores and weights are rounded; 0 for none.
    place : int
        Where the factor is applied: to the scores, to the queries, or its root to queries and keys.
    """

    factors: np.ndarray
    log_n: np.ndarray
    caps: np.ndarray
    rounding: int
    place: int


@inner
def round_all(x, rounding):
    """Round a tile to the type of code `rounding`."""
    real = x.dtype.type
    if rounding == FLOAT16:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] = real(round_float16(np.float32(x[i, j])))
    elif rounding == BFLOAT16:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] = real(round_bfloat16(np.float32(x[i, j])))


@inner
def _cap(x, i, factor, cap, slope, out, slopes):
    real = x.dtype.type
    by, top, steep = real(factor / cap), real(cap), real(slope)
    for j in range(x.shape[1]):
        value, fall = _tanh_slope(by * x[i, j])
        out[i, j] = top * value
        slopes[i, j] = steep * fall


@inner
def _multiply(x, i, factor, slope, out, slopes):
    real = x.dtype.type
    by, steep = real(factor), real(slope)
    for j in range(x.shape[1]):
        out[i, j] = by * x[i, j]
        slopes[i, j] = steep


@inner
def _row_factor(transform, k, n):
    factor = transform.factors[k]
    return factor * math.log(n) if transform.log_n[k] else factor


@kernel
def derive(scores, k, first, visible, transform, is_scaled, out, slopes):
    """Write rule `k` of a tile of scores into `out`, and into `slopes` its derivative by the raw score.

    `is_scaled` says that the factor is in the scores already. `out` may be the tile itself.
    """
    cap = transform.caps[k]
    for i in range(scores.shape[0]):
        slope = _row_factor(transform, k, visible[first + i])
        factor = 1.0 if is_scaled else slope
        if math.isinf(cap):
            _multiply(scores, i, factor, slope, out, slopes)
        else:
            _cap(scores, i, factor, cap, slope, out, slopes)
    round_all(out, transform.rounding)


@inner
def _scale_tokens(x, factors, out):
    real = x.dtype.type
    for e in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[e, t] = real(factors[t]) * x[e, t]


@owner
def scaled_product(queries, keys, k, first, visible, transform, room, out):
    """Write the product of vectors that are scaled first: the queries, or queries and keys by a root each.

    Parameters
    ----------
    queries, keys : real (d_k, rows), (d_k, keys)
        Rounded.
    room : real (at least d_k * (rows + keys),)
    """
    d, n_rows, n = queries.shape[0], queries.shape[1], keys.shape[1]
    scaled_queries, scaled_keys = room[: d * n_rows].reshape(d, n_rows), room[d * n_rows :][: d * n].reshape(d, n)
    root = math.sqrt(abs(transform.factors[k])) if transform.place == AT_BOTH else 1.0
    factors = np.empty(n_rows)
    for i in range(n_rows):
        factors[i] = _row_factor(transform, k, visible[first + i]) / root if root > 0.0 else 0.0
    _scale_tokens(queries, factors, scaled_queries)
    _scale_tokens(keys, np.full(n, root), scaled_keys)
    round_all(scaled_queries, transform.rounding)
    round_all(scaled_keys, transform.rounding)
    product(scaled_queries, scaled_keys, out)
    round_all(out, transform.rounding)


class Units(NamedTuple):
    """The weights of additive scores for a trial, each matrix as drawn and transposed, and the units of tokens."""

    query_weights: np.ndarray  # real (padded(d_k), units)
    key_weights: np.ndarray
    by_query_unit: np.ndarray  # real (units, d_k)
    by_key_unit: np.ndarray
    v: np.ndarray  # real (4, units): the first row counts
    of_queries: np.ndarray  # real (units * n_queries,), tile after tile
    of_keys: np.ndarray  # real (units * TILE,)


def new_units(units, d_k, n_queries, n_keys, exponents):
    """Return room for `units` units, of which there may be none."""
    real, height = exponents.dtype, padded(d_k) if units > 0 else 0
    return Units(
        np.empty((height, units), real),
        np.empty((height, units), real),
        np.empty((units, d_k), real),
        np.empty((units, d_k), real),
        np.empty((4, units), real),
        np.empty(units * n_queries, real),
        np.empty(units * min(n_keys, TILE), real),
    )


@part
def draw_units(score, trial, key, units):
    """Draw the weights of a trial."""
    if score.units > 0:
        fill(_GAUSSIAN, units.query_weights, START, START, trial, _QUERY_UNITS, key, score.numbers[0])
        fill(_GAUSSIAN, units.key_weights, START, START, trial, _KEY_UNITS, key, score.numbers[0])
        fill(_GAUSSIAN, units.v, START, START, trial, UNIT_WEIGHT, key, score.numbers[1])
        transpose(units.query_weights, units.by_query_unit)
        transpose(units.key_weights, units.by_key_unit)


@inner
def _add_units(of_queries, of_keys, v, scores):
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] = scores.dtype.type(0)
        for u in range(of_queries.shape[0]):
            a, weight = of_queries[u, i], v[0, u]
            for j in range(scores.shape[1]):
                value, _ = _tanh_slope(a + of_keys[u, j])
                scores[i, j] += weight * value


@inner
def unit_slopes(of_queries, i, of_keys, v, out):
    """Write v_u sech^2 of the units of query `i` and every key: the derivative of a score by its units."""
    for u in range(of_queries.shape[0]):
        a, weight = of_queries[u, i], v[0, u]
        for j in range(of_keys.shape[1]):
            _, slope = _tanh_slope(a + of_keys[u, j])
            out[u, j] = weight * slope


@part
def raw_scores(score, units, queries, keys, i, j, trial, key, rounding, room):
    """Write the raw scores of a tile into `room`, (rows, keys), and return them.

    Parameters
    ----------
    queries, keys : real (d_k, rows), (d_k, keys)
    i, j : int
        The first query and the first key; `trial` and `key` are those of the random words.
    room : real (padded(rows) * keys,)
    """
    n_rows, n = queries.shape[1], keys.shape[1]
    scores = room[: n_rows * n].reshape(n_rows, n)
    if score.kind == ADDITIVE:
        height = score.units
        _add_units(
            units.of_queries[height * i : height * (i + n_rows)].reshape(height, n_rows),
            units.of_keys[: height * n].reshape(height, n),
            units.v,
            scores,
        )
    elif score.kind == IID:  # four queries to a counter, so that a row of keys is contiguous
        drawn = room[: padded(n_rows) * n].reshape(padded(n_rows), n)
        fill(score.law, drawn, i // 4, j, trial, SCORE, key, score.constants)
    else:
        product(queries, keys, scores)
    round_all(scores, rounding)
    return scores
