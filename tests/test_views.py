"""Scores as the scale rules see them, of every score function: whole cells against the oracle on transformed scores."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests import oracle
from tests.measuring import draw_scores, draw_standard, parts_of, planned, run_trials
from tests.oracle import Rule

PRECISIONS = ("float32", "float64")
TOLERANCE = {"float32": 3e-6, "float64": 2e-14}  # of scores, relative to the largest
LEVELS = {"threshold": [0.3, 0.9], "gradient_threshold": [0.2, 0.01]}
FAMILIES = ["scores", "distribution", "weights", "jacobian", "numerics"]


def made_of(**fields):
    """Return the plan of one cell, and its layout."""
    sizes = {"d_k": 8, "n_queries": 7, "n_keys": 40, "trials": 3, "observables": FAMILIES, **LEVELS, **fields}
    if isinstance(sizes.get("score"), dict) and sizes["score"]["kind"] == "iid":
        del sizes["d_k"]
    return planned(**sizes)


def check_rule(found, k, raw, rule, visible, tolerance, message):
    """Hold what a tally says of rule `k` to the oracle's estimates of raw scores (trials, queries, keys)."""
    s = oracle.scaled(raw, rule, visible)
    expected = oracle.estimates(s, 1.0, LEVELS["threshold"], LEVELS["gradient_threshold"], visible)
    trials, rows, reach = len(raw), raw.shape[0] * raw.shape[1], abs(s).max()
    n, mean, m2, m3, m4 = found["score_moments"][k]
    varied = found["varied_rows"][k] or np.nan
    values = {
        "score_mean": (mean, reach),
        "score_variance": (m2 / n, reach**2),
        "score_min": (found["score_min"][k], reach),
        "score_max": (found["score_max"][k], reach),
        "score_trial_max": (found["score_trial_max"][k] / trials, reach),
        "score_row_variance": (found["score_row_variance"][k] / varied, reach**2),
        "saturation_rate": (found["saturated"][k] / rows, 0.0),
        "vanishing_rate": (found["vanished"][k] / rows, 0.0),
    }
    if reach:
        values |= {
            "score_skewness": (m3 / n / (m2 / n) ** 1.5, 100.0),
            "score_excess_kurtosis": (m4 / n / (m2 / n) ** 2 - 3, 100.0),
        }
    of_rows = ["weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"]
    of_rows += ["jacobian_frobenius", "jacobian_frobenius_sq", "jacobian_trace"]
    if "jacobian_spectral" in found:
        of_rows += ["jacobian_spectral"]
        rows_of_s = [s[t, i, :n] for t in range(trials) for i, n in enumerate(visible)]
        expected["jacobian_spectral"] = np.mean(
            [oracle.spectral_of_many(row) if row.size > 1 else 0.0 for row in rows_of_s]
        )
    assert n == raw.shape[0] * visible.sum()
    tops = np.array([s[t, i, :n].max() for t in range(trials) for i, n in enumerate(visible)])
    for count, limit in zip(found["exp_overflows"][k], (math.log(65520), 128 * math.log(2)), strict=True):
        low, high = ((tops * (1 + sign * tolerance) >= limit).sum() for sign in (-1, 1))
        assert low <= count <= high
    for name, (value, size) in values.items():
        np.testing.assert_allclose(value, expected[name], 0, tolerance * size + 1e-30, err_msg=f"{name} {message}")
    for name in of_rows:
        floor = 1e-16 if name.startswith("jacobian_frobenius") else 1e-28
        close = tolerance * (1 + reach) * 3
        np.testing.assert_allclose(found[name][k] / rows, expected[name], close, floor, err_msg=f"{name} {message}")


def check(rules, **fields):
    """Hold a cell to the oracle under every one of `rules`, (scale, Rule), all at once."""
    made, where = made_of(scale=[scale for scale, _ in rules], **fields)
    found = parts_of(run_trials(made, where), where)
    raw = np.stack([draw_scores(made, trial) for trial in range(made.trials)])
    precision, visible = made.cell.computes_in, made.cell.visible
    for k, (scale, rule) in enumerate(rules):
        check_rule(found, k, raw, rule, visible, TOLERANCE[precision], f"{scale} {fields}")
    seen = np.concatenate([raw[:, i, :n].ravel() for i, n in enumerate(visible)])
    assert found["score_histogram"].sum() == found["scores"] == seen.size
    center, *limits = made.measures.window.astype(float)
    if np.isfinite(center):
        slack = TOLERANCE[precision] * abs(seen).max()
        for count, limit in zip(found["score_within_sigma"], limits, strict=True):
            low, high = (oracle.within(seen, center, limit + sign * slack) * seen.size for sign in (-1, 1))
            assert low - 0.5 < count < high + 0.5
    return made, found, raw


def softcap(cap, **after):
    return {"kind": "softcap", "cap": cap, **after}


def log_n(**fields):
    return {"kind": "log_n", **fields}


def rules_of(d_k, n_keys=None):
    """Return every kind of rule with its numbers, for vectors of length d_k; `n_keys` where all rows see as many."""
    ln = {"factor": math.log(n_keys)} if n_keys else None

    def of_log(factor):
        return Rule(factor * ln["factor"]) if ln else Rule(factor, log_n=True)

    return [
        ("none", Rule(1.0)),
        ("sqrt_dk", Rule(d_k**-0.5)),
        ("dk", Rule(1 / d_k)),
        (-0.25, Rule(-0.25)),
        (0, Rule(0.0)),
        ({"kind": "power", "exponent": -0.75, "factor": -2.0}, Rule(-2.0 * d_k**-0.75)),
        ({"kind": "power", "exponent": 0}, Rule(1.0)),
        (softcap(5), Rule(1.0, cap=5.0)),
        (softcap(1.5, after="sqrt_dk"), Rule(d_k**-0.5, cap=1.5)),
        (softcap(3.0, after=-0.3), Rule(-0.3, cap=3.0)),
        (softcap(1000.0, after="dk"), Rule(1 / d_k, cap=1000.0)),
        (softcap(1e-3), Rule(1.0, cap=1e-3)),
        (softcap(2.0, after=0), Rule(0.0, cap=2.0)),
        (log_n(), of_log(1.0)),
        (log_n(factor=-0.2), of_log(-0.2)),
        (log_n(factor=0.43, after="sqrt_dk"), of_log(0.43 * d_k**-0.5)),
    ]


SHAPES = [(1, 1, 4), (1, 40, 8), (5, 5, 3), (140, 600, 8), (3, 1100, 5)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_rule_agrees_with_the_oracle(precision, causal):
    for n_queries, n_keys, d_k in SHAPES:
        # the row of a single query sees every key
        rules = rules_of(d_k, None if causal else n_keys)
        families = [*FAMILIES, "spectrum"] if n_queries < 6 else FAMILIES
        sizes = {"n_queries": n_queries, "n_keys": n_keys, "d_k": d_k, "causal": causal, "trials": 2}
        check(rules, **sizes, precision=precision, query={"mean": 0.5}, observables=families)


def test_rules_do_not_disturb_each_other():
    """Each alone has the same numbers as with all others, to the bit."""
    rules = rules_of(8)
    fields = {
        "causal": True,
        "precision": "float32",
        "n_keys": 560,
        "observables": [*FAMILIES, "gradients", "spectrum"],
    }
    made, where = made_of(scale=[scale for scale, _ in rules], **fields)
    whole = parts_of(run_trials(made, where), where)
    for k in (0, 3, 7, 9, 13, 15):
        one, where = made_of(scale=[rules[k][0]], **fields)
        alone = parts_of(run_trials(replace(one, geometry=made.geometry), where), where)
        for name, values in alone.items():
            if values.ndim and values.shape[0] == 1 and len(whole[name]) == len(rules):
                np.testing.assert_array_equal(values[0], whole[name][k], err_msg=f"{name} {rules[k][0]}")


def test_a_causal_row_counts_its_own_keys():
    """Raw scores of 1, under log n: the scaled score of a row is ln of how many keys it sees."""
    sides = {"query": {"std": 0.0, "mean": 1.0}, "key": {"std": 0.0, "mean": 1.0}}
    made, where = made_of(**sides, d_k=1, scale=[log_n(), "none"], n_queries=4, n_keys=600, causal=True, trials=1)
    found = parts_of(run_trials(made, where), where)
    counts = np.array([597, 598, 599, 600])
    assert found["score_min"][0] == pytest.approx(math.log(597), rel=1e-7)
    assert found["score_max"][0] == pytest.approx(math.log(600), rel=1e-7)
    mean = (counts * np.log(counts)).sum() / counts.sum()
    np.testing.assert_allclose(found["score_moments"][:, :2], [[2394, mean], [2394, 1.0]], 1e-7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cap_is_never_passed(precision):
    made, where = made_of(scale=[softcap(3.0), softcap(0.5)], query={"std": 1e3}, precision=precision)
    found = parts_of(run_trials(made, where), where)
    np.testing.assert_array_equal(found["score_max"], [3.0, 0.5])
    np.testing.assert_array_equal(found["score_min"], [-3.0, -0.5])


def test_the_first_scores_are_kept_in_the_order_of_drawing():
    """Once each, whatever passes there are over the keys: a sample of two trials and a half."""
    for fields in ({}, {"observables": ["spectrum"]}, {"score": {"kind": "iid", "law": "laplace"}}):
        made, where = made_of(**fields, n_queries=3, n_keys=6, causal=True, precision="float64")
        sample, stop = np.full(37, np.nan), np.zeros(1, np.uint8)
        run_trials(made, where, sample, stop)
        raw = [draw_scores(made, trial)[i, : 4 + i] for trial in range(3) for i in range(3)]
        np.testing.assert_allclose(sample, np.concatenate(raw)[:37], 1e-12)
        assert stop[0] == 1


# Where the scale is applied -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["query", "both"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_place_of_the_scale_matters_to_rounding_alone(place, causal):
    for shape in ({"n_queries": 6, "n_keys": 30}, {"n_queries": 130, "n_keys": 700}):
        fields = {**shape, "causal": causal, "precision": "float64", "query": {"mean": 0.3}, "trials": 2}
        fields["observables"] = [*FAMILIES, "gradients", "spectrum"]
        rules = [scale for scale, _ in rules_of(8)]
        at_scores, where = made_of(scale=rules, **fields)
        elsewhere, _ = made_of(scale=rules, scale_at=place, **fields)
        assert elsewhere.geometry == at_scores.geometry
        first, second = (parts_of(run_trials(made, where), where) for made in (at_scores, elsewhere))
        for name, values in first.items():
            if name == "score_moments":
                spread = np.sqrt(values[:, 2:3] / values[:, :1]) + 1e-3
                sizes = values[:, :1] * spread ** np.array([0, 1, 2, 3, 4]) / values[:, :1] ** [0, 1, 0, 0, 0]
                assert (abs(second[name] - values) <= 1e-11 * (sizes + abs(values[:, 1:2]))).all(), name
            elif name in ("frobenius_sizes", "gradient_query_sizes"):
                # a value may lie at an edge; a factor of 0 is not in the bins of the scores that all rules share
                counts = np.delete(abs(second[name] - values), rules.index(0), axis=0)
                assert counts.sum() <= 8, name
            else:
                np.testing.assert_allclose(second[name], values, 1e-10, 1e-20, err_msg=name)


# Score functions ------------------------------------------------------------------------------------------


LINEAR = [
    ("none", Rule(1.0)),
    (-30.0, Rule(-30.0)),
    (softcap(0.7), Rule(1.0, cap=0.7)),
    (softcap(4.0, after=30), Rule(30.0, cap=4.0)),
    (log_n(factor=2.0), Rule(2.0, log_n=True)),
]
SCORES = [
    ({"score": "cosine"}, 6),
    ({"score": "cosine", "key": {"law": "rademacher", "mean": 3.0}, "query": {"std": 50.0}}, 3),
    ({"score": {"kind": "additive", "units": 5}}, 6),
    ({"score": {"kind": "additive", "units": 70, "v_std": 0.3}, "query": {"mean": 2.0}}, 9),
    ({"score": {"kind": "additive", "units": 1}}, 1),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("fields", "d_k"), SCORES)
def test_every_score_function_agrees_with_the_oracle(fields, d_k, precision):
    for n_queries, n_keys, causal in ((4, 30, False), (140, 560, True)):
        rules = LINEAR if causal else [*LINEAR[:-1], (log_n(factor=2.0), Rule(2.0 * math.log(n_keys)))]
        families = [*FAMILIES, "spectrum"] if n_queries < 9 else FAMILIES
        check(
            rules,
            **fields,
            d_k=d_k,
            n_queries=n_queries,
            n_keys=n_keys,
            causal=causal,
            precision=precision,
            trials=2,
            observables=families,
        )


LAWS = ["gaussian", "rademacher", {"kind": "student_t", "df": 5}, {"kind": "two_point", "p": 0.2}, "exponential"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_scores_without_vectors_agree_with_the_oracle(law, precision):
    rules = [(scale, rule) for scale, rule in LINEAR if rule.factor != -30.0]
    for n_queries, n_keys, causal in ((6, 30, False), (133, 530, True)):
        rules[-1] = (log_n(factor=2.0), Rule(2.0, log_n=True) if causal else Rule(2.0 * math.log(n_keys)))
        sizes = {"n_queries": n_queries, "n_keys": n_keys, "causal": causal, "trials": 2}
        _, _, raw = check(rules, score={"kind": "iid", "law": law}, precision=precision, **sizes)
        assert raw.shape == (2, n_queries, n_keys)


def test_drawn_scores_are_independent_of_the_tiles_and_standardised():
    """Each of 3 laws: mean, variance, and correlation of neighbours in rows and columns, within 5 standard errors."""
    for law in ("gaussian", "laplace", "uniform"):
        made, _ = made_of(score={"kind": "iid", "law": law}, n_queries=130, n_keys=1100, precision="float64")
        s = draw_scores(made, 1)
        for place in ((0, 0), (5, 513), (129, 1099), (128, 512)):  # alone, by its own words
            own = draw_standard(made, law, 3, (place[1] + 1, place[0] + 1), 1)
            assert own[place[1], place[0]] == s[place]
        n = s.size
        assert abs(s.mean()) < 5 / math.sqrt(n)
        assert abs(s.var() - 1) < 5 * math.sqrt((s**4).mean() / n)
        for shifted in (s[1:] * s[:-1], s[:, 1:] * s[:, :-1], s[4:] * s[:-4]):
            assert abs(shifted.mean()) < 5 / math.sqrt(n)
        assert not np.allclose(draw_scores(made, 2), s)
