"""The observables of rows: weights, Jacobian, gradients, and what narrow types make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.estimates import Tallies, rate_error
from sim.observable import Observable, Values, factors_of
from sim.plan import Plan
from sim.quantiles import medians
from sim.sizes import size_edges

__all__ = ["ROW_OBSERVABLES"]


def _row_quantity(name: str) -> Callable[[Tallies, Plan], Values]:
    return lambda tallies, plan: tallies.row_mean(name)


def _root_mean(name: str) -> Callable[[Tallies, Plan], Values]:
    return lambda tallies, plan: np.sqrt(tallies.row_mean(name))


def _frobenius_median(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    return medians(tallies.group_bins("frobenius_sizes"), tallies.sizes, size_edges())


def _gradient_query_median(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    values, errors = medians(tallies.group_bins("gradient_query_sizes"), tallies.sizes, size_edges())
    measures = plan.measures
    unit = np.where(measures.is_sloped, 1.0, abs(factors_of(plan))) * measures.gradient_units
    return unit * values, unit * errors


def _slopes_sq(plan: Plan) -> Values:
    return factors_of(plan) ** 2


ROW_OBSERVABLES: dict[str, Observable] = {
    "weight_max": Observable(
        family="weights",
        long_name="largest weight of a row",
        definition="max p, mean over rows, with p the softmax of the row",
        estimate=_row_quantity("weight_max"),
        theory=lambda plan: plan.row_theory["weight_max"],
    ),
    "weight_entropy": Observable(
        family="weights",
        long_name="entropy of a row's weights",
        definition="-sum p ln p, mean over rows",
        units="nat",
        estimate=_row_quantity("weight_entropy"),
        theory=lambda plan: plan.row_theory["weight_entropy"],
        limit=lambda plan: plan.row_limits["weight_entropy"],
    ),
    "weight_effective_keys": Observable(
        family="weights",
        long_name="effective number of keys of a row",
        definition="exp of the row's entropy, mean over rows",
        estimate=_row_quantity("weight_effective_keys"),
    ),
    "weight_sum_squares": Observable(
        family="weights",
        long_name="sum of squared weights of a row",
        definition="sum p^2, mean over rows",
        estimate=_row_quantity("weight_sum_squares"),
        theory=lambda plan: plan.row_theory["weight_sum_squares"],
        limit=lambda plan: plan.row_limits["weight_sum_squares"],
    ),
    "saturation_rate": Observable(
        family="weights",
        long_name="share of saturated rows",
        definition="share of rows with max p >= threshold",
        dims=("threshold",),
        estimate=lambda tallies, plan: tallies["saturated"] / tallies.rows[..., None],
        error=rate_error,
    ),
    "partner_weight": Observable(
        family="weights",
        long_name="weight of a query's own key",
        definition="p of the key that correlates with the query, mean over the queries that have one",
        needs="partner_rows",
        estimate=lambda tallies, plan: tallies["partner_weight"] / tallies["partner_rows"],
    ),
    "partner_top_rate": Observable(
        family="weights",
        long_name="share of queries whose own key has the largest weight",
        definition="share of the queries with a key of their own in which no other key has a larger score",
        needs="partner_rows",
        estimate=lambda tallies, plan: tallies["partner_top"] / tallies["partner_rows"],
        error=rate_error,
    ),
    "jacobian_frobenius": Observable(
        family="jacobian",
        long_name="Frobenius norm of the softmax Jacobian of a row",
        definition="||J||_F with J = diag(p) - p p', the derivative of p by the scaled scores; mean over rows",
        estimate=_row_quantity("jacobian_frobenius"),
    ),
    "jacobian_frobenius_sq": Observable(
        family="jacobian",
        long_name="squared Frobenius norm of the softmax Jacobian of a row",
        definition="||J||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2, mean over rows",
        estimate=_row_quantity("jacobian_frobenius_sq"),
        theory=lambda plan: plan.row_theory["jacobian_frobenius_sq"],
        limit=lambda plan: plan.row_limits["jacobian_frobenius_sq"],
    ),
    "jacobian_frobenius_median": Observable(
        family="jacobian",
        long_name="median over rows of the Frobenius norm of the softmax Jacobian",
        definition="from logarithmic bins of 0.5 %; blank below 2^-32",
        special=_frobenius_median,
    ),
    "jacobian_trace": Observable(
        family="jacobian",
        long_name="trace of the softmax Jacobian of a row",
        definition="tr J = 1 - sum p^2, mean over rows",
        estimate=_row_quantity("jacobian_trace"),
        theory=lambda plan: plan.row_theory["jacobian_trace"],
        limit=lambda plan: plan.row_limits["jacobian_trace"],
    ),
    "vanishing_rate": Observable(
        family="jacobian",
        long_name="share of rows with a vanishing Jacobian",
        definition="share of rows with ||J||_F < gradient_threshold",
        dims=("gradient_threshold",),
        estimate=lambda tallies, plan: tallies["vanished"] / tallies.rows[..., None],
        error=rate_error,
    ),
    "jacobian_spectral": Observable(
        family="spectrum",
        long_name="largest eigenvalue of the softmax Jacobian of a row",
        definition="mean over rows",
        estimate=_row_quantity("jacobian_spectral"),
    ),
    "gradient_score": Observable(
        family="gradients",
        long_name="root mean square of the gradient by the raw scores of a row",
        definition="sqrt of the mean over rows of ||dL/ds||^2, averaged over standard normal g in L = sum g p",
        estimate=_root_mean("gradient_score_sq"),
        theory=lambda plan: np.sqrt(_slopes_sq(plan) * plan.row_theory["jacobian_frobenius_sq"]),
        limit=lambda plan: np.sqrt(_slopes_sq(plan) * plan.row_limits["jacobian_frobenius_sq"]),
    ),
    "gradient_query": Observable(
        family="gradients",
        long_name="root mean square of the gradient by a query",
        definition="sqrt of the mean over queries of ||dL/dq||^2, averaged over standard normal g in L = sum g p",
        order=2,
        of_vectors=True,
        estimate=_root_mean("gradient_query_sq"),
        limit=lambda plan: np.sqrt(plan.query_gradient_limit),
    ),
    "gradient_key": Observable(
        family="gradients",
        long_name="root mean square of the gradient by a key",
        definition="sqrt of the mean over keys of ||dL/dk||^2, averaged over standard normal g in L = sum g p",
        order=2,
        of_vectors=True,
        estimate=lambda tallies, plan: np.sqrt(tallies.of_some("gradient_key_sq") / tallies["trials"][:, None]),
        theory=lambda plan: np.sqrt(plan.key_gradient_theory),
    ),
    "gradient_query_median": Observable(
        family="gradients",
        long_name="median over queries of the gradient by a query",
        definition="of sqrt ||dL/dq||^2, averaged over standard normal g; from logarithmic bins of 0.5 %",
        special=_gradient_query_median,
    ),
    "exp_overflow_rate": Observable(
        family="numerics",
        long_name="share of rows in which exp of an unshifted score overflows",
        definition="share of rows whose largest scaled score s has exp(s) round to infinity in the type",
        dims=("dtype",),
        estimate=lambda tallies, plan: tallies["exp_overflows"] / tallies["rows"][:, None, None],
        error=rate_error,
    ),
    "score_overflow_rate": Observable(
        family="numerics",
        long_name="share of raw scores beyond the type's range",
        definition="share of raw scores that round to infinity in the type",
        dims=("dtype",),
        has_scale=False,
        estimate=lambda tallies, plan: tallies["score_overflows"] / tallies["scores"][:, None],
        error=rate_error,
    ),
    "row_overflow_rate": Observable(
        family="numerics",
        long_name="share of rows with an infinite score",
        definition="in the precision of the cell; such rows have no softmax and are left out of everything but rates",
        needs="rounded_weights",
        estimate=lambda tallies, plan: tallies["lost_rows"] / tallies["rows"][:, None],
        error=rate_error,
    ),
    "weight_zero_rate": Observable(
        family="numerics",
        long_name="share of weights that round to 0",
        definition="in the precision of the cell, of all weights",
        needs="rounded_weights",
        estimate=lambda tallies, plan: tallies["zero_weights"] / tallies["rounded_weights"],
        error=rate_error,
    ),
    "jacobian_zero_rate": Observable(
        family="numerics",
        long_name="share of rows whose Jacobian is 0",
        definition="in the precision of the cell one weight of the row rounds to 1 and all others to 0",
        needs="rounded_weights",
        estimate=lambda tallies, plan: tallies["zero_jacobians"] / tallies.rows,
        error=rate_error,
    ),
}
