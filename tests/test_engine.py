"""The engine runs sweeps as asked: progress, few trials, odd sizes, threads, and interruption."""

import threading

import numpy as np
import pytest

import sim
from sim import cpu, plan


def test_progress_goes_from_nothing_to_all():
    seen = []
    sim.run(sim.Sweep(d_k=[4, 8], n_tokens=4, trials=100), progress=seen.append)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_one_trial_runs_and_its_errors_are_blank():
    dataset = sim.run(sim.Sweep(d_k=16, n_tokens=8, trials=1))
    assert int(dataset["groups"]) == 1
    for name in ("score_mean", "score_variance", "weight_max", "saturation_rate", "score_quantile", "score_histogram"):
        assert dataset[f"{name}_se"].isnull().all(), name
        assert dataset[name].notnull().all(), name


def test_the_row_variance_of_one_key_is_blank():
    dataset = sim.run(sim.Sweep(d_k=16, n_queries=8, n_keys=1, trials=20))
    assert dataset["score_row_variance"].isnull().all()
    assert dataset["score_row_variance_theory"].isnull().all()
    assert (dataset["weight_max"] == 1).all()
    assert (dataset["weight_entropy"] == 0).all()
    assert (dataset["saturation_rate"] == 1).all()
    assert (dataset["vanishing_rate"] == 1).all()
    assert (dataset["jacobian_trace"] < 1e-30).all()
    assert dataset["jacobian_frobenius_median"].isnull().all()  # 0: below the bins


def test_a_rate_of_one_has_the_error_of_three_events():
    dataset = sim.run(sim.Sweep(d_k=16, n_queries=8, n_keys=1, trials=20))
    assert np.allclose(dataset["saturation_rate_se"], 3 / 20)


def test_zero_is_a_scale():
    dataset = sim.run(sim.Sweep(d_k=16, n_queries=8, n_keys=5, trials=20, scale=[0, -1])).sel(scale="0")
    assert float(dataset["weight_max"]) == pytest.approx(0.2, rel=1e-12)
    assert float(dataset["weight_entropy"]) == pytest.approx(np.log(5), rel=1e-12)
    assert float(dataset["score_variance"]) == 0
    assert dataset["score_skewness_theory"].isnull()


def test_a_negative_scale_mirrors_the_scores():
    both = sim.run(sim.Sweep(d_k=16, n_queries=8, n_keys=5, trials=20, scale=[1, -1], key={"mean": 0.5}))
    plus, minus = both.sel(scale="1"), both.sel(scale="-1")
    assert float(plus["score_mean"]) == -float(minus["score_mean"])
    assert float(plus["score_min"]) == -float(minus["score_max"])
    assert np.allclose(plus["score_quantile"], -minus["score_quantile"][::-1])
    assert np.array_equal(plus["score_histogram"], minus["score_histogram"][::-1])
    assert np.allclose(plus["score_bin_edge"], -minus["score_bin_edge"][::-1])
    assert float(plus["weight_max"]) != float(minus["weight_max"])


def test_left_out_families_are_absent():
    dataset = sim.run(sim.Sweep(d_k=4, n_tokens=4, trials=10, observables=["weights"]))
    assert "weight_max" in dataset
    assert "score_mean" not in dataset
    assert "score_histogram" not in dataset
    assert "quantile" not in dataset.coords
    assert "gradient_threshold" not in dataset.coords
    assert "dtype" not in dataset.coords


def test_the_spectrum_is_measured_when_asked_for():
    sweep = sim.Sweep(d_k=4, n_tokens=4, trials=10)
    assert "jacobian_spectral" not in sim.run(sweep)
    dataset = sim.run(sweep.replace(observables=["spectrum"]))
    assert [name for name in dataset if name.endswith("_se")] == ["jacobian_spectral_se"]
    assert ((dataset["jacobian_spectral"] > 0) & (dataset["jacobian_spectral"] <= 0.5)).all()


def test_causal_rows_see_fewer_keys():
    """The first row sees one key and gives it all its weight; the last of all rows is that of a plain run."""
    both = sim.run(sim.Sweep(d_k=4, n_queries=1, n_keys=9, trials=30, causal=[False, True]))
    for name in ("weight_max", "jacobian_trace", "gradient_query", "score_variance"):
        assert (both[name].sel(causal=True) == both[name].sel(causal=False)).all()
    scores = sim.run(sim.Sweep(d_k=4, n_tokens=9, trials=30, causal=True))
    whole = sim.run(sim.Sweep(d_k=4, n_tokens=9, trials=30))
    assert (scores["weight_max"] > whole["weight_max"]).all()
    assert int(scores["tally"].isel(tally_field=1).sum()) == int(whole["tally"].isel(tally_field=1).sum()) == 270


def test_no_closed_form_of_full_rows_stands_beside_causal_ones():
    dataset = sim.run(sim.Sweep(d_k=4, n_queries=[1, 9], n_keys=9, trials=30, causal=True))
    for name in ("weight_max", "weight_entropy", "weight_sum_squares", "jacobian_trace", "gradient_score"):
        assert dataset[f"{name}_theory"].sel(n_queries=9).isnull().all(), name
        assert dataset[f"{name}_theory"].sel(n_queries=1).notnull().all(), name  # one query sees every key


@pytest.mark.parametrize("threads", [0, -1])
def test_a_wrong_number_of_threads_is_refused(threads):
    with pytest.raises(sim.InputError, match=f"threads: got {threads}"):
        sim.run(sim.Sweep(d_k=4, n_tokens=4), threads=threads)


def test_an_unknown_device_is_refused():
    with pytest.raises(sim.InputError, match="device: got 'tpu'"):
        sim.run(sim.Sweep(d_k=4, n_tokens=4), device="tpu")


def test_an_interrupt_ends_the_threads_within_a_tile(monkeypatch):
    """A caller that stops in mid-run sets the flag that the kernels look at; no thread is left behind."""
    sweep = sim.Sweep(d_k=64, n_tokens=2048, trials=100_000)
    layout = plan.layout(sweep)
    batches = cpu.run_batches([plan.plan(sweep, sweep.cells[0], layout)], layout, 2)
    next(batches)
    batches.close()
    assert threading.active_count() == 1


def test_a_short_last_block_counts_its_trials_only():
    dataset = sim.run(sim.Sweep(d_k=2, n_tokens=2, trials=1003))  # blocks of 8
    assert int(dataset["trials"]) == 1003
    sizes = dataset["tally"].isel(tally_field=0).sum()
    assert int(sizes) == 1003
