"""The experiments give the documents' own numbers, and the same figure from the same dataset.

Each comparison of measurements with numbers raises a false alarm with probability 1e-6, over all its values:
the limit is the quantile of Student's t, with groups − 1 degrees of freedom, at 1e-6 / values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import expit
from scipy.stats import binom, chi, norm

import sim
from sim import figures
from sim.dataset import read, write
from sim.experiments import Experiment, find, load

FALSE_ALARM = 1e-6
TRIALS = {"random_walk": 1000, "variance_growth": 300, "scale_rules": 200}
TRIALS |= {"saturation": 200, "gradients": 200, "nonzero_mean": 200, "overflow": 200}


@cache
def experiment(name: str) -> Experiment:
    return load(find(name))


@cache
def dataset(name: str, key: str = "data") -> xr.Dataset:
    return sim.run(experiment(name).sweeps[key].replace(trials=TRIALS[name]))


def drawn(name: str, datasets: dict[str, xr.Dataset]) -> Any:
    """Return an experiment's figure from its datasets by key, or from the only one."""
    with figures.style():
        return experiment(name).figure(datasets["data"] if experiment(name).single else datasets)


def own(name: str, function: str) -> Callable[..., Any]:
    """Return a function of an experiment's module."""
    return getattr(sys.modules[experiment(name).figure.__module__], function)


def assert_agrees(part: xr.Dataset, variable: str, truth: Any, rounding: float = 0.0) -> None:
    """Compare estimates with numbers printed to `rounding`, half a unit of their last digit."""
    value, se = part[variable], part[f"{variable}_se"]
    assert (se > 0).all()
    limit = figures.half_width(part, variable, 1 - FALSE_ALARM / value.size) + rounding
    misses = abs(value - truth)
    assert (misses <= limit).all(), f"{variable}: {value.values} is not {np.asarray(truth)} within {limit.values}"


def ends(part: xr.Dataset, variable: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the ends of the intervals that all hold the truth, but for a false alarm."""
    half = figures.half_width(part, variable, 1 - FALSE_ALARM / part[variable].size)
    return part[variable] - half, part[variable] + half


def assert_falls(part: xr.Dataset, variable: str, along: str) -> None:
    """Check that each value lies above the next, intervals and all."""
    low, high = ends(part, variable)
    assert (low.isel({along: slice(-1)}).values > high.isel({along: slice(1, None)}).values).all()


def along_d_k(part: xr.Dataset, numbers: dict[int, float]) -> tuple[xr.Dataset, xr.DataArray]:
    lengths = list(numbers)
    return part.sel(d_k=lengths), xr.DataArray(list(numbers.values()), {"d_k": lengths})


def test_four_steps_end_in_sixteenths() -> None:
    ends = own("random_walk", "end_points")(dataset("random_walk"), 4)
    reached = ends.sel(end=[-4, -2, 0, 2, 4])
    sixteenths = np.array([1, 4, 6, 4, 1]) / 16
    np.testing.assert_allclose(reached["score_histogram_theory"], sixteenths, rtol=1e-12)
    assert_agrees(reached, "score_histogram", sixteenths)
    assert reached["score_histogram"].sum() == pytest.approx(1)  # nothing between, nothing beyond
    assert reached["score_histogram"].idxmax() == 0


def test_sixty_four_steps_end_by_the_binomial_distribution() -> None:
    ends = own("random_walk", "end_points")(dataset("random_walk"), 64)
    exact = binom.pmf(np.arange(65), 64, 0.5)
    np.testing.assert_allclose(ends["score_histogram_theory"], exact, atol=1e-12)
    # Where a thousand walks and more are expected: a share of few has no normal error.
    often = exact * 64 * TRIALS["random_walk"] > 1000
    assert often.sum() > 10
    assert_agrees(ends.isel(end=often), "score_histogram", exact[often])


def test_the_walk_s_spread_is_the_root_of_its_steps_and_64_its_bound() -> None:
    walks = dataset("random_walk").sel(scale="none")
    part, truth = along_d_k(walks, {4: 2, 64: 8})
    assert_agrees(part, "score_std", truth)
    assert (abs(walks["score_min"]) <= walks["d_k"]).all()
    assert (walks["score_max"] <= walks["d_k"]).all()


def test_the_table_of_variances_and_standard_deviations() -> None:
    raw = dataset("variance_growth").sel(scale="none")
    part, truth = along_d_k(raw, {16: 16, 64: 64, 128: 128, 512: 512})
    assert_agrees(part, "score_variance", truth)
    part, truth = along_d_k(raw, {16: 4.0, 64: 8.0, 128: 11.3, 512: 22.6})
    assert_agrees(part, "score_std", truth, rounding=0.05)


def test_scores_have_mean_0_and_after_scaling_variance_1() -> None:
    growth = dataset("variance_growth")
    assert_agrees(growth, "score_mean", 0)
    assert_agrees(growth.sel(scale="sqrt_dk"), "score_variance", 1)


def test_the_share_within_one_standard_deviation() -> None:
    within = dataset("variance_growth").sel(d_k=64, scale="none", sigma=1)
    # ±1: P(|s| <= 8) of 64 steps. Gaussian: the exact share, some 68 %. Uniform: between it and the normal's.
    truth = xr.DataArray([0.7396, 0.6864, 0.683], {"law": ["rademacher", "gaussian", "uniform"]})
    assert_agrees(within, "score_within_sigma", truth, rounding=0.001)


def test_the_log_log_slope_is_1_and_after_scaling_0() -> None:
    for scale, truth in (("none", 1), ("sqrt_dk", 0)):
        lines = own("variance_growth", "log_log_slope")(dataset("variance_growth"), scale)
        assert list(lines) == ["rademacher", "gaussian", "uniform"]
        for line in lines.values():
            assert abs(line.slope - truth) < line.half_width(1 - FALSE_ALARM / 6) < 0.01


def test_64_dimensions_under_the_three_rules() -> None:
    rules = dataset("scale_rules").sel(d_k=64)
    assert_agrees(rules, "score_std", xr.DataArray([8, 1, 0.125], {"scale": ["none", "sqrt_dk", "dk"]}))


def test_weights_saturate_unscaled_stay_under_sqrt_dk_and_become_uniform_under_dk() -> None:
    rules, keys = dataset("scale_rules"), 128
    lowest = rules["weight_max"] - figures.half_width(rules, "weight_max", 1 - FALSE_ALARM)
    assert lowest.sel(scale="none", d_k=1024) > 0.9
    assert (rules["weight_effective_keys"].sel(scale="none").diff("d_k") < 0).all()
    # Entropy is ln n − σ²/2 for small σ: the deficit within 5 % at 1/d_k, the entropy itself at 1/√d_k.
    entropy, d_k = rules["weight_entropy"], rules["d_k"]
    np.testing.assert_allclose((np.log(keys) - entropy.sel(scale="dk")) * 2 * d_k, 1, rtol=0.05)
    np.testing.assert_allclose(entropy.sel(scale="sqrt_dk"), np.log(keys) - 0.5, rtol=0.05)


def lengths_of_queries(d_k: int) -> np.ndarray:
    """Return equally probable values of ||q||: 2000 quantiles, an average over which is right to 1e-5."""
    return chi.ppf((np.arange(2000) + 0.5) / 2000, d_k)


def test_the_weights_of_longer_vectors_and_of_more_keys_are_those_of_normal_rows() -> None:
    for key in ("d_k", "n_keys"):
        rows = dataset("saturation", key)
        for variable in ("weight_max", "weight_entropy"):
            assert_agrees(rows, variable, rows[f"{variable}_theory"])


def test_two_keys_share_the_weight_by_the_logistic_function_of_their_difference() -> None:
    pair = dataset("saturation", "n_keys").sel(n_keys=2)
    spread = np.sqrt(2) * lengths_of_queries(64)[:, None]
    z = norm.ppf((np.arange(4000) + 0.5) / 4000)
    for rule, factor in (("none", 1), ("sqrt_dk", 1 / 8), ("dk", 1 / 64)):
        largest = expit(abs(factor * spread * z)).mean()
        assert_agrees(pair.sel(scale=rule), "weight_max", largest, rounding=1e-4)
        if rule != "dk":  # there no row is saturated
            rates = [2 * norm.sf(np.log(p / (1 - p)) / (factor * spread)).mean() for p in (0.9, 0.99)]
            assert_agrees(pair.sel(scale=rule), "saturation_rate", np.array(rates), rounding=1e-4)


def test_unscaled_rows_saturate_with_d_k_and_scaled_ones_of_128_keys_do_not() -> None:
    rates = dataset("saturation", "d_k").sel(threshold=0.9)
    longest_first = rates.sel(scale="none").isel(d_k=slice(None, None, -2))
    assert_falls(longest_first, "saturation_rate", "d_k")
    assert ends(longest_first, "saturation_rate")[0][0] > 0.75
    assert (rates["saturation_rate"].sel(scale="sqrt_dk") < 0.001).all()  # 3e-5 at d_k = 4
    stays = rates.sel(scale="sqrt_dk", d_k=slice(16, None))
    assert_agrees(stays, "weight_max", 0.0687, rounding=0.0002)


def test_more_keys_lower_the_largest_weight_under_every_rule() -> None:
    for rule in ("none", "sqrt_dk", "dk"):
        rows = dataset("saturation", "n_keys").sel(scale=rule, n_keys=[2, 32, 512, 4096])
        assert_falls(rows, "weight_max", "n_keys")


def test_rows_freeze_at_the_threshold() -> None:
    for key in ("d_k", "n_keys"):
        rows = dataset("saturation", key)
        rows = rows.sel(n_keys=slice(16, None)) if key == "n_keys" else rows
        at = own("saturation", "over_threshold")(rows)
        share = rows["weight_entropy"] / np.log(rows["n_keys"])
        assert (share.where(at < 0.5) > 0.75).sum() == (at < 0.5).sum() > 0
        assert (share.where(at > 1.8) < 0.25).sum() == (at > 1.8).sum() > 0


def test_the_jacobian_s_mean_square_hides_its_median() -> None:
    unscaled = dataset("gradients").sel(d_k=512, scale="none")
    assert_agrees(unscaled, "jacobian_frobenius_sq", 0.034, rounding=0.0005)
    median, se = unscaled["jacobian_frobenius_median"], unscaled["jacobian_frobenius_median_se"]
    squared = unscaled.assign(median_squared=median**2, median_squared_se=2 * median * se)
    assert_agrees(squared, "median_squared", 4e-5, rounding=0.5e-5)


def test_the_jacobian_is_exact_and_the_gradient_by_a_query_at_least_its_part_across() -> None:
    measured = own("gradients", "with_roots")(dataset("gradients"))
    for variable in ("jacobian_root_mean_square", "gradient_score"):
        assert_agrees(measured, variable, measured[f"{variable}_theory"])
    low, high = ends(measured, "gradient_query")
    across = measured["gradient_query_theory"]
    assert (high >= across).all()
    long = measured["d_k"] >= 64
    assert (low.where(long, 0) <= 1.02 * across).all()


def test_unscaled_the_mean_gradient_by_a_query_grows_and_the_median_collapses() -> None:
    unscaled, scaled = (dataset("gradients").sel(scale=rule) for rule in ("none", "sqrt_dk"))
    assert_falls(unscaled.isel(d_k=slice(None, None, -1)), "gradient_query", "d_k")
    assert_falls(unscaled.sel(d_k=slice(64, None)), "gradient_query_median", "d_k")
    assert_agrees(scaled.sel(d_k=slice(64, None)), "gradient_query", 0.1375, rounding=0.0006)
    assert_agrees(scaled.sel(d_k=slice(64, None)), "gradient_query_median", 0.1329, rounding=0.0006)
    assert ends(unscaled, "gradient_query")[0].sel(d_k=512) > 25 * 0.1375
    low, high = ends(unscaled, "gradient_query_median")
    assert low.sel(d_k=256) > 1.5 * 0.1329  # even the typical query gets more than with the scale
    assert high.sel(d_k=1024) < 0.1329 / 2


def test_unscaled_ever_more_rows_vanish() -> None:
    rates = dataset("gradients").sel(gradient_threshold=0.01)
    assert_falls(rates.sel(scale="none").isel(d_k=slice(None, 1, -1)), "vanishing_rate", "d_k")
    assert ends(rates, "vanishing_rate")[0].sel(d_k=1024, scale="none") > 0.5
    assert (rates["vanishing_rate"].sel(scale="sqrt_dk") == 0).all()


def test_a_mean_of_the_keys_widens_the_scores_but_no_row() -> None:
    scaled = own("nonzero_mean", "with_mean_square")(dataset("nonzero_mean", "plain")).sel(scale="sqrt_dk")
    q, k = scaled["query_mean"], scaled["key_mean"]
    assert_agrees(scaled, "score_mean", 8 * q * k)
    assert_agrees(scaled, "score_variance", 1 + q**2 + k**2)
    assert_agrees(scaled, "score_row_variance", 1 + q**2 + 0 * k)
    assert_agrees(scaled, "score_mean_square", 1 + q**2 + k**2 + 64 * q**2 * k**2)  # the variance if a mean is 0


def test_a_mean_of_the_keys_changes_no_weight_and_one_of_the_queries_does() -> None:
    scaled = dataset("nonzero_mean", "plain").sel(scale="sqrt_dk")
    for variable in ("weight_max", "weight_effective_keys"):
        others, none = scaled.sel(key_mean=slice(0.5, None)), scaled.sel(key_mean=0)
        se = np.hypot(others[f"{variable}_se"], none[f"{variable}_se"])
        shift = others.assign(shift=others[variable] - none[variable], shift_se=se)
        assert_agrees(shift, "shift", 0)
    assert_falls(scaled.isel(query_mean=slice(None, None, -1)), "weight_max", "query_mean")
    assert_falls(scaled, "weight_effective_keys", "query_mean")


def test_the_limits_of_the_types_are_where_they_round_to_infinity() -> None:
    limits = sys.modules[experiment("overflow").figure.__module__].LIMITS
    for dtype, limit in limits.items():
        with np.errstate(over="ignore"):
            assert np.isinf(np.dtype(dtype).type(limit))
            assert np.isfinite(np.dtype(dtype).type(np.nextafter(limit, 0)))


def assert_rates_agree(part: xr.Dataset, variable: str, exact: Any) -> None:
    """Compare the rates of which a thousandth and more is expected, and as much of the rest; the others are 0 or 1."""
    usual = (exact > 1e-3) & (exact < 1 - 1e-3)
    along = part[variable].dims[0]
    assert usual.any()
    assert_agrees(part.isel({along: usual}), variable, exact[usual])
    np.testing.assert_allclose(part[variable].isel({along: ~usual}), exact[~usual], atol=2e-3)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", np.log(65520)), ("float32", np.log(2) * 128)])
def test_exp_overflows_by_the_law_of_normal_rows(dtype: str, largest: float) -> None:
    def exact(d_k: int, factor: float) -> float:
        return 1 - (norm.cdf(largest / (factor * lengths_of_queries(d_k))) ** 128).mean()

    longer = dataset("overflow", "d_k").sel(dtype=dtype)
    unscaled = np.array([exact(d_k, 1) for d_k in longer["d_k"].values])
    assert_rates_agree(longer.sel(scale="none"), "exp_overflow_rate", unscaled)
    assert (longer["exp_overflow_rate"].sel(scale=["sqrt_dk", "dk"]) == 0).all()
    larger = dataset("overflow", "std").sel(dtype=dtype, scale="sqrt_dk")
    assert_rates_agree(larger, "exp_overflow_rate", np.array([exact(256, s**2 / 16) for s in larger["std"].values]))


def test_raw_scores_overflow_float16_by_the_law_of_a_product_of_normals() -> None:
    larger = dataset("overflow", "std")
    exact = [2 * norm.sf(65520 / (s**2 * lengths_of_queries(256))).mean() for s in larger["std"].values]
    assert_rates_agree(larger.sel(dtype="float16"), "score_overflow_rate", np.array(exact))
    assert (larger["score_overflow_rate"].sel(dtype="float32") == 0).all()
    # 256^(1/4) = 4: the scale within Q and K is worth elements four times as large.
    np.testing.assert_array_equal(own("overflow", "scale_first")(larger)["std"], 4 * larger["std"])


def test_the_curves_of_overflow_are_the_exact_probabilities() -> None:
    lengths = lengths_of_queries(64)
    rows = 1 - (norm.cdf(np.log(65520) / (2**2 / 8 * lengths)) ** 128).mean()
    assert own("overflow", "exp_overflow")("float16", 64, 128, 1 / 8, 2.0) == pytest.approx(rows, rel=1e-3)
    scores = 2 * norm.sf(65520 / (60**2 * lengths)).mean()
    assert own("overflow", "score_overflow")("float16", 64, 60.0) == pytest.approx(scores, rel=1e-3)


@pytest.mark.parametrize("name", TRIALS)
def test_a_stored_dataset_gives_the_same_small_files_twice(name: str, tmp_path: Path) -> None:
    for key in experiment(name).sweeps:
        write(dataset(name, key), tmp_path / f"{key}.nc")
    saved = []
    for folder in ("one", "two"):
        figure = drawn(name, {key: read(tmp_path / f"{key}.nc") for key in experiment(name).sweeps})
        saved.append([path.read_bytes() for path in figures.save(figure, tmp_path / folder)])
    assert saved[0] == saved[1]
    assert len(saved[0][0]) < 150_000


@pytest.mark.parametrize("name", TRIALS)
def test_one_trial_without_errors_can_be_drawn(name: str) -> None:
    single = {key: sim.run(sweep.replace(trials=1)) for key, sweep in experiment(name).sweeps.items()}
    assert drawn(name, single).axes
