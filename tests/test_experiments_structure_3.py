"""What the experiments on rules, half precision and wrong scales say of themselves is what their datasets show.

Comparisons raise a false alarm with probability 1e-6 each, as in `test_experiments_content`.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sim
from sim import figures
from tests.test_experiments_content import assert_agrees, assert_falls, ends, experiment

TRIALS = {"modern_rules": 40, "low_precision": 40, "wrong_scale": 300}


@cache
def dataset(name: str, key: str = "data") -> xr.Dataset:
    return sim.run(experiment(name).sweeps[key].replace(trials=TRIALS[name]))


def module(name: str) -> Any:
    return sys.modules[experiment(name).figure.__module__]


def under(key: str, rule: str) -> xr.Dataset:
    """Return the part of `modern_rules` under a rule, with the spread and the relative gradient."""
    made = module("modern_rules")
    return made.under(made.with_relative(dataset("modern_rules", key)), rule)


def test_the_spread_over_d_k_is_each_rule_s_own() -> None:
    d_k = dataset("modern_rules", "d_k")["d_k"]
    spreads = {"1/√d": 1 + 0 * d_k, "1/d": d_k**-0.5, "cosine": 10 * d_k**-0.5}
    spreads |= {"normalised": 1.25**2 + 0 * d_k, "log n": 0.43 * np.log(128) + 0 * d_k}
    for rule, spread in spreads.items():
        part = under("d_k", rule)
        np.testing.assert_allclose(part["row_spread_theory"], spread, rtol=1e-6)
        assert_agrees(part, "row_spread", spread)


@pytest.mark.parametrize("key", ["d_k", "n_keys"])
def test_elements_of_size_1_do_not_notice_the_cap(key: str) -> None:
    capped, free = under(key, "soft cap"), under(key, "1/√d")
    np.testing.assert_allclose(capped["row_spread"], free["row_spread"], rtol=3e-3)  # on the same draw
    np.testing.assert_allclose(capped["weight_max"], free["weight_max"], rtol=1e-2)


def test_only_ln_n_keeps_the_largest_weight() -> None:
    for rule in ("1/√d", "1/d", "normalised"):
        rows = under("n_keys", rule).isel(n_keys=slice(None, None, 2))
        assert_falls(rows, "weight_max", "n_keys")
        assert ends(rows, "weight_max")[1][-1] < 0.03
    low, high = ends(under("n_keys", "log n"), "weight_max")
    assert (low > 0.2).all()
    assert (high < 0.35).all()


def test_larger_elements_saturate_rows_unless_normalised() -> None:
    for rule, most in {"1/√d": 0.95, "log n": 0.95, "soft cap": 0.4}.items():
        rates = under("std", rule)["saturation_rate"].sel(threshold=0.9)
        assert rates.max() > most, rule
    capped = under("std", "soft cap").sel(threshold=0.9)
    assert ends(capped, "saturation_rate")[1].max() < 0.6
    assert (capped["saturation_rate"].sel(std=[0.5, 16]) == 0).all()
    for rule in ("normalised", "normalised, capped"):
        part = under("std", rule)
        assert (part["saturation_rate"] < 0.01).all()
        assert_agrees(part, "row_spread", 1.25**2, rounding=0.005)


def test_the_typical_gradient_dies_with_larger_elements_unless_normalised() -> None:
    for rule in ("1/√d", "log n"):
        gradient = under("std", rule)["relative_gradient"]
        assert not gradient.sel(std=11) > 1e-3 * gradient.max()  # blank where it is below all bins
    capped, normalised = under("std", "soft cap"), under("std", "normalised")
    assert ends(capped, "relative_gradient")[0].sel(std=16) > 0.1
    assert_agrees(normalised, "relative_gradient", float(normalised["relative_gradient"].mean()))


def test_capping_normalised_scores_changes_next_to_nothing() -> None:
    for key in ("d_k", "n_keys", "std"):
        free, capped = under(key, "normalised"), under(key, "normalised, capped")
        np.testing.assert_allclose(capped["weight_max"], free["weight_max"], rtol=0.03)
        np.testing.assert_allclose(capped["weight_entropy"], free["weight_entropy"], rtol=0.01)


def usual(rates: np.ndarray) -> np.ndarray:
    """Return where a rate is far enough from 0 and 1 for a normal error."""
    return (rates > 0.01) & (rates < 0.99)


def test_rows_are_lost_by_the_law_of_normal_rows_and_fourfold_later_with_the_scale_first() -> None:
    half, own = dataset("low_precision", "std").sel(scale="sqrt_dk"), module("low_precision")
    for place, later in {"scores": 1, "query": 4, "both": 4}.items():
        part = half.sel(scale_at=place)
        exact = np.array([own.lost_rows(256, 128, std / later) for std in part["std"].values])
        assert usual(exact).any()
        assert_agrees(part.isel(std=usual(exact)), "row_overflow_rate", exact[usual(exact)])
        np.testing.assert_allclose(part["row_overflow_rate"].isel(std=~usual(exact)), exact[~usual(exact)], atol=0.02)


def test_the_root_on_both_sides_is_the_scale_on_one() -> None:
    half = dataset("low_precision", "std")["row_overflow_rate"]
    np.testing.assert_allclose(half.sel(scale_at="both"), half.sel(scale_at="query"), atol=1e-3)


def test_bfloat16_loses_no_row() -> None:
    assert (dataset("low_precision", "bfloat16")["row_overflow_rate"] == 0).all()


def test_unscaled_weights_and_jacobians_are_exactly_0() -> None:
    longer, own = dataset("low_precision", "d_k"), module("low_precision")
    unscaled = longer.sel(scale="none", precision="float16")
    exact = np.array([own.zero_jacobians("float16", int(d), 128) for d in unscaled["d_k"].values])
    assert exact[-1] == pytest.approx(0.485, abs=0.01)
    # the scores are rounded too, by a part in a thousand of the distance that decides
    assert_agrees(unscaled.isel(d_k=usual(exact)), "jacobian_zero_rate", exact[usual(exact)], rounding=0.005)
    assert ends(unscaled, "weight_zero_rate")[0][-1] > 0.95
    assert_falls(unscaled.isel(d_k=slice(None, 1, -2)), "weight_zero_rate", "d_k")
    for variable in ("jacobian_zero_rate", "weight_zero_rate"):
        assert (longer[variable].sel(scale="sqrt_dk") == 0).all()


def test_fewer_are_0_in_bfloat16() -> None:
    unscaled = dataset("low_precision", "d_k").sel(scale="none", precision="bfloat16")
    assert own_bfloat16_rate() == pytest.approx(0.0095, abs=0.0005)
    assert unscaled["jacobian_zero_rate"].sel(d_k=4096) == pytest.approx(own_bfloat16_rate(), abs=0.008)
    assert (unscaled[["jacobian_zero_rate", "weight_zero_rate"]].sel(d_k=slice(None, 64)) == 0).to_array().all()
    low, high = ends(unscaled, "weight_zero_rate")
    assert low.sel(d_k=4096) > 0.8
    assert high.sel(d_k=256) < 0.01


def own_bfloat16_rate() -> float:
    return module("low_precision").zero_jacobians("bfloat16", 4096, 128)


def test_a_common_shift_adds_the_noise_of_rounding() -> None:
    shifts, own = dataset("low_precision", "key_mean"), module("low_precision")
    exact = own.shifted(shifts, "float32")
    assert_agrees(exact, "score_row_variance", exact["score_row_variance_theory"])
    for precision in ("float16", "bfloat16"):
        part = own.shifted(shifts, precision)
        variance = own.rounded_variance(shifts, precision, part["key_mean"].values)
        # where numbers about to double their step are as common as those that did, by the share of each
        assert_agrees(part, "score_row_variance", variance, rounding=0.03 * variance)
    drowned = own.shifted(shifts, "bfloat16").sel(key_mean=32768)
    assert ends(drowned, "score_row_variance")[0] > 4 * 2


def test_the_noise_of_rounding_is_sheppard_s_for_small_steps_and_linear_for_large() -> None:
    noise = module("low_precision").rounding_noise(np.array([0.0, 0.5, 1.0, 100.0]), 1.0)
    np.testing.assert_allclose(noise[:3], [0, 0.25 / 12, 1 / 12], rtol=1e-6)
    assert noise[3] + 1 == pytest.approx(100 / np.sqrt(np.pi), rel=1e-2)
    draws = np.random.default_rng(0).standard_normal((400, 1000))
    phases = np.random.default_rng(1).random((400, 1))
    measured = np.var(np.round(draws / 2 + phases) * 2, axis=1, ddof=1)
    (expected,) = module("low_precision").rounding_noise(np.array([2.0]), 1.0) + 1
    assert abs(measured.mean() - expected) < 5 * measured.std() / np.sqrt(400)


def test_a_wrong_scale_is_measured_as_theory_has_it() -> None:
    scales = dataset("wrong_scale")
    for variable in ("score_row_variance", "weight_entropy", "weight_max", "jacobian_frobenius_sq"):
        assert_agrees(scales, variable, scales[f"{variable}_theory"])
    head = scales.sel(n_queries=64)
    assert_agrees(head, "gradient_query", head["gradient_query_limit"], rounding=0.01 * head["gradient_query_limit"])


def test_too_small_a_scale_leaves_uniform_weights_and_small_gradients() -> None:
    own = module("wrong_scale")
    head = own.over_times(dataset("wrong_scale")).sel(n_queries=64)
    right = head.sel(times=1)
    for times, share, smaller in ((1 / np.sqrt(128), 0.999, 17.6), (1 / np.sqrt(8), 0.985, 4.15)):
        wrong = head.sel(times=times, method="nearest")
        assert ends(wrong, "weight_entropy")[0] > share * np.log(128)
        assert right["gradient_query"] / wrong["gradient_query"] == pytest.approx(smaller, rel=0.02)
    unscaled = head.sel(times=np.sqrt(128), method="nearest")
    assert ends(unscaled.sel(threshold=0.9), "saturation_rate")[0] > 0.5


def test_six_per_cent_are_seen_in_a_head_and_not_in_a_row() -> None:
    scales, own = dataset("wrong_scale"), module("wrong_scale")
    mistake = own.MISTAKES["√144 for √128"]
    for variable in ("score_row_variance", "weight_entropy", "jacobian_frobenius_sq", "gradient_query"):
        assert mistake < own.seen_from(scales, variable, 64) < 1
        one = own.seen_from(scales, variable, 1)
        assert not one > 0.85, variable
    assert own.seen_from(scales, "weight_entropy", 64) == pytest.approx(0.97, abs=0.01)
    assert own.seen_from(scales, "weight_entropy", 1) == pytest.approx(0.72, abs=0.05)
    # of scatter, and of the slope of ln n - times^2 / 2
    one = own.over_times(scales).sel(n_queries=1, times=1)
    assert own.scatter(one, "weight_entropy") == pytest.approx(0.11, abs=0.02)


def test_saturation_sees_only_scales_that_are_much_too_large() -> None:
    head = module("wrong_scale").over_times(dataset("wrong_scale")).sel(n_queries=64, threshold=0.5)
    rows = 64 * head["saturation_rate"]
    assert (rows.sel(times=slice(None, 1.5)) < 1).all()
    assert 3 < rows.sel(times=2) < 5


def test_what_is_seen_is_blank_where_no_scale_is_far_enough() -> None:
    assert np.isnan(module("wrong_scale").seen_from(dataset("wrong_scale"), "weight_max", 1))
    upward = module("wrong_scale").seen_from(dataset("wrong_scale"), "weight_max", 1, upward=True)
    assert 1.4 < upward < 2


@pytest.mark.parametrize("name", TRIALS)
def test_the_figures_are_drawn_from_small_runs(name: str) -> None:
    for trials in (1, TRIALS[name]):
        sweeps = experiment(name).sweeps
        made = {key: dataset(name, key) if trials > 1 else sim.run(sweeps[key].replace(trials=1)) for key in sweeps}
        with figures.style():
            assert experiment(name).figure(made["data"] if experiment(name).single else made).axes
