"""Standard errors: the weighted jackknife, rates at the ends, Woodruff's quantiles, Student's t."""

import math

import numpy as np
import pytest
from scipy import stats

import sim
from sim.estimates import Tallies, jackknife, rate_error
from sim.plan import layout, plan
from sim.quantiles import medians, per_scale, quantiles, scaled_edges, shares
from sim.scales import Rule
from sim.sizes import SIZE_BINS, size_edges
from tests import oracle


@pytest.fixture
def random():
    return np.random.default_rng(0)


def replicates(estimate, groups):
    """Return the estimate of all, then without each group: what an estimator hands to the jackknife."""
    rest = [estimate(np.concatenate([*groups[:j], *groups[j + 1 :]])) for j in range(len(groups))]
    return np.array([estimate(np.concatenate(groups)), *rest])


@pytest.mark.parametrize("estimate", [np.mean, np.var, lambda x: np.mean(x**3) / np.var(x) ** 1.5, np.max])
@pytest.mark.parametrize("sizes", [[10] * 40, [64] * 12 + [5], [1, 2, 3, 4, 50], [7, 7]])
def test_the_jackknife_is_the_textbooks(sizes, estimate, random):
    groups = [random.exponential(size=size) for size in sizes]
    found = jackknife(replicates(estimate, groups), np.array(sizes, float))
    assert found == pytest.approx(oracle.jackknife(estimate, groups), rel=1e-9)


@pytest.mark.parametrize("size", [1, 5, 100])
def test_for_a_mean_over_equal_groups_it_is_the_standard_error_of_the_group_means(size, random):
    groups = [random.standard_normal(size) for _ in range(40)]
    means = [group.mean() for group in groups]
    found = jackknife(replicates(np.mean, groups), np.full(40, float(size)))
    assert found == pytest.approx(np.std(means, ddof=1) / math.sqrt(40), rel=1e-12)


def test_a_short_last_group_hardly_matters(random):
    x = random.standard_normal(40 * 50 + 1)
    whole = [x[i : i + 50] for i in range(0, 2000, 50)]
    found = jackknife(replicates(np.mean, [*whole, x[2000:]]), np.array([50.0] * 40 + [1.0]))
    without = jackknife(replicates(np.mean, whole), np.full(40, 50.0))
    assert found == pytest.approx(without, rel=0.05)


def test_fewer_than_two_groups_have_no_error():
    assert np.isnan(jackknife(np.array([[1.0, 2.0]]), np.array([7.0]))).all()
    assert np.isnan(rate_error(np.array([[0.0, 0.5]]), np.array([7.0]))).all()


def test_a_rate_of_0_or_1_has_the_error_three_over_trials():
    values = np.array([[0.0, 1.0, 0.5], [0.0, 1.0, 0.4], [0.0, 1.0, 0.6]])
    sizes = np.array([50.0, 50.0])
    assert rate_error(values, sizes)[:2].tolist() == [0.03, 0.03]
    assert rate_error(values, sizes)[2] == jackknife(values, sizes)[2]


def test_a_rate_without_chance_events_has_that_error_too():
    """The first row of a causal trial sees one key: 1 of 8 rows is saturated and has no Jacobian, and no other is."""
    sweep = sim.Sweep(d_k=4, n_tokens=8, trials=50, scale="dk", causal=True, threshold=[0.99], gradient_threshold=0.001)
    found = sim.run(sweep)
    for name in ("saturation_rate", "vanishing_rate"):
        assert found[name].item() == 1 / 8
        assert found[f"{name}_se"].item() == 3 / 50


def test_blanks_where_the_design_says_so():
    one_group = sim.run(sim.Sweep(d_k=4, n_tokens=5, trials=3))
    assert one_group.groups == 1
    for name in [name for name in one_group if name.endswith("_se")]:
        assert np.isnan(one_group[name]).all(), name
    medians = ("jacobian_frobenius_median", "gradient_query_median")
    for name in ("score_mean", "weight_max", "score_quantile", "saturation_rate", "vanishing_rate", *medians):
        assert np.isfinite(one_group[name]).all(), name
    two = sim.run(sim.Sweep(d_k=4, n_tokens=5, trials=9, scale="dk"))
    assert (two["saturation_rate"] == 0).all()
    assert (two["saturation_rate_se"] == 3 / 9).all()
    assert "score_min_se" not in two
    assert np.isnan(sim.run(sim.Sweep(d_k=4, n_keys=1, n_queries=5, trials=20))["score_row_variance"]).all()


def test_tallies_are_read_whole_first_then_without_each_group():
    sweep = sim.Sweep(d_k=4, n_tokens=5, trials=30, observables="weights")
    where = layout(sweep)
    groups = where.empty(3)
    where.part(groups, "trials")[:] = [8, 8, 6]
    where.part(groups, "rows")[:] = [40, 40, 30]
    where.part(groups, "weight_max")[:, 0] = [10, 20, 3]
    tallies = Tallies(groups, where.empty_bins(3), where)
    assert tallies.trials == 22
    assert tallies.sizes.tolist() == [8, 8, 6]
    np.testing.assert_allclose(tallies.row_mean("weight_max")[:, 0], [33 / 110, 23 / 70, 13 / 70, 30 / 80])


def test_bins_are_read_whole_first_then_without_each_group(random):
    sweep = sim.Sweep(d_k=4, n_tokens=5, trials=30, observables="jacobian")
    where = layout(sweep)
    groups, bins = where.empty(3), random.integers(0, 9, (3, where.bin_fields))
    where.part(groups, "trials")[:] = [8, 8, 6]
    found = Tallies(groups, bins, where).bins("frobenius_sizes")
    counts = where.part(bins, "frobenius_sizes")
    assert found.shape == (4, *counts.shape[1:])
    np.testing.assert_array_equal(found[0], counts.sum(axis=0))
    np.testing.assert_array_equal(found[2], counts[0] + counts[2])
    alone = Tallies(groups[:1], bins[:1], where).bins("frobenius_sizes")
    np.testing.assert_array_equal(alone, counts[:1])


# Quantiles ----------------------------------------------------------------------------------------


def counts_of(groups, edges):
    counts = np.array([oracle.histogram(group, edges) for group in groups], float)
    return np.concatenate([counts.sum(0)[None], counts.sum(0) - counts])


def test_quantiles_are_those_of_the_numbers_to_a_bin(random):
    edges, levels = np.linspace(-8, 8, 257), np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    groups = random.standard_normal((40, 5000))
    values, errors = quantiles(counts_of(groups, edges), np.full(40, 5000.0), edges, levels)
    np.testing.assert_allclose(values, np.quantile(groups, levels), atol=16 / 256)
    exact = np.sqrt(levels * (1 - levels) / groups.size) / stats.norm.pdf(stats.norm.ppf(levels))
    np.testing.assert_allclose(errors, exact, rtol=0.5)


def test_the_intervals_of_quantiles_cover(random):
    """Of 800 × 3 intervals of 95 %, 93 to 97 % cover: the share's own error is 0.4 to 0.8 %."""
    edges, levels = np.linspace(-8, 8, 257), np.array([0.05, 0.5, 0.9])
    covered = np.zeros(3)
    for _ in range(800):
        groups = random.standard_normal((40, 50))
        values, errors = quantiles(counts_of(groups, edges), np.full(40, 50.0), edges, levels)
        covered += abs(values - stats.norm.ppf(levels)) <= stats.t.ppf(0.975, 39) * errors
    assert (covered / 800 > 0.93).all(), covered / 800
    assert (covered / 800 < 0.97).all(), covered / 800


def test_quantiles_of_exact_shares_are_exact_to_a_hundredth_of_the_error_of_linear_interpolation():
    """A bias of 5e-4 would be half a standard error at a few thousand trials."""
    edges, levels = np.linspace(-8, 8, 257), np.linspace(0.001, 0.999, 999)
    counts = 1e9 * np.diff(stats.norm.cdf(edges), prepend=0, append=1)
    values, _ = quantiles(np.repeat(counts[None], 3, axis=0), np.ones(2), edges, levels)
    assert abs(values - stats.norm.ppf(levels)).max() < 3e-5


def test_a_quantile_at_the_very_end_of_a_bin_is_not_blank(random):
    """There the shares' rounding decides whether the bin holds it."""
    edges = np.linspace(-1, 1, 11)
    for total in (3, 7, 10, 1000, 4096 * 40):
        for _ in range(100):
            cuts = np.sort(random.integers(1, total, size=9))
            counts = np.diff([0, 0, *cuts, total, total]).astype(float)
            levels = np.unique(cuts / total)
            values, _ = quantiles(np.repeat(counts[None], 3, axis=0), np.ones(2), edges, levels)
            assert np.isfinite(values).all()
            assert (np.diff(values) > 0).all()


def test_a_quantile_in_an_open_end_is_blank(random):
    edges = np.linspace(-1, 1, 17)
    groups = random.standard_normal((10, 1000))
    values, errors = quantiles(counts_of(groups, edges), np.full(10, 1000.0), edges, np.array([0.05, 0.5, 0.95]))
    assert np.isnan([values[0], errors[0], values[2], errors[2]]).all()
    assert np.isfinite([values[1], errors[1]]).all()


def test_quantiles_of_numbers_that_are_all_one():
    edges = np.linspace(0, 4, 5)
    groups = np.full((5, 10), 2.5)
    values, errors = quantiles(counts_of(groups, edges), np.full(5, 10.0), edges, np.array([0.25, 0.5]))
    assert ((values >= 2) & (values < 3)).all()
    assert (errors == 1).all()  # it is known to a bin's width


def test_a_negative_factor_mirrors_bins_edges_and_quantiles():
    sweep = sim.Sweep(d_k=3, n_tokens=20, trials=60, scale=[1.0, -2.0], vectors={"mean": 0.7}, quantile=[0.1, 0.5, 0.9])
    dataset = sim.run(sweep)
    plus, minus = dataset.isel(scale=0), dataset.isel(scale=1)
    np.testing.assert_allclose(minus["score_quantile"], -2 * plus["score_quantile"][::-1])
    np.testing.assert_allclose(minus["score_quantile_se"], 2 * plus["score_quantile_se"][::-1])
    np.testing.assert_array_equal(minus["score_histogram"], plus["score_histogram"][::-1])
    np.testing.assert_array_equal(minus["score_bin_edge"], -2 * plus["score_bin_edge"][::-1])
    assert (np.diff(minus["score_bin_edge"]) > 0).all()
    np.testing.assert_allclose(minus["score_skewness"], -plus["score_skewness"])
    assert minus["score_min"] == -2 * plus["score_max"]


def test_shares_add_up_to_one_and_edges_follow_the_rule(random):
    counts = random.integers(0, 9, (4, 10)).astype(float)
    np.testing.assert_allclose(shares(counts).sum(-1), 1)
    factors = np.array([1.0, -0.5, 0.0])
    edges = np.array([-1.0, 0.0, 3.0])
    rules = [Rule(factor) for factor in factors]
    np.testing.assert_array_equal(scaled_edges(edges, rules), [[-1, 0, 3], [-1.5, 0, 0.5], [0, 0, 0]])
    np.testing.assert_array_equal(per_scale(counts, factors)[:, 1], counts[:, ::-1])


def test_the_histograms_bins_and_the_plans_agree():
    sweep = sim.Sweep(d_k=3, n_tokens=20, trials=60, histogram={"low": -1, "high": 2, "bins": 10})
    made = plan(sweep, sweep.cells[0], layout(sweep))
    np.testing.assert_allclose(made.edges, np.linspace(-1, 2, 11))
    assert sim.run(sweep)["score_histogram"].shape == (3, 12)


# Medians ------------------------------------------------------------------------------------------


def sizes_of(groups) -> np.ndarray:
    """Return the counts of the groups' values in the bins of sizes, (groups, 1, bins)."""
    return np.array([oracle.histogram(group, size_edges()) for group in groups])[:, None]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 100, 10_001])
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.3, 3.0])
def test_medians_are_those_of_sorting_to_the_width_of_a_bin(spread, count, random):
    for _ in range(20):
        values = np.minimum(np.exp(-8 + spread * random.standard_normal(count)), 0.9)
        groups = np.array_split(values, min(count, 7))
        (found,), _ = medians(sizes_of(groups), np.array([len(group) for group in groups], float), size_edges())
        low, high = oracle.middle(values)
        assert low / 1.004 <= found <= high * 1.004


def test_medians_of_several_histograms_stand_beside_each_other(random):
    groups = [np.exp(random.standard_normal((2, 500)) - 5 * np.array([[1], [2]])) for _ in range(9)]
    counts = np.concatenate([sizes_of([group[i] for group in groups]) for i in range(2)], axis=1)
    values, errors = medians(counts, np.full(9, 500.0), size_edges())
    for i in range(2):
        alone = medians(counts[:, i : i + 1], np.full(9, 500.0), size_edges())
        assert (values[i], errors[i]) == (alone[0][0], alone[1][0])
        assert values[i] == pytest.approx(np.exp(-5 * (i + 1)), rel=0.1)


def test_a_median_of_zeros_and_one_beyond_the_bins_are_blank():
    for mostly in (0.0, 2.0**-33, 1.0, 50.0):
        groups = [np.array([0.1, mostly, mostly])] * 5
        values, errors = medians(sizes_of(groups), np.full(5, 3.0), size_edges())
        assert np.isnan([*values, *errors]).all()
    # and with the zeros in the minority it is not
    values, _ = medians(sizes_of([np.array([0.0, 0.1, 0.1])] * 5), np.full(5, 3.0), size_edges())
    assert values[0] == pytest.approx(0.1, rel=0.004)


def test_a_median_in_the_first_or_the_last_bin_is_found():
    edges = size_edges()
    for at in (1, SIZE_BINS - 2):
        counts = np.zeros((6, 1, SIZE_BINS), np.int64)
        counts[:, 0, at] = 10
        values, errors = medians(counts, np.full(6, 10.0), edges)
        assert edges[at - 1] <= values[0] <= edges[at]
        assert errors[0] == edges[at] - edges[at - 1]  # one value, known to a bin's width


def test_a_single_group_has_a_median_and_no_error(random):
    values, errors = medians(sizes_of([np.exp(random.standard_normal(99) - 3)]), np.array([99.0]), size_edges())
    assert np.isfinite(values).all()
    assert np.isnan(errors).all()


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_the_intervals_of_medians_cover(spread, random):
    """Of 800 intervals of 95 %, 92.7 to 97.3 % cover: three of the share's own errors of 0.77 %.

    At the larger spread the 1000 values lie in a bin each, so that no few bins have a density.
    """
    covered = 0
    for _ in range(800):
        groups = np.exp(-4 + spread * random.standard_normal((40, 25)))
        (value,), (error,) = medians(sizes_of(np.minimum(groups, 0.9)), np.full(40, 25.0), size_edges())
        covered += abs(value - np.exp(-4)) <= stats.t.ppf(0.975, 39) * error
    assert 0.927 < covered / 800 < 0.973, covered / 800
