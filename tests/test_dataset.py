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
from sim.observables import OBSERVABLES

CELLS = {"d_k": [4, 16], "n_queries": 8, "n_keys": 12, "trials": 40}
WITHOUT_ERROR = {"score_min", "score_max"}
BOOKKEEPING = {"trials", "groups", "scale_factor", "score_moments", "score_bin_edge"}


@pytest.fixture(scope="module")
def dataset():
    return sim.run(sim.Sweep(**CELLS, key={"mean": [0.0, 0.5, 1.0]}))


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


def test_every_estimate_has_an_error_a_theory_and_says_what_it_is(dataset):
    for name, entry in OBSERVABLES.items():
        variable = dataset[name]
        assert variable.attrs["definition"]
        assert variable.attrs["units"]
        assert variable.dims[-1 - len(entry.dims)] == "scale"
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
    sweep = sim.Sweep(**CELLS, key={"mean": [0.0, 0.5, 1.0]})
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


def test_tallies_of_a_cell_stay_small(tmp_path):
    write(sim.run(sim.Sweep(d_k=64, n_tokens=64, trials=6400)), tmp_path / "data.nc")
    with h5py.File(tmp_path / "data.nc") as file:
        assert file["tally"].id.get_storage_size() < 200_000
