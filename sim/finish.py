"""From the finished rows of a trial to its tally: means, rates, and bins of sizes."""

from __future__ import annotations

import math

import numpy as np

from sim.jit import inner, kernel, reduction
from sim.moments import MOMENT_FIELDS, scale_moments
from sim.rows import effective_keys, frobenius_sq, sum_squares, trace, weight_entropy, weight_max
from sim.sizes import SIZE_BINS, size_bin
from sim.stream import N_VALUES, OVERFLOWS

__all__ = [
    "EFFECTIVE_KEYS",
    "ENTROPY",
    "FROBENIUS",
    "FROBENIUS_SQ",
    "GRADIENT_QUERY_SQ",
    "SPECTRAL",
    "SUM_SQUARES",
    "TRACE",
    "WEIGHT_MAX",
    "finish_block",
    "finish_trial",
]

# The values of a row under one scale rule.
WEIGHT_MAX, ENTROPY, EFFECTIVE_KEYS, SUM_SQUARES, FROBENIUS, FROBENIUS_SQ, TRACE, SPECTRAL, GRADIENT_QUERY_SQ = range(
    N_VALUES
)

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
def _add_sizes(values, unit, bins):
    for row in range(values.shape[0]):
        bins[size_bin(values[row] / unit)] += 1


@inner
def _finish_scores(rows, measures, tally):
    at = measures.offsets
    low, high, variance, varied = np.inf, -np.inf, 0.0, 0
    for row in range(rows.ends.shape[1]):
        low = min(low, rows.ends[0, row])
        high = max(high, rows.ends[1, row])
        n = rows.moments[0, row]
        if n > 1.0:
            variance += rows.moments[2, row] / (n - 1.0)
            varied += 1
    tally[at.varied_rows] += varied
    for k in range(measures.factors.shape[0]):
        factor = measures.factors[k]
        ends = factor * low, factor * high
        tally[at.score_min + k] = min(tally[at.score_min + k], min(ends))
        tally[at.score_max + k] = max(tally[at.score_max + k], max(ends))
        tally[at.score_trial_max + k] += max(abs(ends[0]), abs(ends[1]))
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
def _finish_jacobians(k, values, measures, tally, bins):
    at, n_thresholds = measures.offsets, measures.gradient_thresholds.shape[0]
    tally[at.jacobian_frobenius + k] += _total(values[FROBENIUS])
    tally[at.jacobian_frobenius_sq + k] += _total(values[FROBENIUS_SQ])
    tally[at.jacobian_trace + k] += _total(values[TRACE])
    n_rows = values.shape[1]
    for j in range(n_thresholds):
        below = n_rows - _count_from(values[FROBENIUS], measures.gradient_thresholds[j])
        tally[at.vanished + k * n_thresholds + j] += below
    start = at.frobenius_sizes + k * SIZE_BINS
    _add_sizes(values[FROBENIUS], 1.0, bins[start : start + SIZE_BINS])


@inner
def _finish_gradients(k, rows, values, query_norms, n_keys, measures, tally, bins):
    """Add ||dL/ds||^2, ||dL/dq||^2 and ||dL/dk||^2, averaged over standard normal dL/dp (theory.md).

    The keys' part is, for a linear scale, factor^2 sum ||q_i||^2 ||J_i||_F^2 over the rows in all.
    """
    at = measures.offsets
    factor = measures.factors[k]
    square = factor * factor
    keys, scores = 0.0, 0.0
    for row in range(query_norms.shape[0]):
        values[GRADIENT_QUERY_SQ, row] = square * rows.gradients[k, row]
        scores += values[FROBENIUS_SQ, row]
        keys += query_norms[row] * values[FROBENIUS_SQ, row]
    tally[at.gradient_score_sq + k] += square * scores
    tally[at.gradient_key_sq + k] += square * keys / n_keys
    tally[at.gradient_query_sq + k] += _total(values[GRADIENT_QUERY_SQ])
    start = at.gradient_query_sizes + k * SIZE_BINS
    counts = bins[start : start + SIZE_BINS]
    for row in range(query_norms.shape[0]):
        counts[size_bin(math.sqrt(rows.gradients[k, row]) / measures.gradient_unit)] += 1


@inner
def _finish_overflows(k, rows, measures, tally):
    factor = measures.factors[k]
    end = 1 if factor >= 0.0 else 0
    for j in range(len(_EXP_OVERFLOWS)):
        count = 0
        for row in range(rows.ends.shape[1]):
            count += 1 if factor * rows.ends[end, row] >= _EXP_OVERFLOWS[j] else 0
        tally[measures.offsets.exp_overflows + k * len(_EXP_OVERFLOWS) + j] += count


@kernel
def finish_trial(rows, query_norms, n_keys, measures, tally, bins):
    """Add the finished rows of one trial to the tally, and leave their values in ``rows.values``."""
    at = measures.offsets
    tally[at.trials] += 1.0
    tally[at.rows] += rows.ends.shape[1]
    if at.score_moments >= 0:
        _finish_scores(rows, measures, tally)
    for k in range(measures.factors.shape[0]):
        values = rows.values[min(k, rows.values.shape[0] - 1)]
        if at.weight_max >= 0:
            _row_weights(rows.sums[k], values)
            _finish_weights(k, values, measures, tally)
        if at.jacobian_trace >= 0 or at.gradient_query_sq >= 0:
            _row_jacobians(rows.sums[k], values)
        if at.jacobian_trace >= 0:
            _finish_jacobians(k, values, measures, tally, bins)
        if at.gradient_query_sq >= 0:
            _finish_gradients(k, rows, values, query_norms, n_keys, measures, tally, bins)
        if at.jacobian_spectral >= 0:
            for row in range(values.shape[1]):
                values[SPECTRAL, row] = rows.spectral[k, row]
            tally[at.jacobian_spectral + k] += _total(values[SPECTRAL])
        if at.scores >= 0:
            _finish_overflows(k, rows, measures, tally)


@kernel
def finish_block(rows, measures, tally):
    """Write the block's score moments under every scale rule."""
    at = measures.offsets
    if at.score_moments >= 0:
        for k in range(measures.factors.shape[0]):
            start = at.score_moments + k * MOMENT_FIELDS
            scale_moments(rows.block, measures.factors[k], tally[start : start + MOMENT_FIELDS])
