"""Streaming: tiles of given raw scores into one tally, against the oracle on the whole rows."""

import numpy as np
import pytest

from sim.sizes import SIZE_BINS, size_edges
from sim.tally import FAMILIES
from sim.tiles import TILE
from tests import oracle
from tests.measuring import each_row, measured, run_vectors

FACTORS = (1.0, 0.125, -0.5, 0.0, 2.0)
PRECISIONS = ("float32", "float64")
ROWS = {"float32": 2e-6, "float64": 1e-12}  # means over rows and moments, relative
THRESHOLDS, GRADIENT_THRESHOLDS = (0.9, 0.99, 0.999), (0.1, 0.01, 0.001)
OF_ROWS = ("weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares")
OF_ROWS += ("jacobian_frobenius", "jacobian_frobenius_sq", "jacobian_trace")


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
        expected = oracle.estimates(scores[None], factor, THRESHOLDS, GRADIENT_THRESHOLDS)
        rows = shape[0]
        for name in OF_ROWS:
            # in float32 a term e counts as at least 2^-120, and so e (m - s) as 6e-29 in all (see test_rows.py)
            floor = 1e-16 if name == "jacobian_frobenius" else 1e-28
            assert_close(found[name][k] / rows, expected[name], ROWS[precision] * 5, floor, f"{name} {factor}")
        assert_close(found["saturated"][k] / rows, expected["saturation_rate"], 1e-12)
        assert_close(found["vanished"][k] / rows, expected["vanishing_rate"], 1e-12)
        if shape[1] > 1:
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


def check_rows(rows, factors, relative, message=""):
    """Hold every value of every row to the oracle's."""
    found = each_row(rows, factors)
    for k, factor in enumerate(factors):
        scaled = factor * rows.astype(np.longdouble)
        expected = oracle.row_quantities(scaled)
        expected["jacobian_spectral"] = np.array([oracle.spectral_of_many(row) for row in scaled])
        for name, values in expected.items():
            assert_close(found[name][:, k], values.astype(float), relative, 0.0, f"{name} {message} {factor=}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_maximum_may_fall_in_any_tile(precision):
    keys = 3 * TILE + 17
    base = scores_of((1, keys), precision, std=2.0)
    for height in (1.0, 4.0, 14.0):
        rows = np.repeat(base, 4, axis=0)
        rows[np.arange(4), np.arange(4) * TILE + 5] = base.max() + height
        check_rows(rows, (1.0, -1.0), 2e-6 if precision == "float32" else 1e-13, f"{height=}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_maximum_may_rise_from_tile_to_tile(precision):
    rows = scores_of((8, 4 * TILE), precision, std=1.5)
    rows[:4] += np.repeat(np.arange(4), TILE).astype(precision) * np.array([[1], [3], [-2], [0.1]], precision)
    rows[4:] = np.sort(rows[4:], axis=1)
    check_rows(rows, (1.0, -0.7), 2e-6 if precision == "float32" else 1e-13)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_maxima_that_tie_across_tiles_count_each(precision):
    row = np.full((1, 3 * TILE), -3.0, precision)
    row[0, [0, 1, TILE, 2 * TILE + 7]] = 2.0
    check_rows(row, (1.0, -1.0), 2e-6 if precision == "float32" else 1e-13)


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
    whole = each_row(scores, FACTORS)
    for count in (1, 3, 128, 199):
        for name, values in each_row(scores[:count], FACTORS).items():
            np.testing.assert_array_equal(values, whole[name][:count], err_msg=name)


# Some of the 127 sets of families: each alone, each left out, and a few more.
SETS = [*([family] for family in FAMILIES), *([f for f in FAMILIES if f != family] for family in FAMILIES)]
SETS += [["jacobian", "gradients"], ["weights", "spectrum"], ["scores", "distribution", "numerics"]]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n_keys", [60, TILE + 90])  # with a Gram matrix for the gradients, and in two tiles
@pytest.mark.parametrize("causal", [False, True])
def test_a_family_left_out_changes_no_bit_of_the_others(precision, n_keys, causal):
    query, key = scores_of((12, 80), precision, 0.5, 0.4), scores_of((n_keys, 80), precision, 0.1, 1.3, seed=1)

    def of(families):
        given, where = run_vectors(query, key, FACTORS, observables=families, causal=causal)
        names = [name for name in where.offsets._fields if name in where]
        in_bins = where.bin_parts
        return {name: where.part(given.bins if name in in_bins else given.tally, name) for name in names}

    whole = of(FAMILIES)
    for kept in SETS:
        for name, values in of(kept).items():
            np.testing.assert_array_equal(values, whole[name], err_msg=f"{name} of {kept}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sizes_are_counted_in_their_bins(precision):
    scores = scores_of((300, 40), precision, std=9.0)
    scores[:3] = [[0.0], [1e3], [-1e3]]
    scores[5, 7] = 1e4
    found = measured(scores, (1.0, -0.3, 0.0), observables=["weights", "jacobian"])
    of_rows = each_row(scores, (1.0, -0.3, 0.0))["jacobian_frobenius"]
    assert (of_rows < size_edges()[0]).any()
    for k in range(3):
        expected = np.bincount(np.searchsorted(size_edges(), of_rows[:, k], "right"), minlength=SIZE_BINS)
        np.testing.assert_array_equal(found["frobenius_sizes"][k], expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_overflows_are_counted_from_the_very_first_value_that_rounds_to_infinity(precision):
    real = np.dtype(precision).type
    halves, singles = real(65520), real(2.0**128 - 2.0**103) if precision == "float64" else real(np.inf)
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(halves))
        assert np.isinf(np.float32(singles))
        for limit, kind in ((halves, np.float16), (singles, np.float32)):
            assert np.isfinite(kind(np.nextafter(limit, real(0))))
    row = np.array([0, 1, 65519, np.nextafter(halves, real(0)), halves, 65521, 1e30], real)
    found = measured(np.stack([row, -row, 0 * row]), (1.0,), observables=["numerics"])
    assert found["scores"] == 21
    np.testing.assert_array_equal(found["score_overflows"], [6, 0])
    if precision == "float64":  # float32 holds no such scores
        row = np.array([np.nextafter(singles, 0), singles, 1e39, np.finfo(np.float32).max])
        found = measured(np.stack([row, -row]), (1.0,), observables=["numerics"])
        np.testing.assert_array_equal(found["score_overflows"], [8, 4])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_whose_exp_overflows_is_counted_once_by_its_largest_scaled_score(precision):
    for largest, kinds in ((np.log(65520), 1), (np.log(2.0**128 - 2.0**103), 2)):
        for sign in (1, -1):
            above, below = (largest * (1 + step) for step in (1e-6, -1e-6))
            rows = np.full((5, 6), -300.0)
            rows[:, 2], rows[:, 4] = [above, below, above, -500, 0], [0, below, above, 0, -above]
            found = measured((sign * rows / 4).astype(precision), (4.0 * sign,), observables=["numerics"])
            assert found["exp_overflows"][0, kinds - 1] == 2, (largest, sign)
            assert found["exp_overflows"][0].max() <= 3
            assert (found["score_overflows"] == 0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_key_has_all_the_weight_and_no_variance(precision):
    found = measured(scores_of((4, 1), precision, 1e4), (1.0, 0.0, -2.0))
    assert (found["weight_max"] == 4).all()
    assert (found["weight_entropy"] == 0).all()
    assert (found["weight_effective_keys"] == 4).all()
    assert (found["saturated"] == 4).all()
    assert (found["jacobian_frobenius"] < 1e-17).all()  # 2^-60 in float32
    assert (found["jacobian_trace"] < 1e-34).all()
    assert (found["vanished"] == 4).all()
    assert (found["gradient_query_sq"] == 0).all()
    assert (found["varied_rows"] == 0).all()  # of which score_row_variance is the mean: blank


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_constant_score_has_no_variance_and_even_weights(precision):
    found = measured(np.full((3, 1000), 7.25, precision), (1.0, -0.5))
    assert_close(found["score_moments"], [[3000, 7.25, 0, 0, 0], [3000, -3.625, 0, 0, 0]], 1e-15)
    assert_close(found["weight_entropy"], 3 * np.log(1000), 1e-14)
    assert (found["score_row_variance"] == 0).all()


# Partners: query i and key i -----------------------------------------------------------------------


PARTNER_RULES = [
    (1.0, oracle.Rule(1.0)),
    (-0.5, oracle.Rule(-0.5)),
    (0.0, oracle.Rule(0.0)),
    ({"kind": "softcap", "cap": 20.0}, oracle.Rule(1.0, cap=20.0)),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("shape", "causal"),
    [((5, 9), False), ((300, 700), False), ((700, 300), False), ((300, 700), True), ((600, 600), True)],
)
def test_the_weight_of_partners_agrees_with_the_oracle(shape, causal, precision):
    n_queries, n_keys = shape
    query, key = scores_of((n_queries, 3), precision), scores_of((n_keys, 3), precision, seed=1)
    n = min(shape)
    key[:n] = (key[:n] + 3 * query[:n]).astype(precision)
    pair = {"kind": "paired", "rho": 0.5}
    scale = [scale for scale, _ in PARTNER_RULES]
    found, where = run_vectors(query, key, scale, pair=pair, causal=causal, observables=["weights"])
    visible = np.arange(n_keys - n_queries + 1, n_keys + 1) if causal else np.full(n_queries, n_keys)
    close, may_differ = {"float32": (2e-5, 2), "float64": (1e-12, 0)}[precision]
    for k, (_, rule) in enumerate(PARTNER_RULES):
        s = oracle.hidden(oracle.scaled(query.astype(float) @ key.T.astype(float), rule, visible), visible)
        p, _ = oracle.softmax(s)
        at = np.arange(n)
        # a partner as good as any is at the top: all are where the factor is 0
        top = (p[at, at] >= p[at].max(axis=1) * (1 - close / 10)).sum()
        assert_close(where.part(found.tally, "partner_weight")[k], p[at, at].sum(), close)
        assert abs(where.part(found.tally, "partner_top")[k] - top) <= may_differ
        assert where.part(found.tally, "partner_rows")[k] == n
        assert top > 0 or rule.factor < 0


def test_partners_in_lost_rows_do_not_count_and_their_weight_is_rounded():
    scores = np.full((4, 40), 1.0, np.float32)
    scores[2, 2] = 1.125
    pair = {"kind": "paired", "rho": 0.5}
    unit = np.eye(40, dtype=np.float32)
    scores[1, 7] = 1e5  # infinite in float16
    found, where = run_vectors(scores, unit, [1.0, 0.0], pair=pair, precision="float16", observables=["weights"])
    even, above = float(np.float16(1 / 40)), float(np.float16(np.exp(0.125) / (39 + np.exp(0.125))))
    np.testing.assert_array_equal(where.part(found.tally, "partner_rows"), [3, 3])
    np.testing.assert_array_equal(where.part(found.tally, "partner_weight"), [2 * even + above, 3 * even])
    np.testing.assert_array_equal(where.part(found.tally, "partner_top"), [3, 3])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sums_of_scores_without_moments_are_those_of_float64(precision):
    """Their fourth powers leave float32; and where they do not, they are what they were."""
    scores = scores_of((40, 700), precision)
    narrow, wide = (measured(scores, change={"is_wide": is_wide}) for is_wide in (False, True))
    for name, values in narrow.items():
        np.testing.assert_allclose(wide[name], values, ROWS[precision] * 20, 1e-6, err_msg=name)
    scores[3, 5], scores[7, 650] = 1e13, -3e12
    found, exact = measured(scores, change={"is_wide": True}), oracle.moments(scores)
    np.testing.assert_allclose(found["score_moments"][0], exact.astype(float), 1e-9)
    assert exact[4] > np.finfo(np.float32).max
