"""Whole cells: what ``sim.run`` reports against the oracle on the same drawn Q and K."""

import numpy as np
import pytest

import sim
from sim.block import draw_side
from sim.draw import padded
from sim.philox import KEY, QUERY
from sim.plan import layout, plan
from tests import oracle

PRECISIONS = ("float32", "float64")
SCALE = ["none", "sqrt_dk", "dk", -0.25, 0]
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}  # of scores, relative to the largest


def drawn(side, count: int, trial: int, tensor, geometry) -> np.ndarray:
    """Return the vectors of one side as the block draws them, (tokens, d_k) in float64."""
    out = np.empty((padded(geometry.d_k), count), side.numbers.dtype)
    draw_side(side, out, 0, trial, tensor, geometry.key)
    return out[: geometry.d_k].T.astype(float)


def raw_scores(cell_plan) -> np.ndarray:
    """Return the raw scores of a cell, (trials, queries, keys), multiplied in float64."""
    geometry = cell_plan.geometry
    return np.stack(
        [
            drawn(cell_plan.query, geometry.n_queries, trial, QUERY, geometry)
            @ drawn(cell_plan.key, geometry.n_keys, trial, KEY, geometry).T
            for trial in range(cell_plan.trials)
        ]
    )


def plans_of(sweep):
    where = layout(sweep)
    return [plan(sweep, cell, where) for cell in sweep.cells]


def cells_of(dataset, sweep):
    """Yield (dataset of one cell, plan)."""
    for index, cell_plan in zip(np.ndindex(*sweep.shape), plans_of(sweep), strict=True):
        yield dataset.isel(dict(zip(sweep.axes, index, strict=True))), cell_plan


def allowed(name: str, reach: float, tolerance: float) -> tuple[float, float]:
    """Return the relative and absolute error that a dot product's rounding may cause.

    `reach` is the largest absolute scaled score: scores err by `tolerance` of it, and weights by e to that.
    """
    if name in ("score_variance", "score_row_variance"):
        return 0.0, tolerance * reach**2
    if name in ("score_skewness", "score_excess_kurtosis"):
        return 0.0, 100 * tolerance
    if name.startswith("score_"):
        return 0.0, tolerance * reach
    return 0.0 if name == "saturation_rate" else tolerance * (1 + reach), 1e-30


def check_estimates(found, cell_plan, raw, thresholds):
    tolerance = TOLERANCE[cell_plan.cell.precision]
    for k, factor in enumerate(cell_plan.factors):
        reach = abs(factor * raw).max()
        for name, expected in oracle.estimates(raw, factor, thresholds).items():
            relative, absolute = allowed(name, reach, tolerance)
            message = f"{name} at {factor=} of {cell_plan.cell}"
            np.testing.assert_allclose(found[name].values[k], expected, relative, absolute, err_msg=message)


def check_counts(found, cell_plan, raw):
    """Histogram and shares within sigma; where a score lies within rounding of an edge, either side will do."""
    theory, edges = cell_plan.theory, cell_plan.edges
    slack = TOLERANCE[cell_plan.cell.precision] * abs(raw).max()
    exact = oracle.histogram(raw, edges)
    near = oracle.histogram(raw, edges - slack) - oracle.histogram(raw, edges + slack)
    near = abs(np.cumsum(near))  # scores that may have crossed each edge
    counts = found["score_histogram"].values[0] * raw.size
    assert counts.sum() == pytest.approx(raw.size, rel=1e-12)
    assert (abs(np.cumsum(counts - exact)) <= near + 1e-6).all(), cell_plan.cell
    for i, sigma in enumerate((1, 2, 3)):
        low, high = (oracle.within(raw, theory.mean, sigma * theory.std + sign * slack) for sign in (-1, 1))
        assert low - 1e-12 <= found["score_within_sigma"].values[0, i] <= high + 1e-12, (sigma, cell_plan.cell)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_shape_agrees_with_the_oracle(precision):
    queries, keys, lengths = [1, 3, 5, 129, 200, 128], [1, 2, 511, 512, 513, 1100], [1, 2, 3, 5, 64, 130]
    for i, j in np.ndindex(6, 6):  # a Latin square: every two sizes meet
        shape = {"n_queries": queries[(i + j) % 6], "n_keys": keys[i], "d_k": lengths[j]}
        sweep = sim.Sweep(
            **shape, trials=2, scale=["none", "sqrt_dk", -0.25], precision=precision, threshold=[0.3, 0.9]
        )
        ((found, cell_plan),) = cells_of(sim.run(sweep), sweep)
        raw = raw_scores(cell_plan)
        check_estimates(found, cell_plan, raw, sweep.threshold)
        check_counts(found, cell_plan, raw)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("law", ["rademacher", "gaussian", "uniform"])
def test_every_law_with_means_and_stds_agrees_with_the_oracle(law, precision):
    sides = {
        "query": {"law": law, "mean": [0, 1.5], "std": 0.5},
        "key": {"law": ["rademacher", "uniform"], "mean": [-1, 0, 20], "std": [0.1, 2]},
    }
    sweep = sim.Sweep(**sides, d_k=10, n_queries=7, n_keys=40, trials=12, scale=SCALE, precision=precision, seed=2)
    for found, cell_plan in cells_of(sim.run(sweep), sweep):
        raw = raw_scores(cell_plan)
        check_estimates(found, cell_plan, raw, sweep.threshold)
        check_counts(found, cell_plan, raw)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_standard_errors_are_the_jackknife_over_blocks_of_trials(precision):
    sweep = sim.Sweep(d_k=6, n_queries=4, n_keys=9, trials=8 * 3 + 5, scale=["none", 0.5], precision=precision)
    (found, cell_plan), *_ = cells_of(sim.run(sweep), sweep)
    assert cell_plan.block_trials == 8
    raw = raw_scores(cell_plan)
    groups = [raw[i : i + 8] for i in range(0, 29, 8)]
    assert found.groups == 4
    names = ["score_mean", "score_variance", "score_std", "score_skewness", "score_excess_kurtosis"]
    names += ["score_trial_max", "score_row_variance", "saturation_rate"]
    names += ["weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"]
    for k, factor in enumerate(cell_plan.factors):
        for name in names:
            se = oracle.jackknife(lambda x, n=name, c=factor: oracle.estimates(x, c, sweep.threshold)[n], groups)
            se = np.where(oracle.estimates(raw, factor, sweep.threshold)[name] == 0, 3 / 29, se)  # the rule for rates
            tolerance = TOLERANCE[precision] * 100
            np.testing.assert_allclose(found[f"{name}_se"].values[k], se, tolerance, err_msg=name)


def test_elements_are_those_of_the_oracle_for_every_law_and_place():
    """Words, the law's transform, mean and std: element e of token t of trial r, wherever it is drawn."""
    for law in ("rademacher", "gaussian", "uniform"):
        for precision, tolerance in (("float64", 1e-14), ("float32", 2e-6)):
            sides = {"query": {"law": law, "mean": 2}, "key": {"law": law, "std": 3, "mean": -1}}
            sweep = sim.Sweep(**sides, d_k=7, n_queries=3, n_keys=2, seed=9, precision=precision)
            (cell_plan,) = plans_of(sweep)
            key = cell_plan.cell.philox_key()
            for trial in (0, 5, 2**32 - 1):
                query = drawn(cell_plan.query, 3, trial, QUERY, cell_plan.geometry)
                keys = drawn(cell_plan.key, 2, trial, KEY, cell_plan.geometry)
                expected = np.array([2 + oracle.vector(law, 7, token, trial, 0, key) for token in range(3)])
                np.testing.assert_allclose(query, expected, 0, 7 * tolerance)
                expected = np.array([-1 + 3 * oracle.vector(law, 7, token, trial, 1, key) for token in range(2)])
                np.testing.assert_allclose(keys, expected, 0, 3 * 7 * tolerance)


def test_a_tile_that_starts_later_draws_the_same_tokens():
    sweep = sim.Sweep(d_k=7, n_tokens=40)
    (cell_plan,) = plans_of(sweep)
    whole = drawn(cell_plan.key, 40, 3, KEY, cell_plan.geometry)
    part = np.empty((8, 9), np.float32)
    draw_side(cell_plan.key, part, 31, 3, KEY, cell_plan.geometry.key)
    np.testing.assert_array_equal(part[:7].T, whole[31:])
