"""Whole cells: what ``sim.run`` reports against the oracle on the same drawn Q and K."""

import numpy as np
import pytest

import sim
from sim.philox import KEY, QUERY
from sim.plan import layout, plan
from tests import oracle
from tests.measuring import draw_tokens

PRECISIONS = ("float32", "float64")
SCALE = ["none", "sqrt_dk", "dk", -0.25, 0]
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}  # of scores, relative to the largest


def vectors_of(cell_plan) -> tuple[np.ndarray, np.ndarray]:
    """Return Q and K of a cell, each (trials, tokens, d_k) in float64."""
    geometry, trials = cell_plan.geometry, range(cell_plan.trials)
    query = [draw_tokens(cell_plan, QUERY, geometry.n_queries, trial) for trial in trials]
    key = [draw_tokens(cell_plan, KEY, geometry.n_keys, trial) for trial in trials]
    return np.stack(query), np.stack(key)


def raw_scores(cell_plan) -> np.ndarray:
    """Return the raw scores of a cell, (trials, queries, keys), multiplied in float64."""
    query, key = vectors_of(cell_plan)
    return query @ key.transpose(0, 2, 1)


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
    if name in ("saturation_rate", "vanishing_rate"):
        return 0.0, 0.0
    # the ||J||_F of one key is 2^-60 in float32
    return tolerance * (1 + reach), 1e-16 if name.startswith(("jacobian_frobenius", "gradient")) else 1e-30


def check_estimates(found, cell_plan, sweep, vectors):
    tolerance, visible = TOLERANCE[cell_plan.cell.precision], cell_plan.cell.visible
    query, key = vectors
    raw = query @ key.transpose(0, 2, 1)
    for k, factor in enumerate(cell_plan.factors):
        reach = abs(factor * raw).max()
        expected = oracle.estimates(raw, factor, sweep.threshold, sweep.gradient_threshold, visible)
        gradients = gradients_of(query, key, factor, visible)
        expected |= {f"gradient_{name}": np.sqrt(values.mean()) for name, values in gradients.items()}
        for name, values in expected.items():
            relative, absolute = allowed(name, reach, tolerance)
            message = f"{name} at {factor=} of {cell_plan.cell}"
            np.testing.assert_allclose(found[name].values[k], values, relative, absolute, err_msg=message)
        norms = oracle.row_quantities(oracle.hidden(factor * raw, visible))["jacobian_frobenius"]
        unit = abs(factor) * cell_plan.measures.gradient_units[k]
        for name, values, least in (
            ("jacobian_frobenius_median", norms, 2.0**-32),
            ("gradient_query_median", np.sqrt(gradients["query"]), 2.0**-32 * unit),
        ):
            check_median(float(found[name][k]), values, least, f"{name} at {factor=} of {cell_plan.cell}")


def gradients_of(query, key, factor, visible):
    """Return the squared gradients of vectors, each (trials, tokens, d_k), by what they are."""
    of_trials = [oracle.gradients(q, k, factor, visible) for q, k in zip(query, key, strict=True)]
    return {name: np.array([found[name] for found in of_trials]) for name in of_trials[0]}


def check_median(value, values, least, message):
    """To the width of a bin, 0.4 %; blank below the bins."""
    low, high = oracle.middle(values)
    if low < least * 1.0001:
        assert np.isnan(value) or value <= high * 1.005 + 2 * least, message
    else:
        assert low / 1.005 <= value <= high * 1.005, message


def check_counts(found, cell_plan, raw):
    """Histogram and shares within sigma; where a score lies within rounding of an edge, either side will do."""
    theory, edges = cell_plan.theory, cell_plan.edges
    raw = np.concatenate([raw[:, i, :count].ravel() for i, count in enumerate(cell_plan.cell.visible)])
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
    queries, keys, lengths = [1, 3, 5, 129, 150, 128], [1, 2, 511, 512, 513, 1100], [1, 2, 3, 5, 10, 33]
    for i, j in np.ndindex(6, 6):  # a Latin square: every two sizes meet
        shape = {"n_queries": queries[(i + j) % 6], "n_keys": keys[i], "d_k": lengths[j]}
        check(sim.Sweep(**shape, trials=2, scale=["sqrt_dk", -0.25], precision=precision, **LEVELS))


LEVELS = {"threshold": [0.3, 0.9], "gradient_threshold": [0.2, 0.01]}


def check(sweep):
    """Hold all that a sweep reports, but for errors and spectrum, to the oracle."""
    for found, cell_plan in cells_of(sim.run(sweep), sweep):
        vectors = vectors_of(cell_plan)
        check_estimates(found, cell_plan, sweep, vectors)
        check_counts(found, cell_plan, raw_scores(cell_plan))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_causal_shape_agrees_with_the_oracle(precision):
    """As many queries as keys or fewer, the last of which sees every key; in several tiles of both."""
    shapes = [(1, 1), (1, 40), (5, 5), (3, 513), (40, 512), (129, 130), (150, 1100), (300, 600)]
    for i, (queries, keys) in enumerate(shapes):
        shape = {"n_queries": queries, "n_keys": keys, "d_k": [1, 3, 64, 5, 33, 2, 9, 4][i], "causal": True}
        check(sim.Sweep(**shape, trials=2, scale=["sqrt_dk", -0.25], precision=precision, **LEVELS))


@pytest.mark.parametrize("causal", [False, True])
def test_the_spectrum_of_drawn_rows_agrees_with_the_oracle(causal):
    for shape in ({"n_queries": 6, "n_keys": 40}, {"n_queries": 3, "n_keys": 700}):
        sweep = sim.Sweep(**shape, d_k=7, trials=10, observables=["spectrum"], precision="float64", causal=causal)
        ((found, cell_plan),) = cells_of(sim.run(sweep), sweep)
        raw = raw_scores(cell_plan)
        for k, factor in enumerate(cell_plan.factors):
            rows = [factor * scores[i, :count] for scores in raw for i, count in enumerate(cell_plan.cell.visible)]
            expected = np.mean([oracle.spectral_of_many(row) for row in rows])
            assert float(found["jacobian_spectral"][k]) == pytest.approx(expected, rel=1e-11)


def test_rows_of_one_key_have_no_part_in_the_row_variance():
    """The first of causal rows sees one key alone, which has no variance: the mean is over the others."""
    found = sim.run(sim.Sweep(d_k=4, n_tokens=5, trials=2000, causal=True, scale="none"))
    theory, value, se = (float(found[f"score_row_variance{x}"][0]) for x in ("_theory", "", "_se"))
    assert theory == 4.0
    assert abs(value - theory) < 5 * se < 0.5  # one fifth of the rows left in would cost 0.8
    alone = sim.run(sim.Sweep(d_k=4, n_queries=1, n_keys=1, trials=20, causal=True))
    assert alone["score_row_variance"].isnull().all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("law", ["rademacher", "gaussian", "uniform"])
def test_every_law_with_means_and_stds_agrees_with_the_oracle(law, precision):
    sides = {
        "query": {"law": law, "mean": [0, 1.5], "std": 0.5},
        "key": {"law": ["rademacher", "uniform"], "mean": [-1, 0, 20], "std": [0.1, 2]},
    }
    check(sim.Sweep(**sides, d_k=10, n_queries=7, n_keys=40, trials=12, scale=SCALE, precision=precision, seed=2))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_standard_errors_are_the_jackknife_over_blocks_of_trials(precision):
    sweep = sim.Sweep(d_k=6, n_queries=4, n_keys=9, trials=8 * 3 + 5, scale=["none", 0.5], precision=precision)
    (found, cell_plan), *_ = cells_of(sim.run(sweep), sweep)
    assert cell_plan.block_trials == 8
    query, key = vectors_of(cell_plan)
    groups = np.split(np.arange(29), [8, 16, 24])
    assert found.groups == 4

    def estimates(trials, factor):
        q, k = query[trials], key[trials]
        raw = q @ k.transpose(0, 2, 1)
        gradients = {f"gradient_{name}": np.sqrt(x.mean()) for name, x in gradients_of(q, k, factor, None).items()}
        return oracle.estimates(raw, factor, sweep.threshold, sweep.gradient_threshold) | gradients

    names = ["score_mean", "score_variance", "score_std", "score_skewness", "score_excess_kurtosis"]
    names += ["score_trial_max", "score_row_variance", "saturation_rate", "vanishing_rate"]
    names += ["weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"]
    names += ["jacobian_frobenius", "jacobian_frobenius_sq", "jacobian_trace"]
    names += ["gradient_score", "gradient_query", "gradient_key"]
    for k, factor in enumerate(cell_plan.factors):
        whole = estimates(np.arange(29), factor)
        for name in names:
            se = oracle.jackknife(lambda trials, n=name, c=factor: estimates(trials, c)[n], groups)
            if name.endswith("rate"):
                se = np.where((whole[name] == 0) | (whole[name] == 1), 3 / 29, se)  # the rule for rates
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
                query = draw_tokens(cell_plan, QUERY, 3, trial)
                keys = draw_tokens(cell_plan, KEY, 2, trial)
                expected = np.array([2 + oracle.vector(law, 7, token, trial, 0, key) for token in range(3)])
                np.testing.assert_allclose(query, expected, 0, 7 * tolerance)
                expected = np.array([-1 + 3 * oracle.vector(law, 7, token, trial, 1, key) for token in range(2)])
                np.testing.assert_allclose(keys, expected, 0, 3 * 7 * tolerance)


def test_a_tile_that_starts_later_draws_the_same_tokens():
    sweep = sim.Sweep(d_k=7, n_tokens=40)
    (cell_plan,) = plans_of(sweep)
    whole = draw_tokens(cell_plan, KEY, 40, 3)
    np.testing.assert_array_equal(draw_tokens(cell_plan, KEY, 9, 3, first=31), whole[31:])
