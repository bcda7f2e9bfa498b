"""Weights rounded to a narrow type, in a pass of its own over the keys (CPU).

A weight e / A is known when its row's sums are complete, so that the keys are drawn once more. What is said of the
rounded weights p is summed in float64 from the tiles' sums, the largest key left out: with p_1 its weight and S_r the
sum of p^r over the others, J = diag(p) - p p' has tr J = p_1 (1 - p_1) + S_1 - S_2 and

    ||J||_F^2 = p_1^2 (1 - p_1)^2 + S_2 - 2 S_3 + S_4 + 2 p_1^2 S_2 + (S_2^2 - S_4).

The weights need not sum to 1. Gradients and the largest eigenvalue are those of the weights before they are rounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.elementary import LOG2_E, exp2_64, log32, log64, round_bfloat16, round_float16
from sim.jit import by_precision, inner, kernel, reduction
from sim.rows import (
    EFFECTIVE_KEYS,
    ENTROPY,
    FROBENIUS,
    FROBENIUS_SQ,
    SUM_SQUARES,
    TRACE,
    WEIGHT_MAX,
    weight_max,
)
from sim.tiles import place_of, seen_keys, weights
from sim.views import BFLOAT16, FLOAT16, round_all

__all__ = [
    "Rounded",
    "add_rounded",
    "begin_rounded",
    "count_zeros",
    "finish_rounded",
    "needs_rounding",
    "new_rounded",
    "round_weight",
]

# The sums of a row under a rule: those of p^1 .. p^4 and the entropy without the largest key, how many of all weights
# are 0, how many there are, the largest; and whether its key has been passed.
S1, S2, S3, S4, SPREAD, ZEROS, COUNT, LARGEST, IS_MET = range(9)


class Rounded(NamedTuple):
    """The state of every row under every rule; of no length where nothing is rounded."""

    rounding: int  # to which type: of :class:`sim.views.Transform`
    sums: np.ndarray  # float64 (scales, 9, rows)


def needs_rounding(rounding, at):
    """Return whether weights are to be rounded, for a family that shows it."""
    return rounding > 0 and (at.weight_max >= 0 or at.jacobian_trace >= 0 or at.zero_weights >= 0)


def new_rounded(rounding, n_scales, n_rows):
    """Return room for the state."""
    return Rounded(rounding, np.empty((n_scales, 9, n_rows)))


@inner
def round_weight(weight, rounding):
    """Return one weight as it is rounded."""
    if rounding == FLOAT16:
        return np.float64(round_float16(np.float32(weight)))
    if rounding == BFLOAT16:
        return np.float64(round_bfloat16(np.float32(weight)))
    return weight


@inner
def begin_rounded(state):
    """Prepare the sums of a trial."""
    for k in range(state.sums.shape[0]):
        for r in range(9):
            for row in range(state.sums.shape[2]):
                state.sums[k, r, row] = 0.0


_log = by_precision(log32, log64)


@reduction
def _sums(p, n):
    zero, one = p.dtype.type(0), p.dtype.type(1)
    s1, s2, s3, s4, spread, zeros = zero, zero, zero, zero, zero, zero
    for j in range(n):
        x = p[0, j]
        is_zero = x == zero
        square = x * x
        s1 += x
        s2 += square
        s3 += square * x
        s4 += square * square
        spread += x * _log(one if is_zero else x)
        zeros += one if is_zero else zero
    return np.float64(s1), np.float64(s2), np.float64(s3), np.float64(s4), -np.float64(spread), np.float64(zeros)


@kernel
def add_rounded(scores, first, start, visible, view, rows, measures, state):
    """Add a tile of a view's scores, (rows, keys), to the sums of its rounded weights."""
    real = scores.dtype.type
    e = rows.exponentials[: scores.shape[1]].reshape(1, scores.shape[1])
    for i in range(scores.shape[0]):
        row = first + i
        n = seen_keys(visible, row, start, scores.shape[1])
        if n == 0 or rows.is_lost[row]:
            continue
        for k in range(measures.factors.shape[0]):
            if measures.views[k] != view:
                continue
            extremum = real(rows.ends[1 if measures.factors[k] >= 0.0 else 0, row])
            inverse = real(weight_max(rows.sums[k, 0, row]))
            weights(scores, i, n, extremum, measures.exponents[k], inverse, e, 0)
            round_all(e[:, :n], state.rounding)
            sums = state.sums[k]
            place = place_of(scores, i, n, extremum)
            if sums[IS_MET, row] == 0.0 and scores[i, place] == extremum:
                sums[IS_MET, row] = 1.0
                sums[LARGEST, row] = e[0, place]
                e[0, place] = real(0)
                sums[ZEROS, row] -= 1.0 if sums[LARGEST, row] > 0.0 else 0.0
            s1, s2, s3, s4, spread, zeros = _sums(e, n)
            sums[S1, row] += s1
            sums[S2, row] += s2
            sums[S3, row] += s3
            sums[S4, row] += s4
            sums[SPREAD, row] += spread
            sums[ZEROS, row] += zeros
            sums[COUNT, row] += n


@inner
def finish_rounded(k, state, values):
    """Write what every row is worth with its weights rounded."""
    sums = state.sums[k]
    for row in range(sums.shape[1]):
        p, s2 = sums[LARGEST, row], sums[S2, row]
        entropy = sums[SPREAD, row] - (p * math.log(p) if p > 0.0 else 0.0)
        square = p * p
        frobenius_sq = square * (1.0 - p) ** 2 + (s2 - 2.0 * sums[S3, row] + sums[S4, row])
        frobenius_sq += 2.0 * square * s2 + (s2 * s2 - sums[S4, row])
        values[WEIGHT_MAX, row] = p
        values[ENTROPY, row] = entropy
        values[EFFECTIVE_KEYS, row] = exp2_64(entropy * LOG2_E)
        values[SUM_SQUARES, row] = square + s2
        values[FROBENIUS_SQ, row] = max(frobenius_sq, 0.0)
        values[FROBENIUS, row] = math.sqrt(values[FROBENIUS_SQ, row])
        values[TRACE, row] = p * (1.0 - p) + (sums[S1, row] - s2)


@inner
def count_zeros(k, state, is_lost, measures, tally):
    """Add how many weights are 0, and in how many rows so is the whole Jacobian: all are 0, but for one that is 1."""
    at, sums = measures.offsets, state.sums[k]
    for row in range(sums.shape[1]):
        if not is_lost[row]:
            tally[at.rounded_weights + k] += sums[COUNT, row]
            tally[at.zero_weights + k] += sums[ZEROS, row]
            is_whole = sums[LARGEST, row] == 1.0 or sums[LARGEST, row] == 0.0
            tally[at.zero_jacobians + k] += 1.0 if is_whole and sums[S1, row] == 0.0 else 0.0
