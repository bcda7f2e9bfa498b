"""The vectors of a side: every structure by its definition on the same draws, and by its covariance."""

import math

import numpy as np
import pytest
from scipy import stats

from sim.philox import COMMON, KEY, MAGNITUDE, QUERY, SHARED
from tests.drawn_vectors import PRECISIONS, check, drawn, made_of, root_of, standard

# Components of a vector ----------------------------------------------------------------------------


WITHIN = [
    *({"kind": "equicorrelated", "rho": rho} for rho in (0.3, 0.99, -0.1, -1 / 6 + 1e-6)),
    *({"kind": "ar1", "rho": rho} for rho in (0.5, 0.99, -0.7, 0.0)),
    *({"kind": "power_law", "exponent": exponent} for exponent in (0, 0.7, 3.0)),
    {"kind": "outliers", "count": 2, "factor": 30.0},
    {"kind": "outliers", "count": 7, "factor": 5.0},
]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_components_correlate_as_they_are_said_to(precision):
    for within in WITHIN:
        made = made_of(key={"within": within, "law": "uniform"}, precision=precision)
        root, covariance = root_of(within, 7)
        np.testing.assert_allclose(root @ root.T, covariance, 0, 1e-13)
        assert np.trace(covariance) == pytest.approx(7)
        _, key = drawn(made)
        check(key, standard(made, KEY, 9, "uniform") @ root.T, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_signs_are_one_size_and_independent_signs(precision):
    made = made_of(query={"dependent": "signs", "law": "exponential"}, precision=precision)
    query, _ = drawn(made)
    signs = standard(made, QUERY, 5, "rademacher")
    size = abs(standard(made, QUERY + MAGNITUDE, 5, "exponential")[:, :1])
    check(query, signs * size, precision)
    assert len(np.unique(size)) == 5


def magnitudes(df, tokens, trial=0, precision="float64"):
    """Return the magnitudes of as many vectors, read off components of size 1."""
    made = made_of(
        key={"law": "rademacher", "dependent": {"kind": "magnitude", "df": df}}, n_keys=tokens, precision=precision
    )
    _, key = drawn(made, trial)
    sizes = abs(key)
    np.testing.assert_allclose(sizes, sizes[:, :1].repeat(7, axis=1), 1e-15)
    np.testing.assert_array_equal(np.sign(key), standard(made, KEY, tokens, "rademacher", trial))
    return sizes[:, 0]


@pytest.mark.parametrize("df", [0.5, 1, 1.9, 2, 2.1, 4, 9, 30, 1e6])
def test_magnitudes_are_those_of_students_t(df):
    """Goodness of fit of df / r^2 (df - 2 above 2) to chi-square, Kolmogorov and Smirnov, at a level of 1e-5 each."""
    r = magnitudes(df, 40_000)
    chi_square = (df - 2 if df > 2 else df) / r**2
    found = stats.kstest(chi_square, stats.chi2(df).cdf)
    assert found.pvalue > 1e-5, found
    assert len(np.unique(r)) > 39_990
    assert abs(np.corrcoef(r[1:] > np.median(r), r[:-1] > np.median(r))[0, 1]) < 5 / 200  # 5 sigma: 6e-7
    narrow = magnitudes(df, 40_000, precision="float32")
    np.testing.assert_allclose(narrow, r, 1e-6)


def test_magnitudes_differ_between_trials_and_sides():
    side = {"law": "rademacher", "dependent": {"kind": "magnitude", "df": 3}}
    made = made_of(query=side, key=side, n_queries=9)
    (query, key), (_, other) = drawn(made, 0), drawn(made, 1)
    r = abs(np.stack([query[:, 0], key[:, 0], other[:, 0]]))
    assert len(np.unique(r)) == r.size


# Vectors of one side, and of both --------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rho", [0.25, 1.0])
def test_tokens_share_a_vector_drawn_alike(rho, precision):
    within = {"kind": "ar1", "rho": 0.8}
    side = {"tokens": {"rho": rho}, "within": within, "dependent": "signs", "law": "laplace"}
    made = made_of(key=side, precision=precision)
    root, _ = root_of(within, 7)

    def alike(tensor, tokens):
        size = abs(standard(made, tensor + MAGNITUDE, tokens, "laplace")[:, :1])
        return standard(made, tensor, tokens, "rademacher") * size @ root.T

    expected = math.sqrt(1 - rho) * alike(KEY, 9) + math.sqrt(rho) * alike(KEY + COMMON, 1)
    check(drawn(made)[1], expected, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rho", [0.5, -0.8, 1.0, -1.0, 0.0])
def test_a_key_correlates_with_its_query(rho, precision):
    """In several tiles, with more keys than queries and fewer; each side with a law and structure of its own."""
    for n_queries, n_keys in ((700, 1300), (600, 530), (3, 600)):
        sides = {
            "query": {"law": "uniform", "within": {"kind": "equicorrelated", "rho": 0.4}, "mean": 5, "std": 3},
            "key": {"law": "gaussian", "within": {"kind": "power_law", "exponent": 1.0}, "mean": -2, "std": 0.5},
        }
        pair = {"kind": "paired", "rho": rho}
        made = made_of(**sides, pair=pair, n_queries=n_queries, n_keys=n_keys, precision=precision)
        query, key = drawn(made)
        of_query = standard(made, QUERY, n_queries, "uniform") @ root_of(sides["query"]["within"], 7)[0].T
        of_key = standard(made, KEY, n_keys) @ root_of(sides["key"]["within"], 7)[0].T
        n = min(n_queries, n_keys)
        of_key[:n] = rho * of_query[:n] + math.sqrt(1 - rho**2) * of_key[:n]
        check(query, 5 + 3 * of_query, precision)
        check(key, -2 + 0.5 * of_key, precision)


def test_a_key_correlates_with_a_query_that_shares_a_vector():
    made = made_of(
        query={"tokens": {"rho": 0.5}}, key={"law": "uniform"}, pair={"kind": "paired", "rho": 0.6}, precision="float64"
    )
    query, key = drawn(made)
    np.testing.assert_allclose(key[:5], 0.6 * query + 0.8 * standard(made, KEY, 5, "uniform"), 1e-13)
    np.testing.assert_allclose(key[5:], standard(made, KEY, 9, "uniform")[5:], 1e-13)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_sides_share_one_vector_drawn_as_a_query_is(precision):
    sides = {
        "query": {"law": "uniform", "within": {"kind": "ar1", "rho": -0.5}, "tokens": {"rho": 0.3}},
        "key": {"law": "exponential", "mean": 1.0, "std": 2.0},
    }
    for rho in (0.4, 1.0):
        pair = {"kind": "shared", "rho": rho}
        made = made_of(**sides, pair=pair, n_queries=200, n_keys=600, precision=precision)
        root, _ = root_of(sides["query"]["within"], 7)
        z, own, common = (
            standard(made, *x, "uniform") @ root.T for x in ((QUERY, 200), (QUERY + COMMON, 1), (SHARED, 1))
        )
        query = math.sqrt(0.7) * z + math.sqrt(0.3) * own
        key = standard(made, KEY, 600, "exponential")
        query, key = (math.sqrt(1 - rho) * x + math.sqrt(rho) * common for x in (query, key))
        for found, expected in zip(drawn(made), (query, 1 + 2 * key), strict=True):
            check(found, expected, precision)


def stated_covariance(d, n_queries, n_keys, within=None, tokens=0.0, pair="none", rho=0.0):
    """Return the covariance of all components of Q, then of K, (tokens * d, tokens * d)."""
    of_vector = root_of(within, d)[1] if within else np.eye(d)
    n = n_queries + n_keys
    of_tokens = np.eye(n)
    for part in (slice(0, n_queries), slice(n_queries, n)):
        of_tokens[part, part] += tokens * (1 - np.eye(len(of_tokens[part])))
    if pair == "shared":
        of_tokens = (1 - rho) * of_tokens + rho
    if pair == "paired":  # key j is rho times query j and a rest of its own
        mix = np.eye(n)
        for j in range(min(n_queries, n_keys)):
            mix[n_queries + j, n_queries + j], mix[n_queries + j, j] = math.sqrt(1 - rho**2), rho
        of_tokens = mix @ of_tokens @ mix.T
    return np.kron(of_tokens, of_vector)


CORRELATED = [
    ({"dependent": {"kind": "magnitude", "df": 12}}, {}),
    ({"dependent": "signs"}, {}),
    ({"within": {"kind": "equicorrelated", "rho": -0.4}}, {}),
    ({"within": {"kind": "ar1", "rho": 0.7}, "dependent": "signs"}, {}),
    ({"within": {"kind": "power_law", "exponent": 1.0}}, {}),
    ({"tokens": {"rho": 0.5}, "within": {"kind": "outliers", "count": 1, "factor": 3.0}}, {}),
    ({"tokens": {"rho": 0.5}, "law": "laplace"}, {"kind": "paired", "rho": -0.6}),
    ({"law": "uniform"}, {"kind": "shared", "rho": 0.3}),
]


@pytest.mark.parametrize(("side", "pair"), CORRELATED)
def test_the_covariance_is_the_stated_one(side, pair):
    """Each entry within 5.5 of its own standard errors: 120 entries and 8 structures, false alarms 4e-5 in all."""
    trials, d = 2000, 3
    more = {"pair": pair} if pair else {}
    made = made_of(query=side, key=side, **more, d_k=d, n_queries=2, n_keys=3, precision="float64", seed=5)
    x = np.stack([np.concatenate(drawn(made, trial)).ravel() for trial in range(trials)])
    products = x[:, :, None] * x[:, None, :]
    of_pair = {"pair": pair["kind"], "rho": pair["rho"]} if pair else {}
    expected = stated_covariance(d, 2, 3, side.get("within"), side.get("tokens", {"rho": 0.0})["rho"], **of_pair)
    errors = np.maximum(products.std(axis=0), 1e-12) / math.sqrt(trials)
    assert (abs(products.mean(axis=0) - expected) < 5.5 * errors).all()
    assert (abs(x.mean(axis=0)) < 5.5 * x.std(axis=0) / math.sqrt(trials)).all()
    assert errors.max() < 0.25  # of variances of at most 2.5
