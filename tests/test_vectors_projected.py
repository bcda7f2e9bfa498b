"""What becomes of vectors: projection, normalization and rotation; and a token is the same wherever it is drawn."""

import math

import numpy as np
import pytest
from scipy import stats

from sim.philox import BIAS, COMMON, KEY, MAGNITUDE, QUERY, WEIGHTS
from sim.tiles import TILE
from tests.drawn_vectors import CLOSE, PRECISIONS, TRIAL, check, drawn, made_of, root_of, same_draws, standard
from tests.measuring import draw_tokens

# Projections ---------------------------------------------------------------------------------------


STD = {  # of a weight of W_Q and of W_K, by d_model and d_k
    "xavier_uniform": lambda m, k: [math.sqrt(2 / (m + k))] * 2,
    "xavier_normal": lambda m, k: [math.sqrt(2 / (m + k))] * 2,
    "he": lambda m, k: [math.sqrt(2 / m)] * 2,
    "lecun": lambda m, k: [math.sqrt(1 / m)] * 2,
    "torch_linear": lambda m, k: [math.sqrt(1 / (3 * m))] * 2,
    "gpt2": lambda m, k: [0.02] * 2,
    "fused_xavier": lambda m, k: [math.sqrt(2 / (4 * m))] * 2,
    "t5": lambda m, k: [math.sqrt(1 / (m * k)), math.sqrt(1 / m)],
}
UNIFORM = ("xavier_uniform", "torch_linear", "fused_xavier")


def weights_of(made, own, init, trial=TRIAL, side=0):
    """Return W of a side, (d_model, d_k), from standardised draws."""
    d_model, d_k = made.cell.projection.d_model, made.cell.d_k
    law = "uniform" if init in UNIFORM else "gaussian"
    return STD[init](d_model, d_k)[side] * standard(made, own + WEIGHTS, d_k, law, trial, d_model).T


def test_weights_have_the_law_and_the_deviation_of_their_initialisation():
    """10240 weights: their mean square within 5 of its standard errors, and goodness of fit, 1e-5 each (16 of them)."""
    for init, std in STD.items():
        made = made_of(d_k=64, projection={"init": init, "d_model": 160}, precision="float64")
        for side, own in enumerate((QUERY, KEY)):
            w, expected = weights_of(made, own, init, side=side), std(160, 64)[side]
            law = stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)) if init in UNIFORM else stats.norm()
            assert stats.kstest(w.ravel() / expected, law.cdf).pvalue > 1e-5
            query_or_key = drawn(made)[side]
            tokens = standard(made, own, len(query_or_key))
            np.testing.assert_allclose(query_or_key, tokens @ w, 0, 1e-13 * expected * 160)
    bound = abs(weights_of(made_of(d_k=64, projection={"init": "torch_linear", "d_model": 160}), KEY, "torch_linear"))
    assert 0.999 / math.sqrt(160) < bound.max() <= 1 / math.sqrt(160) * (1 + 1e-6)


def test_weights_have_the_law_of_pytorchs_own_initialisation():
    """Two samples of 10240 weights and more: goodness of fit at 1e-6, deviations within 5 standard errors of 1 %."""
    torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch")
    torch.manual_seed(0)
    d_model, d_k = 160, 64
    empty, init = torch.empty(d_k, d_model), torch.nn.init
    theirs = {
        "xavier_uniform": init.xavier_uniform_(empty.clone()),
        "xavier_normal": init.xavier_normal_(empty.clone()),
        "he": init.kaiming_normal_(empty.clone()),
        "lecun": init.kaiming_normal_(empty.clone(), nonlinearity="linear"),
        "torch_linear": torch.nn.Linear(d_model, d_k).weight,
        "fused_xavier": torch.nn.MultiheadAttention(d_model, num_heads=4).in_proj_weight,
    }
    for name, weights in theirs.items():
        made = made_of(d_k=d_k, projection={"init": name, "d_model": d_model})
        ours, weights = weights_of(made, QUERY, name).ravel(), weights.detach().numpy().ravel()
        assert stats.ks_2samp(ours, weights).pvalue > 1e-6, name
        assert ours.std() == pytest.approx(weights.std(), rel=0.05), name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tokens_with_structure_are_projected(precision):
    """Through one matrix a side and trial, for all tiles; with biases, by what the tokens are before."""
    within = {"kind": "ar1", "rho": 0.6}
    side = {"within": within, "mean": 2.0, "std": 0.5}
    made = made_of(
        query=side,
        key={"law": "uniform"},
        pair={"kind": "paired", "rho": 0.5},
        projection={"init": "he", "d_model": 11, "bias_std": 0.7},
        d_k=6,
        n_queries=140,
        n_keys=600,
        precision=precision,
    )
    root, _ = root_of(within, 11)
    for trial in (0, 8):
        x = standard(made, QUERY, 140, trial=trial) @ root.T
        y = standard(made, KEY, 600, "uniform", trial)
        y[:140] = 0.5 * x + math.sqrt(0.75) * y[:140]
        for found, tokens, own in zip(drawn(made, trial), (2 + 0.5 * x, y), (QUERY, KEY), strict=True):
            bias = 0.7 * standard(made, own + BIAS, 6, trial=trial, width=1).T
            expected = tokens @ weights_of(made, own, "he", trial) + bias
            np.testing.assert_allclose(found, expected, 0, 11 * CLOSE[precision])


def test_a_projection_is_drawn_anew_for_each_trial():
    made = made_of(query={"std": 0.0, "mean": 1.0}, projection={"init": "lecun", "d_model": 5}, precision="float64")
    first, second = drawn(made, 0)[0], drawn(made, 1)[0]
    assert (first == first[0]).all()  # the tokens are equal
    assert (abs(first[0] - second[0]) > 1e-3).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("structure", [{}, {"tokens": {"rho": 0.3}, "dependent": "signs", "mean": 1.0}])
def test_self_attention_projects_the_same_tokens(structure, tied):
    for attention in ("self", "cross"):
        projection = {"init": "xavier_normal", "d_model": 10, "attention": attention, "tied": tied, "bias_std": 1.0}
        made = made_of(query=structure, key=structure, projection=projection, n_queries=9, precision="float64")
        query, key = drawn(made)
        w_q = weights_of(made, QUERY, "xavier_normal")
        w_k = w_q if tied else weights_of(made, KEY, "xavier_normal")
        b_q, b_k = (standard(made, own + BIAS, 7, width=1).T for own in (QUERY, KEY))
        tokens, same = plain_tokens(made, structure), attention == "self"
        np.testing.assert_allclose(query, tokens @ w_q + b_q, 0, 1e-12)
        assert np.allclose(key, tokens @ w_k + b_k, 0, 1e-12) == same
        assert np.allclose(query - b_q, key - b_k, 0, 1e-12) == (tied and same)


def plain_tokens(made, structure):
    """Return the tokens of the queries, (9, d_model)."""
    if not structure:
        return standard(made, QUERY, 9)
    own, common = (
        standard(made, tensor, n, "rademacher") * abs(standard(made, tensor + MAGNITUDE, n)[:, :1])
        for tensor, n in ((QUERY, 9), (QUERY + COMMON, 1))
    )
    return 1 + math.sqrt(0.7) * own + math.sqrt(0.3) * common


# Normalization and rotation --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_get_their_length(precision):
    for kind, gain in (("l2", 1.0), ("rms", 1.0), ("layer", 1.0), ("l2", 3.0), ("rms", 0.25), ("layer", 1.5)):
        side = {"law": "laplace", "mean": 3.0, "std": 2.0}
        plain = made_of(key=side, precision=precision)
        made = made_of(key={**side, "normalize": {"kind": kind, "gain": gain}}, precision=precision)
        made = same_draws(made, plain)
        x = drawn(plain)[1]
        x = x - x.mean(axis=1, keepdims=True) if kind == "layer" else x
        length = gain * (1 if kind == "l2" else math.sqrt(7))
        check(drawn(made)[1], length * x / np.linalg.norm(x, axis=1, keepdims=True), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["l2", "rms", "layer"])
def test_a_vector_without_length_stays_so(kind, precision):
    """Of sparse vectors some are zero; of a mean that no sum rounds to, some are all equal."""
    mean = 0.1 if kind == "layer" else 0.0
    side = {"law": {"kind": "sparse", "density": 0.2}, "normalize": kind, "mean": mean}
    made = made_of(key=side, n_keys=600, d_k=3, precision=precision)
    lengths = np.linalg.norm(drawn(made)[1], axis=1)
    is_zero = (lengths < 1e-3) & (lengths >= 0)
    assert 200 < is_zero.sum() < 400
    assert (lengths[is_zero] == 0).all()
    np.testing.assert_allclose(lengths[~is_zero], 1 if kind == "l2" else math.sqrt(3), 1e-6)


def turned(x, base, first):
    """Return vectors whose planes are complex numbers, turned by base^(-2p/d) a position."""
    d = x.shape[1]
    planes = x[:, 0::2] + 1j * x[:, 1::2]
    positions = first + np.arange(len(x))
    planes = planes * np.exp(1j * positions[:, None] * base ** (-2 * np.arange(d // 2) / d))
    return np.stack([planes.real, planes.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_planes_turn_with_the_position(precision):
    """The last query has the position of the last key; in several tiles, with fewer queries than keys and more."""
    for n_queries, n_keys, base in ((300, 1100, 10000.0), (700, 600, 3.5)):
        side = {"law": "uniform", "mean": 2.0}
        sizes = {"n_queries": n_queries, "n_keys": n_keys, "d_k": 6, "precision": precision}
        plain = made_of(query=side, key=side, **sizes)
        made = made_of(query={**side, "rotation": {"base": base}}, key={**side, "rotation": {"base": base}}, **sizes)
        query, key = drawn(plain)
        found = drawn(same_draws(made, plain))
        check(found[0], turned(query, base, n_keys - n_queries), precision)
        check(found[1], turned(key, base, 0), precision)


def test_scores_depend_on_the_difference_of_positions_alone():
    side = {"std": 0.0, "mean": 1.0, "rotation": {"base": 50.0}}
    made = made_of(query=side, key=side, d_k=8, n_queries=20, n_keys=30, precision="float64")
    query, key = drawn(made)
    scores = query @ key.T
    for k in range(-19, 30):
        assert np.ptp(np.diagonal(scores, k)) < 1e-12
    assert scores[0, 10] == pytest.approx(8)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_far_position_is_as_exact_as_a_near_one(precision):
    """At a million, in float32: the angle is taken in float64, and only the rest of a tile's from a table."""
    side = {"rotation": {"base": 10000.0}}
    far = 10**6
    made = made_of(key=side, d_k=64, n_keys=far + TILE, precision=precision)
    plain = made_of(key={}, d_k=64, n_keys=far + TILE, precision=precision)
    x = draw_tokens(plain, KEY, 100, TRIAL, first=far)
    found = draw_tokens(same_draws(made, plain), KEY, 100, TRIAL, first=far)
    np.testing.assert_allclose(found, turned(x, 10000.0, far), 0, {"float32": 2e-6, "float64": 1e-9}[precision])


def test_rotation_follows_normalization():
    side = {"normalize": {"kind": "rms", "gain": 2.0}, "mean": 1.0}
    plain = made_of(key=side, d_k=4, precision="float64")
    made = made_of(key={**side, "rotation": {"base": 9.0}}, d_k=4, precision="float64")
    np.testing.assert_allclose(drawn(same_draws(made, plain))[1], turned(drawn(plain)[1], 9.0, 0), 0, 1e-14)


# Places --------------------------------------------------------------------------------------------


STRUCTURES = {
    "magnitude": {"key": {"dependent": {"kind": "magnitude", "df": 2.5}}},
    "signs": {"key": {"dependent": "signs"}},
    "equicorrelated": {"key": {"within": {"kind": "equicorrelated", "rho": 0.5}}},
    "ar1": {"key": {"within": {"kind": "ar1", "rho": 0.5}}},
    "outliers": {"key": {"within": {"kind": "outliers", "count": 1, "factor": 4.0}}},
    "tokens": {"key": {"tokens": {"rho": 0.5}}},
    "paired": {"pair": {"kind": "paired", "rho": 0.5}, "n_queries": 50},
    "shared": {"pair": {"kind": "shared", "rho": 0.5}},
    "layer": {"key": {"normalize": "layer", "mean": 1.0}},
    "rotation": {"key": {"rotation": {"base": 100.0}}},
    "projection": {"projection": {"init": "he", "d_model": 12, "bias_std": 0.1}},
    "self": {"projection": {"init": "he", "d_model": 12, "attention": "self"}, "n_queries": 90},
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_tile_that_starts_later_draws_the_same_tokens(name, precision):
    """To the bit, but for BLAS and for angles that start elsewhere."""
    made = made_of(**{"d_k": 8, "n_keys": 90, **STRUCTURES[name]}, precision=precision)
    whole = draw_tokens(made, KEY, 90, TRIAL)
    for first, count in ((31, 9), (45, 45), (89, 1)):
        part = draw_tokens(made, KEY, count, TRIAL, first=first)
        exact = name not in ("rotation", "projection", "self")
        np.testing.assert_allclose(part, whole[first:][:count], 0, 0 if exact else CLOSE[precision])


@pytest.mark.parametrize("name", STRUCTURES)
def test_more_tokens_leave_the_first_as_they_are(name):
    fields = {"d_k": 8, "n_keys": 90, **STRUCTURES[name], "precision": "float64"}
    made = made_of(**fields)
    longer = same_draws(made_of(**{**fields, "n_keys": 95, **({"n_queries": 95} if name == "self" else {})}), made)
    np.testing.assert_allclose(drawn(longer)[1][:90], drawn(made)[1], 0, 1e-13)
