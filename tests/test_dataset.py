"""The dataset keeps the contract: names, dimensions, attributes, and files that are whole or not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

import sim
from sim.dataset import is_current, read, write
from sim.observables import OBSERVABLES, observed
from sim.plan import layout
from sim.tally import FAMILIES

CELLS = {"d_k": [4, 16], "n_queries": 8, "n_keys": 12, "trials": 40}
WITHOUT_ERROR = {"score_min", "score_max"}
BOOKKEEPING = {"trials", "groups", "scale_factor", "score_moments", "score_bin_edge"}


@pytest.fixture(scope="module")
def dataset():
    return sim.run(sim.Sweep(**CELLS, key={"mean": [0.0, 0.5, 1.0]}, observables=FAMILIES))


def test_axes_become_dimensions_in_the_order_of_the_fields(dataset):
    assert dataset["score_mean"].dims == ("d_k", "key_mean", "scale")
    assert dataset["d_k"].values.tolist() == [4, 16]
    assert dataset["scale"].values.tolist() == ["none", "sqrt_dk", "dk"]


def test_scalars_stay_scalar_coordinates(dataset):
    assert int(dataset["n_queries"]) == 8
    assert float(dataset["query_mean"]) == 0.0
    assert str(dataset["key_law"].item()) == "gaussian"


@pytest.mark.parametrize("n_tokens", [4, [4, 6]])
def test_both_counts_are_coordinates_however_they_were_given(n_tokens):
    dataset = sim.run(sim.Sweep(d_k=4, n_tokens=n_tokens, trials=2))
    for name in ("n_tokens", "n_queries", "n_keys"):
        assert dataset[name].values.tolist() == n_tokens


def sweep_of(dataset):
    return sim.Sweep(**json.loads(dataset.attrs["sweep"]))


def test_every_estimate_has_an_error_a_theory_and_says_what_it_is(dataset):
    sweep = sweep_of(dataset)
    for name in observed(sweep, layout(sweep)):
        entry, variable = OBSERVABLES[name], dataset[name]
        assert variable.attrs["definition"]
        assert variable.attrs["units"]
        dims = ("scale", *entry.dims) if entry.has_scale else entry.dims
        assert variable.dims == ("d_k", "key_mean", *dims)
        if name in WITHOUT_ERROR:
            assert f"{name}_se" not in dataset
        else:
            assert variable.attrs["ancillary_variables"] == f"{name}_se"
            assert dataset[f"{name}_se"].dims == variable.dims
            assert dataset[f"{name}_theory"].dims == variable.dims


def test_there_is_nothing_but_estimates_bookkeeping_and_tallies(dataset):
    known = set(BOOKKEEPING)
    for name in OBSERVABLES:
        known |= {name, f"{name}_se", f"{name}_theory", f"{name}_limit"}
    assert {name for name in dataset.data_vars if not name.startswith("tally")} <= known


def test_extra_dimensions_have_their_coordinates(dataset):
    assert dataset["saturation_rate"].dims[-1] == "threshold"
    assert dataset["threshold"].values.tolist() == [0.9, 0.99, 0.999]
    assert dataset["vanishing_rate"].dims[-1] == "gradient_threshold"
    assert dataset["gradient_threshold"].values.tolist() == [0.1, 0.01, 0.001]
    assert dataset["exp_overflow_rate"].dims[-2:] == ("scale", "dtype")
    assert "scale" not in dataset["score_overflow_rate"].dims
    assert dataset["dtype"].values.tolist() == ["float16", "float32"]
    assert dataset["sigma"].values.tolist() == [1, 2, 3]
    assert dataset["quantile"].values.tolist() == [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
    assert dataset.sizes["bin"] == 258
    assert dataset["score_bin_edge"].dims == ("d_k", "key_mean", "scale", "bin_edge")


def test_bookkeeping(dataset):
    assert (dataset["trials"] == 40).all()
    assert (dataset["groups"] >= 5).all()
    assert np.allclose(dataset["scale_factor"].sel(scale="sqrt_dk", d_k=16), 0.25)
    assert np.isinf(dataset["score_moments"]).all()


def test_attributes_say_where_the_numbers_come_from(dataset):
    names = {"sim_version", "git_commit", "seed", "sweep", "sweep_hash", "code_digest", "schema_version", "device"}
    names |= {"threads", "blas", "numba_version", "numpy_version", "created", "elapsed_seconds", "command"}
    assert names <= dataset.attrs.keys()
    assert sim.Sweep(**json.loads(dataset.attrs["sweep"])).hash == dataset.attrs["sweep_hash"]


def test_a_file_reads_back_as_it_was_written(dataset, tmp_path):
    path = tmp_path / "new" / "data.nc"
    write(dataset, path)
    stored = read(path)
    assert stored.attrs == dataset.attrs
    xr.testing.assert_equal(stored, dataset)


def test_it_opens_with_plain_xarray_without_this_package(dataset, tmp_path):
    write(dataset, tmp_path / "data.nc")
    code = (
        "import sys, xarray as xr; ds = xr.open_dataset('data.nc'); print(ds)\n"
        "assert 'score_variance_se' in ds and 'score_variance_theory' in ds and 'sim' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "score_variance" in done.stdout


def test_a_write_that_fails_leaves_the_old_file_and_no_other(dataset, tmp_path, monkeypatch):
    path = tmp_path / "data.nc"
    write(dataset, path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(dataset.isel(d_k=0), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["data.nc"]


def test_current_means_the_same_sweep_by_the_same_code(dataset, tmp_path, monkeypatch):
    path = tmp_path / "data.nc"
    sweep = sim.Sweep(**CELLS, key={"mean": [0.0, 0.5, 1.0]}, observables=FAMILIES)
    assert not is_current(path, sweep)
    write(dataset, path)
    assert is_current(path, sweep)
    assert not is_current(path, sweep.replace(trials=41))
    monkeypatch.setattr("sim.dataset.code_digest", lambda: "other")
    assert not is_current(path, sweep)


def test_a_file_that_is_no_dataset_is_refused_with_its_name(tmp_path):
    (tmp_path / "x.nc").write_text("no netCDF")
    with pytest.raises(sim.InputError, match=r"x\.nc: not a netCDF file"):
        read(tmp_path / "x.nc")
    with pytest.raises(sim.InputError, match=r"y\.nc: there is no such dataset"):
        read(Path(tmp_path / "y.nc"))


def test_a_damaged_dataset_is_not_current_and_is_refused(dataset, tmp_path):
    path = tmp_path / "data.nc"
    write(dataset, path)
    content = path.read_bytes()
    path.write_bytes(content[:48] + bytes(len(content) - 48))  # the signature and the length are right
    assert not is_current(path, sim.Sweep(**CELLS))
    with pytest.raises(sim.InputError, match=r"data\.nc: not a netCDF file that can be read"):
        read(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is needed")
def test_a_full_disk_is_an_error_and_no_crash(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "with_name", lambda *_: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(OSError, match="No space left"):
        write(dataset, tmp_path / "data.nc")
    assert not list(tmp_path.iterdir())


def test_the_stored_bins_are_those_of_the_nodes(dataset):
    """Occupied bins alone, node after node, each by its distance from the one before."""
    parts = json.loads(dataset["tally_bin"].attrs["parts"])
    assert parts.keys() == {"score_histogram", "frobenius_sizes", "gradient_query_sizes"}
    bins = sum(int(np.prod(shape)) for _, *shape in parts.values())
    entries = dataset["tally_entries"].values
    assert entries[entries >= 0].sum() == dataset.sizes["tally_entry"]
    starts = np.cumsum([0, *entries[entries >= 0]])
    nodes = (entries >= 0).sum(axis=-1).ravel()
    of_cell, first = [], 0
    for count in nodes:
        whole = np.zeros(bins, int)
        for i in range(first, first + count):
            steps = dataset["tally_bin"].values[starts[i] : starts[i + 1]]
            assert (steps[1:] > 0).all()
            whole[np.cumsum(steps)] += dataset["tally_count"].values[starts[i] : starts[i + 1]]
        of_cell.append(whole)
        first += count
    at, size = parts["score_histogram"]
    shares = dataset["score_histogram"].values[:, :, 0].reshape(-1, size)
    for whole, share in zip(of_cell, shares, strict=True):
        np.testing.assert_allclose(whole[at : at + size] / (40 * 8 * 12), share, rtol=1e-12)
        at_sizes, scales, size_bins = parts["frobenius_sizes"]
        counts = whole[at_sizes : at_sizes + scales * size_bins].reshape(scales, size_bins)
        assert (counts.sum(axis=1) == 40 * 8).all()


def test_absent_nodes_are_marked(dataset):
    absent = dataset["tally_first_block"].values < 0
    assert (dataset["tally_entries"].values[absent] == -1).all()
    assert (dataset["tally_blocks"].values[absent] == -1).all()
    assert np.isnan(dataset["tally"].values[absent]).all()


def test_tallies_of_a_cell_stay_small(tmp_path):
    write(sim.run(sim.Sweep(d_k=64, n_tokens=64, trials=6400, observables=FAMILIES)), tmp_path / "data.nc")
    with h5py.File(tmp_path / "data.nc") as file:
        names = [name for name in file if name.startswith("tally")]
        assert sum(file[name].id.get_storage_size() for name in names) < 250_000
