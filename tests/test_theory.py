"""Closed forms of the scores against enumeration, quadrature and the formulas of the literature."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

import sim
from sim.cell import Cell, Side
from sim.laws import LAWS
from sim.observables import OBSERVABLES
from sim.plan import layout, plan
from sim.theory.scores import score_theory
from tests.gauss import law_rule

LAW = {
    "rademacher": "rademacher",
    "gaussian": "gaussian",
    "uniform": "uniform",
    "laplace": "laplace",
    "student_t": {"kind": "student_t", "df": 11},
    "exponential": "exponential",
    "two_point": {"kind": "two_point", "p": 0.1},
    "sparse": {"kind": "sparse", "density": 0.2},
    "lognormal": {"kind": "lognormal", "shape": 0.5},
}
SIDES = [
    ({}, {}),
    ({"mean": 1.0}, {}),
    ({"mean": -0.7, "std": 0.5}, {"mean": 0.3, "std": 2.0}),
    ({"mean": 20.0}, {"mean": -3.0}),
    ({"std": 0.0, "mean": 1.0}, {"mean": 0.5}),
]


def theory(d, query, key, n_keys=2):
    return score_theory(Cell(d_k=d, n_queries=1, n_keys=n_keys, query=Side(**query), key=Side(**key)))


def enumerated(d, query, key):
    """Return (mean, variance, skewness, excess kurtosis, row variance) by summing over all Q and K."""
    (zq, wq), (zk, wk) = (law_rule(Side(law=side["law"]).law, 3) for side in (query, key))

    def vectors(z, w, side):
        x = np.array(list(itertools.product(side.get("mean", 0) + side.get("std", 1) * z, repeat=d)))
        return x, np.array([math.prod(c) for c in itertools.product(w, repeat=d)])

    (q, pq), (k, pk) = vectors(zq, wq, query), vectors(zk, wk, key)
    s, p = q @ k.T, np.outer(pq, pk)
    mean = (p * s).sum()
    m2, m3, m4 = ((p * (s - mean) ** r).sum() for r in (2, 3, 4))
    of_row = ((s - (s @ pk)[:, None]) ** 2) @ pk
    return mean, m2, m3 / m2**1.5, m4 / m2**2 - 3, pq @ of_row


def test_every_law_is_here():
    assert set(LAW) == set(LAWS)


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("laws", list(itertools.product(LAW, repeat=2)), ids=" × ".join)
def test_moments_are_those_of_all_vectors(laws, sides):
    """By Gauss's rule of each law, exact for the polynomials that moments are: ±1 by all sign vectors."""
    for d in (1, 2, 3):
        query, key = ({"law": LAW[law], **side} for law, side in zip(laws, sides, strict=True))
        found = theory(d, query, key)
        values = found.mean, found.variance, found.skewness, found.excess_kurtosis, found.row_variance
        expected = enumerated(d, query, key)
        np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-8)
        assert found.std == pytest.approx(math.sqrt(found.variance))


@pytest.mark.parametrize("sides", SIDES[:4], ids=str)
@pytest.mark.parametrize("d", [1, 4, 64])
def test_gaussian_moments_are_those_of_a_quadratic_form(d, sides):
    """Mathai and Provost (1992): kappa_r = 2^(r-1) (r-1)! [tr (AV)^r + r mu' (AV)^(r-1) A mu]."""
    query, key = sides
    a = 0.5 * np.array([[0.0, 1.0], [1.0, 0.0]])
    v = np.diag([query.get("std", 1) ** 2, key.get("std", 1) ** 2])
    mu = np.array([query.get("mean", 0.0), key.get("mean", 0.0)])
    kappa = {}
    for r in (1, 2, 3, 4):
        power = np.linalg.matrix_power(a @ v, r - 1)
        form = np.trace(power @ a @ v) + r * mu @ power @ a @ mu
        kappa[r] = d * 2 ** (r - 1) * math.factorial(r - 1) * form
    found = theory(d, query, key)
    assert found.mean == pytest.approx(kappa[1])
    assert found.variance == pytest.approx(kappa[2])
    assert found.skewness == pytest.approx(kappa[3] / kappa[2] ** 1.5)
    assert found.excess_kurtosis == pytest.approx(kappa[4] / kappa[2] ** 2)


KURTOSIS = {"rademacher": 1.0, "gaussian": 3.0, "uniform": 9 / 5}


@pytest.mark.parametrize("laws", list(itertools.product(KURTOSIS, repeat=2)), ids=" × ".join)
def test_zero_means_have_the_kurtosis_of_the_elements(laws):
    found = theory(50, {"law": laws[0]}, {"law": laws[1]})
    assert found.excess_kurtosis == pytest.approx((KURTOSIS[laws[0]] * KURTOSIS[laws[1]] - 3) / 50)
    assert (found.mean, found.variance, found.skewness) == (0, 50, 0)


def test_a_single_key_has_no_row_variance_and_a_constant_score_no_shape():
    assert math.isnan(theory(4, {}, {}, n_keys=1).row_variance)
    constant = theory(4, {"std": 0, "mean": 2}, {"std": 0, "mean": 3})
    assert (constant.mean, constant.variance) == (24, 0)
    assert math.isnan(constant.skewness)
    assert constant.distribution is None


# Distributions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "std"), [(1, 1.0), (2, 0.1), (16, 0.3), (64, 1.0), (101, 7.0)])
def test_signs_give_the_binomial(d, std):
    distribution = theory(d, {"law": "rademacher", "std": std}, {"law": "rademacher"}).distribution
    mass = [math.comb(d, b) / 2**d for b in range(d + 1)]
    values = std * (2 * np.arange(d + 1) - d)
    below, up_to = distribution(values)
    np.testing.assert_allclose(below, np.cumsum([0, *mass[:-1]]), atol=1e-13)
    np.testing.assert_allclose(up_to, np.cumsum(mass), atol=1e-13)
    between, same = distribution(values + 0.4 * std)
    np.testing.assert_allclose(between, up_to, atol=1e-13)
    np.testing.assert_allclose(same, up_to, atol=1e-13)
    assert [float(x) for x in distribution(np.array([-d * std * 2, d * std * 2]))[0]] == [0, 1]


def test_whether_the_end_counts_on_a_lattice():
    below, up_to = theory(64, {"law": "rademacher"}, {"law": "rademacher"}).distribution(np.array([-8.0, 8.0]))
    assert up_to[1] - below[0] == pytest.approx(0.740, abs=5e-4)
    assert below[1] - up_to[0] == pytest.approx(0.618, abs=5e-4)


def test_signs_times_normals_are_normal():
    for laws in (("gaussian", "rademacher"), ("rademacher", "gaussian")):
        distribution = theory(9, {"law": laws[0], "std": 2}, {"law": laws[1]}).distribution
        x = np.linspace(-30, 30, 61)
        np.testing.assert_allclose(distribution(x)[0], stats.norm.cdf(x / 6), atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 512])
def test_the_distribution_of_products_of_normals(d):
    """P(s <= x) = E Phi(x / |z|), |z| chi; d = 1 has the density K0(|x|) / pi, and d = 2 is Laplace's law."""
    distribution = theory(d, {"std": 0.5}, {"std": 2.0}).distribution
    x = np.sqrt(d) * np.array([-9.0, -3.0, -0.5, -1e-3, 0.0, 0.1, 2.0, 6.0])
    below, up_to = distribution(x)
    np.testing.assert_array_equal(below, up_to)
    chi = stats.chi(d)
    for at, found in zip(x, below, strict=True):
        cuts = np.unique([0.0, *np.clip(abs(at) * np.array([0.1, 0.3, 1.0, 3.0]), 0, 40), chi.median(), 40.0])
        pieces = [
            integrate.quad(lambda r, at=at: chi.pdf(r) * stats.norm.cdf(at / r), *ends, epsabs=1e-13)[0]
            for ends in itertools.pairwise(cuts)
        ]
        assert found == pytest.approx(sum(pieces), abs=1e-11)
    if d == 1:
        assert below[-1] - 0.5 == pytest.approx(integrate.quad(special.k0, 0, 6.0)[0] / math.pi, abs=1e-11)
    if d == 2:
        np.testing.assert_allclose(below, np.where(x < 0, np.exp(x) / 2, 1 - np.exp(-x) / 2), atol=1e-13)


# What must not be blank ---------------------------------------------------------------------------

# Beside each structure's moments in `structured_cases.py`.

MOMENTS = {"score_mean", "score_variance", "score_std", "score_skewness", "score_excess_kurtosis", "score_row_variance"}
SHARES = {"score_within_sigma", "score_histogram"}
ROWS = {
    "weight_max",
    "weight_entropy",
    "weight_sum_squares",
    "jacobian_frobenius_sq",
    "jacobian_trace",
    "gradient_score",
}
GRADIENTS = {"gradient_key"}


def sides(query, key=None):
    return {"query": query, "key": query if key is None else key}


LAW_PAIRS = [
    sides({"law": LAW[query], "mean": mu_q}, {"law": LAW[key], "mean": mu_k})
    for query, key in itertools.product(LAW, repeat=2)
    for mu_q, mu_k in ((0, 0), (1, 0), (0, 1), (0.5, -2))
]
TOKENS, TURN = {"rho": 0.5}, {"base": 10.0}
AR1, POWER = {"kind": "ar1", "rho": 0.5}, {"kind": "power_law", "exponent": 1.0}
MAGNITUDE = {"kind": "magnitude", "df": 3}
SIGNS = {"law": "rademacher"}
NORMAL_ROWS = [
    sides({}), sides(SIGNS, {"mean": 2.0}), sides({"mean": 1.0, "within": AR1}, {"within": POWER}),
    sides({"tokens": TOKENS}), sides({"dependent": MAGNITUDE}, {}), sides({"dependent": "signs"}, {"within": POWER}),
    sides({"law": "laplace", "normalize": "layer"}, {}), sides({"rotation": TURN}),
    sides({}) | {"pair": {"kind": "shared", "rho": 0.5}}, {"score": "iid"},
]  # fmt: skip
DISTRIBUTIONS = [
    sides(SIGNS), sides({}), sides(SIGNS, {}), sides({}, SIGNS), sides({"mean": 1.0}, {"tokens": TOKENS}),
    sides({"within": AR1}, {"within": POWER}), sides({"dependent": MAGNITUDE}), sides({"normalize": "rms"}),
    sides({"law": "laplace", "normalize": "l2"}, {}), sides({"rotation": TURN}), sides({}) | {"score": "cosine"},
    {"score": "iid"},
]  # fmt: skip
# (observables, cells): there theory stands beside the measurement.
NOT_BLANK = [
    (MOMENTS, LAW_PAIRS),
    (SHARES, DISTRIBUTIONS),
    (ROWS, NORMAL_ROWS),
    (GRADIENTS, NORMAL_ROWS[:1] + NORMAL_ROWS[3:5] + NORMAL_ROWS[6:9]),
]


def test_theory_is_not_blank_where_the_table_says_so():
    for names, cells in NOT_BLANK:
        for fields in cells:
            of_vectors = {} if fields.get("score") == "iid" else {"d_k": 4}
            sweep = sim.Sweep(n_queries=1, n_keys=4, scale=["none", -2], **of_vectors, **fields)
            made = plan(sweep, sweep.cells[0], layout(sweep))
            for name in names:
                values = OBSERVABLES[name].theory(made)
                assert np.isfinite(values).all(), (name, fields)
                assert len(values) == 2


def test_theory_follows_the_scale_rule():
    sweep = sim.Sweep(d_k=16, n_tokens=4, scale=["none", "sqrt_dk", -2, 0], vectors={"mean": 1}, trials=9)
    dataset = sim.run(sweep)
    assert dataset["score_mean_theory"].values.tolist() == [16, 4, -32, 0]
    assert dataset["score_variance_theory"].values.tolist() == [48, 3, 192, 0]
    skewness = dataset["score_skewness_theory"].values
    assert skewness[0] == skewness[1] == -skewness[2] > 0
    assert np.isnan(skewness[3])


@pytest.mark.parametrize("std", [1.0, 0.1, 3.0])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_on_a_lattice_measured_and_exact_shares_fall_into_the_same_bins(std, precision):
    """Whole standard deviations and the mean are values of the score, and must not fall beside theirs."""
    sweep = sim.Sweep(
        d_k=list(range(1, 140)), n_tokens=16, trials=64, scale="none", precision=precision,
        vectors={"law": "rademacher", "std": std},
    )  # fmt: skip
    dataset = sim.run(sweep)
    found, exact = dataset["score_histogram"].values, dataset["score_histogram_theory"].values
    assert (exact[found > 0] > 1e-15).all()
    np.testing.assert_allclose(exact.sum(-1), 1)
    within = dataset["score_within_sigma"] - dataset["score_within_sigma_theory"]
    ends_count = within.sel(d_k=[4, 16, 36, 64, 100])  # 0.10 to 0.75 of the scores stand at one sigma
    assert abs(ends_count).max() < 0.05
