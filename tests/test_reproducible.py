"""The promise of design 4: a number depends on its place, never on how it came to be computed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import sim
import sim.plan
from sim.tally import FAMILIES

FIELDS = {
    "name": "reproducible",
    "d_k": [3, 16],
    "n_queries": 5,
    "n_keys": [1, 600],
    "trials": 333,
    "key": {"law": ["rademacher", "gaussian", "uniform"], "mean": 0.5},
    "observables": FAMILIES,
}
TALLIES = ("tally", "tally_first_block", "tally_blocks", "tally_entries", "tally_bin", "tally_count")


# Of all cells one after the other; compared cell by cell by `bins_of`.
STRUNG = ("tally_bin", "tally_count")


def run(threads=2, **fields) -> xr.Dataset:
    return sim.run(sim.Sweep(**{**FIELDS, **fields}), threads=threads)


def bins_of(dataset: xr.Dataset) -> xr.DataArray:
    """Return the stored bins of every node as bytes, along the axes of the nodes."""
    entries = dataset["tally_entries"]
    stops = np.maximum(entries.values, 0).cumsum()
    found = np.empty(entries.size, object)
    for i, (stop, count) in enumerate(zip(stops, entries.values.ravel(), strict=True)):
        part = slice(stop - max(count, 0), stop)
        found[i] = dataset["tally_bin"].values[part].tobytes() + dataset["tally_count"].values[part].tobytes()
    return entries.copy(data=found.reshape(entries.shape))


def assert_same_bits(one: xr.Dataset, other: xr.Dataset, names=None):
    """Every variable, tallies and errors too: equal, blank where the other is blank."""
    names = names or sorted({*one.data_vars, *other.data_vars})
    for name in names:
        a, b = one[name].values, other[name].values
        assert a.dtype == b.dtype
        assert a.shape == b.shape, name
        assert a.tobytes() == b.tobytes(), name


def assert_same_cells(cells: dict, one: xr.Dataset, other: xr.Dataset, others: dict | None = None):
    """The same of some cells of each: all that belongs to a cell, with its bins."""
    names = sorted(set(one.data_vars) - set(STRUNG))
    assert_same_bits(one.sel(cells), other.sel(others or {}), names)
    a, b = bins_of(one).sel(cells).values, bins_of(other).sel(others or {}).values
    assert a.shape == b.shape
    assert (a == b).all()


@pytest.fixture(scope="module")
def reference():
    return run()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(reference, threads):
    assert_same_bits(run(threads), reference)


@pytest.mark.parametrize(
    "fields", [{"precision": "float64", "d_k": 5}, {"causal": True, "d_k": 70, "n_keys": [5, 600]}]
)
def test_float64_and_causal_rows_are_as_reproducible(fields):
    assert_same_bits(run(1, **fields), run(2, **fields))


def test_a_cell_alone_is_the_cell_in_the_sweep(reference):
    for d_k in (3, 16):
        for law in ("rademacher", "uniform"):
            alone = run(d_k=d_k, n_keys=600, key={"law": law, "mean": 0.5})
            assert_same_cells({}, alone, reference, {"d_k": d_k, "n_keys": 600, "key_law": law})


def test_an_axis_value_added_changes_no_other_cell(reference):
    more = run(d_k=[8, 3, 16], key={"law": ["gaussian", "uniform", "rademacher"], "mean": [0, 0.5]})
    cells = {"d_k": [3, 16], "key_law": ["rademacher", "gaussian", "uniform"], "key_mean": 0.5}
    assert_same_cells(cells, more, reference)


def test_a_scale_rule_added_changes_no_other(reference):
    more = run(scale=[2.5, "sqrt_dk", "none", "dk"]).sel(scale=["none", "sqrt_dk", "dk"])
    assert_same_bits(more, reference, [name for name in reference if name not in TALLIES])


def test_a_family_left_out_changes_no_other(reference):
    sets = [
        *([family] for family in FAMILIES),
        ["scores", "weights"],
        ["jacobian", "spectrum"],
        ["weights", "gradients"],
    ]
    for families in sets:
        less = run(observables=families)
        kept = [name for name in less if name not in TALLIES]
        assert len(kept) < len(reference.data_vars) - len(TALLIES)
        assert_same_bits(less, reference, kept)


def test_thresholds_quantiles_precision_and_the_mask_shape_no_draw():
    base = sim.Sweep(**{**FIELDS, "n_keys": [5, 600]})
    other = base.replace(
        causal=True, gradient_threshold=0.5, threshold=0.5, quantile=[0.3], precision="float64", trials=7, scale="dk"
    )
    assert [cell.philox_key() for cell in base.cells] == [cell.philox_key() for cell in other.cells]


@pytest.mark.parametrize(("work", "most"), [(1, 1), (2**24, 2), (2**40, 8), (2**40, 2**12)])
def test_batches_change_no_bit(reference, monkeypatch, work, most):
    monkeypatch.setattr(sim.plan, "_WORK_PER_BATCH", work)
    monkeypatch.setattr(sim.plan, "_MAX_BATCH", most)
    assert_same_bits(run(), reference)


def test_a_repeated_run_and_another_seed(reference):
    assert_same_bits(run(), reference)
    other = run(seed=1)
    assert not np.isclose(other["score_variance"], reference["score_variance"], rtol=1e-6).any()


def test_cells_of_different_lengths_share_no_draw():
    """The same seed with another d_k, mean or number of keys gives another draw, not a prefix of it."""
    values = [run(d_k=d, n_keys=n, key={"mean": mean})["score_min"].values[0] for d, n, mean in
              [(3, 600, 0.5), (4, 600, 0.5), (3, 601, 0.5), (3, 600, 0.25)]]  # fmt: skip
    assert len(set(values)) == 4


def test_float32_and_float64_agree(reference):
    """The same words: they differ by float32's rounding of elements, products and sums.

    A score of 16 products errs by some 1e-6, so means over 333 × 5 rows and more agree to 1e-5; counts
    differ by the few scores that lie that near an edge.
    """
    double = run(precision="float64")
    for name in reference.data_vars:
        if name in TALLIES or name.endswith("_theory"):
            continue
        found, exact = reference[name], double[name]
        if name.startswith(("score_histogram", "score_within", "saturation")):
            np.testing.assert_allclose(found, exact, atol=2e-3, err_msg=name)
        else:
            np.testing.assert_allclose(found, exact, rtol=1e-3 if "_se" in name else 2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("trials", [8 * 40 + 3, 8 * 40, 8 * 90 + 1])
def test_a_longer_run_keeps_the_nodes_of_a_shorter_one(trials):
    """Whole nodes of the shorter run are nodes of the longer one, or merge into its; groups of 2 blocks here."""
    fields = {"d_k": 3, "n_keys": 20, "key": {}}
    shorter, longer = run(**fields, trials=trials), run(**fields, trials=8 * 96)
    of = {first: i for i, first in enumerate(longer["tally_first_block"].values)}
    assert set(longer["tally_blocks"].values) == {2}
    short_bins, long_bins = bins_of(shorter).values, bins_of(longer).values
    whole = np.flatnonzero(shorter["tally_blocks"] == 2)
    assert len(whole) == trials // 16 or trials // 8 < 65
    for i in whole:
        twin = of[int(shorter["tally_first_block"][i])]
        assert np.array_equal(shorter["tally"][i], longer["tally"][twin])
        assert short_bins[i] == long_bins[twin]
    if trials % 8:
        assert shorter["tally_blocks"][-1] == 0
    # the bins of all nodes are those of all trials, 5 rows each, whatever the nodes
    counts = json.loads(shorter["tally_bin"].attrs["parts"])
    assert int(shorter["tally_count"].sum()) == trials * 5 * (20 + 3 + 3)
    assert [*counts] == ["score_histogram", "frobenius_sizes", "gradient_query_sizes"]


COLD_AND_WARM = """
import sys, numpy as np, sim
sweep = sim.Sweep(d_k=[16, 65], n_queries=130, n_keys=600, trials=20, precision=sys.argv[1], key={"mean": 0.5})
dataset = sim.run(sweep)
np.savez(sys.argv[2], **{name: dataset[name].values for name in dataset.data_vars})
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_run_that_compiles_gives_the_bits_of_those_that_load(tmp_path, precision):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    found = []
    for name in ("cold.npz", "warm.npz"):
        command = [sys.executable, "-c", COLD_AND_WARM, precision, str(tmp_path / name)]
        subprocess.run(command, env=environment, check=True)
        found.append(dict(np.load(tmp_path / name)))
    cold, warm = found
    assert [name for name in cold if cold[name].tobytes() != warm[name].tobytes()] == []
