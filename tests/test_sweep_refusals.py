"""Sweeps that are wrong: each is refused in one message that names the field, the value and what is allowed."""

import json
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.cell import Cell
from sim.errors import InputError
from sim.settings import Settings
from sim.sweep import Sweep

SIZES = {"d_k": 16, "n_tokens": 8}


def sweep(**fields):
    return Sweep(**{**SIZES, **fields})


NAN, INF = math.nan, math.inf

MISSPELT = [
    ({"dk": 3}, r"^dk is unknown: a sweep takes name, .*; did you mean 'd_k'\?$"),
    ({"trails": 3}, r"^trails is unknown: .*; did you mean 'trials'\?$"),
    ({"ntokens": [3]}, r"^ntokens is unknown: .*; did you mean 'n_tokens'\?$"),
    ({"keys": {"mean": 1}}, r"^keys is unknown: .*; did you mean 'key'\?$"),
    ({"k" * 5000: 1}, r"^'kkk.*kkk' is unknown: a sweep takes"),
    ({"a b": 1}, r"^'a b' is unknown: a sweep takes"),
    ({"key": {"mena": 1}}, r"^key\.mena is unknown: \[key\] takes law, .*, rotation; did you mean 'mean'\?$"),
    (
        {"vectors": {"mena": [1, 2]}},
        r"^vectors\.mena is unknown: \[vectors\] takes law, .*, rotation; did you mean 'mean'",
    ),
    ({"query": {3: 1}}, r"^query: the key 3 is unknown"),
    ({"key": {"law": {"kind": "gaussian", "df": 3}}}, r"^key\.law\.df is unknown: gaussian takes no parameters$"),
    ({"key": {"law": {"kin": "gaussian"}}}, r"^key\.law\.kind is missing: it must be one of rademacher, gaussian"),
    (
        {"histogram": {"lo": 1, "high": 2}},
        r"^histogram\.lo is unknown: \[histogram\] takes low, high, bins; .*'low'\?$",
    ),
    ({"histogram": {3: 1}}, r"^histogram: the key 3 is unknown"),
    (
        {"key": {"law": "gausian"}},
        r"^key\.law = 'gausian' is not allowed: it must be one of .*; did you mean 'gaussian'",
    ),
    ({"vectors": {"law": ["uniform", "rademaker"]}}, r"^vectors\.law = 'rademaker' .*; did you mean 'rademacher'\?$"),
    ({"key": {"law": {"kind": "unifrom"}}}, r"^key\.law\.kind = 'unifrom' .*; did you mean 'uniform'\?$"),
    ({"scale": "sqrt_d"}, r"^scale = 'sqrt_d' is not allowed: it must be one of none, .*; did you mean 'sqrt_dk'\?$"),
    ({"scale": ["dk", "non"]}, r"^scale = 'non' .*; did you mean 'none'\?$"),
    ({"scale": {"kind": "dk", "x": 1}}, r"^scale\.x is unknown: dk takes no parameters$"),
    ({"scale": {"x": 1}}, r"^scale\.kind is missing"),
    ({"observables": ["score"]}, r"^observables = 'score' is not allowed: .*; did you mean 'scores'\?$"),
    ({"casual": True}, r"^casual is unknown: .*; did you mean 'causal'\?$"),
    ({"observables": "gradient"}, r"^observables = 'gradient' is not allowed: .*; did you mean 'gradients'\?$"),
    (
        {"precision": "float"},
        r"^precision = 'float' is not allowed: .* float32, float64, .*; did you mean 'float\d\d'\?$",
    ),
]

OUT_OF_RANGE = [
    ({"key": {"std": -1}}, r"^key\.std = -1 is not allowed: it must be a finite number of at least 0$"),
    ({"vectors": {"std": [1, -0.5]}}, r"^vectors\.std = -0\.5 is not allowed"),
    ({"d_k": 0}, r"^d_k = 0 is not allowed: it must be a whole number from 1 to 1048576$"),
    ({"d_k": [16, 2**21]}, r"^d_k = 2097152 is not allowed"),
    ({"n_tokens": [3, 0]}, r"^n_tokens = 0 is not allowed: it must be a whole number from 1 to 2147483647$"),
    ({"seed": -1}, r"^seed = -1 is not allowed: it must be a whole number from 0 to 9223372036854775807$"),
    ({"seed": 2**63}, r"^seed = 9223372036854775808 is not allowed"),
    ({"trials": 0}, r"^trials = 0 is not allowed: it must be a whole number from 1 to 4294967295$"),
    ({"trials": 2**32}, r"^trials = 4294967296 is not allowed"),
    ({"d_k": 10**5000}, r"^d_k = .* is not allowed"),
    ({"vectors": {"mean": 10**400}}, r"^vectors\.mean = 1000.*000 is not allowed: it must be a finite number$"),
    ({"vectors": {"mean": NAN}}, r"^vectors\.mean = nan is not allowed: it must be a finite number$"),
    ({"key": {"mean": [0, -INF]}}, r"^key\.mean = -inf is not allowed"),
    ({"key": {"std": INF}}, r"^key\.std = inf is not allowed"),
    ({"scale": NAN}, r"^scale = nan is not allowed: it must be one of none, .* or a finite number$"),
    ({"scale": [1, INF]}, r"^scale = inf is not allowed"),
    ({"threshold": 0}, r"^threshold = 0 is not allowed: it must be a number above 0 and at most 1"),
    ({"threshold": [0.5, 1.5]}, r"^threshold = 1\.5 is not allowed"),
    ({"threshold": NAN}, r"^threshold = nan is not allowed"),
    ({"gradient_threshold": 0}, r"^gradient_threshold = 0 is not allowed: it must be a number above 0 and at most 1"),
    ({"gradient_threshold": [0.5, 1.5]}, r"^gradient_threshold = 1\.5 is not allowed"),
    ({"quantile": 1}, r"^quantile = 1 is not allowed: it must be a number between 0 and 1"),
    ({"quantile": [0.0]}, r"^quantile = 0\.0 is not allowed"),
    ({"histogram": {"low": 0, "high": 1, "bins": 0}}, r"^histogram\.bins = 0 .* a whole number from 1 to 4096$"),
    ({"histogram": {"low": 0, "high": 1, "bins": 4097}}, r"^histogram\.bins = 4097 is not allowed"),
    ({"histogram": {"low": 1, "high": 1}}, r"^histogram\.high = 1\.0 is not allowed: it must be above .*low = 1\.0$"),
    ({"histogram": {"low": -INF, "high": 1}}, r"^histogram\.low = -inf is not allowed: it must be a finite number"),
]

# Numbers that kernels could not hold: they overflow, vanish, or differ by less than their rounding.
OUT_OF_REACH = [
    (
        {"vectors": {"std": 1e30}},
        r"^vectors\.std = 1e\+30 is not allowed: it must be 0, or between 1e-9 and 1e9 in size$",
    ),
    ({"vectors": {"std": 1e-30}}, r"^vectors\.std = 1e-30 is not allowed"),
    ({"query": {"mean": [0, -1e200]}}, r"^query\.mean = -1e\+200 is not allowed"),
    ({"scale": [1, 1e300]}, r"^scale = 1e\+300 is not allowed: it must be 0, or between"),
    ({"scale": -1e-300}, r"^scale = -1e-300 is not allowed"),
    (
        {"histogram": {"low": -1e308, "high": 1e308}},
        r"^histogram\.low = -1e\+308 is not allowed: .*at most 1e30 in size$",
    ),
    ({"histogram": {"low": 0, "high": 1e-320}}, r"^histogram\.high = 1e-320 is not allowed: it must be at least 1e-30"),
    (
        {"vectors": {"mean": [0, 1e4], "std": 1e-4}},
        r"^mean and std: with query mean 10000 and std 0\.0001, .* rounding of float32; .* precision = \"float64\"$",
    ),
    ({"vectors": {"mean": 1e9, "std": 1e-9}, "precision": "float64"}, r"rounding of float64; .* larger std$"),
]

LISTS = [
    ({"d_k": []}, r"^d_k = \[\] is not allowed: an axis needs at least one value$"),
    ({"key": {"law": []}}, r"^key\.law = \[\] is not allowed: an axis needs at least one value$"),
    ({"scale": []}, r"^scale is empty: give at least one$"),
    ({"observables": []}, r"^observables is empty"),
    ({"threshold": []}, r"^threshold is empty"),
    ({"gradient_threshold": []}, r"^gradient_threshold is empty"),
    ({"causal": []}, r"^causal = \[\] is not allowed: an axis needs at least one value$"),
    ({"causal": [True, True]}, r"^causal has True twice"),
    ({"d_k": [16, 8, 16]}, r"^d_k has 16 twice: the values of an axis must differ$"),
    ({"vectors": {"mean": [1, 1.0]}}, r"^vectors\.mean has 1\.0 twice"),
    ({"vectors": {"mean": [0.0, -0.0]}}, r"^vectors\.mean has 0\.0 twice"),
    ({"key": {"law": ["uniform", {"kind": "uniform"}]}}, r"^key\.law has 'uniform' twice"),
    ({"precision": ["float32", "float32"]}, r"^precision has 'float32' twice"),
    ({"scale": [1, "dk", 1.0]}, r"^scale has 1\.0 twice: each may stand there once$"),
    ({"scale": ["dk", {"kind": "dk"}]}, r"^scale has 'dk' twice"),
    ({"threshold": [0.5, 0.5]}, r"^threshold has 0\.5 twice"),
    ({"gradient_threshold": [0.5, 0.5]}, r"^gradient_threshold has 0\.5 twice"),
    ({"observables": ["scores", "scores"]}, r"^observables has 'scores' twice"),
    ({"name": ["a", "b"]}, r"^name = \['a', 'b'\] is not allowed: .*; a list may not stand here$"),
    ({"trials": [10, 20]}, r"^trials = \[10, 20\] is not allowed: .*; a list may not stand here$"),
    ({"histogram": {"low": [0, 1], "high": 2}}, r"^histogram\.low = \[0, 1\] .*; a list may not stand here$"),
    ({"histogram": [1, 2]}, r"^histogram = \[1, 2\] is not allowed: it must be a table of low, high, bins"),
    ({"d_k": [[16]]}, r"^d_k = \[16\] is not allowed: .*; a list may not stand here$"),
    ({"key": {"mean": [0, [1, 2]]}}, r"^key\.mean = \[1, 2\] is not allowed: .*; a list may not stand here$"),
    ({"key": {"law": [["uniform"]]}}, r"^key\.law = \['uniform'\] is not allowed: .*; a list may not stand here$"),
    ({"scale": [["dk"]]}, r"^scale = \['dk'\] is not allowed: .*; a list may not stand here$"),
    ({"threshold": [[0.5]]}, r"^threshold = \[0\.5\] is not allowed: .*; a list may not stand here$"),
    (
        {"key": [{"mean": 1}]},
        r"^key = \[\{'mean': 1\}\] is not allowed: it must be a table of law, .*; a list may",
    ),
    (
        {"scale": {"kind": "dk", "x": [1]}},
        r"^scale\.x = \[1\] is not allowed: lists may not stand inside a scale table",
    ),
    (
        {"d_k": range(1, 1002), "seed": range(1000)},
        r"^1001000 cells are too many \(seed: 1000 × d_k: 1001\): a sweep has at most 1000000$",
    ),
]

WRONG_TYPES = [
    *(
        (nested, rf"^{re.escape(path)} = {re.escape(repr(value))} is not allowed: it must be {kind}")
        for value in ("3", True, None, {"x": 1}, 3j)
        for nested, path, kind in [
            ({"d_k": value}, "d_k", "a whole number"),
            ({"d_k": [1, value]}, "d_k", "a whole number"),
            ({"seed": value}, "seed", "a whole number"),
            ({"n_tokens": value}, "n_tokens", "a whole number"),
            ({"trials": value}, "trials", "a whole number"),
            ({"vectors": {"mean": value}}, "vectors.mean", "a finite number"),
            ({"key": {"std": [value]}}, "key.std", "a finite number"),
            ({"threshold": value}, "threshold", "a number above 0"),
            ({"gradient_threshold": value}, "gradient_threshold", "a number above 0"),
            ({"quantile": [value]}, "quantile", "a number between"),
            ({"histogram": {"low": value, "high": 3}}, "histogram.low", "a finite number"),
        ]
        if not (
            isinstance(value, dict) and nested.keys() & {"d_k", "seed", "n_tokens"} and nested != {"d_k": [1, value]}
        )
    ),
    *(
        ({"causal": value}, rf"^causal = {re.escape(repr(value))} is not allowed: it must be true or false")
        for value in (1, 0, 1.0, "true", None, 3j)
    ),
    ({"causal": [True, "no"]}, r"^causal = 'no' is not allowed: it must be true or false$"),
    ({"d_k": 64.0}, r"^d_k = 64\.0 is not allowed: it must be a whole number"),
    ({"trials": 1e3}, r"^trials = 1000\.0 is not allowed"),
    ({"d_k": {"x": 1}}, r"^d_k = \{'x': 1\} is not allowed: it must be a whole number"),
    ({"key": 3}, r"^key = 3 is not allowed: it must be a table of law, .*, normalize, rotation$"),
    ({"vectors": None}, r"^vectors = None is not allowed: it must be a table of law, .*, normalize, rotation$"),
    ({"key": {"law": 3}}, r"^key\.law = 3 is not allowed: it must be one of .* or a table \{kind = \.\.\.\}$"),
    ({"key": {"law": None}}, r"^key\.law = None is not allowed"),
    ({"key": {"law": {}}}, r"^key\.law\.kind is missing"),
    ({"key": {"law": {"kind": 3}}}, r"^key\.law\.kind = 3 is not allowed"),
    ({"scale": True}, r"^scale = True is not allowed"),
    ({"scale": None}, r"^scale = None is not allowed"),
    ({"observables": 3}, r"^observables = 3 is not allowed: it must be one of scores"),
    ({"observables": None}, r"^observables = None is not allowed"),
    ({"precision": 32}, r"^precision = 32 is not allowed: it must be one of float32, float64, float16, bfloat16$"),
    ({"histogram": 3}, r"^histogram = 3 is not allowed: it must be a table of low, high, bins$"),
    ({"name": 3}, r"^name = 3 is not allowed: it must be text"),
    ({"name": None}, r"^name = None is not allowed"),
]

NAMES = [
    ({"name": name}, rf"^name = .* is not allowed: it must be {problem}")
    for name, problem in [
        ("", "not empty"),
        (" a", "not empty, without spaces around"),
        ("a/b", "without /"),
        ("a\\b", "without /"),
        ("..", "without a dot"),
        ("../a", "without /"),
        (".hidden", "without a dot"),
        ("a.", "without a dot"),
        ("a\0b", "without /"),
        ("a\nb", "without /"),
        ("\ud800", "without /"),
        ("a" * 101, "at most 100"),
        ("é" * 51, "at most 100"),
        *((f"a{c}b", "without /") for c in ':*?"<>|'),
    ]
]

CONTRADICTIONS = [
    ({"n_queries": 3}, r"^n_tokens and n_queries contradict each other: n_tokens sets both n_queries and n_keys"),
    ({"n_keys": 3, "n_queries": 3}, r"^n_tokens and n_queries and n_keys contradict each other"),
    ({"vectors": {}, "key": {}}, r"^vectors and key contradict each other: vectors sets both query and key; leave"),
    ({"vectors": {"mean": 1}, "query": {"std": 1}}, r"^vectors and query contradict each other"),
    ({"histogram": {"low": 1}}, r"^histogram\.high is missing: it must be a finite number above histogram\.low$"),
]


@pytest.mark.parametrize(
    ("fields", "message"), [*MISSPELT, *OUT_OF_RANGE, *OUT_OF_REACH, *LISTS, *WRONG_TYPES, *NAMES, *CONTRADICTIONS]
)
def test_refused(fields, message):
    with pytest.raises(InputError, match=message) as caught:
        sweep(**fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("fields", [{"mean": 1e6}, {"std": 0, "mean": 1e9}, {"std": 1e9}, {"mean": -1e-9, "std": 1e-9}])
def test_large_and_small_numbers_within_reach_are_accepted(fields):
    assert sweep(vectors=fields).cells


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_tokens": 3}, r"^d_k is missing: give a whole number"),
        ({"d_k": 3}, r"^n_queries and n_keys missing: give n_queries and n_keys, or n_tokens for both$"),
        ({"d_k": 3, "n_keys": 3}, r"^n_queries missing: give n_queries and n_keys, or n_tokens for both$"),
        ({"dk": 3, "n_tokens": 3}, r"^dk is unknown"),
        ({}, r"^d_k is missing"),
        ({"d_k": 3, "n_queries": 3, "n_keys": "3"}, r"^n_keys = '3' is not allowed"),
        (
            {"d_k": 3, "n_queries": 9, "n_keys": 8, "causal": True},
            r"^causal = True is not allowed: of n_queries = 9 and n_keys = 8 the first queries would see no key; give",
        ),
        ({"d_k": 3, "n_queries": [8, 9], "n_keys": 8, "causal": [False, True]}, r"^causal = True .* n_queries = 9 and"),
    ],
)
def test_required_fields(fields, message):
    with pytest.raises(InputError, match=message):
        Sweep(**fields)


def test_a_list_that_contains_itself_is_refused():
    loop = [1]
    loop.append(loop)
    with pytest.raises(InputError, match="nested too deeply"):
        sweep(d_k=loop)


# Files --------------------------------------------------------------------------------------------

GOOD = b'name = "x"\nd_k = 4\nn_tokens = 2\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"d_k = 4\nn_tokens = 2\n", r"sweep\.toml: name is missing: give the sweep a name"),
        (GOOD + b"d_k =\n", r"sweep\.toml is not valid TOML: .*line 4, column 6"),
        (GOOD + b"d_k = 5\n", r"sweep\.toml is not valid TOML: .*line 4"),
        (GOOD + b"[key]\n[key]\n", r"sweep\.toml is not valid TOML: .*line 5"),
        (b'name = "\xff"', r"sweep\.toml is not UTF-8: line 1 has the byte 0xff"),
        (GOOD + b"seed = " + b"9" * 5000, r"sweep\.toml is not valid TOML"),
        (GOOD + b"seed = " + b"[" * 5000 + b"]" * 5000, r"sweep\.toml: .*nested too deeply"),
        (GOOD + b"seed = 2020-01-01\n", r"sweep\.toml: seed = datetime.date\(2020, 1, 1\) is not allowed"),
        (GOOD + b"seed = nan\n", r"sweep\.toml: seed = nan is not allowed"),
        (GOOD + b"[[key]]\nmean = 1\n", r"sweep\.toml: key = \[\{'mean': 1\}\] is not allowed: it must be a table"),
        (GOOD + b"key.mean = 'a'\n", r"sweep\.toml: key\.mean = 'a' is not allowed"),
        (b"", r"sweep\.toml: name is missing"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, message):
    (tmp_path / "sweep.toml").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        Sweep.from_toml(tmp_path / "sweep.toml")
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("content", [GOOD, b"\xef\xbb\xbf" + GOOD, GOOD.replace(b"\n", b"\r\n")])
def test_editors_may_differ(tmp_path, content):
    path = tmp_path / "sweep.toml"
    path.write_bytes(content)
    assert Sweep.from_toml(str(path)) == Sweep(name="x", d_k=4, n_tokens=2)


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"absent\.toml: there is no such file$"):
        Sweep.from_toml(tmp_path / "absent.toml")
    with pytest.raises(InputError, match=r"is a directory: give a TOML file$"):
        Sweep.from_toml(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read"):
        Sweep.from_toml(tmp_path / ("a" * 300))

    def locked(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", locked)  # root may read everything
    with pytest.raises(InputError, match=r"locked\.toml cannot be read: Permission denied$"):
        Sweep.from_toml(tmp_path / "locked.toml")


# Junk ---------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["law", "mean", "std", "kind", "low", "high", "bins", "gaussian", "uniform", "sqrt_dk", "scores", "float32", "d_k",
     "within", "tokens", "rotation", "normalize", "none", "rms", "ar1", "rho", "cosine", "iid", "softcap", "after",
     "init", "he", "d_model", "attention", "self", "count", "outliers", "paired", "base"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(1, 9), st.floats(), st.text(max_size=5), WORDS, st.binary()
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | SCALARS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*Settings.model_fields, *Cell.model_fields, "n_tokens", "vectors", "d_q"]


def sweep_or_message(fields):
    try:
        return sweep(**fields)
    except InputError as error:  # and nothing else may escape
        return str(error)


@given(st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4))
@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_junk_is_refused_or_understood(fields):
    made = sweep_or_message(fields)
    if isinstance(made, str):
        assert "\n" not in made
        assert "pydantic" not in made
    else:
        assert Sweep(**json.loads(json.dumps(made.resolved()))) == made
