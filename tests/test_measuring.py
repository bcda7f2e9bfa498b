"""``sim.measure`` against the oracle: every observable of given queries and keys, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import sim
from sim.block import QUERY_TILE
from sim.cli import app
from sim.dataset import read
from sim.errors import InputError
from sim.measuring import measure
from sim.observables import OBSERVABLES, observed
from sim.plan import layout
from sim.sweep import Sweep
from sim.tally import FAMILIES
from sim.tiles import TILE
from tests import oracle

# All but those that only some sweeps have: of pairs, and of types that are rounded to.
SWEEP = Sweep(d_k=1, n_tokens=1, observables=FAMILIES)
MEASURED = observed(SWEEP, layout(SWEEP))

SCALES = ("none", "sqrt_dk", "dk", -1.0, 0.0, 3.0)
RELATIVE = {"float64": 1e-10, "float32": 2e-4}
# What stands for an exponential of 0, 2^-1000 or 2^-120, leaves as much of a Jacobian: its root, times a query.
LEAST = {"float64": 1e-140, "float32": 1e-15}
OVERFLOWS = (65520.0, 2.0**128 - 2.0**103)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def whole(*shape):
    return np.random.default_rng(shape).integers(-1, 2, shape)


def expected(query, key, factor, found, causal):
    """Return every variable of one head under one factor but for the histogram, from the definitions in float64."""
    query, key = np.asarray(query, float), np.asarray(key, float)
    raw = query @ key.T
    n, m = raw.shape
    visible = np.arange(m - n + 1, m + 1) if causal else np.full(n, m)
    seen = np.concatenate([raw[i, :count] for i, count in enumerate(visible)])
    rows = [factor * raw[i, :count] for i, count in enumerate(visible)]
    thresholds = found["threshold"].values, found["gradient_threshold"].values
    values = oracle.estimates(raw[None], factor, *thresholds, visible)
    norms = oracle.row_quantities(oracle.hidden(factor * raw, visible))["jacobian_frobenius"]
    gradients = oracle.gradients(query, key, factor, visible)
    # what lies at a whole number of standard deviations counts
    limits = [sigma * seen.std() * (1 + 1e-6) for sigma in found["sigma"].values]
    values |= {f"gradient_{name}": np.sqrt(squares.mean()) for name, squares in gradients.items()}
    return values | {
        "score_within_sigma": np.array([oracle.within(seen, seen.mean(), limit) for limit in limits]),
        "score_quantile": np.quantile(factor * seen, found["quantile"]),
        "jacobian_frobenius_median": np.median(norms.astype(float)),
        "jacobian_spectral": np.mean(
            [(oracle.spectral if row.size < 50 else oracle.spectral_of_many)(row) for row in rows]
        ),
        "gradient_query_median": np.median(np.sqrt(gradients["query"])),
        "exp_overflow_rate": np.array([np.mean([row.max() >= np.log(limit) for row in rows]) for limit in OVERFLOWS]),
        "score_overflow_rate": np.array([(abs(seen) >= limit).mean() for limit in OVERFLOWS]),
    }, seen


def check(query, key, precision="float64", causal=False, scale=SCALES, **tolerance):
    """Hold every variable of one head to the oracle's."""
    query, key = (np.asarray(x, precision) for x in (query, key))
    found = measure(query, key, scale=scale, precision=precision, causal=causal)
    relative = tolerance.get("relative", RELATIVE[precision])
    for i, factor in enumerate(found["scale_factor"].values):
        values, seen = expected(query, key, factor, found, causal)
        assert {*values, "score_histogram"} == set(MEASURED)
        size = max(1, abs(seen).max() * abs(factor))
        for name, value in values.items():
            given = found[name].values[i] if "scale" in found[name].dims else found[name].values
            least = relative * size**2 if name.startswith("score_") else LEAST[precision] * max(1, abs(query).max())
            np.testing.assert_allclose(given, value, relative, least, err_msg=f"{name}, {factor=}")
        edges, shares = found["score_bin_edge"].values[i], found["score_histogram"].values[i]
        if factor > 0:
            counts = oracle.histogram(factor * seen, edges)
            np.testing.assert_allclose(
                shares, counts / seen.size, atol=tolerance.get("moved", 0.0), err_msg="histogram"
            )
        elif factor < 0:
            np.testing.assert_array_equal(shares, found["score_histogram"].values[0][::-1])
            np.testing.assert_allclose(edges, factor * found["score_bin_edge"].values[0][::-1], 1e-13)
    return found


CASES = {
    "ordinary": (normal(20, 6), normal(30, 6)),
    "saturated": (10 * normal(20, 6), normal(30, 6)),
    "tied": (whole(20, 6), whole(30, 6)),
    "one-hot": (20 * np.eye(8), np.eye(8)),
    "one key": (normal(20, 6), normal(1, 6)),
    "one query": (normal(1, 6), normal(30, 6)),
    "two scores": (normal(1, 6), normal(2, 6)),
    "one score": (normal(1, 6), normal(1, 6)),
    "tiles of keys": (normal(2, 6), normal(TILE + 10, 6)),
    "tiles of queries": (normal(QUERY_TILE + 2, 3), normal(QUERY_TILE + 2, 3, seed=1)),
    "one element": (normal(9, 1), normal(12, 1)),
}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_what_the_oracle_finds(case, precision):
    check(*CASES[case], precision, moved=0.0 if precision == "float64" else 0.01)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", [case for case, (query, key) in CASES.items() if len(query) <= len(key)])
def test_causal_rows_end_at_their_own_place(case, precision):
    check(*CASES[case], precision, True, ("none", -1.0), moved=0.0 if precision == "float64" else 0.01)


def test_a_causal_row_of_one_key_has_no_variance_and_is_left_out():
    query, key = normal(5, 4), normal(5, 4, seed=1)
    scores = query @ key.T
    found = measure(query, key, scale="none", causal=True, observables="scores")
    rows = [scores[i, : i + 1].var(ddof=1) for i in range(1, 5)]
    np.testing.assert_allclose(found["score_row_variance"], [np.mean(rows)])
    assert np.isnan(measure(query[:1], key[:1], causal=True)["score_row_variance"]).all()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_both_of_two_scores_lie_one_standard_deviation_from_their_mean(precision):
    query, key = normal(100, 1, 6), normal(100, 2, 6)
    assert (measure(query, key, precision=precision, observables="scores")["score_within_sigma"] == 1).all()


def test_scores_that_are_all_equal_have_a_histogram_and_no_shape():
    found = measure(np.full((4, 2), 3.0), np.full((5, 2), 0.5))
    assert (found["score_variance"] == 0).all()
    assert np.isnan(found["score_skewness"]).all()
    assert (found["score_histogram"].max("bin") == 1).all()
    assert (found["score_quantile"].sel(scale="none") == 3).all()
    np.testing.assert_allclose(found["weight_entropy"], np.log(5))


@pytest.mark.parametrize("size", [1e-36, 1e-18, 1e-9, 1e5])
def test_float32_holds_scores_of_any_size_that_it_has(size):
    check(size * normal(8, 4), normal(9, 4), "float32", scale=("none",), moved=0.02)


@pytest.mark.parametrize("size", [1e-60, 1e-30, 1e30, 1e60])
def test_float64_holds_scores_of_any_size_that_it_has(size):
    query, key = size * normal(8, 4), normal(9, 4)
    found, plain = measure(query, key, scale="none"), measure(query / size, key, scale="none")
    np.testing.assert_allclose(found["score_std"], size * plain["score_std"])
    np.testing.assert_allclose(found["score_quantile"], size * plain["score_quantile"])
    for name in ("score_skewness", "score_excess_kurtosis", "score_within_sigma", "score_histogram"):
        np.testing.assert_allclose(found[name], plain[name], 1e-9, err_msg=name)


# A common bias of the keys --------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "relative"), [("float64", 1e-12), ("float32", 2e-5)])
def test_a_large_common_bias_of_the_keys_changes_neither_weights_nor_gradients(precision, relative):
    """Norm 900 against noise of 1: in float32 raw scores of a hundred are known to 1e-5, and the weights with them."""
    query, noise = (x.astype(np.float32).astype(float) for x in (normal(40, 64) / 8, normal(50, 64)))
    key = (noise + 900 / 8).astype(np.float32).astype(float)
    families = ["weights", "jacobian", "spectrum", "gradients"]
    found = measure(query, key, precision=precision, observables=families)
    centred = measure(query, key - key.mean(axis=0), observables=families)
    for name in MEASURED:
        if name in centred and not name.endswith("_rate"):
            np.testing.assert_allclose(found[name], centred[name], relative, err_msg=name)


# Leading axes ---------------------------------------------------------------------------------------


def assert_same(found, other):
    xr.testing.assert_identical(found.drop_attrs(), other.drop_attrs())


def test_leading_axes_become_dimensions_and_every_head_is_measured_alone():
    query, key = normal(2, 3, 5, 4), normal(2, 3, 6, 4)
    found = measure(query, key)
    named = measure(query, key, dims=["layer", "head"])
    assert found["weight_max"].dims == ("axis_0", "axis_1", "scale")
    assert named["saturation_rate"].dims == ("layer", "head", "scale", "threshold")
    assert named["overflowed_rows"].dims == ("layer", "head")
    assert named["scale_factor"].dims == ("scale",)
    assert_same(named.rename(layer="axis_0", head="axis_1"), found)
    for i, j in np.ndindex(2, 3):
        assert_same(found.isel(axis_0=i, axis_1=j), measure(query[i, j], key[i, j]))


def test_fewer_key_heads_are_repeated():
    query, key = normal(2, 6, 5, 4), normal(2, 3, 7, 4)
    assert_same(measure(query, key), measure(query, np.repeat(key, 2, axis=1)))
    assert_same(measure(query, key[:, :1]), measure(query, np.repeat(key[:, :1], 6, axis=1)))


def test_repeating_gives_the_same_bits_and_families_left_out_change_none():
    query, key = normal(8, 30, 4), normal(8, 40, 4)
    for precision in ("float64", "float32"):
        found = measure(query, key, precision=precision)
        assert_same(measure(query, key, precision=precision), found)
        for family in FAMILIES:
            alone = measure(query, key, precision=precision, observables=[family])
            wanted = {name for name in MEASURED if OBSERVABLES[name].family == family}
            assert set(alone.data_vars) - {"scale_factor", "score_bin_edge", "overflowed_rows"} == wanted
            for name in alone.data_vars:
                np.testing.assert_array_equal(alone[name], found[name], err_msg=name)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint64, ">f4"])
def test_other_types_are_measured_as_what_they_hold(dtype):
    query, key = (abs(8 * normal(*shape)).astype(dtype) for shape in ((2, 5, 4), (2, 6, 4)))
    assert_same(measure(query, key), measure(query.astype(float), key.astype(float)))


def test_the_order_in_memory_does_not_matter():
    query, key = normal(2, 50, 8), normal(2, 60, 8)
    spread = np.zeros((2, 60, 16))
    spread[..., ::2] = key
    for precision in ("float64", "float32"):
        found = measure(query, key, precision=precision)
        assert_same(measure(np.asfortranarray(query), spread[..., ::2], precision=precision), found)
        assert_same(measure(query.tolist(), key[:, ::-1][:, ::-1], precision=precision), found)


# The dataset ----------------------------------------------------------------------------------------


def test_the_dataset_says_what_it_holds():
    found = measure(
        normal(5, 4), normal(6, 4), scale=["none", 0.125], precision="float32", threshold=[0.5], quantile=[0.1, 0.5],
        gradient_threshold=0.2, histogram={"low": -1, "high": 1, "bins": 4},
    )  # fmt: skip
    assert not [name for name in map(str, found.variables) if name.endswith(("_se", "_theory", "_limit"))]
    assert not {"trials", "groups", "score_moments", "seed"} & {*found.variables}
    assert list(found["scale"].values) == ["none", "0.125"]
    assert (found["d_k"], found["n_queries"], found["n_keys"], found["precision"]) == (4, 5, 6, "float32")
    assert not found["causal"]
    coordinates = {"threshold": [0.5], "gradient_threshold": [0.2], "quantile": [0.1, 0.5], "sigma": [1, 2, 3]}
    for name, values in coordinates.items():
        np.testing.assert_array_equal(found[name], values)
    assert list(found["dtype"].values) == ["float16", "float32"]
    np.testing.assert_allclose(found["score_bin_edge"].sel(scale="0.125"), np.linspace(-1, 1, 5) / 8)
    assert found.sizes["bin"] == 6
    for name in MEASURED:
        attrs = found[name].attrs
        assert attrs["units"] == OBSERVABLES[name].units
        assert attrs["long_name"]
        assert "ancillary_variables" not in attrs
        assert not {"trials", "theory's", "bins", "error"} & {*attrs["definition"].replace(";", "").split()}, name
    assert {"sim_version", "code_digest", "blas", "numba_version", "created", "elapsed_seconds"} <= {*found.attrs}
    assert found.attrs["scale"] == "none, 0.125"
    assert sim.measure is measure


def test_the_command_writes_the_same_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    query, key = normal(2, 5, 4), normal(2, 6, 4)
    query[0, 3] = 1e30
    np.save("q.npy", query)
    np.savez("k.npz", k=key)
    words = ["measure", "--query=q.npy", "--key=k.npz:k", "--precision=float32", "--causal", "--dims=head", "--out=out"]
    words += ["--scale=none, 0.125", "--name=mine"]
    for families in ("jacobian", "weights, scores", ", ".join(FAMILIES)):  # each replaces the one before
        result = CliRunner().invoke(app, [*words, "--observables", families])
        assert (result.exit_code, result.stdout[:19]) == (0, "out/mine/data.nc  (")
        assert result.stderr.startswith("Warning: 1 of 10 rows have a score beyond 1e+25, what float32 can take here; ")
    with pytest.warns(RuntimeWarning):
        found = measure(query, key, scale=["none", 0.125], precision="float32", causal=True, dims=["head"])
    stored = read(tmp_path / "out/mine/data.nc")
    assert_same(stored, found)
    assert {*stored.attrs} == {*found.attrs, "query", "key", "command"}
    assert [path.name for path in tmp_path.glob("out/mine/*")] == ["data.nc"]
    assert "weight_max: largest" in CliRunner().invoke(app, ["show", "out/mine", "weight_max"]).stdout


# Rows that overflow ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "large"), [("float32", 1e30), ("float32", 1e100), ("float32", 3e38), ("float64", 1e200)]
)
def test_rows_that_overflow_are_counted_and_left_out(precision, large):
    query, key = normal(2, 9, 4), normal(2, 12, 4)
    with_them = query.copy()
    with_them[0, 3] = large
    with_them[0, 7, 1] = -large
    with pytest.warns(RuntimeWarning, match=r"^2 of 18 rows have a score beyond 1e\+[27]") as noticed:
        found = measure(with_them, key, precision=precision)
    assert len(noticed) == 1
    np.testing.assert_array_equal(found["overflowed_rows"], [2, 0])
    rest = measure(np.delete(query[0], [3, 7], axis=0), key[0], precision=precision)
    assert_same(
        found.isel(axis_0=0).drop_vars("n_queries"), (rest + 0).assign(overflowed_rows=2).drop_vars("n_queries")
    )


@pytest.mark.parametrize(("precision", "large"), [("float32", 1e20), ("float32", 1e300), ("float64", 1e200)])
def test_where_every_row_overflows_all_is_blank(precision, large):
    with pytest.warns(RuntimeWarning, match="^6 of 6 rows"):
        found = measure(large * normal(6, 4), 1e10 * normal(7, 4), precision=precision)
    assert found["overflowed_rows"] == 6
    for name in MEASURED:
        assert np.isnan(found[name]).all(), name
    assert {*found.data_vars} == {*measure(normal(6, 4), normal(7, 4)).data_vars}


def test_causal_rows_before_a_key_that_overflows_are_kept():
    query, key = normal(6, 4), normal(6, 4, seed=1)
    key[4] = 1e300
    with pytest.warns(RuntimeWarning, match="^2 of 6 rows"):
        found = measure(query, key, causal=True, precision="float32")
    rest = measure(query[:4], key[:4], causal=True, precision="float32")
    for name in MEASURED:
        if name != "gradient_key":  # over all keys
            np.testing.assert_allclose(found[name], rest[name], 1e-5, err_msg=name)


# PyTorch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_weights_and_gradients_are_those_of_automatic_differentiation(causal):
    torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch")
    query, key = torch.tensor(normal(5, 6)), torch.tensor(normal(7, 6))
    hidden = torch.arange(7) >= (torch.arange(3, 8) if causal else torch.full((5,), 7))[:, None]
    found = measure(query.numpy(), key.numpy(), scale=["none", "sqrt_dk", -2.0], causal=causal)
    for i, factor in enumerate(found["scale_factor"].values):

        def weights(q, k, factor=factor):
            return torch.softmax((factor * q @ k.T).masked_fill(hidden, -torch.inf), dim=-1)

        p = weights(query, key)
        entropy = -torch.xlogy(p, p).sum(-1).mean()
        np.testing.assert_allclose(found["weight_max"][i], p.amax(-1).mean(), 1e-12)
        np.testing.assert_allclose(found["weight_entropy"][i], entropy, 1e-12)
        # for L = sum g p, averaged over standard normal g: the sum over a basis of g, each a single weight
        by_query, by_key = torch.autograd.functional.jacobian(weights, (query, key))
        for name, squares in (("query", by_query**2), ("key", by_key**2)):
            rms = squares.sum((0, 1, 3)).mean().sqrt()
            np.testing.assert_allclose(found[f"gradient_{name}"][i], rms, 1e-12, err_msg=name)
        median = np.median((by_query**2).sum((0, 1, 3)).sqrt())
        np.testing.assert_allclose(found["gradient_query_median"][i], median, 1e-12)


# What is refused ------------------------------------------------------------------------------------

Q, K = np.ones((2, 4, 5, 3)), np.ones((2, 2, 6, 3))
BAD = np.where(np.arange(3) == 1, np.inf, K)
TWO = "the arrays have 2 leading axes, give a name without / for each in a list"
OWN = "is a name of the dataset's own; choose another"


@pytest.mark.parametrize(
    ("query", "key", "options", "message"),
    [
        (Q, K[..., :2], {}, "query and key have vectors of different lengths, 3 and 2 (shapes (2, 4, 5, 3) and "),
        (Q, K[0], {}, "query and key have 4 and 3 axes (shapes (2, 4, 5, 3) and (2, 6, 3)); give both the same"),
        (Q[:, :3], K, {}, "query and key have the leading axes (2, 3) and (2, 2): they must be equal, but"),
        (Q[:, :1], K, {}, "where the keys' 2 must divide the queries' 1"),
        (np.ones(3), K, {}, "query has the shape (3,): at least 2 dimensions are needed"),
        (Q, np.ones((0, 3)), {}, "key has the shape (0, 3): every dimension must be at least 1"),
        (Q, BAD, {}, "key has 24 entries that are NaN or infinite, the first [0, 0, 0, 1] = inf: all 72 must"),
        (Q * 1j, K, {}, "query holds complex128: allowed are float16, bfloat16, float32, float64 and integers"),
        (Q, K.astype(object), {}, "key holds object: "),
        (Q > 0, K, {}, "query holds bool: "),
        (Q, K, {"dims": ["layer"]}, f"dims: got ['layer']; {TWO}"),
        (Q, K, {"dims": "ab"}, f"dims: got 'ab'; {TWO}"),
        (Q, K, {"dims": ["a", 1]}, f"dims: got ['a', 1]; {TWO}"),
        (Q, K, {"dims": 2}, f"dims: got 2; {TWO}"),
        (Q, K, {"dims": ["a", "b/c"]}, f"dims: got ['a', 'b/c']; {TWO}"),
        (Q, K, {"dims": ["", "a"]}, f"dims: got ['', 'a']; {TWO}"),
        (Q, K, {"dims": ["a", "a"]}, "dims has 'a' twice: each axis needs a name of its own"),
        *(
            (Q, K, {"dims": ["a", name]}, f"dims: {name} {OWN}")
            for name in ("scale", "bin", "bin_edge", "sigma", "d_k", "n_keys", "causal", "precision", "weight_max",
                         "overflowed_rows", "scale_factor", "score_bin_edge")
        ),
        (Q, K, {"thresholds": 0.5}, "thresholds is unknown: measure takes scale, dims, "),
        (Q, K[:, :, :4], {"causal": True}, "causal = True is not allowed: of n_queries = 5 and n_keys = 4 the first"),
        (Q, K, {"causal": [True, False]}, "causal = [True, False] is not allowed"),
        (Q, K, {"causal": 1}, "causal = 1 is not allowed: it must be true or false"),
        (Q, K, {"precision": "float16"}, "precision = 'float16' is not allowed: it must be one of float32, float64"),
        (Q, K, {"precision": ["float32"]}, "precision = ['float32'] is not allowed: a list may not"),
        (Q, K, {"scale": "sqrt"}, "scale = 'sqrt' is not allowed: it must be one of none, sqrt_dk, dk"),
        (Q, K, {"scale": []}, "scale is empty: give at least one"),
        (Q, K, {"scale": np.nan}, "scale = nan is not allowed"),
        (Q, K, {"scale": {"kind": "none", "x": [1, 2]}}, "lists may not stand inside a scale table"),
        (Q, K, {"observables": ["weight"]}, "observables = 'weight' is not allowed"),
        (Q, K, {"observables": []}, "observables is empty: give at least one"),
        (Q, K, {"histogram": {"low": 1, "high": 0}}, "histogram.high = 0"),
        (Q, K, {"histogram": {"low": [0, 1], "high": 2}}, "histogram.low = [0, 1] is not allowed"),
        (Q, K, {"quantile": 1.0}, "quantile = 1.0 is not allowed"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_in_one_message(query, key, options, message):
    with pytest.raises(InputError) as caught:
        measure(query, key, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
