"""From the finished rows of a trial to its tally: means, rates, and bins of sizes."""

from __future__ import annotations

import math

import numpy as np

from sim.jit import inner, kernel, part, reduction
from sim.moments import MOMENT_FIELDS, scale_moments
from sim.rounded import count_zeros, finish_rounded, round_weight
from sim.rows import (
    EFFECTIVE_KEYS,
    ENTROPY,
    FROBENIUS,
    FROBENIUS_SQ,
    GRADIENT_QUERY_SQ,
    SPECTRAL,
    SUM_SQUARES,
    TRACE,
    WEIGHT_MAX,
    effective_keys,
    frobenius_sq,
    sum_squares,
    trace,
    weight_entropy,
    weight_max,
)
from sim.sizes import SIZE_BINS, size_bin
from sim.slopes import key_share, score_share
from sim.stream import OVERFLOWS, view_of

__all__ = ["finish_block", "finish_trial"]

_EXP_OVERFLOWS = tuple(math.log(value) for value in OVERFLOWS)


@inner
def _row_weights(sums, values):
    # the quantities of every row: a loop of independent steps, so that it vectorises
    for row in range(sums.shape[1]):
        t1 = sums[0, row]
        entropy = weight_entropy(t1, sums[3, row])
        values[WEIGHT_MAX, row] = weight_max(t1)
        values[ENTROPY, row] = entropy
        values[EFFECTIVE_KEYS, row] = effective_keys(entropy)
        values[SUM_SQUARES, row] = sum_squares(t1, sums[1, row])


@inner
def _row_jacobians(sums, values):
    for row in range(sums.shape[1]):
        t1, t2 = sums[0, row], sums[1, row]
        square = frobenius_sq(t1, t2, sums[2, row])
        values[FROBENIUS, row] = math.sqrt(square)
        values[FROBENIUS_SQ, row] = square
        values[TRACE, row] = trace(t1, t2)


@reduction
def _total(values):
    total = 0.0
    for row in range(values.shape[0]):
        total += values[row]
    return total


@inner
def _count_from(values, threshold):
    count = 0
    for row in range(values.shape[0]):
        count += 1 if values[row] >= threshold else 0
    return count


@inner
def _leave_out(values, is_lost):
    for row in range(is_lost.shape[0]):
        if is_lost[row]:
            for f in range(values.shape[0]):
                values[f, row] = 0.0


@inner
def _add_sizes(values, unit, is_lost, bins):
    for row in range(values.shape[0]):
        if not is_lost[row]:
            bins[size_bin(values[row] / unit)] += 1


@inner
def _finish_scores(k, rows, measures, tally):
    at, factor = measures.offsets, measures.factors[k]
    low, high, variance, varied = np.inf, -np.inf, 0.0, 0
    for row in range(rows.ends.shape[1]):
        if rows.is_lost[row]:
            continue
        low = min(low, rows.ends[0, row])
        high = max(high, rows.ends[1, row])
        n = rows.moments[0, row]
        if n > 1.0:
            variance += rows.moments[2, row] / (n - 1.0)
            varied += 1
    ends = factor * low, factor * high
    tally[at.varied_rows + k] += varied
    if low <= high:
        tally[at.score_min + k] = min(tally[at.score_min + k], min(ends))
        tally[at.score_max + k] = max(tally[at.score_max + k], max(ends))
        tally[at.score_trial_max + k] += max(abs(ends[0]), abs(ends[1]))
    else:  # no row is left: blank
        tally[at.score_trial_max + k] += np.nan
    tally[at.score_row_variance + k] += factor * factor * variance


@inner
def _finish_weights(k, values, measures, tally):
    at, n_thresholds = measures.offsets, measures.thresholds.shape[0]
    tally[at.weight_max + k] += _total(values[WEIGHT_MAX])
    tally[at.weight_entropy + k] += _total(values[ENTROPY])
    tally[at.weight_effective_keys + k] += _total(values[EFFECTIVE_KEYS])
    tally[at.weight_sum_squares + k] += _total(values[SUM_SQUARES])
    for j in range(n_thresholds):
        tally[at.saturated + k * n_thresholds + j] += _count_from(values[WEIGHT_MAX], measures.thresholds[j])


@inner
def _finish_partners(k, rows, rounding, measures, tally):
    at, factor, count = measures.offsets, measures.factors[k], 0
    end = 1 if factor >= 0.0 else 0
    for row in range(min(measures.partners, rows.ends.shape[1])):
        if not rows.is_lost[row]:
            count += 1
            below = factor * (rows.ends[end, row] - rows.partners[row])
            weight = math.exp(-below) * weight_max(rows.sums[k, 0, row])
            tally[at.partner_weight + k] += round_weight(weight, rounding)
            tally[at.partner_top + k] += 1.0 if below <= 0.0 else 0.0
    tally[at.partner_rows + k] += count


@inner
def _finish_jacobians(k, values, is_lost, n_lost, measures, tally, bins):
    at, n_thresholds = measures.offsets, measures.gradient_thresholds.shape[0]
    tally[at.jacobian_frobenius + k] += _total(values[FROBENIUS])
    tally[at.jacobian_frobenius_sq + k] += _total(values[FROBENIUS_SQ])
    tally[at.jacobian_trace + k] += _total(values[TRACE])
    n_rows = values.shape[1] - n_lost
    for j in range(n_thresholds):
        below = n_rows - _count_from(values[FROBENIUS], measures.gradient_thresholds[j])
        tally[at.vanished + k * n_thresholds + j] += below
    start = at.frobenius_sizes + k * SIZE_BINS
    _add_sizes(values[FROBENIUS], 1.0, is_lost, bins[start : start + SIZE_BINS])


@inner
def _finish_gradients(k, rows, values, query_norms, n_keys, measures, tally, bins):
    """Add ||dL/ds||^2, ||dL/dq||^2 and ||dL/dk||^2, averaged over standard normal dL/dp (theory.md).

    The keys' part is, for a linear scale, factor^2 sum ||q_i||^2 ||J_i||_F^2 over the rows in all.
    """
    at = measures.offsets
    square = measures.factors[k] * measures.factors[k]
    keys, scores = 0.0, 0.0
    for row in range(query_norms.shape[0]):
        if not rows.is_lost[row]:
            values[GRADIENT_QUERY_SQ, row] = square * rows.gradients[k, row]
            scores += values[FROBENIUS_SQ, row]
            keys += query_norms[row] * values[FROBENIUS_SQ, row]
    tally[at.gradient_score_sq + k] += square * scores
    tally[at.gradient_key_sq + k] += square * keys / n_keys
    tally[at.gradient_query_sq + k] += _total(values[GRADIENT_QUERY_SQ])
    _add_gradient_sizes(k, rows, measures, bins)


@inner
def _finish_slopes(k, rows, values, sums, n_keys, measures, tally, bins):
    """Add the same where every score has a slope of its own, from the sums of :mod:`sim.slopes`."""
    at = measures.offsets
    keys, scores = 0.0, 0.0
    for row in range(sums.shape[1]):
        if not rows.is_lost[row]:
            values[GRADIENT_QUERY_SQ, row] = rows.gradients[k, row]
            t1, t2 = rows.sums[k, 0, row], rows.sums[k, 1, row]
            scores += score_share(sums, row, t1, t2)
            keys += key_share(sums, row, t1, t2)
    tally[at.gradient_score_sq + k] += scores
    tally[at.gradient_key_sq + k] += keys / n_keys
    tally[at.gradient_query_sq + k] += _total(values[GRADIENT_QUERY_SQ])
    _add_gradient_sizes(k, rows, measures, bins)


@inner
def _add_gradient_sizes(k, rows, measures, bins):
    start = measures.offsets.gradient_query_sizes + k * SIZE_BINS
    counts = bins[start : start + SIZE_BINS]
    for row in range(rows.is_lost.shape[0]):
        if not rows.is_lost[row]:
            counts[size_bin(math.sqrt(rows.gradients[k, row]) / measures.gradient_units[k])] += 1


@inner
def _finish_overflows(k, rows, measures, tally):
    factor = measures.factors[k]
    end = 1 if factor >= 0.0 else 0
    for j in range(len(_EXP_OVERFLOWS)):
        count = 0
        for row in range(rows.ends.shape[1]):
            count += 1 if rows.is_lost[row] or factor * rows.ends[end, row] >= _EXP_OVERFLOWS[j] else 0
        tally[measures.offsets.exp_overflows + k * len(_EXP_OVERFLOWS) + j] += count


@part
def _finish_rule(k, rows, slopes, rounded, query_norms, n_keys, measures, tally, bins):
    """Add the rows under rule `k`, of whose view `rows` is the state."""
    at = measures.offsets
    n_rows = rows.is_lost.shape[0]
    n_lost = 0
    for row in range(n_rows):
        n_lost += rows.is_lost[row]
    tally[at.lost_rows + k] += n_lost
    values = rows.values[min(k, rows.values.shape[0] - 1)]
    if at.score_moments >= 0:
        _finish_scores(k, rows, measures, tally)
    is_rounded = rounded.sums.shape[2] > 0
    if at.weight_max >= 0:
        _row_weights(rows.sums[k], values)
    if at.jacobian_trace >= 0 or at.gradient_query_sq >= 0:
        _row_jacobians(rows.sums[k], values)
    if is_rounded:
        finish_rounded(k, rounded, values)
    if n_lost > 0:
        _leave_out(values, rows.is_lost)
    if at.weight_max >= 0:
        _finish_weights(k, values, measures, tally)
        if at.partner_rows >= 0:
            _finish_partners(k, rows, rounded.rounding, measures, tally)
    if at.jacobian_trace >= 0:
        _finish_jacobians(k, values, rows.is_lost, n_lost, measures, tally, bins)
    if at.gradient_query_sq >= 0:
        if measures.is_sloped[k]:
            _finish_slopes(k, rows, values, slopes.sums[k], n_keys, measures, tally, bins)
        else:
            _finish_gradients(k, rows, values, query_norms, n_keys, measures, tally, bins)
    if at.jacobian_spectral >= 0:
        for row in range(n_rows):
            values[SPECTRAL, row] = 0.0 if rows.is_lost[row] else rows.spectral[k, row]
        tally[at.jacobian_spectral + k] += _total(values[SPECTRAL])
    if at.scores >= 0:
        _finish_overflows(k, rows, measures, tally)
    if is_rounded and at.zero_weights >= 0:
        count_zeros(k, rounded, rows.is_lost, measures, tally)


@kernel
def finish_trial(rows, slopes, rounded, query_norms, n_keys, measures, tally, bins):
    """Add the finished rows of one trial to the tally, and leave their values in ``rows.values``."""
    at = measures.offsets
    tally[at.trials] += 1.0
    tally[at.rows] += rows.is_lost.shape[1]
    for k in range(measures.factors.shape[0]):
        seen = view_of(rows, measures.views[k])
        _finish_rule(k, seen, slopes, rounded, query_norms, n_keys, measures, tally, bins)


@kernel
def finish_block(rows, measures, tally):
    """Write the block's score moments under every scale rule."""
    at = measures.offsets
    if at.score_moments >= 0:
        for k in range(measures.factors.shape[0]):
            start = at.score_moments + k * MOMENT_FIELDS
            scale_moments(rows.block[measures.views[k]], measures.factors[k], tally[start : start + MOMENT_FIELDS])
