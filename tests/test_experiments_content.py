"""The experiments give the documents' own numbers, and the same figure from the same dataset.

Each test that compares measurements with numbers raises a false alarm with probability 1e-6, over all its checks:
the limit is the quantile of Student's t, with groups − 1 degrees of freedom, at 1e-6 / checks.
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
from scipy.stats import binom

import sim
from sim import figures
from sim.dataset import read, write
from sim.experiments import Experiment, find, load

FALSE_ALARM = 1e-6
TRIALS = {"random_walk": 1000, "variance_growth": 300, "scale_rules": 200}


@cache
def experiment(name: str) -> Experiment:
    return load(find(name))


@cache
def dataset(name: str) -> xr.Dataset:
    return sim.run(experiment(name).sweeps["data"].replace(trials=TRIALS[name]))


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


@pytest.mark.parametrize("name", TRIALS)
def test_a_stored_dataset_gives_the_same_small_files_twice(name: str, tmp_path: Path) -> None:
    write(dataset(name), tmp_path / "data.nc")
    saved = []
    for folder in ("one", "two"):
        with figures.style():
            figure = experiment(name).figure(read(tmp_path / "data.nc"))
        saved.append([path.read_bytes() for path in figures.save(figure, tmp_path / folder)])
    assert saved[0] == saved[1]
    assert len(saved[0][0]) < 150_000


@pytest.mark.parametrize("name", TRIALS)
def test_one_trial_without_errors_can_be_drawn(name: str) -> None:
    single = sim.run(experiment(name).sweeps["data"].replace(trials=1))
    with figures.style():
        assert experiment(name).figure(single).axes
