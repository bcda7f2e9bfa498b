"""The gradient that reaches a query, averaged over standard normal dL/dp (CPU).

With h = factor k, L = sum g p and p the softmax of a row, E ||dL/dq||^2 = factor^2 sum_j p_j^2 ||k_j - m||^2 with
m = sum p k (theory.md). Written with e, T1, T2 and A of :mod:`sim.rows`, l the largest key of the row and

    U = sum e k      V = sum e^2 k      W = sum e^2 ||k||^2      over all keys but l,
    A m = l + U      A (m - l) = U - T1 l      sum = (||m - l||^2 + W - 2 m.V + T2 ||m||^2) / A^2,

it cancels no more than the differences of the keys do: they are taken relative to a point amid those of the first tile,
as a shift of all keys changes no gradient. Where the keys that share a row's weight are nearly the same, as those of
short vectors of signs are, little is left of the terms: then a row of one tile is summed anew from the keys'
differences, and one of several tiles errs by some 40 roundings of ||k||^2.

U and V of a tile of rows are one matrix product. Where a row has one tile and its keys are fewer than their length
asks for, their Gram matrix G takes the place of the keys:

    ||U - T1 l||^2 = e'Ge - 2 T1 (Ge)_l + T1^2 G_ll,   A^2 ||m||^2 = G_ll + 2 (Ge)_l + e'Ge,   A m.V = e^2'(G_l + Ge).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.elementary import larger, smaller
from sim.jit import inner, kernel, part, reduction
from sim.tiles import TILE, dot, matmul, transpose

__all__ = [
    "Keys",
    "add_gradients",
    "end_tile",
    "join_row",
    "new_keys",
    "prepare_keys",
    "set_row",
    "spread",
    "value_of",
]


class Keys(NamedTuple):
    """The keys of a tile as the gradients need them, and the sums of rows that have several tiles."""

    relative: np.ndarray  # real (d * keys,): a tile's keys less the shift, as they are drawn
    by_token: np.ndarray  # real (keys * d,): the same, transposed; of no length beside a Gram matrix
    shift: np.ndarray  # real (d,): amid the keys of the first tile
    norms: np.ndarray  # real (keys,): ||k||^2
    gram: np.ndarray  # real (keys * keys,); of no length where the keys themselves are multiplied
    product: np.ndarray  # real: of a tile's exponentials with keys or Gram matrix
    sums: np.ndarray  # real (scales, 2, rows, d): U and V
    weighted_norms: np.ndarray  # float64 (scales, rows): W
    largest: np.ndarray  # real (2, rows, d): the keys of the smallest and of the largest score so far


def new_keys(is_used, by_tokens, n_rows, tile_rows, n_keys, d_k, exponents):
    """Return the work space for one tile of keys, and the state of `n_rows` rows where there are several tiles.

    `by_tokens` says that the keys are wanted by token, and no Gram matrix takes their place.
    """
    real, n_scales = exponents.dtype, exponents.shape[0]
    n = min(n_keys, TILE) if is_used else 0
    # multiplications of G and its products, against those of U and V
    is_gram = not by_tokens and n_keys <= TILE and n * d_k + n_scales * n_rows * n < 2 * n_scales * n_rows * d_k
    d = d_k if is_used else 0
    kept = n_rows if is_used and n_keys > TILE else 0
    return Keys(
        np.empty(n * d, real),
        np.empty(0 if is_gram else n * d, real),
        np.empty(d, real),
        np.empty(n, real),
        np.empty(n * n if is_gram else 0, real),
        np.empty(tile_rows * n if is_gram else 2 * tile_rows * d, real),
        np.empty((n_scales, 2, kept, d), real),
        np.empty((n_scales, kept)),
        np.empty((2, kept, d), real),
    )


@inner
def _find_shift(keys, shift):
    # The median of three keys, element by element, and not the mean: a single key far off, as models have, would
    # carry the mean away from all others.
    last = keys.shape[1] - 1
    for e in range(keys.shape[0]):
        a, b, c = keys[e, 0], keys[e, last // 2], keys[e, last]
        middle = larger(smaller(a, b), smaller(larger(a, b), c))
        shift[e] = middle if math.isfinite(middle) else keys.dtype.type(0)


@inner
def _take_keys(keys, shift, out, norms):
    # Rows that see an infinite key are lost; in the sums of the others it counts 0 times, but finite.
    zero = keys.dtype.type(0)
    for j in range(keys.shape[1]):
        norms[j] = zero
    for e in range(keys.shape[0]):
        for j in range(keys.shape[1]):
            away = keys[e, j] - shift[e]
            away = away if math.isfinite(away) else zero
            out[e, j] = away
            norms[j] += away * away


@kernel
def prepare_keys(keys, is_first, work):
    """Take over a tile of keys, of shape (d, keys)."""
    d, n = keys.shape
    if is_first:
        _find_shift(keys, work.shift)
    relative = work.relative[: d * n].reshape(d, n)
    _take_keys(keys, work.shift, relative, work.norms)
    if work.gram.shape[0] > 0:
        matmul(relative.T, relative, work.gram.reshape(n, n))
    else:
        transpose(relative, work.by_token[: n * d].reshape(n, d))


@reduction
def spread(u, i, v, j, keys, at, t1, a):
    """Return (||U - T1 l||^2, ||m||^2, m.V) for the rows `i` of U, `j` of V and `at` of the keys."""
    zero = u.dtype.type(0)
    away, mean_sq, along = zero, zero, zero
    for e in range(u.shape[1]):
        off = u[i, e] - t1 * keys[at, e]
        mean = (u[i, e] + keys[at, e]) / a
        away += off * off
        mean_sq += mean * mean
        along += mean * v[j, e]
    return np.float64(away), np.float64(mean_sq), np.float64(along)


@inner
def value_of(away, mean_sq, along, w, t1, t2):
    """Return sum p^2 ||h - m||^2 of a row from what :func:`spread` returns, W, T1 and T2."""
    a = 1.0 + t1
    return max(away / (a * a) + (w - 2.0 * along + t2 * mean_sq), 0.0) / (a * a)


@inner
def _is_lost(value, mean_sq, w, t1, t2):
    # whether less than a hundredth of the terms is left of their sum
    a = 1.0 + t1
    return value * a * a < 0.01 * (w + t2 * mean_sq)


@reduction
def _moments(stack, i, j, relative, e, at, n):
    """Return the sums of w x, w^2 x and w^2 x^2 over a row's keys, x the element `e` less that of the key `at`."""
    zero = stack.dtype.type(0)
    first, second, third = zero, zero, zero
    for t in range(n):
        x = relative[e, t] - relative[e, at]
        first += stack[i, t] * x
        second += stack[j, t] * x
        third += stack[j, t] * (x * x)
    return np.float64(first), np.float64(second), np.float64(third)


@inner
def _directly(stack, i, j, relative, at, t1, t2):
    """Return the value of a row of one tile from the differences of its keys to the largest, element by element."""
    a = 1.0 + t1
    total = 0.0
    for e in range(relative.shape[0]):
        first, second, third = _moments(stack, i, j, relative, e, at, relative.shape[1])
        mean = first / a
        total += mean * mean + (third - 2.0 * mean * second + t2 * mean * mean)
    return max(total, 0.0) / (a * a)


@inner
def set_row(row, product, i, us, vs):
    """Write U and V of a row from the rows `i` of both halves of a tile's product."""
    height = product.shape[0] // 2
    for e in range(product.shape[1]):
        us[row, e] = product[i, e]
        vs[row, e] = product[height + i, e]


@inner
def join_row(row, r, s, product, i, joins, at, us, vs):
    """Let (U, V) become (r U + s u, r^2 V + s^2 v); the key `at` of `joins` joins at the lesser of r and s."""
    height = product.shape[0] // 2
    lesser = r if r < s else s
    for e in range(product.shape[1]):
        key = lesser * joins[at, e]
        us[row, e] = r * us[row, e] + s * product[i, e] + key
        vs[row, e] = r * r * vs[row, e] + s * s * product[height + i, e] + lesser * key


@part
def _from_gram(stack, gram, relative, product, norms, places, t1s, t2s, out):
    """Write every row's value, from its exponentials and their squares, which are the lower half of `stack`."""
    height = product.shape[0]
    matmul(stack[:height], gram, product)
    for i in range(out.shape[0]):
        t1, t2, place, j = t1s[i], t2s[i], places[i], height + i
        within, norm = np.float64(dot(stack, i, product, i)), np.float64(norms[0, place])
        along = np.float64(dot(stack, j, product, i)) + np.float64(dot(stack, j, gram, place))
        a, beside = 1.0 + t1, np.float64(product[i, place])
        away, mean_sq = within - 2.0 * t1 * beside + t1 * t1 * norm, (norm + 2.0 * beside + within) / (a * a)
        w = np.float64(dot(stack, j, norms, 0))
        out[i] = value_of(away, mean_sq, along / a, w, t1, t2)
        if _is_lost(out[i], mean_sq, w, t1, t2):
            out[i] = _directly(stack, i, j, relative, place, t1, t2)


@part
def _from_keys(stack, by_token, relative, product, norms, places, t1s, t2s, out):
    """Write every row's value where the rows have no other tile."""
    real = stack.dtype.type
    height = product.shape[0] // 2
    matmul(stack, by_token, product)
    for i in range(out.shape[0]):
        t1, j = t1s[i], height + i
        away, mean_sq, along = spread(product, i, product, j, by_token, places[i], real(t1), real(1.0 + t1))
        w = np.float64(dot(stack, j, norms, 0))
        out[i] = value_of(away, mean_sq, along, w, t1, t2s[i])
        if _is_lost(out[i], mean_sq, w, t1, t2s[i]):
            out[i] = _directly(stack, i, j, relative, places[i], t1, t2s[i])


@part
def _from_tiles(
    stack, by_token, product, norms, places, t1s, t2s, out, is_first, is_last, keys, rises, old, us, vs, weighted_norms
):
    """Merge a tile into the rows' sums, and with the last write every row's value.

    `rises` says how far the tile's largest score lies above a row's so far, whose key is in `old`.
    """
    real = stack.dtype.type
    height = product.shape[0] // 2
    matmul(stack, by_token, product)
    for i in range(out.shape[0]):
        is_old = True
        if keys[i] > 0:
            w, at = np.float64(dot(stack, height + i, norms, 0)), places[i]
            if is_first:
                set_row(i, product, i, us, vs)
                weighted_norms[i] = w
                is_old = False
            elif rises[i] >= 0.0:  # the lower of two maxima rises to the higher, and its key joins the sums
                r = math.exp(-rises[i])
                join_row(i, real(r), real(1), product, i, old, i, us, vs)
                weighted_norms[i] = r * r * (weighted_norms[i] + np.float64(dot(old, i, old, i))) + w
                is_old = False
            else:
                s = math.exp(rises[i])
                join_row(i, real(1), real(s), product, i, by_token, at, us, vs)
                weighted_norms[i] += s * s * (w + np.float64(norms[0, at]))
        if is_last:
            t1 = t1s[i]
            if is_old:
                away, mean_sq, along = spread(us, i, vs, i, old, i, real(t1), real(1.0 + t1))
            else:
                away, mean_sq, along = spread(us, i, vs, i, by_token, places[i], real(t1), real(1.0 + t1))
            out[i] = value_of(away, mean_sq, along, weighted_norms[i], t1, t2s[i])


@inner
def _take_largest(is_first, by_token, keys, places, tile_ends, ends, largest):
    for i in range(keys.shape[0]):
        for end in range(2):
            rise = tile_ends[end, i] - ends[end, i]
            if keys[i] > 0 and (is_first or (rise if end == 1 else -rise) >= 0.0):
                for e in range(by_token.shape[1]):
                    largest[end, i, e] = by_token[places[end, i], e]


@kernel
def add_gradients(k, first, n_rows, n, is_first, is_last, rows, factor, work):
    """Add a tile of `n` keys to the gradients of the rows `first` ... under rule `k`, whose sums have it already.

    With the rows' last tile, ``rows.gradients`` is complete.
    """
    height, d, last = rows.tile_keys.shape[0], work.shift.shape[0], first + n_rows
    by_token = work.by_token[: n * d if work.gram.shape[0] == 0 else 0].reshape(-1, d)
    stack, relative = rows.exponentials[: 2 * height * n].reshape(2 * height, n), work.relative[: d * n].reshape(d, n)
    keys, norms = rows.tile_keys[:n_rows], work.norms[:n].reshape(1, n)
    t1s, t2s, out = rows.sums[k, 0, first:last], rows.sums[k, 1, first:last], rows.gradients[k, first:last]
    end = 1 if factor >= 0.0 else 0
    places = rows.tile_places[end]
    if work.gram.shape[0] > 0:
        product = work.product[: height * n].reshape(height, n)
        _from_gram(stack, work.gram.reshape(n, n), relative, product, norms, places, t1s, t2s, out)
    elif work.largest.shape[1] == 0:
        _from_keys(stack, by_token, relative, work.product.reshape(2 * height, d), norms, places, t1s, t2s, out)
    else:
        for i in range(n_rows):
            rise = factor * (rows.tile_ends[end, i] - rows.ends[end, first + i])
            rows.totals[i] = 0.0 if is_first else rise
        _from_tiles(
            stack,
            by_token,
            work.product.reshape(2 * height, d),
            norms,
            places,
            t1s,
            t2s,
            out,
            is_first,
            is_last,
            keys,
            rows.totals,
            work.largest[end, first:last],
            work.sums[k, 0, first:last],
            work.sums[k, 1, first:last],
            work.weighted_norms[k, first:last],
        )


@kernel
def end_tile(first, n_rows, n, is_first, rows, work):
    """Keep the keys of the rows' extreme scores, where there are several tiles."""
    if work.largest.shape[1] > 0:
        d, last = work.shift.shape[0], first + n_rows
        by_token, keys = work.by_token[: n * d].reshape(n, d), rows.tile_keys[:n_rows]
        ends, largest = rows.ends[:, first:last], work.largest[:, first:last]
        _take_largest(is_first, by_token, keys, rows.tile_places, rows.tile_ends, ends, largest)
