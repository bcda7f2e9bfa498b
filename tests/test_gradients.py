"""Gradients by query and key of given vectors against the oracle, which itself is checked by differentiating."""

import numpy as np
import pytest

from sim.tiles import TILE
from tests import oracle
from tests.measuring import VALUES, measured, run_vectors

FACTORS = (1.0, 0.125, -0.5, 0.0)
PRECISIONS = ("float32", "float64")
# Of ||dL/dq||^2. The raw scores are what the precision makes of q.k: they err by some 1e-7 of ||q|| ||k||, which is
# 100 at d_k = 300, and the weights with them.
TOLERANCE = {"float32": 4e-5, "float64": 1e-12}


def vectors(n_queries, n_keys, d_k, precision, mean=0.0, std=1.0, seed=0):
    """Return Q of small elements and K of the given ones."""
    random = np.random.default_rng(seed)
    query = 0.3 * random.standard_normal((n_queries, d_k))
    key = mean + std * random.standard_normal((n_keys, d_k))
    return query.astype(precision), key.astype(precision)


def check(query, key, factors=FACTORS, relative=None, causal=False):
    """Hold the gradients of Q and K under every rule to the oracle's."""
    precision = query.dtype.name
    relative = relative or TOLERANCE[precision]
    found, where = run_vectors(query, key, factors, observables=["gradients"], causal=causal)
    visible = np.arange(len(key) - len(query) + 1, len(key) + 1) if causal else None
    for k, factor in enumerate(factors):
        expected = oracle.gradients(query, key, factor, visible)
        rows = found.values[k, VALUES["gradient_query_sq"]]
        np.testing.assert_allclose(rows, expected["query"], relative, 1e-30, err_msg=f"by query, {factor=}")
        for name, values in expected.items():
            total = values.mean() if name == "key" else values.sum()
            found_total = where.part(found.tally, f"gradient_{name}_sq")[k]
            np.testing.assert_allclose(found_total, total, relative, 1e-30, err_msg=f"by {name}, {factor=}")


# The oracle ----------------------------------------------------------------------------------------


def losses(query, key, factor, visible):
    """Return every p_ij: L = sum g p with g a unit vector, one for each weight."""
    s = factor * query @ key.T
    s[np.arange(len(key)) >= visible[:, None]] = -np.inf
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("visible", [[7, 7, 7], [1, 3, 7]])
def test_the_oracle_is_what_numerical_differentiation_gives(visible):
    """||dL/dq||^2 summed over all unit vectors g is its average over standard normal g, and so for the keys."""
    query, key = (x.astype(float) for x in vectors(3, 7, 4, "float64"))
    factor, visible, step = 1.7, np.array(visible), 1e-5
    by_query, by_key = np.zeros(3), np.zeros(7)
    for x, out in ((query, by_query), (key, by_key)):
        for token, element in np.ndindex(x.shape):
            x[token, element] += step
            above = losses(query, key, factor, visible)
            x[token, element] -= 2 * step
            below = losses(query, key, factor, visible)
            x[token, element] += step
            out[token] += (((above - below) / (2 * step)) ** 2).sum()
    found = oracle.gradients(query, key, factor, visible)
    np.testing.assert_allclose(found["query"], by_query, 1e-7, 1e-15)
    np.testing.assert_allclose(found["key"], by_key, 1e-7, 1e-15)


def test_the_oracle_is_the_product_of_the_explicit_jacobian():
    query, key = vectors(5, 30, 6, "float64", mean=2.0)
    for factor in (1.0, -3.0, 20.0):
        jacobians = [oracle.jacobian(row) for row in factor * query @ key.T]
        by_query = [factor**2 * ((matrix @ key) ** 2).sum() for matrix in jacobians]
        by_key = sum(
            factor**2 * (q**2).sum() * (matrix**2).sum(axis=1) for q, matrix in zip(query, jacobians, strict=True)
        )
        found = oracle.gradients(query, key, factor)
        np.testing.assert_allclose(found["query"], np.array(by_query, float), 1e-10)
        np.testing.assert_allclose(found["key"], by_key.astype(float), 1e-10)
        np.testing.assert_allclose(found["score"], [factor**2 * float((m**2).sum()) for m in jacobians], 1e-13)
        rows = oracle.row_quantities(factor * query @ key.T)
        for row, matrix in enumerate(jacobians):
            assert float(rows["jacobian_frobenius_sq"][row]) == pytest.approx(float((matrix**2).sum()), rel=1e-13)
            assert float(rows["jacobian_trace"][row]) == pytest.approx(float(np.trace(matrix)), rel=1e-13)


# The kernels ---------------------------------------------------------------------------------------


# (queries, keys, d_k): one query, one key, by keys, by their Gram matrix, several tiles of keys and of queries
SHAPES = [
    (1, 1, 3),
    (2, 2, 1),
    (5, 40, 8),
    (33, 40, 200),
    (130, 70, 300),
    (4, TILE, 16),
    (3, TILE + 1, 20),
    (140, 1300, 9),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_agrees_with_the_oracle(shape, precision):
    check(*vectors(*shape, precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape", [(1, 1, 3), (5, 40, 8), (33, 40, 200), (130, 140, 300), (140, 1300, 9), (600, 620, 5)]
)
def test_causal_rows_agree_with_the_oracle(shape, precision):
    check(*vectors(*shape, precision), causal=True)


def test_both_ways_are_taken():
    """Otherwise the shapes above would not reach the Gram matrix, or nothing else."""
    from sim.gradients import new_keys

    def is_gram(n_queries, n_keys, d_k):
        room = new_keys(True, False, n_queries, min(n_queries, 128), n_keys, d_k, np.ones(len(FACTORS), np.float32))
        return room.gram.size > 0

    taken = {shape: is_gram(*shape) for shape in SHAPES}
    assert taken[33, 40, 200]
    assert taken[130, 70, 300]
    assert not taken[5, 40, 8]
    assert not taken[140, 1300, 9]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("keys", "d_k"), [(40, 8), (40, 200), (TILE + 100, 8)])
def test_a_key_far_off_without_weight_changes_nothing(keys, d_k, precision):
    """By its place it may be the first, the middle or the last key of the tile, from which the shift is taken."""
    query, key = vectors(9, keys, d_k, precision)
    query = abs(query) + query.dtype.type(0.1)
    options = {"observables": ["gradients"]}
    alone, _ = run_vectors(query, key, FACTORS[:1], **options)
    for place in (0, 3, (min(keys, TILE) - 1) // 2, keys - 1):
        longer = np.insert(key, place, -1e5, axis=0)
        found, _ = run_vectors(query, longer, FACTORS[:1], **options)
        values, expected = (f.values[:, VALUES["gradient_query_sq"]] for f in (found, alone))
        np.testing.assert_allclose(values, expected, 2e-5 if precision == "float32" else 1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d_k", [6, 300])
def test_the_largest_key_may_stand_anywhere(d_k, precision):
    """In any tile, at either end of it, for positive and negative factors; saturated or not."""
    keys = 60 if d_k == 300 else 3 * TILE + 20
    for place in {0, 1, 30, keys // 2, keys - 1, min(TILE - 1, keys - 1), min(TILE, keys - 1)}:
        query, key = vectors(3, keys, d_k, precision, std=0.5)
        for height in (1.0, 6.0):
            key[place] = height * query[1] / np.sqrt((query[1] ** 2).sum())
            check(query, key, (1.0, 3.0, -3.0))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_maxima_that_rise_from_tile_to_tile_agree_with_the_oracle(precision):
    query, key = vectors(6, 4 * TILE, 5, precision)
    order = np.argsort(key @ query[0])
    check(query, key[order])
    check(query, key[order[::-1]])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("shape", "causal"), [((9, 40, 8), False), ((40, 40, 200), False), ((6, 1300, 8), True)])
def test_a_large_common_mean_of_the_keys_cancels_no_more_than_the_keys_do(shape, causal, precision):
    """Keys of 50 +- 0.3: a shift of all keys changes nothing, so that only the scores' rounding is left.

    In float32 a key is known to 4e-6, 1e-5 of its spread, and a score of 200 to 1e-5.
    """
    query, key = vectors(*shape, precision, mean=50.0, std=0.3)
    check(query, key, (1.0, -0.5), {"float32": 3e-4, "float64": 1e-12}[precision], causal)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(9, 40, 8), (40, 40, 200), (6, 1300, 8)])
def test_a_shift_of_all_keys_changes_nothing(shape, precision):
    query, key = vectors(*shape, precision)
    key = np.round(key * 64) / 64  # so that the shift is exact
    query = np.round(query * 64) / 64
    shifted = key + 8
    before, after = (measured_gradients(query, x) for x in (key, shifted))
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, 1e-5 if precision == "float32" else 1e-12, err_msg=name)


def measured_gradients(query, key):
    found, where = run_vectors(query, key, FACTORS, observables=["gradients"])
    return {name: where.part(found.tally, f"gradient_{name}_sq") for name in ("query", "key", "score")}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(9, 40, 8), (40, 40, 200), (6, 1300, 8)])
def test_saturated_rows_agree_with_the_oracle(shape, precision):
    """Down to gradients of 1e-8; a score of 39 is known to 4e-6 in float32, and e of it squared to 1e-5."""
    query, key = vectors(*shape, precision)
    key[7] = 0
    key[11] = query[0] / np.sqrt((query[0] ** 2).sum()) * 13
    query = query / np.sqrt((query**2).sum(axis=1, keepdims=True)) * 3
    assert oracle.gradients(query, key, 1.0)["query"].min() < 1e-16
    check(query, key, (1.0, -1.0), {"float32": 1e-4, "float64": 1e-12}[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_key_has_no_gradient(precision):
    for shape in ((3, 1, 8), (3, 1, 2000)):
        query, key = vectors(*shape, precision, mean=3.0)
        for values in measured_gradients(query, key).values():
            assert (values < 1e-30).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_equal_keys_give_no_gradient_to_the_query_but_to_the_scores(precision):
    query, key = vectors(6, 40, 8, precision)
    key[:] = key[0]
    found = measured_gradients(query, key)
    assert (found["query"] < 1e-12).all()
    np.testing.assert_allclose(found["score"], 6 * 39 / 40**2 * np.square(FACTORS), 1e-5)


def test_scores_of_unit_keys_are_told_apart_by_the_gradient():
    """With the unit vectors as keys, dL/dq = factor J g: the same norm as dL/ds."""
    scores = np.random.default_rng(5).standard_normal((20, 50))
    found = measured(scores, FACTORS, observables=["gradients"])
    np.testing.assert_allclose(found["gradient_query_sq"], found["gradient_score_sq"], 1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(33, 40, 200), (33, 40, 9), (5, 600, 9)])
@pytest.mark.parametrize("spread", [0.1, 1e-3, 0.0])
def test_heavy_keys_close_together_are_told_apart(spread, shape, precision):
    """Two clusters, one of which has the weight: what is left of the gradient is a difference of squares.

    In one tile the row is summed anew. In several it is right to 40 roundings of the squared distance of the
    clusters, rather than relative to itself.
    """
    n_queries, n_keys, d_k = shape
    random = np.random.default_rng(9)
    centers = random.standard_normal((2, d_k))
    key = centers[np.arange(n_keys) % 2] + spread * random.standard_normal((n_keys, d_k))
    apart = centers[0] - centers[1]
    query = apart * 10 / (apart @ apart) * (1 + 0.1 * random.standard_normal((n_queries, 1)))
    query, key = query.astype(precision), key.astype(precision)
    found, _ = run_vectors(query, key, (1.0,), observables=["gradients"])
    expected = oracle.gradients(query, key, 1.0)["query"]
    sizes = (apart @ apart) * oracle.row_quantities(query @ key.T)["weight_sum_squares"]
    error = abs(found.values[0, VALUES["gradient_query_sq"]] - expected)
    several = 40 * np.finfo(precision).eps * sizes if n_keys > TILE else 0.0
    assert (error <= several + {"float32": 3e-4, "float64": 1e-12}[precision] * expected).all()


@pytest.mark.parametrize(("keys", "d_k"), [(512, 4), (100, 2), (30, 200)])
def test_short_vectors_of_signs_have_many_keys_alike(keys, d_k):
    random = np.random.default_rng(1)
    query, key = (3 * random.choice([-1.0, 1.0], size=(n, d_k)).astype(np.float32) for n in (50, keys))
    found, _ = run_vectors(query, key, (1.0, 0.1), observables=["gradients"])
    for k, factor in enumerate((1.0, 0.1)):
        expected = oracle.gradients(query, key, factor)["query"]
        np.testing.assert_allclose(found.values[k, VALUES["gradient_query_sq"]], expected, 5e-5, 1e-22)
