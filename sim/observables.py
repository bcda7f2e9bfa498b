"""The observables: each one's name, unit, definition, estimator, error and closed form, in one entry.

An observable computed from sums that exist is one entry in :data:`OBSERVABLES`; a new sum is one more
part in :mod:`sim.tally`, filled in :mod:`sim.stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.estimates import Tallies, jackknife, rate_error
from sim.plan import SIGMAS, Plan
from sim.quantiles import medians, per_scale, quantiles, share_theory, shares
from sim.sizes import size_edges

__all__ = ["OBSERVABLES", "Estimate", "Observable", "evaluate"]

Values = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """Values (scales, ...) with standard errors, exact and asymptotic forms; None where there never is one."""

    value: Values
    se: Values | None = None
    theory: Values | None = None
    limit: Values | None = None


@dataclass(frozen=True, kw_only=True)
class Observable:
    """One named estimate.

    Attributes
    ----------
    family : str
        What it is computed and left out with.
    definition, units : str
    estimate : function (tallies, plan) -> array (1 + groups, scales, ...)
        Of the whole, then without each group.
    dims : tuple of str
        Dimensions after `scale`.
    has_scale : bool
        Whether there is a value for each scale rule, along the dimension `scale`.
    order : int
        r for an r-th moment of the scores, whose error needs 2r finite moments; 0 where all is bounded.
    error : function (values, sizes) -> array, or None
        None where no error is honest: an extreme grows with the trials.
    theory, limit : function plan -> array (scales, ...), or None
        The exact form, and an asymptotic one that is NaN outside its range.
    special : function (tallies, plan, levels) -> (values, errors), or None
        In place of `estimate` and `error`, where the replicates are not values of the observable.
    """

    family: str
    long_name: str
    definition: str
    units: str = "1"
    dims: tuple[str, ...] = ()
    has_scale: bool = True
    order: int = 0
    estimate: Callable[[Tallies, Plan], Values] | None = None
    error: Callable[[Values, Values], Values] | None = jackknife
    theory: Callable[[Plan], Values] | None = None
    limit: Callable[[Plan], Values] | None = None
    special: Callable[[Tallies, Plan, Sequence[float]], tuple[Values, Values]] | None = None


def _factors(plan: Plan) -> Values:
    return np.array(plan.factors)


def _skewness(tallies: Tallies, plan: Plan) -> Values:
    return tallies.moment(3) / tallies.moment(2) ** 1.5


def _excess_kurtosis(tallies: Tallies, plan: Plan) -> Values:
    return tallies.moment(4) / tallies.moment(2) ** 2 - 3


def _within_sigma(tallies: Tallies, plan: Plan) -> Values:
    counts = tallies["score_within_sigma"] / tallies["score_moments"][:, :1, 0]
    counts = np.where(np.isnan(plan.measures.window).any(), np.nan, counts)
    return np.repeat(counts[:, None, :], len(plan.factors), axis=1)


def _within_sigma_theory(plan: Plan) -> Values:
    shares = np.full(len(SIGMAS), np.nan)
    if plan.theory.distribution is not None:
        reach = np.array(SIGMAS) * plan.theory.std
        below, _ = plan.theory.distribution(plan.theory.mean - reach)
        _, up_to = plan.theory.distribution(plan.theory.mean + reach)
        shares = up_to - below
    return np.repeat(shares[None], len(plan.factors), axis=0)


def _histogram(tallies: Tallies, plan: Plan) -> Values:
    return per_scale(shares(tallies.bins("score_histogram")), _factors(plan))


def _histogram_theory(plan: Plan) -> Values:
    return per_scale(share_theory(plan.theory.distribution, plan.edges), _factors(plan))


def _quantiles(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    # the q-quantile of a negative multiple is that of 1 - q
    counts, sizes, p = tallies.bins("score_histogram"), tallies.sizes, np.array(levels)
    values, errors = quantiles(counts, sizes, plan.edges, np.concatenate([p, 1 - p]))
    factors = _factors(plan)[:, None]
    direct, mirrored = np.split(values, 2)
    direct_se, mirrored_se = np.split(errors, 2)
    return factors * np.where(factors < 0, mirrored, direct), abs(factors) * np.where(
        factors < 0, mirrored_se, direct_se
    )


def _row_quantity(name: str) -> Callable[[Tallies, Plan], Values]:
    return lambda tallies, plan: tallies.row_mean(name)


def _root_mean(name: str) -> Callable[[Tallies, Plan], Values]:
    return lambda tallies, plan: np.sqrt(tallies.row_mean(name))


def _frobenius_median(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    return medians(tallies.group_bins("frobenius_sizes"), tallies.sizes, size_edges())


def _gradient_query_median(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    values, errors = medians(tallies.group_bins("gradient_query_sizes"), tallies.sizes, size_edges())
    measures = plan.measures
    unit = np.where(measures.is_sloped, 1.0, abs(_factors(plan))) * measures.gradient_units
    return unit * values, unit * errors


def _per_scale_theory(formula: Callable[[Plan, Values], Values]) -> Callable[[Plan], Values]:
    return lambda plan: formula(plan, _factors(plan))


_ABOUT = "of the scores after the scale rule"

OBSERVABLES: dict[str, Observable] = {
    "score_mean": Observable(
        family="scores",
        long_name=f"mean {_ABOUT}",
        definition="E s",
        order=1,
        estimate=lambda tallies, plan: tallies.moment(1),
        theory=_per_scale_theory(lambda plan, c: c * plan.theory.mean),
    ),
    "score_variance": Observable(
        family="scores",
        long_name=f"variance {_ABOUT}",
        definition="E (s - E s)^2, about the grand mean, dividing by N",
        order=2,
        estimate=lambda tallies, plan: tallies.moment(2),
        theory=_per_scale_theory(lambda plan, c: c**2 * plan.theory.variance),
    ),
    "score_std": Observable(
        family="scores",
        long_name=f"standard deviation {_ABOUT}",
        definition="square root of score_variance",
        order=2,
        estimate=lambda tallies, plan: np.sqrt(tallies.moment(2)),
        theory=_per_scale_theory(lambda plan, c: abs(c) * plan.theory.std),
    ),
    "score_skewness": Observable(
        family="scores",
        long_name=f"skewness {_ABOUT}",
        definition="E (s - E s)^3 / score_std^3",
        order=3,
        estimate=_skewness,
        theory=_per_scale_theory(lambda plan, c: np.where(c == 0, np.nan, np.sign(c) * plan.theory.skewness)),
    ),
    "score_excess_kurtosis": Observable(
        family="scores",
        long_name=f"excess kurtosis {_ABOUT}",
        definition="E (s - E s)^4 / score_variance^2 - 3",
        order=4,
        estimate=_excess_kurtosis,
        theory=_per_scale_theory(lambda plan, c: np.where(c == 0, np.nan, plan.theory.excess_kurtosis)),
    ),
    "score_min": Observable(
        family="scores",
        long_name=f"smallest {_ABOUT}",
        definition="over all trials; it falls as trials are added, so that it has no standard error",
        estimate=lambda tallies, plan: tallies["score_min"],
        error=None,
    ),
    "score_max": Observable(
        family="scores",
        long_name=f"largest {_ABOUT}",
        definition="over all trials; it grows as trials are added, so that it has no standard error",
        estimate=lambda tallies, plan: tallies["score_max"],
        error=None,
    ),
    "score_trial_max": Observable(
        family="scores",
        long_name="largest absolute score of a trial, after the scale rule",
        definition="mean over trials of max |s|",
        order=1,
        estimate=lambda tallies, plan: tallies["score_trial_max"] / tallies["trials"][:, None],
    ),
    "score_row_variance": Observable(
        family="scores",
        long_name="variance across the keys of one row, after the scale rule",
        definition="n - 1 in the denominator, mean over rows: the variance that softmax sees; blank for one key",
        order=2,
        estimate=lambda tallies, plan: tallies["score_row_variance"] / tallies["varied_rows"],
        theory=_per_scale_theory(lambda plan, c: c**2 * plan.theory.row_variance),
    ),
    "score_within_sigma": Observable(
        family="scores",
        long_name="share of scores within sigma standard deviations of the mean",
        definition="|s - mean| <= sigma std by theory's mean and std, decided on raw scores",
        dims=("sigma",),
        estimate=_within_sigma,
        error=rate_error,
        theory=_within_sigma_theory,
    ),
    "score_histogram": Observable(
        family="distribution",
        long_name="shares of the scores in bins",
        definition="bin 0 lies below the first of score_bin_edge, the last bin from the last edge on",
        dims=("bin",),
        estimate=_histogram,
        error=rate_error,
        theory=_histogram_theory,
    ),
    "score_quantile": Observable(
        family="distribution",
        long_name=f"quantile {_ABOUT}",
        definition="from the histogram, with a density that is linear within a bin; blank in an open end",
        dims=("quantile",),
        special=_quantiles,
    ),
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
        theory=lambda plan: abs(_factors(plan)) * np.sqrt(plan.row_theory["jacobian_frobenius_sq"]),
        limit=lambda plan: abs(_factors(plan)) * np.sqrt(plan.row_limits["jacobian_frobenius_sq"]),
    ),
    "gradient_query": Observable(
        family="gradients",
        long_name="root mean square of the gradient by a query",
        definition="sqrt of the mean over queries of ||dL/dq||^2, averaged over standard normal g in L = sum g p",
        estimate=_root_mean("gradient_query_sq"),
        limit=lambda plan: np.sqrt(plan.query_gradient_limit),
    ),
    "gradient_key": Observable(
        family="gradients",
        long_name="root mean square of the gradient by a key",
        definition="sqrt of the mean over keys of ||dL/dk||^2, averaged over standard normal g in L = sum g p",
        estimate=lambda tallies, plan: np.sqrt(tallies["gradient_key_sq"] / tallies["trials"][:, None]),
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
}


def evaluate(name: str, tallies: Tallies, plan: Plan, levels: Sequence[float]) -> Estimate:
    """Return one observable of one cell.

    Parameters
    ----------
    name : str
    tallies : Tallies
        The cell's.
    plan : Plan
        The cell's.
    levels : sequence of float
        At which quantiles are asked for.
    """
    entry = OBSERVABLES[name]
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the blank of a constant score
        if entry.special is not None:
            value, se = entry.special(tallies, plan, levels)
            return Estimate(value, se)
        assert entry.estimate is not None
        values = entry.estimate(tallies, plan)
        theory = entry.theory(plan) if entry.theory else None
        limit = entry.limit(plan) if entry.limit else None
        if entry.error is None:
            return Estimate(values[0], None, theory, limit)
        se = entry.error(values, tallies.sizes)
        enough = plan.theory.moments >= 2 * entry.order
        return Estimate(values[0], se if enough else np.full_like(se, np.nan), theory, limit)
