"""Gradients where each score has a slope of its own: soft caps, rules of a row's length, other score functions (CPU).

With c_j = d s'_j / d s_j the slope of the scaled score, g standard normal and L = sum g p, theory.md's averages are

    E ||dL/ds||^2   = sum_j c_j^2 p_j^2 (1 - 2 p_j + sum p^2)
    E ||dL/dk_j||^2 = the same term times ||d s_j / d k_j||^2, summed over the rows
    E ||dL/dq||^2   = sum_j p_j^2 ||h_j - m||^2,      h_j = c_j d s_j / d q,      m = sum p h.

As in :mod:`sim.gradients`, the sums are over e = A p with the largest key l left out, so that nothing cancels in a
saturated row: with P2 = sum c^2 e^2 and P3 = sum c^2 e^3 the first is

    (c_l^2 (T1^2 + T2) + P2 (A^2 + 1 + T2) - 2 A P3) / A^4,

and the second with c^2 ||d s / d k||^2 in the place of c^2. For a dot product d s_j / d q = k_j; for the cosine it is
(k_j / ||k_j|| - s_j q / ||q||) / ||q||, what is left of the key across the query; for additive scores W_q times the
slopes of the units. With slopes that differ a mean of all h matters, so that it is not taken off: the last of the three
errs by some 40 roundings of ||h||^2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.gradients import join_row, set_row, spread, value_of
from sim.jit import inner, kernel, reduction
from sim.tiles import TILE, dot, matmul, product
from sim.views import ADDITIVE, COSINE, unit_slopes

__all__ = ["Slopes", "add_slopes", "key_share", "new_slopes", "score_share"]

# The sums of a row under a rule: P2, P3 and c_l^2; the same times the key's sensitivity; sum e^2 ||h||^2 and ||h_l||^2.
P2, P3, TOP, K2, K3, KEY_TOP, NORM, NORM_TOP = range(8)
_SUMS = 8


class Slopes(NamedTuple):
    """The state of the rows, and the work space of a row and of a tile; "real" is the precision of the scores."""

    slopes: np.ndarray  # real (rows of a tile * keys,)
    sums: np.ndarray  # float64 (scales, 8, rows)
    us: np.ndarray  # real (scales, rows, d): sum e h over all keys but the largest
    vs: np.ndarray  # real (scales, rows, d): sum e^2 h
    tops: np.ndarray  # real (scales, rows, d): h of the largest
    product: np.ndarray  # real: of exponentials and h
    sensitivity: np.ndarray  # real (3, keys): ||ds/dq||^2 and ||ds/dk||^2 of a row's keys, and 1
    units: np.ndarray  # real (units * keys,): the slopes of a row's units
    by_token: np.ndarray  # real (2, keys * d): of additive scores, ds/dq and ds/dk of a row
    norms: np.ndarray  # float64 (keys,): ||k||^2 of a tile
    tile_sums: np.ndarray  # float64 (rows of a tile, 8)
    top: np.ndarray  # real (1, d): h of a tile's largest key
    stack: np.ndarray  # real (keys * 2,): of additive scores, e and e^2 of a row
    pair: np.ndarray  # real (2, d): their products with the row's ds/dq


def new_slopes(has_views, is_used, n_rows, tile_rows, n_keys, d_k, units, exponents):
    """Return the state; without views that are not raw, or without gradients, most of it is of no length."""
    real, n_scales, n = exponents.dtype, exponents.shape[0], min(n_keys, TILE)
    kept, d = n_rows if is_used else 0, d_k if is_used else 0
    in_row = n if is_used and units > 0 else 0
    return Slopes(
        np.empty(tile_rows * n if has_views or is_used else 0, real),
        np.empty((n_scales, _SUMS, kept)),
        np.empty((n_scales, kept, d), real),
        np.empty((n_scales, kept, d), real),
        np.empty((n_scales, kept, d), real),
        np.empty(2 * tile_rows * d, real),
        np.ones((3, n if is_used else 0), real),
        np.empty(units * in_row, real),
        np.empty((2, in_row * d), real),
        np.empty(n if is_used else 0),
        np.empty((tile_rows, _SUMS)),
        np.empty((1, d), real),
        np.empty(2 * in_row, real),
        np.empty((2, d), real),
    )


@reduction
def _weighted(e, i, j, slopes, sensitivity, r, n):
    """Return the sums of c^2 e^2 and c^2 e^3, each times row `r` of the sensitivities; e^2 stands in row `j`."""
    zero = e.dtype.type(0)
    squares, cubes = zero, zero
    for t in range(n):
        c = slopes[i, t]
        term = e[j, t] * (c * c) * sensitivity[r, t]
        squares += term
        cubes += term * e[i, t]
    return np.float64(squares), np.float64(cubes)


@inner
def _take_slopes(e, i, j, slopes, n):
    for t in range(n):
        e[i, t] *= slopes[i, t]
        e[j, t] *= slopes[i, t]


@inner
def _of_dot(sensitivity, norms, query_norm, n):
    real = sensitivity.dtype.type
    for t in range(n):
        sensitivity[0, t] = real(norms[t])
        sensitivity[1, t] = real(query_norm)


@inner
def _of_cosine(sensitivity, scores, i, norms, query_norm, n):
    # norms are those of the vectors before they were brought to length 1; a vector of no length gets no gradient
    real = sensitivity.dtype.type
    by_query = real(1.0 / query_norm if query_norm > 0.0 else 0.0)
    for t in range(n):
        across = max(real(1) - scores[i, t] * scores[i, t], real(0))
        sensitivity[0, t] = across * by_query
        sensitivity[1, t] = across * real(1.0 / norms[t] if norms[t] > 0.0 else 0.0)


@inner
def _find_norms(by_token, out, r):
    for t in range(by_token.shape[0]):
        out[r, t] = dot(by_token, t, by_token, t)


@kernel
def _of_units(units, i, first, n_rows, n, score, state):
    """Write ds/dq and ds/dk of row `i`, (keys, d), and their squares."""
    height, d = score.units, units.by_query_unit.shape[1]
    of_queries = units.of_queries[height * first : height * (first + n_rows)].reshape(height, n_rows)
    slopes = state.units[: height * n].reshape(height, n)
    unit_slopes(of_queries, i, units.of_keys[: height * n].reshape(height, n), units.v, slopes)
    for side in range(2):
        by_token = state.by_token[side, : n * d].reshape(n, d)
        product(slopes, units.by_query_unit if side == 0 else units.by_key_unit, by_token)
        _find_norms(by_token, state.sensitivity, side)


@inner
def _join_sums(sums, row, tile, rise, is_first):
    """Merge a tile's sums (8,) into a row's; `rise` is how far the tile's largest score lies above the row's."""
    if is_first:
        for at in range(_SUMS):
            sums[at, row] = tile[at]
    elif rise >= 0.0:  # the lower of two maxima joins the sums
        r = math.exp(-rise)
        for at in (P2, K2):
            top = sums[at + 2, row]
            sums[at, row] = tile[at] + r * r * (sums[at, row] + top)
            sums[at + 1, row] = tile[at + 1] + r * r * r * (sums[at + 1, row] + top)
            sums[at + 2, row] = tile[at + 2]
        sums[NORM, row] = tile[NORM] + r * r * (sums[NORM, row] + sums[NORM_TOP, row])
        sums[NORM_TOP, row] = tile[NORM_TOP]
    else:
        r = math.exp(rise)
        for at in (P2, K2):
            sums[at, row] += r * r * (tile[at] + tile[at + 2])
            sums[at + 1, row] += r * r * r * (tile[at + 1] + tile[at + 2])
        sums[NORM, row] += r * r * (tile[NORM] + tile[NORM_TOP])


@inner
def _copy(source, out):
    for e in range(out.shape[0]):
        out[e] = source[e]


@kernel
def _merge_row(row, product, i, top, rise, is_first, us, vs, kept, sums, tile):
    """Merge the row `i` of a tile, whose largest key is `top`, into a row, whose own is kept."""
    real = us.dtype.type
    if is_first:
        set_row(row, product, i, us, vs)
        _copy(top[0], kept[row])
    elif rise >= 0.0:
        join_row(row, real(math.exp(-rise)), real(1), product, i, kept, row, us, vs)
        _copy(top[0], kept[row])
    else:
        join_row(row, real(1), real(math.exp(rise)), product, i, top, 0, us, vs)
    _join_sums(sums, row, tile, rise, is_first)


@inner
def _remove_along(vector, query, i):
    # what is left of a row's vector across the query, of length 1
    along = vector.dtype.type(0)
    for e in range(vector.shape[0]):
        along += vector[e] * query[e, i]
    for e in range(vector.shape[0]):
        vector[e] -= along * query[e, i]


@inner
def _scale_vector(vector, by):
    for e in range(vector.shape[0]):
        vector[e] *= by


@inner
def _add_shift(product, i, weight, shift):
    for e in range(shift.shape[0]):
        product[i, e] += weight * shift[e]


@reduction
def _total(e, i, n):
    total = e.dtype.type(0)
    for t in range(n):
        total += e[i, t]
    return total


@kernel
def _find_row_sums(i, k, scores, rows, place, score, norms, query_norm, state, tile):
    """Write the sums (8,) of one row of a tile, whose exponentials and their squares stand in rows.exponentials."""
    n_rows, width = scores.shape
    height, n = rows.tile_keys.shape[0], rows.tile_keys[i]
    e = rows.exponentials[: 2 * height * width].reshape(2 * height, width)
    slopes = state.slopes[: n_rows * width].reshape(n_rows, width)
    if score.kind == COSINE:
        _of_cosine(state.sensitivity, scores, i, norms, query_norm, n)
    elif score.kind != ADDITIVE:
        _of_dot(state.sensitivity, norms, query_norm, n)
    j, c = height + i, np.float64(slopes[i, place])
    tile[NORM], _ = _weighted(e, i, j, slopes, state.sensitivity, 0, n)
    tile[K2], tile[K3] = _weighted(e, i, j, slopes, state.sensitivity, 1, n)
    tile[P2], tile[P3] = _weighted(e, i, j, slopes, state.sensitivity, 2, n)
    tile[TOP] = c * c
    tile[KEY_TOP] = c * c * np.float64(state.sensitivity[1, place])
    tile[NORM_TOP] = c * c * np.float64(state.sensitivity[0, place])
    _take_slopes(e, i, j, slopes, n)


@inner
def _find_top(by_token, shift, place, c, out):
    for e in range(out.shape[0]):
        out[e] = c * (by_token[place, e] + shift[e])


@kernel
def _finish_row(k, row, rows, score, queries, i, query_norm, state):
    real = state.us.dtype.type
    us, vs, tops = state.us[k], state.vs[k], state.tops[k]
    if score.kind == COSINE:
        by = real(1.0 / math.sqrt(query_norm) if query_norm > 0.0 else 0.0)
        for vector in (us[row], vs[row], tops[row]):
            _remove_along(vector, queries, i)
            _scale_vector(vector, by)
    t1, t2 = rows.sums[k, 0, row], rows.sums[k, 1, row]
    away, mean_sq, along = spread(us, row, vs, row, tops, row, real(t1), real(1.0 + t1))
    rows.gradients[k, row] = value_of(away, mean_sq, along, state.sums[k, NORM, row], t1, t2)


@kernel
def add_slopes(k, scores, first, is_first, is_last, rows, factor, keys, queries, query_norms, score, units, state):
    """Add a tile of raw scores, (rows, keys), to the gradients of the rows `first` ... under rule `k`.

    Its exponentials are in ``rows.exponentials`` and the row's sums have them already, its slopes are in
    ``state.slopes``. With the rows' last tile, ``rows.gradients`` is complete.

    Parameters
    ----------
    rows : Rows
        The state of the rule's view.
    factor : float
        What the scores of the view are multiplied by.
    keys : Keys
        With the tile's keys by token.
    queries : real (d, rows)
    query_norms : float64 (rows,)
        ||q||^2, for the cosine of the vectors before they were brought to length 1.
    """
    n_rows, n, d, height = scores.shape[0], scores.shape[1], state.us.shape[2], rows.tile_keys.shape[0]
    e = rows.exponentials[: 2 * height * n].reshape(2 * height, n)
    of_units = score.kind == ADDITIVE
    by_token = keys.by_token[: 0 if of_units else n * d].reshape(-1, d)
    end = 1 if factor >= 0.0 else 0
    tiles, top, pair = state.tile_sums, state.top, state.pair
    product_of = state.product.reshape(2 * height, d)
    for i in range(n_rows):
        if rows.tile_keys[i] == 0:
            continue
        if of_units:
            _of_units(units, i, first, n_rows, n, score, state)
        place = rows.tile_places[end, i]
        _find_row_sums(i, k, scores, rows, place, score, state.norms, query_norms[i], state, tiles[i])
        if of_units:
            row_tokens = state.by_token[0, : n * d].reshape(n, d)
            stack = state.stack[: 2 * n].reshape(n, 2)
            for t in range(n):
                stack[t, 0], stack[t, 1] = e[i, t], e[height + i, t]
            product(stack, row_tokens, pair)
            for x in range(d):
                product_of[i, x], product_of[height + i, x] = pair[0, x], pair[1, x]
                top[0, x] = row_tokens[place, x]
            _scale_vector(top[0], state.slopes[i * n + place])
            _join(k, i, first + i, is_first, end, factor, top, product_of, rows, state, tiles[i])
    if not of_units:
        matmul(e, by_token, product_of)
        for i in range(n_rows):
            if rows.tile_keys[i] > 0:
                _add_shift(product_of, i, _total(e, i, n), keys.shift)
                _add_shift(product_of, height + i, _total(e, height + i, n), keys.shift)
                place = rows.tile_places[end, i]
                _find_top(by_token, keys.shift, place, state.slopes[i * n + place], top[0])
                _join(k, i, first + i, is_first, end, factor, top, product_of, rows, state, tiles[i])
    if is_last:
        for i in range(n_rows):
            _finish_row(k, first + i, rows, score, queries, i, query_norms[i], state)


@inner
def _join(k, i, row, is_first, end, factor, top, product_of, rows, state, tile):
    rise = 0.0 if is_first else factor * (rows.tile_ends[end, i] - rows.ends[end, row])
    us, vs, kept, sums = state.us[k], state.vs[k], state.tops[k], state.sums[k]
    _merge_row(row, product_of, i, top, rise, is_first, us, vs, kept, sums, tile)


@inner
def _share(top, squares, cubes, t1, t2):
    a = 1.0 + t1
    square = a * a
    terms = top * (t1 * t1 + t2) + squares * (square + 1.0 + t2) - 2.0 * a * cubes
    return max(terms, 0.0) / (square * square)


@inner
def score_share(sums, row, t1, t2):
    """Return a row's E ||dL/ds||^2."""
    return _share(sums[TOP, row], sums[P2, row], sums[P3, row], t1, t2)


@inner
def key_share(sums, row, t1, t2):
    """Return what a row adds to the sum over keys of E ||dL/dk||^2."""
    return _share(sums[KEY_TOP, row], sums[K2, row], sums[K3, row], t1, t2)
