"""Moments of dot products against sums over all values of the elements, by rules that are exact for their moments."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from sim.kinds import Choice
from sim.theory.component_blocks import blocks_of
from sim.theory.covariances import covariance
from sim.theory.cumulants import bilinear, dot_cumulants, quadratic, square_moments
from sim.theory.sources import Vector, dot_covariance, dot_mean, fourth_moment, source
from tests.gauss import law_rule, rule


def choice(kind, **parameters):
    return Choice(kind, tuple(parameters.items()))


NONE, GAUSSIAN = choice("none"), choice("gaussian")
EXPONENTIAL, TWO_POINT, UNIFORM = choice("exponential"), choice("two_point", p=0.2), choice("uniform")
EQUI, AR1 = choice("equicorrelated", rho=0.5), choice("ar1", rho=-0.6)
POWER, OUTLIERS = choice("power_law", exponent=1.0), choice("outliers", count=1, factor=2.5)


def magnitude_rule(df, nodes=3):
    r = [((df - 2) / 2) ** (n / 2) * special.gamma((df - n) / 2) / special.gamma(df / 2) for n in range(2 * nodes)]
    return rule(r, nodes)


class Enumerated:
    """All values of some sources of vectors, and their probabilities."""

    def __init__(self, width, nodes, **sources):
        """Each source is (law, dependent, within)."""
        rules, self.places = [], {}
        for name, (law, dependent, _) in sources.items():
            of_elements = Choice("rademacher") if dependent.kind == "signs" else law
            start = len(rules)
            rules += [law_rule(of_elements, nodes)] * width
            if dependent.kind == "magnitude":
                rules.append(magnitude_rule(dependent.get("df")))
            if dependent.kind == "signs":
                points, weights = law_rule(law, nodes)
                rules.append((np.abs(points), weights))
            self.places[name] = (start, start + width, len(rules) > start + width)
        self.values = np.array(list(itertools.product(*(points for points, _ in rules))))
        self.weights = np.prod(np.array(list(itertools.product(*(weights for _, weights in rules)))), axis=1)
        self.sources = {name: source(*parts, width) for name, parts in sources.items()}
        self.width = width

    def vector(self, mean, **weights):
        found = np.full((len(self.values), self.width), float(mean))
        for name, weight in weights.items():
            start, end, has_magnitude = self.places[name]
            elements = self.values[:, start:end] * (self.values[:, end : end + 1] if has_magnitude else 1.0)
            found += weight * elements @ self.sources[name].covariance.matrix.T
        return found, Vector(self.width, mean, {name: self.sources[name] for name in weights}, weights)

    def mean(self, x):
        return self.weights @ x

    def cumulants(self, x):
        mean = self.mean(x)
        m2, m3, m4 = (self.mean((x - mean) ** r) for r in (2, 3, 4))
        return mean, m2, m3, m4 - 3 * m2**2


def dot(a, b):
    return (a * b).sum(axis=1)


INDEPENDENT = [
    ((EXPONENTIAL, NONE, NONE), (TWO_POINT, NONE, NONE)),
    ((EXPONENTIAL, NONE, EQUI), (TWO_POINT, NONE, AR1)),
    ((TWO_POINT, NONE, POWER), (EXPONENTIAL, NONE, OUTLIERS)),
    ((EXPONENTIAL, choice("magnitude", df=9.0), AR1), (UNIFORM, choice("signs"), EQUI)),
    ((GAUSSIAN, choice("magnitude", df=7.0), EQUI), (TWO_POINT, choice("magnitude", df=12.0), NONE)),
    ((GAUSSIAN, NONE, AR1), (GAUSSIAN, NONE, AR1)),
]


@pytest.mark.parametrize(("query", "key"), INDEPENDENT)
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.7, 0.0), (-0.4, 1.3)])
def test_independent_vectors_of_any_law_and_structure(query, key, means):
    all_of = Enumerated(2, 3, q=query, k=key)
    (q, query), (k, key) = all_of.vector(means[0], q=0.8), all_of.vector(means[1], k=-1.5)
    np.testing.assert_allclose(dot_cumulants(query, key), all_of.cumulants(dot(q, k)), rtol=1e-9, atol=1e-9)


def test_three_components_of_two_values():
    all_of = Enumerated(3, 2, q=(TWO_POINT, NONE, AR1), k=(TWO_POINT, NONE, choice("equicorrelated", rho=-0.4)))
    (q, query), (k, key) = all_of.vector(0.3, q=1.0), all_of.vector(-2.0, k=0.5)
    np.testing.assert_allclose(dot_cumulants(query, key), all_of.cumulants(dot(q, k)), rtol=1e-9)


@pytest.mark.parametrize("dependent", [NONE, choice("magnitude", df=11.0)])
def test_a_common_token_changes_the_law_of_an_element(dependent):
    """x = sqrt(rho) c + sqrt(1 - rho) x': its cumulants are not those of x'."""
    of = (EXPONENTIAL, dependent, AR1)
    all_of = Enumerated(2, 3, c=of, q=of, k=(TWO_POINT, NONE, NONE))
    (q, query), (k, key) = all_of.vector(0.5, c=math.sqrt(0.3), q=math.sqrt(0.7)), all_of.vector(-1.0, k=2.0)
    np.testing.assert_allclose(dot_cumulants(query, key), all_of.cumulants(dot(q, k)), rtol=1e-9)


@pytest.mark.parametrize("law", [EXPONENTIAL, TWO_POINT, GAUSSIAN])
@pytest.mark.parametrize("structures", [(NONE, NONE), (POWER, OUTLIERS)])
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.5, -1.2)])
def test_dependent_vectors_of_independent_components(law, structures, means):
    """Both have part in one source: moments to the eighth count."""
    all_of = Enumerated(2, 5, q=(law, NONE, structures[0]), k=(UNIFORM, NONE, structures[1]))
    (q, query), (k, key) = all_of.vector(means[0], q=1.5), all_of.vector(means[1], q=0.6, k=0.8)
    # the rule of five points is right to 1e-8 only
    np.testing.assert_allclose(dot_cumulants(query, key), all_of.cumulants(dot(q, k)), rtol=1e-6)


@pytest.mark.parametrize("structures", list(itertools.product([NONE, EQUI, AR1, POWER], repeat=2)))
def test_dependent_normal_vectors(structures):
    all_of = Enumerated(2, 5, q=(GAUSSIAN, NONE, structures[0]), k=(GAUSSIAN, NONE, structures[1]))
    (q, query), (k, key) = all_of.vector(0.5, q=1.5), all_of.vector(-0.8, q=0.6, k=0.8)
    np.testing.assert_allclose(dot_cumulants(query, key), all_of.cumulants(dot(q, k)), rtol=1e-9)


def test_dependent_vectors_of_correlated_components_have_a_variance():
    all_of = Enumerated(2, 3, q=(EXPONENTIAL, choice("magnitude", df=9.0), AR1), k=(UNIFORM, NONE, EQUI))
    (q, query), (k, key) = all_of.vector(0.5, q=1.5), all_of.vector(-0.8, q=0.6, k=0.8)
    found = dot_cumulants(query, key)
    np.testing.assert_allclose(found[:2], all_of.cumulants(dot(q, k))[:2], rtol=1e-9)
    assert np.isnan(found[2:]).all()


@pytest.mark.parametrize("of", [(EXPONENTIAL, NONE, AR1), (TWO_POINT, choice("magnitude", df=9.0), OUTLIERS)])
def test_covariances_of_any_two_dot_products(of):
    all_of = Enumerated(2, 3, c=of, q=of, k=(EXPONENTIAL, NONE, EQUI))
    vectors = [
        all_of.vector(0.4, c=0.6, q=0.8),
        all_of.vector(-0.7, c=1.0),
        all_of.vector(0.0, c=0.3, q=-0.4, k=0.5),
        all_of.vector(1.1, k=1.0),
    ]
    for chosen in itertools.product(vectors, repeat=4):
        (a, va), (b, vb), (c, vc), (d, vd) = chosen
        first, second = dot(a, b), dot(c, d)
        expected = all_of.mean(first * second) - all_of.mean(first) * all_of.mean(second)
        assert dot_covariance(va, vb, vc, vd) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert dot_mean(va, vb) == pytest.approx(all_of.mean(first), rel=1e-9, abs=1e-9)
        expected = all_of.mean((a * b * c * d).sum(axis=1))
        assert fourth_moment(va, vb, vc, vd) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("law", [EXPONENTIAL, UNIFORM])
def test_moments_of_squares(law):
    all_of = Enumerated(2, 5, c=(law, NONE, POWER), q=(law, NONE, POWER))
    x, vector = all_of.vector(0.4, c=0.6, q=0.8)
    n, f = (x**2).sum(axis=1), (x**4).sum(axis=1)
    expected = [all_of.mean(value) for value in (f, n * f, n**2 * f, f**2)]
    np.testing.assert_allclose(square_moments(vector), expected, rtol=1e-7)
    assert square_moments(all_of.vector(0.4, c=0.6)[1]) is not None
    dependent = Vector(2, 0.0, {"x": source(law, choice("signs"), NONE, 2)}, {"x": 1.0})
    assert square_moments(dependent) is None


def test_both_formulas_agree_where_both_hold():
    """Of independent normal vectors, in dense blocks and in eigenvectors."""
    d = 9
    parts = {name: source(GAUSSIAN, NONE, within, d) for name, within in (("q", AR1), ("k", POWER))}
    q, k = Vector(d, 0.3, {"q": parts["q"]}, {"q": 2.0}), Vector(d, -0.2, {"k": parts["k"]}, {"k": 0.5})
    dense = blocks_of(q, k)
    assert dense[0].factors.shape == (1, d, d)
    np.testing.assert_allclose(bilinear(*dense), quadratic(*dense), rtol=1e-12)
    same = Vector(d, -0.2, {"q": parts["q"]}, {"q": 0.5})
    other = Vector(d, 0.3, {"other": parts["q"]}, {"other": 2.0})
    in_eigenvectors = blocks_of(other, same)
    assert in_eigenvectors[0].factors.shape == (d, 1, 1)
    s = covariance(AR1, d).matrix @ covariance(AR1, d).matrix.T
    x, y = 2.0**2 * s, 0.5**2 * s
    expected = 6 * np.trace(x @ y @ x @ y) + 12 * (0.2**2 * (x @ y @ x).sum() + 0.3**2 * (y @ x @ y).sum())
    assert float(bilinear(*in_eigenvectors).fourth) == pytest.approx(expected, rel=1e-10)


def test_constants_do_not_vary():
    nothing = {"q": source(GAUSSIAN, NONE, NONE, 4)}
    a, b = Vector(4, 2.0, nothing, {}), Vector(4, -3.0, nothing, {})
    np.testing.assert_array_equal(dot_cumulants(a, b), [-24, 0, 0, 0])


def test_long_vectors_are_sums_over_runs():
    d = 2**20
    query = Vector(d, 1.0, {"q": source(EXPONENTIAL, NONE, NONE, d)}, {"q": 1.0})
    key = Vector(d, 0.0, {"k": source(UNIFORM, NONE, NONE, d)}, {"k": 1.0})
    one = Vector(1, 1.0, {"q": source(EXPONENTIAL, NONE, NONE, 1)}, {"q": 1.0})
    other = Vector(1, 0.0, {"k": source(UNIFORM, NONE, NONE, 1)}, {"k": 1.0})
    np.testing.assert_allclose(dot_cumulants(query, key), d * np.array(dot_cumulants(one, other)), rtol=1e-12)
