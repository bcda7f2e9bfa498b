"""The observables of the scores: moments, extremes, shares, histogram and quantiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.estimates import Tallies, rate_error
from sim.observable import Observable, Values, factors_of
from sim.plan import SIGMAS, Plan
from sim.quantiles import per_scale, quantiles, share_theory, shares

__all__ = ["SCORE_OBSERVABLES"]


def _skewness(tallies: Tallies, plan: Plan) -> Values:
    return tallies.moment(3) / tallies.moment(2) ** 1.5


def _excess_kurtosis(tallies: Tallies, plan: Plan) -> Values:
    return tallies.moment(4) / tallies.moment(2) ** 2 - 3


def _within_sigma(tallies: Tallies, plan: Plan) -> Values:
    counts = tallies["score_within_sigma"] / (tallies["trials"][:, None] * plan.visible.sum())
    counts = np.where(np.isnan(plan.measures.window).any(), np.nan, counts)
    return _of_linear_rules(np.repeat(counts[:, None, :], len(plan.factors), axis=1), plan)


def _of_linear_rules(values: Values, plan: Plan) -> Values:
    is_linear = np.array([np.isinf(rule.cap) and not rule.log_n for rule in plan.rules])
    return np.where(is_linear[:, None], values, np.nan)


def _within_sigma_theory(plan: Plan) -> Values:
    shares = np.full(len(SIGMAS), np.nan)
    if plan.theory.distribution is not None and np.isfinite(plan.theory.std):
        reach = np.array(SIGMAS) * plan.theory.std
        below, _ = plan.theory.distribution(plan.theory.mean - reach)
        _, up_to = plan.theory.distribution(plan.theory.mean + reach)
        shares = up_to - below
    return _of_linear_rules(np.repeat(shares[None], len(plan.factors), axis=0), plan)


def _of_one_rule(values: Values, plan: Plan) -> Values:
    """Return values (..., scales, bins) of raw scores, blank under rules that rows have each their own of."""
    return np.where(np.array([rule.log_n for rule in plan.rules])[:, None], np.nan, values)


def _histogram(tallies: Tallies, plan: Plan) -> Values:
    return _of_one_rule(per_scale(shares(tallies.bins("score_histogram")), factors_of(plan)), plan)


def _histogram_theory(plan: Plan) -> Values:
    return _of_one_rule(per_scale(share_theory(plan.theory.distribution, plan.edges), factors_of(plan)), plan)


def _quantiles(tallies: Tallies, plan: Plan, levels: Sequence[float]) -> tuple[Values, Values]:
    # the q-quantile of a negative multiple is that of 1 - q
    counts, sizes, p = tallies.bins("score_histogram"), tallies.sizes, np.array(levels)
    values, errors = quantiles(counts, sizes, plan.edges, np.concatenate([p, 1 - p]))
    is_mirrored = factors_of(plan)[:, None] < 0
    raw = np.where(is_mirrored, *np.split(values, 2)[::-1])
    raw_se = np.where(is_mirrored, *np.split(errors, 2)[::-1])
    scaled = np.array([rule.scaled(row) for rule, row in zip(plan.rules, raw, strict=True)])
    slopes = np.array([rule.slope(row) for rule, row in zip(plan.rules, raw, strict=True)])
    return scaled, abs(slopes) * raw_se


def _exact(name: str) -> Callable[[Plan], Values]:
    return lambda plan: np.array([getattr(scaled.exact, name) for scaled in plan.scaled])


def _limit(name: str) -> Callable[[Plan], Values]:
    return lambda plan: np.array([getattr(scaled.limit, name) for scaled in plan.scaled])


_ABOUT = "of the scores after the scale rule"

SCORE_OBSERVABLES: dict[str, Observable] = {
    "score_mean": Observable(
        family="scores",
        long_name=f"mean {_ABOUT}",
        definition="E s",
        order=1,
        estimate=lambda tallies, plan: tallies.moment(1),
        theory=_exact("mean"),
        limit=_limit("mean"),
    ),
    "score_variance": Observable(
        family="scores",
        long_name=f"variance {_ABOUT}",
        definition="E (s - E s)^2, about the grand mean, dividing by N",
        order=2,
        estimate=lambda tallies, plan: tallies.moment(2),
        theory=_exact("variance"),
        limit=_limit("variance"),
    ),
    "score_std": Observable(
        family="scores",
        long_name=f"standard deviation {_ABOUT}",
        definition="square root of score_variance",
        order=2,
        estimate=lambda tallies, plan: np.sqrt(tallies.moment(2)),
        theory=_exact("std"),
        limit=_limit("std"),
    ),
    "score_skewness": Observable(
        family="scores",
        long_name=f"skewness {_ABOUT}",
        definition="E (s - E s)^3 / score_std^3",
        order=3,
        estimate=_skewness,
        theory=_exact("skewness"),
        limit=_limit("skewness"),
    ),
    "score_excess_kurtosis": Observable(
        family="scores",
        long_name=f"excess kurtosis {_ABOUT}",
        definition="E (s - E s)^4 / score_variance^2 - 3",
        order=4,
        estimate=_excess_kurtosis,
        theory=_exact("excess_kurtosis"),
        limit=_limit("excess_kurtosis"),
    ),
    "score_min": Observable(
        family="scores",
        long_name=f"smallest {_ABOUT}",
        definition="over all trials; it falls as trials are added, so that it has no standard error",
        estimate=lambda tallies, plan: tallies.of_some("score_min"),
        error=None,
    ),
    "score_max": Observable(
        family="scores",
        long_name=f"largest {_ABOUT}",
        definition="over all trials; it grows as trials are added, so that it has no standard error",
        estimate=lambda tallies, plan: tallies.of_some("score_max"),
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
        theory=_exact("row_variance"),
        limit=_limit("row_variance"),
    ),
    "score_within_sigma": Observable(
        family="scores",
        long_name="share of scores within sigma standard deviations of the mean",
        definition="|s - mean| <= sigma std by theory's mean and std, decided on raw scores; blank for soft caps",
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
}
