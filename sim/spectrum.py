"""The largest eigenvalue of J = diag(p) - p p', by the secular equation, in passes over the keys (CPU).

With p_j = e_j / A and lambda = mu / A (:mod:`sim.rows`; e = 1 for the largest key), 1 = sum p_j^2 / (p_j - lambda)
becomes a balance of positive terms, whose root lies between the second largest e, here g, and 1:

    1 / (1 - mu) = F(mu),      F(mu) = sum e_j / (mu - e_j)      over all keys but the largest.

Each pass sums F and -F' at the last mu; the next one solves the equation with F replaced by r + s / (mu - g) of the
same value and slope ("the middle way": Li 1993, LAPACK working note 89), which converges quadratically from
either side. A tie with the largest key has mu = 1; a row of one key has lambda = 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.elementary import larger
from sim.jit import inner, kernel, reduction
from sim.rows import weight_max
from sim.tiles import exponentials, place_of, seen_keys

__all__ = ["MAX_PASSES", "Secular", "add_pass", "begin_pass", "end_pass", "new_secular"]

MAX_PASSES = 40  # some 6 suffice; a row near a tie may creep


class Secular(NamedTuple):
    """The state of every row under every scale rule, each (scales, rows)."""

    mu: np.ndarray
    second: np.ndarray  # the second largest e
    value: np.ndarray  # F
    slope: np.ndarray  # -F'
    is_met: np.ndarray  # uint8: the largest key has been passed
    is_settled: np.ndarray  # uint8


def new_secular(n_scales, n_rows):
    """Return room for the state."""
    shape = (n_scales, n_rows)
    return Secular(
        np.empty(shape),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape, np.uint8),
        np.empty(shape, np.uint8),
    )


@inner
def begin_pass(number, state):
    """Prepare the sums of pass 1, which looks for the second largest key, or of a later one."""
    for k in range(state.mu.shape[0]):
        for row in range(state.mu.shape[1]):
            state.value[k, row] = 0.0
            state.slope[k, row] = 0.0
            state.is_met[k, row] = 0
            if number == 1:
                state.second[k, row] = 0.0
                state.is_settled[k, row] = 0


@reduction
def _largest(e, n):
    largest = e[0, 0]
    for j in range(n):
        largest = larger(largest, e[0, j])
    return largest


@reduction
def _secular_sums(e, n, mu, least):
    """Return (F, -F'); `least` keeps mu from rounding onto a pole."""
    zero = e.dtype.type(0)
    value, slope = zero, zero
    for j in range(n):
        away = larger(mu - e[0, j], least)
        term = e[0, j] / away
        value += term
        slope += term / away
    return np.float64(value), np.float64(slope)


@kernel
def add_pass(number, scores, first, start, visible, view, rows, measures, state):
    """Add a tile of a view's scores, of shape (rows, keys), to the sums of pass `number`."""
    real = scores.dtype.type
    least = real(np.finfo(scores.dtype).tiny)
    e = rows.exponentials[: scores.shape[1]].reshape(1, scores.shape[1])
    for i in range(scores.shape[0]):
        row = first + i
        keys = seen_keys(visible, row, start, scores.shape[1])
        if keys == 0 or rows.is_lost[row]:
            continue
        for k in range(state.mu.shape[0]):
            if measures.views[k] != view or state.is_settled[k, row]:
                continue
            extremum = real(rows.ends[1 if measures.factors[k] >= 0.0 else 0, row])
            exponentials(scores, i, keys, extremum, measures.exponents[k], e, 0)
            if not state.is_met[k, row]:
                place = place_of(scores, i, keys, extremum)
                if scores[i, place] == extremum:
                    e[0, place] = real(0)
                    state.is_met[k, row] = 1
            if number == 1:
                state.second[k, row] = max(state.second[k, row], np.float64(_largest(e, keys)))
            else:
                value, slope = _secular_sums(e, keys, real(state.mu[k, row]), least)
                state.value[k, row] += value
                state.slope[k, row] += slope


@inner
def _start(second, t1):
    # the lesser of the bounds lambda <= max p and lambda <= 2 max p (1 - max p), halfway to the pole
    return 0.5 * (second + min(1.0, 2.0 * t1 / (1.0 + t1)))


@inner
def _next(mu, second, value, slope):
    """Return the root of 1 / (1 - mu) = r + s / (mu - second)."""
    away = mu - second
    s = slope * away * away
    r = max(value - slope * away, 0.0)
    gap = 1.0 - second
    b = 1.0 + s - r * gap
    root = math.sqrt(b * b + 4.0 * r * s * gap)
    u = 2.0 * s * gap / (b + root) if b >= 0.0 else (root - b) / (2.0 * r)
    return second + u


@kernel
def end_pass(number, rows, state):
    """Move every mu by what the pass has summed; return whether all rows are settled, their eigenvalues written."""
    tolerance = 1e-6 if rows.exponentials.itemsize == 4 else 1e-12
    all_settled = True
    for k in range(state.mu.shape[0]):
        for row in range(state.mu.shape[1]):
            if state.is_settled[k, row]:
                continue
            second, t1 = state.second[k, row], rows.sums[k, 0, row]
            old = state.mu[k, row]
            if number > 1:
                mu = _next(old, second, state.value[k, row], state.slope[k, row])
                settled = abs(mu - old) <= tolerance * mu
            else:
                mu = _start(second, t1)
                settled = second == 0.0 or second >= 1.0
                mu = 1.0 if second >= 1.0 else mu if second > 0.0 else 0.0
            state.mu[k, row] = mu
            rows.spectral[k, row] = mu * weight_max(t1)
            if settled:
                state.is_settled[k, row] = 1
            else:
                all_settled = False
    return all_settled
