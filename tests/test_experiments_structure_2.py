"""The experiments xavier, additive_attention, freezing and outliers show what their docstrings say.

False alarms are as rare as in :mod:`tests.test_experiments_content`: 1e-6 for each comparison, over all its values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import quad
from scipy.special import gamma

import sim
from sim.dataset import read, write
from sim.figures import save
from tests.test_experiments_content import assert_agrees, assert_falls, drawn, ends, experiment, own

TRIALS = {"xavier": 64, "additive_attention": 64, "freezing": 64, "outliers": 100}


@cache
def dataset(name: str, key: str = "data") -> xr.Dataset:
    parts = experiment(name)
    if key in parts.makers:
        return parts.makers[key](True)
    return sim.run(parts.sweeps[key].replace(trials=TRIALS[name]))


def datasets(name: str) -> dict[str, xr.Dataset]:
    return {key: dataset(name, key) for key in experiment(name).paths(Path())}


def of_xavier(function: str) -> Callable[..., Any]:
    return own("xavier", function)


def test_a_head_s_scores_have_the_variance_of_their_initialisation() -> None:
    heads = of_xavier("by_its_rule")(dataset("xavier", "heads"))
    d_k = heads["d_k"]
    xavier = (2 * 512 / (512 + d_k)) ** 2
    known = {"xavier_uniform": xavier, "xavier_normal": xavier, "he": 4, "lecun": 1, "torch_linear": 1 / 9}
    known |= {"gpt2": (0.02**2 * 512) ** 2, "fused_xavier": 1 / 4, "t5": 1}
    assert list(heads["projection_init"].values) == list(known)
    truth = xr.concat([value + 0.0 * d_k for value in known.values()], heads["projection_init"])
    np.testing.assert_allclose(heads["score_variance_theory"].transpose(*truth.dims), truth, rtol=1e-10)
    assert_agrees(heads, "score_variance", truth)
    # One head of 64: far from 1, as its interval says.
    assert ends(heads, "score_variance")[0].sel(d_k=64, projection_init="xavier_normal") > 2.5


def test_t5_is_not_to_be_scaled_again() -> None:
    scaled = dataset("xavier", "heads").sel(scale="sqrt_dk", projection_init="t5")
    assert_agrees(scaled, "score_variance", 1 / scaled["d_k"])


def test_square_projections_by_xavier_keep_the_scores_at_1_and_gpt2_s_grow_with_the_width() -> None:
    square = of_xavier("squares")(datasets("xavier"))
    assert list(square["d_k"].values) == [64, 128, 256, 512]
    assert_agrees(square.sel(projection_init=["xavier_uniform", "xavier_normal", "lecun", "t5"]), "score_variance", 1)
    gpt2 = square.sel(projection_init="gpt2")
    assert_agrees(gpt2, "score_variance", (0.02**2 * gpt2["d_k"]) ** 2)


def test_a_layer_keeps_both_variances_only_if_square() -> None:
    layer = dataset("xavier", "layer").sel(init="xavier_uniform")
    ratio = layer["n_out"] / layer["n_in"]
    assert_agrees(layer, "forward_variance", 2 / (1 + ratio))
    assert_agrees(layer, "backward_variance", 2 * ratio / (1 + ratio))
    for variable in ("forward_variance", "backward_variance"):
        low, high = ends(layer, variable)
        keeps = (low <= 1) & (high >= 1)
        np.testing.assert_array_equal(keeps, layer["n_out"] == layer["n_in"])


def test_le_cun_keeps_the_variance_forward_and_multiplies_it_backward() -> None:
    layer = dataset("xavier", "layer").sel(init="lecun")
    assert_agrees(layer, "forward_variance", 1)
    assert_agrees(layer, "backward_variance", layer["n_out"] / layer["n_in"])


def tanh_square(variance: float) -> float:
    """Return E tanh² of a normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    return float(weights @ np.tanh(variance**0.5 * nodes) ** 2 / weights.sum())


def as_many_units() -> tuple[xr.Dataset, xr.Dataset]:
    """Return additive scores of d_k units, with v of variance 1, and of variance 1 / d_k."""
    chosen = own("additive_attention", "as_many_units")
    return chosen(datasets("additive_attention")), chosen(datasets("additive_attention"), True)


def test_as_many_units_as_components_give_scores_that_grow_like_their_root() -> None:
    raw, small = as_many_units()
    assert list(raw["d_k"].values) == [16, 64, 256, 1024]
    # W's variance is 2 / (d_k + d_k), |q|² + |k|² about 2 d_k: preactivations of variance 2, in long vectors.
    one = tanh_square(2) ** 0.5
    assert one == pytest.approx(0.72, abs=0.005)
    assert_agrees(raw, "score_std", one * np.sqrt(raw["d_k"]), rounding=0.02)
    assert_agrees(small, "score_std", one, rounding=0.005)


def test_additive_scores_have_the_exact_spread_bounded_in_the_length_but_not_in_the_units() -> None:
    (raw, _), fixed = as_many_units(), dataset("additive_attention", "fixed").sel(scale="none")
    for part in (raw, fixed):
        assert_agrees(part, "score_std", part["score_std_theory"])
    # Preactivations of variance 4 d_k / (d_k + 64) < 4, however long the vectors.
    assert (ends(fixed, "score_std")[0] <= 8 * tanh_square(4) ** 0.5).all()
    assert_falls(raw.isel(d_k=slice(None, None, -1)), "score_std", "d_k")


def test_additive_rows_saturate_with_the_units_unless_v_is_small() -> None:
    (raw, small), dot = as_many_units(), dataset("additive_attention", "dot").sel(scale="none")
    assert_falls(raw.isel(d_k=slice(None, None, -1)), "weight_max", "d_k")
    assert ends(raw, "weight_max")[0].sel(d_k=1024) > 0.8
    assert (ends(small, "weight_max")[1] < 0.05).all()
    later = ends(raw, "weight_max")[1] < ends(dot, "weight_max")[0]
    assert later.sel(d_k=slice(256)).all()
    # Half of the variance is the query's own.
    assert_agrees(raw, "score_row_variance", raw["score_row_variance_limit"], rounding=0.1)


def test_times_are_measured_in_turns_for_every_size() -> None:
    times = dataset("additive_attention", "time")
    assert (times["seconds"] > 0).all()
    assert times["seconds"].dims == ("implementation", "score", "size", "repeat")
    ratio = times["seconds"].sel(score="additive") / times["seconds"].sel(score="dot")
    np.testing.assert_array_equal(times["ratio"], ratio)


def sigmas(law: str) -> xr.Dataset:
    return own("freezing", "over_sigma")(dataset("freezing")).sel(score_law=law, threshold=0.9)


def test_normal_rows_have_the_exact_weights_and_longer_ones_freeze_later() -> None:
    rows = sigmas("gaussian")
    for variable in ("weight_entropy", "weight_sum_squares", "weight_max"):
        assert_agrees(rows, variable, rows[f"{variable}_theory"])
    for sigma in (4, 6, 8):
        for lengths in ([256, 65536], [16, 4096]):  # short rows come in few groups, with wide intervals
            assert_falls(rows.sel(scale=sigma, n_keys=lengths), "weight_sum_squares", "n_keys")
    # As does the share of rows on one key, from 16 to 65 536.
    assert_falls(rows.sel(scale=8, n_keys=[16, 65536]), "saturation_rate", "n_keys")


def test_normal_rows_come_together_over_the_threshold() -> None:
    rows = own("freezing", "with_share")(sigmas("gaussian")).sel(n_keys=slice(256, None))
    at = rows["scale"] / own("freezing", "threshold")(rows["n_keys"])
    squares, share = rows["weight_sum_squares"], rows["entropy_share"]
    spread, frozen = at < 0.5, at > 2
    assert (squares.where(spread, 0) < 0.05).all()
    assert (share.where(spread, 1) > 0.75).all()
    assert (squares.where(frozen, 1) > 0.5).all()
    assert (share.where(frozen, 0) < 0.2).all()
    assert spread.sum() > 5
    assert frozen.sum() > 5


def test_laplace_rows_freeze_at_the_root_of_2_at_any_length() -> None:
    rows = sigmas("laplace").sel(n_keys=slice(4096, None))
    beyond = rows.sel(scale=slice(3, None))
    squares, rate = own("freezing", "frozen")(2**0.5 / beyond["scale"])
    assert_agrees(beyond, "weight_sum_squares", squares, rounding=0.01)
    assert_agrees(beyond, "saturation_rate", rate, rounding=0.01)
    assert (rows["weight_sum_squares"].sel(scale=slice(1)) < 0.02).all()
    assert_agrees(sigmas("laplace").sel(n_keys=16, scale=slice(3, None)), "weight_sum_squares", squares, rounding=0.03)
    # Normal scores of the same size are spread still.
    assert ends(sigmas("gaussian"), "weight_sum_squares")[1].sel(n_keys=65536, scale=3) < 0.1 < squares.sel(scale=3)


@pytest.mark.parametrize("m", [0.2, 0.5, 0.8])
def test_the_frozen_limits_are_integrals_over_poisson_and_dirichlet_s_density(m: float) -> None:
    def density(p: float) -> float:
        return p ** (-m - 1) * (1 - p) ** (m - 1) / (gamma(m) * gamma(1 - m))

    squares, rate = own("freezing", "frozen")(m)
    assert squares == pytest.approx(quad(lambda p: p**2 * density(p), 0, 1)[0], rel=1e-6)
    assert rate == pytest.approx(quad(density, 0.9, 1)[0], rel=1e-6)
    assert own("freezing", "frozen")(1.5) == (0, pytest.approx(0))


def eigenvalues(count: int, factor: float) -> np.ndarray:
    raw = np.array([factor**2] * count + [1.0] * (128 - count))
    return raw * 128 / raw.sum()


@pytest.mark.parametrize(("key", "power"), [("both", 2), ("keys", 1)])
def test_outliers_give_the_variance_and_the_kurtosis_of_few_components(key: str, power: int) -> None:
    part = dataset("outliers", key).sel(scale="sqrt_dk")
    names = ["within_count", "within_factor"] if key == "both" else ["key_within_count", "key_within_factor"]
    counts, factors = (part[name].values for name in names)
    spectra = np.array([[eigenvalues(count, factor) ** power for factor in factors] for count in counts])
    trace, square = spectra.sum(axis=-1), (spectra**2).sum(axis=-1)
    assert_agrees(part, "score_variance", xr.DataArray(trace / 128, dims=names))
    kurtosis = xr.DataArray(6 * square / trace**2, dims=names)
    np.testing.assert_allclose(part["score_excess_kurtosis_theory"], kurtosis, rtol=1e-6)
    # Where products of a few normals are left, the estimate of so few trials is skewed, and its error with it.
    many = kurtosis < 1
    for i in range(len(counts)):
        assert_agrees(part.isel({names[0]: i, names[1]: many[i]}), "score_excess_kurtosis", kurtosis[i, many[i]])
    d_eff = own("outliers", "effective")(part, key == "both")["d_eff"]
    np.testing.assert_allclose(d_eff, 6 / kurtosis)


def test_outliers_on_both_sides_saturate_rows_and_the_scores_own_scale_cures_it() -> None:
    both, keys = dataset("outliers", "both"), dataset("outliers", "keys")
    for part in (both, keys):
        assert_agrees(part, "weight_max", part["weight_max_theory"])
    scaled = both.sel(scale="sqrt_dk")
    assert_falls(
        scaled.isel(within_factor=slice(None, None, -1)).sel(within_factor=[16, 8, 4, 1]), "weight_max", "within_factor"
    )
    assert (ends(scaled, "weight_max")[0].sel(within_factor=32) > 0.5).all()
    own_scale = own("outliers", "own_scaled")(both)
    assert_agrees(own_scale, "score_variance", 1, rounding=1e-5)
    plain = scaled["weight_max_theory"].isel(within_count=0, within_factor=0).item()
    for part in (own_scale, keys):
        assert_agrees(part, "weight_max", plain, rounding=0.005)


@pytest.mark.parametrize("name", TRIALS)
def test_a_stored_dataset_gives_the_same_small_files_twice(name: str, tmp_path: Path) -> None:
    for key, each in datasets(name).items():
        write(each, tmp_path / f"{key}.nc")
    saved = []
    for folder in ("one", "two"):
        figure = drawn(name, {key: read(tmp_path / f"{key}.nc") for key in datasets(name)})
        saved.append([path.read_bytes() for path in save(figure, tmp_path / folder)])
    assert saved[0] == saved[1]
    assert len(saved[0][0]) < 150_000


@pytest.mark.parametrize("name", TRIALS)
def test_one_trial_without_errors_can_be_drawn(name: str) -> None:
    single = {key: sim.run(sweep.replace(trials=1)) for key, sweep in experiment(name).sweeps.items()}
    made = {key: dataset(name, key) for key in experiment(name).makers}
    assert drawn(name, single | made).axes
