"""The benchmark: every peer does the same work as the engine, to float32's accuracy; nothing here asserts a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from threadpoolctl import threadpool_limits

from bench import contestants, picture, report, rounds
from bench.race import Effort, race
from bench.work import PEERS, ROWS, SCALES, THRESHOLD, Row, Sums, add, estimates, factors
from tests import oracle

TRIALS = 3
SIZES = [(16, 24, 40), (64, 128, 128), (33, 1, 700)]  # d_k, queries, keys


@pytest.fixture(params=PEERS)
def peer(request):
    found, missing = contestants.installed([request.param])
    if missing:
        pytest.skip(f"{missing[0]} is not installed: {contestants.INSTALL}")
    with threadpool_limits(1, user_api="blas"):  # on leaving, as many threads as before
        found[request.param].start(1)
        yield found[request.param]


def drawn(d_k, n_queries, n_keys, seed=0):
    """Return Q, K and g in float32."""
    rng = np.random.default_rng(seed)
    shapes = [(n_queries, d_k), (n_keys, d_k), (n_queries, n_keys)]
    return [rng.standard_normal((TRIALS, *shape), np.float32) for shape in shapes]


def row_of(d_k, n_queries, n_keys, gradients):
    return Row(d_k=d_k, n_queries=n_queries, n_keys=n_keys, batches=(1, 2, 3), target=1, gradients=gradients)


def expected(query, key, upstream, factor):
    """Return the estimates under one scale rule by their definitions, in float64 or better."""
    query, key, upstream = (np.asarray(x, float) for x in (query, key, upstream))
    raw = query @ key.swapaxes(1, 2)
    result = oracle.estimates(raw, factor, (THRESHOLD,))
    result["saturation_rate"] = result["saturation_rate"][0]
    p = oracle.softmax(factor * raw)[0].astype(float)
    jacobian = p[..., :, None] * np.eye(p.shape[-1]) - p[..., :, None] * p[..., None, :]  # of every row
    result["jacobian_frobenius_sq"] = (jacobian**2).sum(axis=(-2, -1)).mean()
    ds = factor * np.einsum("...jl,...l->...j", jacobian, upstream)
    for name, gradient in (("score", ds), ("query", ds @ key), ("key", ds.swapaxes(1, 2) @ query)):
        result[f"gradient_{name}"] = np.sqrt((gradient**2).sum(axis=-1).mean())
    return result


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_peer_agrees_with_the_definitions(peer, size, gradients):
    query, key, upstream = drawn(*size)
    row = row_of(*size, gradients)
    measured = estimates(peer.measure(query, key, upstream if gradients else None), row, TRIALS)
    assert ("gradient_key" in measured) == gradients
    for k, factor in enumerate(factors(row.d_k)):
        truth = expected(query, key, upstream, factor)
        for name, values in measured.items():
            # skewness and the mean are differences of sums that are larger; ‖J‖ of saturated rows is one too
            absolute = 1e-5 * max(1.0, np.sqrt(truth["score_variance"])) if name.startswith("score_") else 2e-6
            assert values[k] == pytest.approx(float(truth[name]), rel=3e-5, abs=absolute), (name, SCALES[k])


def test_a_peer_draws_as_many_trials_as_it_is_asked_for(peer):
    row = row_of(16, 24, 40, True)
    sums = peer.runner(row, 2)(40)
    found = estimates(sums, row, 40)
    # 40 trials of 24 × 40 scores: the error of the variance is some 6 %, that of the squared norms some 10 %
    assert found["score_variance"][0] == pytest.approx(16, rel=0.3)
    assert found["gradient_score"][2] == pytest.approx(found["jacobian_frobenius_sq"][2] ** 0.5 / 16, rel=0.3)


def test_the_engine_does_the_same_work_as_its_peers():
    row = row_of(16, 24, 40, True)
    dataset = contestants.engine_runner(row, 1)(400)
    found, _ = contestants.installed(["numpy"])
    peer = estimates(found["numpy"].runner(row, 1)(400), row, 400)
    for name, theirs in peer.items():
        ours, error = (dataset[variable].squeeze().values for variable in (name, f"{name}_se"))
        # the peer's error is about the engine's own; its backward pass adds the noise of its g
        noise = 0.05 * abs(ours) if name.startswith("gradient_") else 0.01
        assert (abs(ours - theirs) <= 6 * error + noise).all(), name


def test_sums_add():
    one = Sums(np.ones(4), np.ones((5, 3)), np.ones((3, 3)))
    assert all((part == 2).all() for part in add(one, one))


def test_a_missing_library_is_left_out_and_a_broken_one_is_not(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.rpartition("_")[2])

    monkeypatch.setattr(contestants, "import_module", missing)
    assert contestants.installed(["torch", "jax"]) == ({}, ["torch", "jax"])

    def broken(name):
        raise ModuleNotFoundError("No module named 'inner'", name="inner")

    monkeypatch.setattr(contestants, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="inner"):
        contestants.installed(["torch"])


def test_orders_move_on():
    assert [rounds.order("abc", k) for k in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_trials_come_in_whole_batches_and_fill_the_budget(monkeypatch):
    """A run costs 10 ms and 1 ms a trial: 0.1 s are some 90 trials."""
    clock = [0.0]
    fake = SimpleNamespace(perf_counter=lambda: clock[0], process_time=lambda: clock[0], sleep=lambda _: None)
    monkeypatch.setattr(rounds, "time", fake)

    def run(trials):
        clock[0] += 0.01 + 0.001 * trials

    assert 60 <= rounds.calibrate(run, 0.1) <= 120
    assert rounds.calibrate(run, 0.1, 8) % 8 == 0
    assert rounds.calibrate(run, 1e-6, 8) == 8


def test_the_fastest_batch_is_found(monkeypatch):
    cost = {1: 3.0, 4: 1.0, 16: 2.0}
    monkeypatch.setattr(rounds, "calibrate", lambda run, seconds, step: step)
    monkeypatch.setattr(rounds, "timed", lambda run, trials: rounds.Timing(cost[trials], 0.0))
    assert rounds.fastest(dict.fromkeys(cost), 1.0) == 4


@pytest.fixture(scope="module")
def data():
    """A real run of two tiny rows, against NumPy alone."""
    found, _ = contestants.installed(["numpy"])
    effort = Effort(rounds=2, budget=0.02, trial_budget=0.0, floor_budget=0.002)
    results = [race(row_of(16, 24, 40, gradients), found, 2, effort) for gradients in (False, True)]
    return report.dataset(results, found, 2)


def test_the_dataset_is_labelled_and_read_back(data, tmp_path):
    from sim.dataset import read, write

    for name in [*data.data_vars, *data.coords]:
        assert data[name].attrs["long_name"], name
        assert data[name].attrs["units"], name
    assert data["time"].dims == ("row", "contestant", "round")
    assert (data["time"] > 0).all()
    assert list(data["contestant"].values) == [contestants.ENGINE, contestants.ONE_THREAD, "numpy"]
    write(data, tmp_path / "data.nc")
    xr.testing.assert_identical(read(tmp_path / "data.nc"), data)


def test_ratios_are_those_of_one_round(data):
    numpy, engine = (data["time"].sel(contestant=name) for name in ("numpy", contestants.ENGINE))
    np.testing.assert_allclose(data["ratio"], numpy / engine)
    forward = data.isel(row=0)
    cpu = forward["cpu_time"].sel(contestant=contestants.ONE_THREAD).median()
    np.testing.assert_allclose(forward["floor_distance"], cpu / forward["floor"].median("round").sum())
    assert data["floor"].isel(row=1).isnull().all()


def test_tables_and_figure_show_every_row(data, capsys):
    from rich.console import Console

    Console(width=140).print(report.table(data), report.floor_table(data))
    printed = capsys.readouterr().out
    for words in ("16, 24×40", "numpy", "engine / sum", "2 threads against 1"):
        assert words in printed
    figure = picture.draw(data)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sum("as fast as NumPy" in each for each in words) == data.sizes["row"]


def test_rows_have_names_of_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.target > 1 for row in ROWS)
