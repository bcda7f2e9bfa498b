"""Running estimates: the last is the dataset's own, the first that of a run of so many trials."""

import numpy as np
import pytest

import sim

SWEEP = sim.Sweep(
    d_k=[4, 7], n_queries=3, n_keys=5, trials=300, key={"law": {"kind": "student_t", "df": [3, 30]}}, scale=[1, -0.5]
)


@pytest.fixture(scope="module")
def dataset():
    return sim.run(SWEEP)


@pytest.mark.parametrize(
    "name", ["score_variance", "weight_max", "saturation_rate", "score_quantile", "jacobian_frobenius_median"]
)
def test_the_last_is_the_estimate_and_others_are_those_of_shorter_runs(dataset, name):
    found = sim.running(dataset, name)
    assert found.dims[:3] == ("d_k", "key_df", "group")
    assert found.dims[3:] == dataset[name].dims[2:]
    np.testing.assert_array_equal(found.isel(group=-1).values, dataset[name].values)
    trials = found["group_trials"].values
    assert (np.diff(trials, axis=-1) > 0).all()
    assert (trials[..., -1] == 300).all()
    for group in (0, 7):
        shorter = sim.run(SWEEP.replace(trials=int(trials[0, 0, group]), histogram=None))
        expected = shorter[name].isel(d_k=0, key_df=1).values
        np.testing.assert_allclose(found[0, 1, group].values, expected, rtol=1e-12, atol=0)


def test_what_it_needs_is_named(dataset):
    with pytest.raises(sim.InputError, match="did you mean 'score_variance'"):
        sim.running(dataset, "score_varianc")
    with pytest.raises(sim.InputError, match="tally"):
        sim.running(dataset.drop_vars("tally"), "score_mean")
    with pytest.raises(sim.InputError, match="selection"):
        sim.running(dataset.isel(d_k=0), "score_mean")


def test_a_file_of_a_dataset_serves_as_well(dataset, tmp_path):
    from sim.dataset import read, write

    write(dataset, tmp_path / "data.nc")
    np.testing.assert_array_equal(
        sim.running(read(tmp_path / "data.nc"), "score_variance"), sim.running(dataset, "score_variance")
    )
