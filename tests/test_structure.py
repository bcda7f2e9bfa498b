"""Structure, projections and score functions: how sweeps spell them, and what they are called."""

import json
import tomllib

import numpy as np
import pytest

from sim.cell import Cell, Projection, Rotation, Side, Tokens
from sim.errors import InputError
from sim.kinds import Choice, short_forms
from sim.structure import DEPENDENT, INITS, NORMALIZE, PAIR, SCORES, WITHIN
from sim.sweep import Sweep

SIZES = {"d_k": 16, "n_tokens": 8}
AR1 = {"kind": "ar1", "rho": 0.5}
HE = {"init": "he", "d_model": 32}
SELF = {**HE, "attention": "self"}


def sweep(**fields):
    return Sweep(**{name: value for name, value in {**SIZES, **fields}.items() if value is not None})


def only(**fields):
    """Return the one cell of a sweep."""
    (cell,) = sweep(**fields).cells
    return cell


def assert_comes_back(made):
    again = Sweep(**json.loads(json.dumps(made.resolved())))
    assert again == made
    assert (again.hash, again.cells, again.axes) == (made.hash, made.cells, made.axes)
    assert again.coordinates == made.coordinates
    assert not made.axes.keys() & made.coordinates.keys()


# How a sweep spells it ------------------------------------------------------------------------------

CATALOGUE = """
    d_k = 64
    n_tokens = 128
    observables = ["scores", "weights", "jacobian"]
    precision = "float32"
    scale = ["none", "sqrt_dk", 0.125, {kind = "softcap", cap = 50, after = "sqrt_dk"}, {kind = "log_n", factor = 0.43}]

    [vectors]
    law = "gaussian"
    within = {kind = "ar1", rho = [0, 0.5, 0.9]}
    tokens = {rho = 0.5}
    normalize = {kind = "rms", gain = 1.0}
    dependent = {kind = "magnitude", df = 4}
    rotation = {base = 10000}
    """
PAIR_TABLE = """
    [pair]
    kind = "paired"
    rho = 0.5
    """
PROJECTION_TABLE = """
    [projection]
    init = "xavier_uniform"
    d_model = 512
    attention = "self"
    tied = false
    bias_std = 0.0
    """
SCORE_TABLE = """
    [score]
    kind = "additive"
    units = 64
    v_std = 1.0
    """


def test_the_catalogue_of_a_side():
    made = Sweep(**tomllib.loads(CATALOGUE))
    assert made.axes == {"within_rho": (0.0, 0.5, 0.9)}
    assert made.scale_labels == ("none", "sqrt_dk", "0.125", "softcap(cap=50, after=sqrt_dk)", "log_n(factor=0.43)")
    side = made.cells[1].query
    assert side == made.cells[1].key
    assert (side.within.kind, side.within.get("rho")) == ("ar1", 0.5)
    assert (side.dependent.kind, side.dependent.get("df")) == ("magnitude", 4.0)
    assert (side.normalize.kind, side.normalize.get("gain")) == ("rms", 1.0)
    assert side.tokens == Tokens(rho=0.5)
    assert side.rotation == Rotation(base=10000)
    assert made.coordinates == {
        "seed": 0,
        "d_k": 64,
        "n_tokens": 128,
        "causal": False,
        "precision": "float32",
        "law": "gaussian",
        "dependent": "magnitude(df=4)",
        "within": "ar1",
        "tokens_rho": 0.5,
        "mean": 0.0,
        "std": 1.0,
        "normalize": "rms",
        "rotation_base": 10000.0,
    }
    assert_comes_back(made)


def test_the_catalogue_of_tables():
    paired = Sweep(**tomllib.loads(CATALOGUE + PAIR_TABLE))
    assert paired.cells[0].pair == Choice("paired", (("rho", 0.5),))
    assert paired.coordinates["pair"] == "paired(rho=0.5)"
    projected = Sweep(**tomllib.loads(CATALOGUE + PROJECTION_TABLE + SCORE_TABLE))
    assert projected.cells[0].projection == Projection(init="xavier_uniform", d_model=512, attention="self")
    assert projected.cells[0].width == 512
    assert projected.cells[0].d_k == 64
    assert projected.cells[0].score.parameters == (("units", 64), ("v_std", 1.0))
    assert projected.coordinates["projection_d_model"] == 512
    assert projected.coordinates["projection_init"] == "xavier_uniform"
    assert projected.coordinates["projection_attention"] == "self"
    assert projected.coordinates["score"] == "additive(units=64)"
    assert "projection_tied" not in projected.coordinates  # a default
    for made in (paired, projected):
        assert_comes_back(made)


# Each field with a list in its table: under [vectors] the dimension, and its values.
SIDE_AXES = [
    ({"dependent": {"kind": "magnitude", "df": [3, 5]}}, "dependent_df", (3.0, 5.0)),
    ({"within": {"kind": "equicorrelated", "rho": [0, -0.05, 0.9]}}, "within_rho", (0.0, -0.05, 0.9)),
    ({"within": {"kind": "ar1", "rho": [-0.9, 0.9]}}, "within_rho", (-0.9, 0.9)),
    ({"within": {"kind": "power_law", "exponent": [0, 2]}}, "within_exponent", (0.0, 2.0)),
    ({"within": {"kind": "outliers", "count": [1, 16], "factor": 10}}, "within_count", (1, 16)),
    ({"within": {"kind": "outliers", "count": 2, "factor": [0.5, 100]}}, "within_factor", (0.5, 100.0)),
    ({"tokens": {"rho": [0, 0.5, 1]}}, "tokens_rho", (0.0, 0.5, 1.0)),
    ({"normalize": {"kind": "l2", "gain": [1, 20]}}, "normalize_gain", (1.0, 20.0)),
    ({"normalize": {"kind": "layer", "gain": [2]}}, "normalize_gain", (2.0,)),
    ({"rotation": {"base": [100, 10000]}}, "rotation_base", (100.0, 10000.0)),
    ({"dependent": ["none", "signs", {"kind": "magnitude", "df": 4}]}, "dependent",
     ("none", "signs", "magnitude(df=4)")),
    ({"within": ["none", AR1, {"kind": "outliers", "count": 1, "factor": 10}]}, "within",
     ("none", "ar1(rho=0.5)", "outliers(count=1, factor=10)")),
    ({"tokens": ["none", {"rho": 0.5}, {"rho": 1}]}, "tokens", ("none", "tokens(rho=0.5)", "tokens(rho=1)")),
    ({"normalize": ["rms", {"kind": "rms", "gain": 0.5}, "none"]}, "normalize", ("rms", "rms(gain=0.5)", "none")),
    ({"rotation": [{}, "none", {"base": 5e5}]}, "rotation", ("rotation(base=10000)", "none", "rotation(base=500000)")),
]  # fmt: skip
CELL_AXES = [
    ({"pair": {"kind": "paired", "rho": [-1, 0, 1]}}, "pair_rho", (-1.0, 0.0, 1.0)),
    ({"pair": {"kind": "shared", "rho": [0, 1]}}, "pair_rho", (0.0, 1.0)),
    ({"pair": ["none", {"kind": "shared", "rho": 0.25}]}, "pair", ("none", "shared(rho=0.25)")),
    ({"projection": {**HE, "d_model": [8, 512]}}, "projection_d_model", (8, 512)),
    ({"projection": {**HE, "init": [*INITS]}}, "projection_init", tuple(INITS)),
    ({"projection": {**HE, "attention": ["cross", "self"]}}, "projection_attention", ("cross", "self")),
    ({"projection": {**HE, "tied": [False, True]}}, "projection_tied", (False, True)),
    ({"projection": {**HE, "bias_std": [0, 0.1]}}, "projection_bias_std", (0.0, 0.1)),
    ({"projection": ["none", HE, {**HE, "tied": True, "bias_std": 0.5}]}, "projection",
     ("none", "projection(init=he, d_model=32)", "projection(init=he, d_model=32, tied=true, bias_std=0.5)")),
    ({"score": ["dot", "cosine", {"kind": "additive", "units": 8}]}, "score", ("dot", "cosine", "additive(units=8)")),
    ({"score": {"kind": "additive", "units": [8, 64]}}, "score_units", (8, 64)),
    ({"score": {"kind": "additive", "units": 8, "v_std": [0, 2]}}, "score_v_std", (0.0, 2.0)),
    ({"score": {"kind": "iid", "law": ["gaussian", "uniform"]}, "d_k": None}, "score_law", ("gaussian", "uniform")),
    ({"score": ["iid", {"kind": "iid", "law": "uniform"}], "d_k": None}, "score", ("iid", "iid(law=uniform)")),
    ({"scale_at": ["scores", "query", "both"]}, "scale_at", ("scores", "query", "both")),
    ({"precision": ["float64", "float32", "float16", "bfloat16"]}, "precision",
     ("float64", "float32", "float16", "bfloat16")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "dimension", "values"),
    [
        *CELL_AXES,
        *(({"vectors": side}, dimension, values) for side, dimension, values in SIDE_AXES),
        *(({"query": side}, f"query_{dimension}", values) for side, dimension, values in SIDE_AXES),
        *(({"key": side}, f"key_{dimension}", values) for side, dimension, values in SIDE_AXES),
    ],
)
def test_a_list_is_an_axis(fields, dimension, values):
    made = sweep(**fields)
    assert made.axes == {dimension: values}
    assert [type(value) for value in made.axes[dimension]] == [type(value) for value in values]
    assert len(made.cells) == len(values)
    assert_comes_back(made)


def test_every_kind_and_field_is_an_axis_above():
    """Whoever adds a kind finds here that it has not been tried."""
    spelt = json.dumps([fields for fields, *_ in [*SIDE_AXES, *CELL_AXES]])
    for registry in (DEPENDENT, WITHIN, NORMALIZE, PAIR, SCORES, INITS):
        assert [kind for kind in registry if f'"{kind}"' not in spelt] == []
    fields = {*Side.model_fields, *Projection.model_fields, *Tokens.model_fields, *Rotation.model_fields}
    assert [field for field in fields - {"mean", "std"} if f'"{field}"' not in spelt] == []


SIDES = [{}, {"std": 0}, {"law": "uniform", "mean": [0, 1]}, *(side for side, *_ in SIDE_AXES)]


def test_any_combination_comes_back_or_is_refused():
    """Seeded draws of all that can be spelt together: a sweep of many cells, or one message."""
    rng = np.random.default_rng(4)
    tables = {"score": [{}], "pair": [{}], "projection": [{}], "scale_at": [{}], "precision": [{}]}
    for fields, *_ in CELL_AXES:
        tables[next(iter(fields))].append(fields)
    made, refused = 0, 0
    for _ in range(150):
        names = rng.choice(list(tables), 2, replace=False)
        chosen = [tables[name][rng.integers(len(tables[name]))] for name in names]
        sides = [["vectors"], ["query", "key"], ["key"], []][rng.integers(4)]
        for side in sides:
            parts = [SIDES[i] for i in rng.choice(len(SIDES), 3, replace=False)]
            chosen.append({side: {name: value for part in parts for name, value in part.items()}})
        fields = {name: value for part in chosen for name, value in part.items()}
        try:
            one = sweep(**fields)
        except InputError:
            refused += 1
        else:
            assert_comes_back(one)
            made += 1
    assert min(made, refused) > 15


def test_axes_of_structure_are_in_the_order_of_the_draw():
    made = sweep(
        score=["cosine", "dot"],
        projection={"tied": [True, False], "d_model": [32, 64], "init": ["he", "gpt2"]},
        pair=["none", {"kind": "paired", "rho": 1}],
        vectors={
            "rotation": ["none"],
            "normalize": ["rms"],
            "std": [2],
            "mean": [1],
            "tokens": {"rho": [0.5]},
            "within": ["none"],
            "dependent": ["signs"],
            "law": ["uniform"],
        },
        d_k=[4],
    )
    assert [*made.axes] == [
        "d_k", "law", "dependent", "within", "tokens_rho", "mean", "std", "normalize", "rotation",
        "pair", "projection_init", "projection_d_model", "projection_tied", "score",
    ]  # fmt: skip
    assert len(made.cells) == 2**5
    assert_comes_back(made)


def test_a_parameter_of_a_law_in_a_table_leaves_law_out(monkeypatch):
    from dataclasses import replace

    from sim.kinds import Parameter
    from sim.laws import LAWS

    df = Parameter(None, "a number above 0", lambda x: x > 0)
    monkeypatch.setitem(LAWS, "heavy", replace(LAWS["gaussian"], parameters={"df": df}))
    heavy = {"kind": "heavy", "df": [3, 5]}
    scores = sweep(score={"kind": "iid", "law": heavy}, d_k=None)
    assert scores.axes == {"score_df": (3.0, 5.0)}
    assert scores.coordinates["score"] == "iid(law=heavy)"
    assert [cell.score.get("law").get("df") for cell in scores.cells] == [3, 5]
    assert_comes_back(scores)
    one = sweep(score={"kind": "iid", "law": {"kind": "heavy", "df": 3}}, d_k=None)
    assert one.coordinates["score"] == "iid(law=heavy(df=3))"
    assert one.cells[0].draw_fields()["score"] == {"kind": "iid", "law": {"kind": "heavy", "df": 3.0}}
    assert_comes_back(one)
    side = sweep(query={"law": heavy, "dependent": {"kind": "magnitude", "df": [4, 6]}})
    assert [*side.axes] == ["query_df", "query_dependent_df"]
    assert_comes_back(side)
    with pytest.raises(InputError, match=r"^score\.law\.df = 0 is not allowed: it must be a number above 0$"):
        sweep(score={"kind": "iid", "law": {"kind": "heavy", "df": 0}}, d_k=None)


@pytest.mark.parametrize("registry", [DEPENDENT, WITHIN, NORMALIZE, PAIR])
def test_none_is_a_kind_everywhere(registry):
    assert next(iter(registry)) == "none"
    assert not registry["none"].parameters


def test_none_means_no_structure():
    nothing = dict.fromkeys(("dependent", "within", "tokens", "normalize", "rotation"), "none")
    plain = sweep(vectors=nothing, pair="none", projection="none", score="dot", scale_at="scores")
    assert plain.cells == sweep().cells
    assert plain.hash == sweep().hash
    assert plain.resolved() == sweep().resolved()
    assert plain.coordinates == sweep().coordinates
    uncorrelated = sweep(vectors={"tokens": {"rho": 0}})
    assert uncorrelated.hash == sweep().hash
    assert uncorrelated.cells[0].philox_key() == sweep().cells[0].philox_key()
    assert uncorrelated.coordinates == sweep().coordinates
    assert sweep(query={"tokens": {"rho": 0}}, projection=SELF).hash == sweep(key={}, projection=SELF).hash
    assert_comes_back(sweep(query={"tokens": {"rho": [0, 0.5]}}))


def test_a_name_is_enough_where_nothing_is_required():
    assert only(score="cosine").score == only(score={"kind": "cosine"}).score == Choice("cosine")
    assert only(vectors={"normalize": "rms"}).key.normalize.get("gain") == 1.0
    assert only(vectors={"rotation": {}}).key.rotation == Rotation(base=10000)
    assert only(score="iid", d_k=None).score.get("law") == Choice("gaussian")


def test_numbers_of_numpy_and_fields_of_python():
    made = only(
        vectors={"within": Choice("ar1", (("rho", 0.5),)), "tokens": Tokens(rho=0.5).model_dump()},
        score={"kind": "additive", "units": np.int64(8)},
        projection={"init": "he", "d_model": np.int32(32), "tied": np.True_},
    )
    assert made.query.within.get("rho") == 0.5
    direct = Cell(
        d_k=16,
        n_queries=8,
        n_keys=8,
        query=Side(within=AR1, tokens=Tokens(rho=0.5)),
        key={"within": AR1, "tokens": {"rho": 0.5}},
        score={"kind": "additive", "units": 8},
        projection=Projection(init="he", d_model=32, tied=True),
    )
    assert direct == made


def test_only_plain_scores_can_be_too_close_together():
    far = {"mean": 1e5, "std": 1e-4}
    with pytest.raises(InputError, match="rounding of float32"):
        sweep(vectors=far)
    for fields in (
        {"vectors": {**far, "within": AR1}},
        {"vectors": {**far, "normalize": "layer"}},
        {"vectors": far, "projection": HE},
        {"vectors": far, "score": "cosine"},
        {"vectors": far, "pair": {"kind": "shared", "rho": 0.5}},
        {"vectors": far, "precision": "float16"},
        {"score": "iid", "d_k": None},
    ):
        assert only(**fields).is_resolved


# Scores that are drawn themselves -------------------------------------------------------------------


def test_scores_without_vectors_have_defaults_of_their_own():
    made = sweep(score="iid", d_k=None)
    assert made.cells[0].d_k is None
    assert not made.cells[0].has_vectors
    assert made.scale == (Choice("none"),)
    assert made.observables == ("scores", "distribution", "weights", "jacobian", "numerics")
    assert made.coordinates == {"seed": 0, "n_tokens": 8, "causal": False, "precision": "float32", "score": "iid"}
    assert "d_k" not in made.resolved()
    assert "vectors" not in made.resolved()
    assert_comes_back(made)
    scales = [2, {"kind": "log_n"}, {"kind": "softcap", "cap": 3, "after": 2}, {"kind": "log_n", "after": 2}]
    assert_comes_back(sweep(score="iid", d_k=None, scale=scales, observables=["weights"]))
    assert made.replace(scale=[1, 2]).scale == (1.0, 2.0)


# Initialisations ------------------------------------------------------------------------------------


def test_initialisations():
    d_model, d_k = 512, 64
    expected = {
        "xavier_uniform": ("uniform", 2 / 576, 2 / 576),
        "xavier_normal": ("gaussian", 2 / 576, 2 / 576),
        "he": ("gaussian", 2 / 512, 2 / 512),
        "lecun": ("gaussian", 1 / 512, 1 / 512),
        "torch_linear": ("uniform", 1 / (3 * 512), 1 / (3 * 512)),
        "gpt2": ("gaussian", 0.02**2, 0.02**2),
        "fused_xavier": ("uniform", 2 / (4 * 512), 2 / (4 * 512)),
        "t5": ("gaussian", 1 / (512 * 64), 1 / 512),
    }
    assert {
        name: (init.law, init.std("query", d_model, d_k) ** 2, init.std("key", d_model, d_k) ** 2)
        for name, init in INITS.items()
    } == {name: (law, pytest.approx(query), pytest.approx(key)) for name, (law, query, key) in expected.items()}


# Short forms ----------------------------------------------------------------------------------------


def test_short_forms_nest():
    assert short_forms("iid(law=student_t(df=3)), dot, additive(units=8, v_std=0.5)") == [
        {"kind": "iid", "law": {"kind": "student_t", "df": 3}},
        "dot",
        {"kind": "additive", "units": 8, "v_std": 0.5},
    ]
    for odd in ("softcap(cap=50", "softcap)", "(", ")(", "a(b=c(d)", "a(b)c"):
        assert short_forms(odd)  # whatever it is, the field's reader refuses it


@pytest.mark.parametrize(
    "given",
    [{"kind": "additive", "units": 8}, {"kind": "additive", "units": 8, "v_std": 0.5}, "cosine", "dot"],
)
def test_a_label_reads_back(given):
    score = only(score=given).score
    assert short_forms(score.label) == [score.canonical]
    assert only(score=short_forms(score.label)[0]).score == score


def test_a_parameter_by_name():
    choice = Choice("ar1", (("rho", 0.5),))
    assert choice.get("rho") == 0.5
    assert choice.get("df", 7) == 7
    assert choice.get("df") is None
