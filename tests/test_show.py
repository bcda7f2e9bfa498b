"""A dataset as text: errors and theory beside the estimates, and no dataset too bare to be shown."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from sim.errors import InputError
from sim.show import find_datasets, print_dataset, with_error


def measured(trials: int = 100) -> xr.Dataset:
    """A small dataset of every kind of variable."""
    values = np.array([[4.1, 1.02], [15.0, 0.9]])
    dims = ("d_k", "scale")
    return xr.Dataset(
        {
            "score_variance": (dims, values, {"long_name": "variance of the scores", "units": "1"}),
            "score_variance_se": (dims, [[0.1, 0.03], [0.4, 0.0]]),
            "score_variance_theory": (dims, [[4.0, 1.0], [16.0, np.nan]]),
            "weight_max": (dims, values, {"long_name": "largest [weight]"}),
            "weight_max_se": (dims, values / 100),
            "weight_max_limit": (dims, values),
            "score_max": (dims, values),
            "score_within_sigma": ((*dims, "sigma"), np.full((2, 2, 3), 0.5)),
            "score_histogram": ((*dims, "bin"), np.zeros((2, 2, 258))),
            "trials": ("d_k", [trials, trials]),
        },
        coords={"d_k": [4, 16], "scale": ["none", "sqrt_dk"], "sigma": [1, 2, 3], "seed": 0, "n_keys": 8},
    )


def shown(path: Path) -> str:
    text = io.StringIO()
    print_dataset(path, Console(file=text, width=200))
    return text.getvalue()


def test_show_puts_error_and_theory_beside_each_estimate(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    measured().to_netcdf(path, engine="h5netcdf")
    lines = [line.rstrip() for line in shown(path).splitlines()]
    assert lines[:2] == [str(path), "seed = 0, n_keys = 8, trials = 100"]
    assert "score_variance: variance of the scores" in lines
    assert "weight_max: largest [weight]" in lines
    rows = [line.split() for line in lines]
    assert ["4", "none", "4.10", "±", "0.10", "4", "+1.0"] in rows
    assert ["16", "none", "15.00", "±", "0.40", "16", "-2.5"] in rows
    assert ["16", "sqrt_dk", "0.9", "±", "0", "–", "–"] in rows
    assert ["4", "none", "1", "0.5"] in rows
    assert lines[-1] == "Not listed: score_histogram"


@pytest.mark.parametrize(
    "dataset",
    [
        xr.Dataset(),
        xr.Dataset({"x": 1.0}),
        xr.Dataset({"x": ("axis_0", [1.0, np.nan]), "x_se": ("axis_0", [np.nan, np.nan])}),
        xr.Dataset({"x": ("n", np.arange(500.0)), "label": ("n", ["a"] * 500)}),
        xr.Dataset({"x_se": 1.0, "x_theory": 2.0}),
        xr.Dataset({"x": (("a", "b", "c", "d"), np.ones((2, 2, 2, 2))), "x_se": ("a", [0.1, 0.2]), "x_theory": 1.0}),
        xr.Dataset({"x": ("a", np.empty(0)), "trials": ("a", np.empty(0, dtype=int))}),
        xr.Dataset({"x": True, "y": 3}),
        xr.Dataset({"x": ("a", [1.0, 2.0]), "x_se": ("b", [0.1, 0.2, 0.3])}),
        xr.Dataset({"x": ("a", [1.0, 2.0]), "x_se": ("a", ["small", "large"])}),
    ],
)
def test_show_reads_datasets_that_lack_things(tmp_path: Path, dataset: xr.Dataset) -> None:
    path = tmp_path / "some.nc"
    dataset.to_netcdf(path, engine="h5netcdf")
    assert shown(path).startswith(str(path))


def test_show_leaves_the_groups_tallies_out(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    tallies = {"tally": (("tally_node", "tally_field"), np.ones((3, 4))), "tally_blocks": ("tally_node", [1, 1, 1])}
    measured().assign(tallies).to_netcdf(path, engine="h5netcdf")
    assert "tally" not in shown(path)


def test_a_damaged_dataset_is_refused_before_anything_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    noise = xr.Dataset({"x": ("n", np.random.default_rng(0).normal(size=10_000))})
    noise.to_netcdf(path, engine="h5netcdf", encoding={"x": {"zlib": True}})
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as netCDF"):
        shown(path)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.00234567, 0.00123, "1.0023 ± 0.0012"),
        (12345.6, 123.4, "12350 ± 120"),
        (0.5, 0.0996, "0.50 ± 0.10"),
        (3.0, 20.0, "3 ± 20"),
        (1.234e-7, 5.6e-9, "(1.234 ± 0.056)e-07"),
        (0.0, 3e-9, "(0.0 ± 3.0)e-09"),
        (-2.5e9, 1e7, "(-2.500 ± 0.010)e+09"),
        (0.25, 0.0, "0.25 ± 0"),
        (0.25, np.nan, "0.25"),
        (np.nan, 0.1, "–"),
        (np.inf, 0.1, "inf"),
    ],
)
def test_an_estimate_has_the_digits_that_its_error_allows(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


def test_a_dataset_is_found_by_path_folder_or_name(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one/data.nc", "two/a.nc", "two/b.nc")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    assert find_datasets(str(files[0]), tmp_path) == files[:1]
    assert find_datasets(str(tmp_path / "two"), Path("nowhere")) == files[1:]
    assert find_datasets("one", tmp_path) == files[:1]
    assert find_datasets("two/b", tmp_path) == files[2:]
    with pytest.raises(InputError, match=r"'tow' is neither .*; did you mean 'two'\? \(names there: one, two\)"):
        find_datasets("tow", tmp_path)


def test_only_the_variables_asked_for_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "data.nc"
    measured().to_netcdf(path, engine="h5netcdf")
    console = Console(width=200, record=True, file=io.StringIO())
    print_dataset(path, console, ["weight_max"])
    text = console.export_text()
    assert "weight_max" in text
    assert "score_variance" not in text
    with pytest.raises(InputError, match=r"'weight_mix' is not in .*did you mean 'weight_max'"):
        print_dataset(path, console, ["weight_mix"])
