"""Streaming: tiles of given raw scores into one tally, against the oracle on the whole rows."""

import numpy as np
import pytest

from sim.tiles import TILE
from tests import oracle
from tests.measuring import each_row, measured, tally_of

FACTORS = (1.0, 0.125, -0.5, 0.0, 2.0)
PRECISIONS = ("float32", "float64")
ROWS = {"float32": 2e-6, "float64": 1e-12}  # means over rows and moments, relative
THRESHOLDS = (0.9, 0.99, 0.999)


def scores_of(shape, precision, mean=0.0, std=1.0, seed=0):
    return (mean + std * np.random.default_rng(seed).standard_normal(shape)).astype(precision)


def assert_close(found, expected, relative, absolute=0.0, message=""):
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute, err_msg=message)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (3.0, 8.0), (100.0, 1.0), (-1e4, 3.0), (0.0, 1e4), (1e-3, 1e-4)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 5), (129, 513), (7, 1300)])
def test_a_tally_agrees_with_the_oracle(shape, mean, std, precision):
    scores = scores_of(shape, precision, mean, std)
    unit = 2.0 ** -round(np.log2(std))
    found = measured(scores, FACTORS, change={"unit": unit})
    for k, factor in enumerate(FACTORS):
        expected = oracle.estimates(scores[None], factor, THRESHOLDS)
        rows = shape[0]
        for name in ("weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"):
            assert_close(found[name][k] / rows, expected[name], ROWS[precision] * 5, 1e-30, f"{name} {factor}")
        assert_close(found["saturated"][k] / rows, expected["saturation_rate"], 1e-12)
        assert_close(found["score_row_variance"][k] / rows, expected["score_row_variance"], ROWS[precision] * 5)
        for name in ("score_min", "score_max", "score_trial_max"):
            assert_close(found[name][k], expected[name], 1e-15, 0.0, name)
        exact = oracle.moments(factor * scores.astype(np.longdouble))
        spread = np.sqrt(exact[2] / exact[0])
        sizes = exact[0] * spread ** np.arange(2, 5)
        assert found["score_moments"][k, 0] == scores.size
        assert_close(found["score_moments"][k, 1], float(exact[1]), 1e-15, float(spread) * ROWS[precision])
        error = abs(found["score_moments"][k, 2:] - exact[2:])
        assert (error <= ROWS[precision] * 5 * sizes).all(), (factor, error / sizes)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_counts_within_sigma_and_in_bins_are_exact(precision):
    scores = scores_of((50, 1100), precision, 0.3, 4.0)
    low, high, bins = -10.0, 6.0, 64  # edges at multiples of 1/4, exact in both precisions
    window = np.array([0.25, 4.0, 8.0, 12.0], precision)
    found = measured(scores, (1.0,), histogram={"low": low, "high": high, "bins": bins}, change={"window": window})
    counts = oracle.histogram(scores.astype(float), np.linspace(low, high, bins + 1))
    assert counts[0] > 0
    assert counts[-1] > 0
    np.testing.assert_array_equal(found["score_histogram"], counts)
    shares = [oracle.within(scores, 0.25, limit) for limit in (4.0, 8.0, 12.0)]
    np.testing.assert_array_equal(found["score_within_sigma"], np.array(shares) * scores.size)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_edge_belongs_to_the_bin_on_its_right_and_a_sigma_to_the_inside(precision):
    scores = np.array([[-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]], precision)
    window = np.array([0.0, 1.0, 2.0, 3.0], precision)
    found = measured(scores, (1.0,), histogram={"low": -1, "high": 2, "bins": 3}, change={"window": window})
    np.testing.assert_array_equal(found["score_histogram"], [1, 1, 1, 1, 2])
    np.testing.assert_array_equal(found["score_within_sigma"], [3, 5, 6])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_maximum_may_fall_in_any_tile(precision):
    keys = 5 * TILE + 17
    base = scores_of((1, keys), precision, std=2.0)
    for height in (1.0, 4.0, 30.0):
        rows = np.repeat(base, 6, axis=0)
        rows[np.arange(6), np.arange(6) * TILE + 5] = base.max() + height
        found = each_row(rows, (1.0, -1.0))
        for k, factor in enumerate((1.0, -1.0)):
            for name, values in oracle.row_quantities(factor * rows.astype(float)).items():
                assert_close(found[name][:, k], values.astype(float), 1e-6, 0.0, f"{name} {height=} {factor=}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_maxima_that_tie_across_tiles_count_each(precision):
    row = np.full((1, 3 * TILE), -3.0, precision)
    row[0, [0, 1, TILE, 2 * TILE + 7]] = 2.0
    found = each_row(row, (1.0,))
    for name, values in oracle.row_quantities(row).items():
        assert_close(found[name][0], float(values[0]), 1e-6, 0.0, name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_order_of_keys_and_rows_does_not_matter(precision):
    scores = scores_of((20, 4 * TILE + 3), precision, 1.0, 3.0)
    random = np.random.default_rng(3)
    shuffled = scores[random.permutation(20)][:, random.permutation(scores.shape[1])]
    first, second = measured(scores, FACTORS), measured(shuffled, FACTORS)
    for name, values in first.items():
        if name == "score_moments":  # odd moments of a symmetric law are small differences of large ones
            values, second[name] = values[:, [0, 2, 4]], second[name][:, [0, 2, 4]]
        assert_close(second[name], values, 1e-6, 1e-30, name)


def test_rows_in_any_batches_give_the_same_rows():
    scores = scores_of((200, 600), "float32", std=3.0)
    whole, where = tally_of(scores, FACTORS)
    for tile_rows in (1, 3, 128, 199):
        parts, _ = tally_of(scores, FACTORS, tile_rows)
        for name in where.offsets._fields:
            found, expected = where.part(parts, name), where.part(whole, name)
            if name == "score_moments":
                found, expected = found[:, [0, 2, 4]], expected[:, [0, 2, 4]]
                assert_close(found, expected, 1e-12)
            else:  # the rows' own sums are the same, added in the same order
                np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_family_left_out_changes_no_bit_of_the_others():
    families = ("scores", "distribution", "weights")
    for precision in PRECISIONS:
        scores = scores_of((30, 700), precision, 0.5, 5.0)
        whole = measured(scores, FACTORS)
        for chosen in range(8):
            kept = [family for bit, family in enumerate(families) if chosen >> bit & 1]
            if not kept:
                continue
            for name, values in measured(scores, FACTORS, observables=kept).items():
                np.testing.assert_array_equal(values, whole[name], err_msg=f"{name} of {kept}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_key_has_all_the_weight_and_no_variance(precision):
    found = measured(scores_of((4, 1), precision, 1e4), (1.0, 0.0, -2.0))
    assert (found["weight_max"] == 4).all()
    assert (found["weight_entropy"] == 0).all()
    assert (found["weight_effective_keys"] == 4).all()
    assert (found["saturated"] == 4).all()
    assert np.isnan(found["score_row_variance"]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_constant_score_has_no_variance_and_even_weights(precision):
    found = measured(np.full((3, 1000), 7.25, precision), (1.0, -0.5))
    assert_close(found["score_moments"], [[3000, 7.25, 0, 0, 0], [3000, -3.625, 0, 0, 0]], 1e-15)
    assert_close(found["weight_entropy"], 3 * np.log(1000), 1e-14)
    assert (found["score_row_variance"] == 0).all()
