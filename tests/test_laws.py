"""The variates: goodness of fit, moments and independence, on a million draws and more of every law.

One false-alarm rate for the whole file, 1e-4, is shared among its statistics (Bonferroni): a correct
generator would fail for one seed in 10 000, and the seeds are fixed.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
from scipy import stats

from sim.cell import Cell
from sim.draw import LAW_CODES, SECOND_FOUR, START, fill, fill_words, padded
from sim.kinds import Choice
from sim.laws import LAWS
from sim.philox import KEY, QUERY
from tests import oracle

FALSE_ALARMS = 1e-4
STATISTICS = 1000  # at least as many as are compared below; counted by the last test
LEVEL = FALSE_ALARMS / STATISTICS
NORMAL_LIMIT = stats.norm.isf(LEVEL / 2)

D_K, TOKENS, TRIALS = 64, 500, 40
PRECISIONS = ("float32", "float64")
# (law, its parameter)
CASES = [(law, 0.0) for law in ("rademacher", "gaussian", "uniform", "laplace", "exponential")]
CASES += [("student_t", df) for df in (1.0, 3.0, 4.5, 30.0)]
CASES += [("two_point", p) for p in (0.3, 0.9)]
CASES += [("sparse", density) for density in (0.1, 0.8)]
CASES += [("lognormal", shape) for shape in (0.5, 1.5)]
ONE_OF_EACH = [next(case for case in CASES if case[0] == law and case[1] != 1) for law in LAWS]
TWO_VALUES = ("rademacher", "two_point")
compared = []


def continuous(law, shape):
    """Return the law of the elements other than 0, as SciPy has it."""
    if law == "student_t":
        return stats.t(shape, scale=math.sqrt((shape - 2) / shape) if shape > 2 else 1)
    if law == "lognormal":
        std = math.exp(shape**2 / 2) * math.sqrt(math.expm1(shape**2))
        return stats.lognorm(shape, loc=-math.exp(shape**2 / 2) / std, scale=1 / std)
    return {
        "gaussian": stats.norm(),
        "uniform": stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)),
        "laplace": stats.laplace(scale=math.sqrt(0.5)),
        "exponential": stats.expon(loc=-1),
        "sparse": stats.norm(scale=1 / math.sqrt(shape or 1)),
    }[law]


def two_values(law, p):
    """Return the two values and their probabilities."""
    p = 0.5 if law == "rademacher" else p
    return np.array([math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p))]), np.array([p, 1 - p])


@lru_cache
def moment(law, shape, r):
    """Return E z^r by summation, or by quadrature over ln abs(z) on both sides of 0."""
    if law in TWO_VALUES:
        values, shares = two_values(law, shape)
        return float((shares * values**r).sum())
    frozen = continuous(law, shape)
    if law == "student_t" and r >= shape:
        return math.nan if r % 2 else math.inf
    ends = [abs(end) for end in frozen.support() if math.isfinite(end)]  # where the density may jump, or rise steeply
    near_ends = [math.log(end) + math.log1p(-(0.5**k)) for end in ends for k in range(1, 55)]
    panels = np.union1d(np.linspace(-40, 100, 281), near_ends)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(panels)[:, None] / 2
    log_z = panels[:-1, None] + half * (1 + nodes)
    above, below = (np.exp((r + 1) * log_z + frozen.logpdf(sign * np.exp(log_z))) for sign in (1, -1))
    whole = (half * weights * (above + (-1) ** r * below)).sum()
    return float(whole * (shape if law == "sparse" else 1))


def check(z: float, what: str):
    """Compare one statistic, standard normal if the draws are right, with the limit."""
    compared.append(what)
    assert abs(z) < NORMAL_LIMIT, f"{what}: {z:.2f} standard errors"


def check_p(p: float, what: str):
    compared.append(what)
    assert p > LEVEL, f"{what}: p = {p:.2e}"


def side_fields(law, shape):
    return {"law": Choice(law, tuple((name, shape) for name in LAWS[law].parameters))}


def draws(law, shape, precision="float32", tensor=KEY, tokens=TOKENS, trials=TRIALS, words_key=None, **fields):
    """Return standardised elements (trials, d_k, tokens) of a cell, in float64."""
    sides = {"query": side_fields(law, shape), "key": side_fields(law, shape)}
    cell = Cell(**{"d_k": D_K, "n_queries": TOKENS, "n_keys": TOKENS, **sides, **fields})
    mean, std = (cell.query.mean, cell.query.std) if tensor == QUERY else (cell.key.mean, cell.key.std)
    numbers = np.array([mean, std, *LAWS[law].constants(shape)], precision)
    out = np.empty((trials, padded(cell.d_k), tokens), precision)
    words_key = tuple(map(np.uint32, words_key or cell.philox_key()))
    for trial in range(trials):
        fill(LAW_CODES[law], out[trial], START, START, np.uint32(trial), tensor, words_key, numbers)
    mean, std = numbers[:2].astype(float)
    return (out[:, : cell.d_k].astype(float) - mean) / std


@pytest.fixture(scope="module", params=[(*case, precision) for case in CASES for precision in PRECISIONS], ids=str)
def sample(request):
    return *request.param, draws(*request.param)


def correlation(x, y):
    """Return the correlation of two standardised samples, in standard errors."""
    product = (x * y).ravel()
    return product.sum() / math.sqrt(product.size)


def test_every_law_is_drawn_here():
    assert {law for law, _ in CASES} == {law for law, _ in ONE_OF_EACH} == set(LAWS)
    for law, shape in CASES:
        assert all(parameter.accepts(shape) for parameter in LAWS[law].parameters.values())


# One element --------------------------------------------------------------------------------------


def test_goodness_of_fit(sample):
    """Kolmogorov-Smirnov, and the counts between 200 equal shares and far out in both tails."""
    law, shape, precision, x = sample
    name = f"{law} {shape:g} {precision}"
    x = x.ravel()
    assert x.size >= 10**6
    if law in TWO_VALUES:
        values, shares = two_values(law, shape)
        counts = np.array([(x > 0).sum(), (x < 0).sum()])
        assert np.allclose(np.unique(x), np.sort(values), rtol=1e-6, atol=0)
        check_p(stats.chisquare(counts, shares * x.size).pvalue, f"chi-square of {name}")
        return
    if law == "sparse":
        check_p(stats.binomtest(int((x != 0).sum()), x.size, shape).pvalue, f"share of {name}")
        x = x[x != 0]
    frozen = continuous(law, shape)
    check_p(stats.kstest(x, frozen.cdf).pvalue, f"Kolmogorov-Smirnov of {name}")
    tail = np.array([1e-4, 3e-4, 1e-3])
    below = np.concatenate([tail, np.linspace(0, 1, 202)[1:-1], 1 - tail[::-1]])
    shares = np.diff(below, prepend=0, append=1)
    counts = oracle.histogram(x, frozen.ppf(below))
    check_p(stats.chisquare(counts, shares * x.size).pvalue, f"chi-square of {name}")


@pytest.mark.parametrize(("law", "shape"), [case for case in CASES if case[0] not in (*TWO_VALUES, "uniform")])
def test_the_tails(law, shape):
    """How many draws lie beyond limits that up to ten in a million pass: Poisson's."""
    frozen, x = continuous(law, shape), draws(law, shape, trials=200).ravel()
    size = x.size * (shape if law == "sparse" else 1)
    for share in (1e-5, 1e-6):
        for side, limit, beyond in (("upper", frozen.isf(share), x > frozen.isf(share)),
                                    ("lower", frozen.ppf(share), x < frozen.ppf(share))):  # fmt: skip
            tails, count = stats.poisson(size * share), beyond.sum()
            check_p(
                min(1, 2 * min(tails.cdf(count), tails.sf(count - 1))), f"{side} draws beyond {limit}, {law} {shape}"
            )


def test_the_largest_draws():
    """31 bits make a logarithm, of at least 2^-32."""
    assert abs(draws("gaussian", 0.0)).max() < math.sqrt(64 * math.log(2))
    first = np.uint32(0), np.uint32(2**30)  # a whole turn is 2^32, and a half turn goes from -2^31 to 2^31
    largest = 32 * math.log(2)
    for precision, real in (("float32", np.float32), ("float64", float)):
        for law, shape, expected in (
            ("laplace", 0.0, largest / math.sqrt(2)),
            ("exponential", 0.0, largest - 1),
            ("student_t", 1.0, math.sqrt(math.expm1(2 * largest) / 2)),
        ):
            transform = getattr(LAWS[law], precision)
            z = transform(*first, first[1], first[1], tuple(map(real, LAWS[law].constants(shape))))
            assert abs(float(z[0])) == pytest.approx(expected, rel=1e-5)


def test_moments_of_the_draws(sample):
    """E z to E z^6, as far as the mean of z^r is near its normal limit: the skewness of that mean below 0.03."""
    law, shape, precision, x = sample
    for r in range(1, 7):
        if 3 * r > LAWS[law].finite(shape):
            break
        exact, square, cube = (moment(law, shape, k * r) for k in (1, 2, 3))
        variance = square - exact**2
        if variance < 1e-12:
            np.testing.assert_allclose(x**r, exact, rtol=1e-5)
            continue
        if abs(cube - 3 * exact * square + 2 * exact**3) / variance**1.5 > 0.03 * math.sqrt(x.size):
            break
        z = ((x**r).mean() - exact) / math.sqrt(variance / x.size)
        check(z, f"moment {r} of {law} {shape:g}, {precision}")
    assert r > 2 or law in ("student_t", "lognormal")


# What the laws say of themselves --------------------------------------------------------------------


@pytest.mark.parametrize(("law", "shape"), [*CASES, ("two_point", 0.5), ("student_t", 8.5), ("lognormal", 2.0)])
def test_moments_by_quadrature(law, shape):
    found = LAWS[law].moments(shape)
    assert len(found) == 8
    for r, value in enumerate(found, start=1):
        if r > LAWS[law].finite(shape):
            assert not math.isfinite(value)
        np.testing.assert_allclose(value, moment(law, shape, r), rtol=1e-9, atol=1e-12, err_msg=f"moment {r}")
    if LAWS[law].finite(shape) >= 2:
        assert found[:2] == pytest.approx((0, 1), abs=1e-12)
    if LAWS[law].symmetric:
        assert all(value == 0 or math.isnan(value) for value in found[::2])
    else:
        assert any(value != 0 for value in found[2::2]) or shape == 0.5


def test_narrow_laws_have_nearly_normal_moments():
    """Nothing cancels in a lognormal's for a small shape, nor in a Student's for a large df."""
    normal = LAWS["gaussian"].moments(0.0)
    np.testing.assert_allclose(LAWS["lognormal"].moments(1e-6), normal, rtol=1e-9, atol=1e-3)
    np.testing.assert_allclose(LAWS["student_t"].moments(1e9), normal, rtol=1e-7)


@pytest.mark.parametrize(("df", "finite"), [(1, 0), (1.5, 1), (2, 1), (2.5, 2), (3, 2), (4, 3), (30, 29)])
def test_finite_moments_of_student(df, finite):
    assert LAWS["student_t"].finite(df) == finite
    assert [math.isfinite(x) for x in LAWS["student_t"].moments(df)] == [r <= finite for r in range(1, 9)]


def test_all_other_laws_have_all_moments():
    for law, shape in CASES:
        assert (LAWS[law].finite(shape) == math.inf) == (law != "student_t")


@pytest.mark.parametrize("p", [1e-6, 1e-3, 0.3, 0.5, 0.500001, 0.7, 0.999, 1 - 1e-6])
def test_probabilities_are_whole_numbers_of_words_in_both_precisions(p):
    for law, value, other in (
        ("two_point", math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p))),
        ("sparse", math.sqrt(1 / p), 0),
    ):
        rarer, commoner, count = LAWS[law].constants(p)
        assert (rarer, commoner) == pytest.approx((value, other) if p <= 0.5 else (other, value))
        assert np.float32(count) == count == int(count)
        assert count == pytest.approx(min(p, 1 - p) * 2**32, rel=6e-8, abs=0.5)


def test_a_sparse_law_of_density_1_is_the_gaussian():
    for precision in PRECISIONS:
        normal, dense = (draws(law, 1.0, precision, words_key=(1, 2)) for law in ("gaussian", "sparse"))
        np.testing.assert_array_equal(normal, dense)


# Both precisions ----------------------------------------------------------------------------------


def test_float32_and_float64_elements_agree():
    """The same words: what they differ by is float32's rounding.

    A sign is exact; a uniform is rounded three times, 3e-8 of at most 1.74 each. The logarithm of u errs by 2e-7 of
    itself and by 6e-8, as u has that spacing near 1; so a normal by some 2e-7 of its radius sqrt(-2 ln u), of at most
    6.7, and by 6e-8 / radius. What is made of these errs as much, times its slope, and by its own rounding.
    """

    def both(law, shape):
        return (draws(law, shape, precision, words_key=(3, 4)) for precision in PRECISIONS)

    normal_single, normal = both("gaussian", 0.0)
    radius = np.hypot(normal[:, ::2], normal[:, 1::2]).repeat(2, axis=1)
    of_normal = 2e-7 * radius + 6e-8 / radius
    assert (abs(normal_single - normal) <= of_normal).all()
    limits = {
        "rademacher": lambda z, _: 0 * z,
        "gaussian": lambda z, _: of_normal,
        "uniform": lambda z, _: 2e-7 + 0 * z,
        "laplace": lambda z, _: 3e-7 * abs(z) + 6e-8,
        "exponential": lambda z, _: 3e-7 * (abs(z) + 1) + 6e-8,
        "student_t": of_student,
        "two_point": lambda z, _: 6e-8 * abs(z),
        "sparse": lambda z, density: of_normal / math.sqrt(density) + 2e-7 * abs(z),
        "lognormal": lambda z, shape: of_normal * lognormal_slope(shape, normal) + 4e-7 * (abs(z) + 1),
    }
    for law, shape in CASES:
        single, double = both(law, shape)
        assert (abs(single - double) <= limits[law](double, shape)).all(), (law, shape)


def lognormal_slope(shape, normal):
    return shape * np.exp(shape * normal - shape**2 / 2) / math.sqrt(math.expm1(shape**2))


def of_student(z, df):
    """R = sqrt(c (e^x - 1)) errs by c e^x dx / 2R, where x = (2 / df) ln(1/u)."""
    c = LAWS["student_t"].constants(df)[1]
    radius = abs(z) / sine_of_draws()
    x = np.log1p(radius**2 / c)
    return (c + radius**2) / (2 * radius) * (2e-7 * x + 2 / df * 6e-8) + 4e-7 * radius


def sine_of_draws():
    """Return abs(sin) of the draws' second words, of shape (trials, d_k, tokens)."""
    words = np.empty((TRIALS, D_K // 4, 4, TOKENS), np.uint32)
    for trial in range(TRIALS):
        for element in range(D_K // 4):
            where = np.uint32(element), 0, np.uint32(trial), np.uint32(KEY + SECOND_FOUR)
            fill_words(words[trial, element], *where, (np.uint32(3), np.uint32(4)))
    return abs(np.sin((words.astype(np.int32) + 0.5) / 2**32 * math.pi)).reshape(TRIALS, D_K, TOKENS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_elements_are_those_of_the_definitions(precision):
    """From the words of the counter and, where a law needs more, of the one 2^16 tensors on."""
    for law in LAWS:
        shape = oracle.SHAPES.get(law, 0.0)
        found = draws(law, shape, precision, tokens=3, trials=2, words_key=(5, 6))
        for trial in range(2):
            for token in range(3):
                expected = oracle.vector(law, D_K, token, trial, int(KEY), (5, 6))
                tolerance = 1e-12 if precision == "float64" else 2e-6
                np.testing.assert_allclose(
                    found[trial, :, token], expected, rtol=tolerance, atol=tolerance, err_msg=law
                )


# Independence -------------------------------------------------------------------------------------


def by_rank(law, shape, x):
    """Return (value, size) of every element by its rank and its rank's distance from the middle, standardised.

    Ranks are bounded, so that their correlations are near the normal limit whatever the tails; the zeros of a sparse
    law share the middle rank.
    """
    zeros = 1 - shape if law == "sparse" else 0.0
    rank = continuous(law, shape).cdf(x)
    rank = np.where(x < 0, rank, rank - 1) * (1 - zeros) + (x >= 0) if zeros else rank
    rank = np.where(x == 0, 0.5, rank) if zeros else rank
    value, distance = rank - 0.5, abs(2 * rank - 1)
    mean, square = (1 - zeros**2) / 2, (1 - zeros**3) / 3
    return value / math.sqrt(square / 4), (distance - mean) / math.sqrt(square - mean**2)


def test_components_tokens_and_trials_are_uncorrelated(sample):
    """Values, and their sizes too: Box and Muller's pairs share a radius, tokens a counter's word."""
    law, shape, precision, x = sample
    kinds = {"elements": x}
    if law not in TWO_VALUES:
        fourth = moment(law, shape, 4)
        values, sizes = (x, (x**2 - 1) / math.sqrt(fourth - 1)) if fourth <= 6.1 else by_rank(law, shape, x)
        kinds = {"elements": values, "sizes": sizes}
    for kind, y in kinds.items():
        name = f"{law} {shape:g} {precision}"
        for lag in (1, 2, 3, 4, 8):
            check(correlation(y[:, lag:], y[:, :-lag]), f"{kind} of components {lag} apart, {name}")
        for lag in (1, 2, 64):
            check(correlation(y[:, :, lag:], y[:, :, :-lag]), f"{kind} of tokens {lag} apart, {name}")
        for lag in (1, 7):
            check(correlation(y[lag:], y[:-lag]), f"{kind} of trials {lag} apart, {name}")
        check(correlation(y[:, ::4], y[:, 1::4] * y[:, 2::4] * y[:, 3::4]), f"{kind} of a counter's four, {name}")


@pytest.mark.parametrize(("law", "shape"), ONE_OF_EACH)
def test_sides_and_cells_are_uncorrelated(law, shape):
    def values(**fields):
        x = draws(law, shape, **fields)[:, :D_K]
        return x if law in TWO_VALUES else by_rank(law, shape, x)[0]

    base = values()
    others = {
        "the other side": {"tensor": QUERY},
        "another seed": {"seed": 1},
        "another mean": {"key": {**side_fields(law, shape), "mean": 0.5}},
        "another std": {"key": {**side_fields(law, shape), "std": 2}},
        "another number of keys": {"n_keys": TOKENS + 1},
        "another d_k": {"d_k": D_K + 1},
    }
    for what, fields in others.items():
        check(correlation(base, values(**fields)), f"{what}, {law}")


def test_the_second_four_words_are_independent_of_the_first():
    """Every word of a counter with every word of the counter 2^16 tensors on: values, sizes and last bits."""
    elements, tokens = 16, 2**16
    first, second = np.empty((2, elements, 4, tokens), np.uint32)
    for words, tensor in ((first, KEY), (second, np.uint32(KEY + SECOND_FOUR))):
        for element in range(elements):
            fill_words(words[element], np.uint32(element), 0, np.uint32(7), tensor, (np.uint32(8), np.uint32(9)))
    parts = {
        "values": lambda words: (words.astype(np.int32) + 0.5) / 2**31 * math.sqrt(3),
        "sizes": lambda words: (abs(words.astype(np.int32) + 0.5) / 2**30 - 1) * math.sqrt(3),
        "last bits": lambda words: 2.0 * (words % 2) - 1,
    }
    for name, part in parts.items():
        x, y = part(first), part(second)
        for i in range(4):
            for j in range(4):
                check(correlation(x[:, i], y[:, j]), f"{name} of word {i} and second word {j}")


def test_no_tensor_of_a_cell_has_the_number_of_anothers_second_four():
    assert SECOND_FOUR == 2**16
    assert max(int(QUERY), int(KEY)) < 2**16


def test_the_limits_count_every_comparison():
    assert len(compared) <= STATISTICS
