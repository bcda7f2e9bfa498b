"""Low precision: vectors, raw scores, scaled scores and weights rounded, against NumPy's float16 and bfloat16.

The vectors have so few digits that their products are exact in float32. A row in which a score or a weight lies so near
the middle of two numbers that float32's rounding decides is left out of the comparison, row by row.
"""

import math

import ml_dtypes
import numpy as np
import pytest

import sim
from sim.philox import KEY, QUERY
from sim.plan import layout, plan
from tests import oracle
from tests.measuring import VALUES, draw_tokens, parts_of, planned, run_trials, run_vectors

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
FAMILIES = ["scores", "weights", "jacobian", "numerics"]
NAMES = ("weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares")
NAMES += ("jacobian_frobenius", "jacobian_frobenius_sq", "jacobian_trace")
SLACK = 1.5e-6  # of a weight, relative: what float32 may make of it before it is rounded
CAP = 5.0


def rounded(x, kind):
    """Return numbers as the type holds them, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(TYPES[kind]).astype(float)


def undecided(x, kind):
    return rounded(x * (1 - SLACK), kind) != rounded(x * (1 + SLACK), kind)


def emulated(query, key, factor, kind, cap=math.inf, visible=None):
    """Return (raw, scaled scores, weights), all rounded, and which rows are decided; unseen weights are NaN."""
    raw = rounded(rounded(query, kind) @ rounded(key, kind).T, kind)
    with np.errstate(invalid="ignore"):
        scaled = (np.float32(factor) * raw.astype(np.float32)).astype(float)
        if math.isfinite(cap):
            scaled = cap * np.tanh(scaled / cap)
    doubtful = undecided(scaled, kind) if math.isfinite(cap) else np.zeros(raw.shape, bool)
    return raw, *weights_of(rounded(scaled, kind), kind, doubtful, visible)


def weights_of(scaled, kind, doubtful, visible=None):
    is_seen = (
        np.arange(scaled.shape[1]) < (np.full(len(scaled), scaled.shape[1]) if visible is None else visible)[:, None]
    )
    scaled = np.where(is_seen, scaled, np.nan)
    with np.errstate(invalid="ignore"):
        e = np.exp(scaled - np.nanmax(scaled, axis=1, keepdims=True))
        p = e / np.nansum(e, axis=1, keepdims=True)
    is_decided = ~((doubtful | undecided(p, kind)) & is_seen).any(axis=1)
    return scaled, rounded(p, kind), is_decided


def quantities(p):
    """Return what the weights of a row are worth, by the explicit Jacobian; they need not sum to 1."""
    jacobian = np.diag(p) - np.outer(p, p)
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    square = (jacobian**2).sum()
    values = (p.max(), entropy, math.exp(entropy), (p**2).sum(), math.sqrt(square), square, np.trace(jacobian))
    return dict(zip(NAMES, values, strict=True))


def integers(shape, low, high, seed):
    """Return whole numbers of either sign with low <= size < high."""
    random = np.random.default_rng(seed)
    return (random.integers(low, high, shape) * random.choice([-1, 1], shape)).astype(np.float32)


def of_numbers(n_queries, n_keys, seed=0):
    """Return vectors whose q and raw scores float16 and bfloat16 round; some rows overflow float16."""
    query, key = integers((n_queries, 4), 2049, 4090, seed), integers((n_keys, 4), 0, 4, seed + 1)
    query[3::9] *= 8
    return query, key


def check(found, where, k, rule, expected, visible):
    """Hold one rule's values and tallies to the emulation; return how many rows were compared."""
    _, scaled, p, is_decided = expected
    parts = parts_of(found, where)
    seen = [slice(0, n) for n in visible]
    is_lost = np.array([not np.isfinite(s[part]).all() for s, part in zip(scaled, seen, strict=True)])
    assert parts["lost_rows"][k] == is_lost.sum()
    for i in np.flatnonzero(is_decided & ~is_lost):
        expected_values = quantities(p[i, seen[i]])
        for name, one in expected_values.items():
            value = found.values[k, VALUES[name], i]
            # exp(entropy) errs relatively by what the entropy, up to ln 600, errs absolutely
            of_exponent = max(expected_values["weight_entropy"], 1.0) if name == "weight_effective_keys" else 1.0
            assert value == pytest.approx(one, rel=2e-6 * of_exponent, abs=1e-9), f"{name} of row {i}, {rule}"
    for name in NAMES:
        values = found.values[k, VALUES[name]]
        assert (values[is_lost] == 0).all()
        assert parts[name][k] == pytest.approx(values.sum(), rel=1e-12)
    kept = np.concatenate([s[part] for s, part, lost in zip(scaled, seen, is_lost, strict=True) if not lost])
    weights = np.concatenate([w[part] for w, part, lost in zip(p, seen, is_lost, strict=True) if not lost])
    undecided_rows = float((~is_decided).sum())
    assert parts["rounded_weights"][k] == weights.size
    assert parts["zero_weights"][k] == pytest.approx((weights == 0).sum(), abs=undecided_rows)
    dead = [np.isin(w[part], (0, 1)).all() for w, part in zip(p, seen, strict=True)]
    assert parts["zero_jacobians"][k] == pytest.approx((dead & ~is_lost).sum(), abs=undecided_rows)
    count, mean, m2 = parts["score_moments"][k, :3]
    assert count == kept.size
    size = max(abs(kept).max(), 1e-30)
    assert mean == pytest.approx(kept.mean(), abs=1e-6 * size)
    assert m2 / count == pytest.approx(kept.var(), abs=1e-5 * size**2)
    if not math.isfinite(rule[1]):
        assert (parts["score_min"][k], parts["score_max"][k]) == (kept.min(), kept.max())
    tops = np.array([s[part].max() for s, part in zip(scaled, seen, strict=True)])
    over = [(is_lost | (tops >= math.log(limit))).sum() for limit in (65520, 2.0**128 - 2.0**103)]
    np.testing.assert_array_equal(parts["exp_overflows"][k], over)
    for j, threshold in enumerate((0.5, 0.9)):
        largest = found.values[k, VALUES["weight_max"]][~is_lost]
        assert parts["saturated"][k, j] == (largest >= threshold).sum()
    for j, threshold in enumerate((0.1, 1e-3)):
        norms = found.values[k, VALUES["jacobian_frobenius"]][~is_lost]
        assert parts["vanished"][k, j] == (norms < threshold).sum()
    assert all(np.isfinite(parts[name][k]).all() for name in (*NAMES, "score_moments", "score_row_variance"))
    return (is_decided & ~is_lost).sum()


RULES = [(1.0, math.inf), (1e-3, math.inf), (-3e-4, math.inf), (0.0, math.inf), (1e-2, math.inf), (1e-3, CAP)]
SCALE = [factor if math.isinf(cap) else {"kind": "softcap", "cap": cap, "after": factor} for factor, cap in RULES]
LEVELS = {"threshold": [0.5, 0.9], "gradient_threshold": [0.1, 1e-3]}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(40, 30, False), (135, 600, False), (40, 600, True)], ids=str)
def test_every_step_is_rounded_as_numpy_rounds(shape, kind):
    n_queries, n_keys, causal = shape
    query, key = of_numbers(n_queries, n_keys)
    made = {"precision": kind, "causal": causal, "observables": FAMILIES, **LEVELS}
    found, where = run_vectors(query, key, SCALE, **made)
    visible = np.arange(n_keys - n_queries + 1, n_keys + 1) if causal else np.full(n_queries, n_keys)
    compared = []
    for k, rule in enumerate(RULES):
        expected = emulated(query, key, rule[0], kind, rule[1], visible)
        compared.append(check(found, where, k, rule, expected, visible))
    raw = expected[0]
    assert (rounded(query, kind) != query).any()
    parts, overflows = parts_of(found, where), sum(np.isinf(row[:n]).sum() for row, n in zip(raw, visible, strict=True))
    assert parts["scores"] == visible.sum()
    assert (overflows > 0) == (kind == "float16")
    if kind == "float16":
        np.testing.assert_array_equal(parts["score_overflows"], [overflows, overflows])  # infinite as they are
        # what overflowed is lost to linear rules, and lies at the cap of the other
        assert (parts["lost_rows"][:5] > 0).all()
        assert parts["lost_rows"][5] == 0
    assert min(compared) > n_queries / 10


def test_the_sum_of_weights_need_not_be_one():
    """With a factor of 0 all 40 weights are 1/40, which float16 rounds up."""
    query, key = of_numbers(1, 40)
    found, where = run_vectors(query, key, [0.0], precision="float16", observables=["weights", "jacobian"])
    p = float(np.float16(1 / 40))
    assert p != 1 / 40
    assert found.values[0, VALUES["weight_max"], 0] == p
    assert found.values[0, VALUES["weight_sum_squares"], 0] == pytest.approx(40 * p**2, rel=1e-6)
    assert found.values[0, VALUES["weight_entropy"], 0] == pytest.approx(-40 * p * math.log(p), rel=1e-6)
    assert found.values[0, VALUES["jacobian_trace"], 0] == pytest.approx(40 * p * (1 - p), rel=1e-6)
    assert not [name for name in parts_of(found, where) if "zero" in name]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("n_keys", [50, 600])
def test_the_smallest_weights_round_to_zero_where_the_type_ends(kind, n_keys):
    """float16 from 2^-25 down, bfloat16 from 2^-134: neither sooner nor later."""
    ends = {"float16": 25, "bfloat16": 134}[kind] * math.log(2)
    scores = np.full((2, n_keys), -300.0, np.float32)
    scores[:, 0] = 0.0
    scores[0, 1:20] = -ends + np.arange(-9, 10) / 4 + 0.06  # exact in float16; in bfloat16 to 1/2
    scores[1, -20:-1] = scores[0, 1:20]
    found, where = run_vectors(
        scores, np.eye(n_keys, dtype=np.float32), [1.0], precision=kind, observables=["numerics"]
    )
    kept = rounded(scores[0, 1:20], kind)
    zeros = (rounded(np.exp(kept), kind) == 0).sum()
    assert 0 < zeros < 19
    assert abs(parts_of(found, where)["zero_weights"][0] - 2 * (zeros + n_keys - 20)) == 0


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_that_overflows_late_is_left_out_from_the_start(kind):
    """With its only infinite score in the second tile, none of the first tile's counts."""
    big = {"float16": 300.0, "bfloat16": 3e19}[kind]
    query = np.array([[big, 1], [1 / big, 1], [2 / big, -1]], np.float32)
    key = integers((700, 2), 0, 9, 1)
    key[:, 0] = 0
    key[650, 0] = 2 * big
    families = [*FAMILIES, "gradients", "spectrum"] if kind == "float16" else FAMILIES  # squares beyond float32
    found, where = run_vectors(query, key, [1.0, -0.5], precision=kind, observables=families)
    parts = parts_of(found, where)
    rows = np.isinf(emulated(query, key, 1.0, kind)[0]).any(axis=1)
    assert rows.sum() == 1
    np.testing.assert_array_equal(parts["lost_rows"], [1, 1])
    np.testing.assert_array_equal(parts["score_moments"][:, 0], [1400, 1400])
    np.testing.assert_array_equal(parts["varied_rows"], [2, 2])
    for name, values in parts.items():
        assert np.isfinite(values).all(), name
    for name, at in VALUES.items():
        assert (found.values[:, at, 0] == 0).all(), name


def test_a_trial_without_a_row_left_has_no_extremes():
    query, key = np.full((3, 1), 300.0, np.float32), np.full((20, 1), -300.0, np.float32)
    found, where = run_vectors(query, key, [1.0, -1.0], precision="float16", observables=FAMILIES)
    parts = parts_of(found, where)
    np.testing.assert_array_equal(parts["lost_rows"], [3, 3])
    np.testing.assert_array_equal(parts["score_min"], [np.inf, np.inf])  # as they begin
    np.testing.assert_array_equal(parts["score_max"], [-np.inf, -np.inf])
    assert np.isnan(parts["score_trial_max"]).all()
    for name in ("score_moments", "weight_max", "jacobian_trace", "rounded_weights", "zero_jacobians", "vanished"):
        assert (parts[name] == 0).all(), name


@pytest.mark.parametrize("causal", [False, True])
def test_infinite_vectors_are_lost_and_disturb_no_other_row(causal):
    """Elements beyond float16's range: of causal rows, those before such a key have all they had without it."""
    random = np.random.default_rng(3)
    query, key = (random.integers(-9, 9, (n, 3)).astype(np.float32) / 8 for n in (10, 600))
    query[query == 0] = 0.25
    for score in ("dot", "cosine"):
        made = {"precision": "float16", "causal": causal, "score": score}
        made["observables"] = [*FAMILIES, "gradients", "spectrum"]
        plain, where = run_vectors(query, key, [1.0, {"kind": "softcap", "cap": 2.0}], **made)
        key_inf = key.copy()
        key_inf[594] = 1e5
        found, _ = run_vectors(query, key_inf, [1.0, {"kind": "softcap", "cap": 2.0}], **made)
        lost = where.part(found.tally, "lost_rows")
        if score == "dot":
            assert lost[0] == (6 if causal else 10)
            if causal:
                np.testing.assert_array_equal(found.values[0, :, :4], plain.values[0, :, :4])
        assert np.isfinite(found.values).all()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("place", ["query", "both"])
@pytest.mark.parametrize("n_keys", [40, 600])
def test_scaled_vectors_are_rounded_before_the_product(n_keys, place, kind):
    query, key = integers((30, 2), 128, 256, 5) / 64, integers((n_keys, 2), 128, 256, 6) / 64
    factors = [0.3, -0.7, 1.0, 0.0]
    made = {"precision": kind, "scale_at": place, "observables": FAMILIES, **LEVELS}
    found, where = run_vectors(query, key, factors, **made)
    visible = np.full(30, n_keys)
    for k, factor in enumerate(factors):
        root = math.sqrt(abs(factor)) if place == "both" else 1.0
        by_query = np.float32(factor / root if root else 0.0)
        q, x = rounded(by_query * query, kind), rounded(np.float32(root) * key, kind)
        scaled = rounded(q @ x.T, kind)
        expected = rounded(query @ key.T, kind), *weights_of(scaled, kind, np.zeros(scaled.shape, bool))
        assert check(found, where, k, (factor, math.inf), expected, visible) > (6 if n_keys == 40 else 0)
        if factor in (0.3, -0.7):
            other = rounded(np.float32(factor) * rounded(query @ key.T, kind), kind)
            assert (scaled != other).mean() > 0.1


def test_a_drawn_cell_is_rounded_alike():
    """Elements of two values of 11 digits each: their products are exact."""
    fields = {"d_k": 4, "n_queries": 20, "n_keys": 30, "precision": "float16", "observables": FAMILIES, **LEVELS}
    sides = {name: {"law": "rademacher", "mean": 0.1} for name in ("query", "key")}
    made, where = planned(**fields, **sides, trials=1, scale=["none", 0.7, "sqrt_dk"])
    found = run_trials(made, where)
    query, key = draw_tokens(made, QUERY, 20, 0), draw_tokens(made, KEY, 30, 0)
    for k, factor in enumerate((1.0, 0.7, 0.5)):
        expected = emulated(query, key, factor, "float16")
        assert check(found, where, k, (factor, math.inf), expected, np.full(20, 30)) > 4


def test_a_family_left_out_changes_no_bit_of_the_others():
    query, key = of_numbers(20, 600)
    whole, where = run_vectors(query, key, SCALE, precision="float16", observables=[*FAMILIES, "gradients", "spectrum"])
    whole = parts_of(whole, where)
    for kept in (["weights"], ["jacobian"], ["scores"], ["numerics"], ["weights", "gradients"], ["spectrum"]):
        parts = parts_of(*run_vectors(query, key, SCALE, precision="float16", observables=kept))
        for name, values in parts.items():
            np.testing.assert_array_equal(values, whole[name], err_msg=f"{name} of {kept}")


def test_other_precisions_are_as_they_are_without_a_narrow_one():
    """Precision as an axis: the layout has the tallies of rounding, float32 and float64 no use for them."""
    fields = {"d_k": 8, "n_queries": 6, "n_keys": 40, "trials": 2, "scale": [1.0, 8.0]}
    for precision in ("float32", "float64"):
        both, alone = (sim.Sweep(**fields, precision=p) for p in ([precision, "float16"], precision))
        of_both, of_alone = layout(both), layout(alone)
        assert "zero_weights" in of_both
        first = parts_of(run_trials(plan(both, both.cells[0], of_both), of_both), of_both)
        second = parts_of(run_trials(plan(alone, alone.cells[0], of_alone), of_alone), of_alone)
        for name, values in second.items():
            np.testing.assert_array_equal(first[name], values, err_msg=name)
        assert first["rounded_weights"].sum() == 0


def test_gradients_are_those_of_the_weights_before_they_are_rounded():
    query, key = integers((20, 3), 0, 9, 1) / 8, integers((600, 3), 0, 9, 2) / 8
    rules = [({"kind": "softcap", "cap": 2.0}, oracle.Rule(1.0, cap=2.0)), (0.5, oracle.Rule(0.5))]
    made = {"precision": "float16", "observables": ["gradients"]}
    found, where = run_vectors(query, key, [scale for scale, _ in rules], **made)
    raw = rounded(query @ key.T, "float16")
    for k, (_, rule) in enumerate(rules):
        s = rounded(oracle.scaled(raw, rule), "float16")
        expected = oracle.sloped_gradients(
            s, oracle.slopes(raw, rule), lambda i: key.astype(float), lambda i: np.repeat(query[i : i + 1], 600, axis=0)
        )
        np.testing.assert_allclose(found.values[k, VALUES["gradient_query_sq"]], expected["query"], 2e-3)
        for name, values in expected.items():
            total = values.mean() if name == "key" else values.sum()
            assert where.part(found.tally, f"gradient_{name}_sq")[k] == pytest.approx(total, rel=1e-4)


def test_where_every_row_is_lost_nothing_is_known_of_them():
    families = [*FAMILIES, "gradients"]
    fields = {"d_k": 8, "n_tokens": 16, "trials": 40, "precision": "float16", "vectors": {"std": 1e6}}
    dataset = sim.run(sim.Sweep(**fields, scale="none", observables=families)).squeeze()
    assert dataset["row_overflow_rate"] == 1
    of_scores = ("score_mean", "score_variance", "score_min", "score_max", "score_trial_max")
    for name in (*of_scores, "weight_max", "jacobian_trace", "gradient_query", "gradient_key", "gradient_score"):
        assert np.isnan(dataset[name]), name
