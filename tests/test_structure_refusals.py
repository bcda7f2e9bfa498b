"""Structure that is wrong, or cannot be combined: each is refused in one message that says why and how to mend it."""

import math
import re

import pytest
from pydantic import ValidationError

from sim.cell import Cell
from sim.errors import InputError
from sim.sweep import Sweep

SIZES = {"d_k": 16, "n_tokens": 8}
AR1 = {"kind": "ar1", "rho": 0.5}
HE = {"init": "he", "d_model": 32}
SELF = {**HE, "attention": "self"}
IID = {"score": "iid", "d_k": None}


def sweep(**fields):
    return Sweep(**{name: value for name, value in {**SIZES, **fields}.items() if value is not None})


WRONG_VALUES = [
    # a parameter of each kind
    ({"vectors": {"dependent": "magnitude"}}, r"^vectors\.dependent\.df is missing: magnitude needs df, a finite"),
    ({"key": {"dependent": {"kind": "magnitude", "df": 0}}}, r"^key\.dependent\.df = 0 is not allowed: .* above 0$"),
    ({"key": {"dependent": {"kind": "signs", "df": 4}}}, r"^key\.dependent\.df is unknown: signs takes no parameters$"),
    ({"key": {"dependent": "sings"}}, r"^key\.dependent = 'sings' .* one of none, magnitude, signs.*mean 'signs'\?$"),
    ({"vectors": {"within": "ar1"}}, r"^vectors\.within\.rho is missing: ar1 needs rho, a number between -1 and 1$"),
    ({"vectors": {"within": {**AR1, "rho": 1}}}, r"^vectors\.within\.rho = 1 is not allowed: .* between -1 and 1$"),
    ({"vectors": {"within": {**AR1, "rho": [0, -1]}}}, r"^vectors\.within\.rho = -1 is not allowed"),
    ({"vectors": {"within": {"kind": "equicorrelated", "rho": 1}}}, r"^vectors\.within\.rho = 1 is not allowed"),
    ({"vectors": {"within": {"kind": "power_law", "exponent": -1}}}, r"\.exponent = -1 .* a number from 0 to 10$"),
    ({"vectors": {"within": {"kind": "outliers", "count": 0, "factor": 2}}}, r"\.count = 0 .* a whole number from"),
    ({"vectors": {"within": {"kind": "outliers", "count": 2.0, "factor": 2}}}, r"\.count = 2\.0 .* a whole number"),
    ({"vectors": {"within": {"kind": "outliers", "count": True, "factor": 2}}}, r"\.count = True .* a whole number"),
    ({"vectors": {"within": {"kind": "outliers", "count": 2}}}, r"^vectors\.within\.factor is missing: outliers needs"),
    ({"vectors": {"within": {"kind": "outliers", "count": 2, "factor": 0}}}, r"\.factor = 0 .* above 0$"),
    ({"vectors": {"within": {"kind": "outliers", "count": 2, "factor": 1e10}}}, r"\.factor = 1\S+ .* between 1e-9 and"),
    ({"vectors": {"within": {"kind": ["ar1"], "rho": 0}}}, r"^vectors\.within\.kind = \['ar1'\] .* a list may not"),
    ({"vectors": {"within": [{**AR1, "rho": [0]}]}}, r"^vectors\.within\.rho = \[0\] .*; a list may not stand here$"),
    ({"vectors": {"within": [AR1, AR1]}}, r"^vectors\.within has 'ar1\(rho=0\.5\)' twice"),
    ({"vectors": {"within": {"rho": 0.5}}}, r"^vectors\.within\.kind is missing: it must be one of none, equi"),
    ({"vectors": {"within": None}}, r"^vectors\.within = None is not allowed"),
    ({"vectors": {"within": []}}, r"^vectors\.within = \[\] is not allowed: an axis needs"),
    ({"vectors": {"tokens": {"rho": -0.1}}}, r"^vectors\.tokens\.rho = -0\.1 .* a number from 0 to 1$"),
    ({"vectors": {"tokens": {"rho": [0.5, 1.5]}}}, r"^vectors\.tokens\.rho = 1\.5 is not allowed"),
    ({"vectors": {"tokens": {}}}, r"^vectors\.tokens\.rho is missing: it must be a number from 0 to 1$"),
    ({"vectors": {"tokens": 0.5}}, r"^vectors\.tokens = 0\.5 is not allowed: it must be a table of rho, or none$"),
    ({"vectors": {"tokens": {"rhu": 1}}}, r"^vectors\.tokens\.rhu is unknown: \[vectors\.tokens\] takes rho; did you"),
    ({"vectors": {"tokens": [{"rho": 0.5}, {"rho": 0.5}]}}, r"^vectors\.tokens has 'tokens\(rho=0\.5\)' twice"),
    ({"key": {"rotation": {"base": 1}}}, r"^key\.rotation\.base = 1 .* a finite number above 1$"),
    ({"key": {"rotation": "rope"}}, r"^key\.rotation = 'rope' is not allowed: it must be a table of base, or none$"),
    ({"key": {"rotation": {"base": math.inf}}}, r"^key\.rotation\.base = inf is not allowed"),
    ({"key": {"normalize": {"kind": "rms", "gain": 0}}}, r"^key\.normalize\.gain = 0 .* above 0$"),
    ({"key": {"normalize": {"kind": "l2", "gain": math.nan}}}, r"^key\.normalize\.gain = nan is not allowed"),
    ({"key": {"normalize": "l1"}}, r"^key\.normalize = 'l1' .* one of none, l2, rms, layer"),
    ({"pair": "paired"}, r"^pair\.rho is missing: paired needs rho, a number from -1 to 1$"),
    ({"pair": {"kind": "paired", "rho": 1.1}}, r"^pair\.rho = 1\.1 .* a number from -1 to 1$"),
    ({"pair": {"kind": "shared", "rho": -0.1}}, r"^pair\.rho = -0\.1 .* a number from 0 to 1$"),
    ({"pair": {"rho": 0.5}}, r"^pair\.kind is missing: it must be one of none, paired, shared$"),
    ({"pair": 3}, r"^pair = 3 is not allowed: it must be one of none, paired, shared or a table"),
    ({"pair": [{"kind": "paired", "rho": [1]}]}, r"^pair\.rho = \[1\] .*; a list may not stand here$"),
    ({"projection": {"d_model": 8}}, r"^projection\.init is missing: it must be one of xavier_uniform, .*, t5$"),
    ({"projection": {"init": "he"}}, r"^projection\.d_model is missing: it must be a whole number from 1 to 1048576$"),
    ({"projection": {}}, r"^projection\.init is missing"),
    ({"projection": "he"}, r"^projection = 'he' is not allowed: it must be a table of init, d_model, .*, or none$"),
    ({"projection": {**HE, "init": "xavier"}}, r"^projection\.init = 'xavier' .*; did you mean '\w*xavier\w*'\?$"),
    ({"projection": {**HE, "d_model": 0}}, r"^projection\.d_model = 0 .* a whole number from 1 to"),
    ({"projection": {**HE, "d_model": 8.0}}, r"^projection\.d_model = 8\.0 .* a whole number"),
    ({"projection": {**HE, "attention": "slef"}}, r"^projection\.attention = 'slef' .* one of cross, self; did you"),
    ({"projection": {**HE, "tied": 1}}, r"^projection\.tied = 1 is not allowed: it must be true or false$"),
    ({"projection": {**HE, "bias_std": -1}}, r"^projection\.bias_std = -1 .* a finite number of at least 0$"),
    ({"projection": {**HE, "width": 3}}, r"^projection\.width is unknown: \[projection\] takes init, d_model"),
    ({"score": "additive"}, r"^score\.units is missing: additive needs units, a whole number from 1 to 1048576$"),
    ({"score": {"kind": "additive", "units": 0}}, r"^score\.units = 0 is not allowed"),
    ({"score": {"kind": "additive", "units": 8, "v_std": -1}}, r"^score\.v_std = -1 .* a finite number of at least 0$"),
    ({"score": "cos"}, r"^score = 'cos' is not allowed: it must be one of dot, cosine, additive, iid"),
    ({"score": {"kind": "iid", "law": "gauss"}, "d_k": None}, r"^score\.law = 'gauss' .*; did you mean 'gaussian'\?$"),
    ({"score": {"kind": ["dot", "cosine"]}}, r"^score\.kind = \['dot', 'cosine'\] .*; a list may not stand here$"),
    ({"scale_at": "key"}, r"^scale_at = 'key' is not allowed: it must be one of scores, query, both"),
    ({"precision": "float15"}, r"^precision = 'float15' .* one of float32, float64, float16, bfloat16; did you mean"),
    ({"within": AR1}, r"^within is unknown here: it belongs in \[vectors\], \[query\] or \[key\]$"),
    ({"vectors": {"pair": "none"}}, r"^vectors\.pair is unknown: \[vectors\] takes law, .*, rotation"),
]  # fmt: skip

COMBINATIONS = [
    # scores that are drawn themselves
    ({"score": "iid"}, r"^d_k is not allowed with score = 'iid': .* without queries and keys; leave it out, or give"),
    ({"score": ["dot", "iid"]}, r"^d_k is not allowed with score = 'iid'"),
    ({"score": ["iid", "dot"], "d_k": None}, r"^d_k is missing: give a whole number or a list of them$"),
    ({"score": "cosine", "d_k": None}, r"^d_k is missing: give a whole number"),
    ({**IID, "vectors": {"mean": 1}}, r"^vectors is not allowed with score = 'iid': .*; leave it out"),
    ({**IID, "vectors": {}}, r"^vectors is not allowed with score = 'iid'"),
    ({**IID, "query": {"law": ["gaussian", "uniform"]}}, r"^query is not allowed with score = 'iid'"),
    ({**IID, "key": {"law": "gaussian"}}, r"^key is not allowed with score = 'iid'"),
    ({**IID, "pair": {"kind": "shared", "rho": 1}}, r"^pair is not allowed with score = 'iid'"),
    ({**IID, "projection": HE}, r"^projection is not allowed with score = 'iid'"),
    ({**IID, "scale_at": "query"}, r"^scale_at is not allowed with score = 'iid'"),
    ({**IID, "observables": ["scores", "gradients"]}, r"^observables = 'gradients' is not allowed with score = 'iid'"),
    ({**IID, "scale": ["none", "sqrt_dk"]}, r"^scale = 'sqrt_dk' is not allowed with score = 'iid', which has no d_k"),
    ({**IID, "scale": "dk"}, r"^scale = 'dk' is not allowed with score = 'iid'"),
    ({**IID, "scale": {"kind": "power", "exponent": -1}}, r"^scale = 'power\(exponent=-1\)' is not allowed with score"),
    ({**IID, "scale": {"kind": "softcap", "cap": 5, "after": "dk"}}, r"^scale = 'softcap\(cap=5, after=dk\)' is not"),
    ({**IID, "scale": {"kind": "log_n", "after": "sqrt_dk"}}, r"^scale = 'log_n\(after=sqrt_dk\)' is not allowed with"),
    # self-attention and tied weights
    ({"projection": SELF, "pair": {"kind": "paired", "rho": 0}}, r"^pair = 'paired\(rho=0\)' is not allowed with proj"),
    (
        {"projection": SELF, "n_tokens": None, "n_queries": 4, "n_keys": 8},
        r"^projection\.attention = 'self' is not allowed with n_queries = 4 and n_keys = 8: .*; give n_tokens, or",
    ),
    *(
        ({"projection": SELF, "key": {name: value}}, rf"^projection\.attention = 'self' .* query\.{name} = .*{shown}")
        for name, value, shown in [
            ("law", "uniform", r"'gaussian' and key\.law = 'uniform': .*; describe them in \[vectors\], or give"),
            ("dependent", "signs", r"'none' and key\.dependent = 'signs'"),
            ("within", AR1, r"'none' and key\.within = 'ar1\(rho=0\.5\)'"),
            ("tokens", {"rho": 0.5}, r"'none' and key\.tokens = 'tokens\(rho=0\.5\)'"),
            ("mean", 1, r"0\.0 and key\.mean = 1\.0"),
            ("std", 2, r"1\.0 and key\.std = 2\.0"),
        ]
    ),
    ({"projection": {**HE, "init": "t5", "tied": True}}, r"^projection\.tied = True is not allowed with init = 't5'"),
    ({"projection": {**HE, "init": ["he", "t5"], "tied": True}}, r"^projection\.tied = True is not allowed with init"),
    # vectors without a direction
    *(
        ({"vectors": {"std": 0, "normalize": kind}}, rf"^vectors\.normalize = '{kind}' .* mean 0 and std 0: .* give a")
        for kind in ("l2", "rms", "layer")
    ),
    ({"key": {"std": [1, 0]}, "score": "cosine"}, r"^score = 'cosine' is not allowed with key mean 0 and std 0: the"),
    ({"key": {"std": 0}, "score": "cosine", "projection": HE}, r"^score = 'cosine' is not allowed with key mean 0 and"),
    ({"vectors": {"normalize": "layer"}, "d_k": 1}, r"^vectors\.normalize = 'layer' is not allowed with d_k = 1: .*"),
    ({"key": {"normalize": "layer", "mean": 1, "std": 0}}, r"^key\.normalize = 'layer' is not allowed with key std 0:"),
    # what depends on the number of components
    ({"vectors": {"rotation": {}}, "d_k": [16, 15]}, r"^vectors\.rotation is not allowed with d_k = 15: .* give an"),
    ({"query": {"rotation": {"base": 9}}, "d_k": 1}, r"^query\.rotation is not allowed with d_k = 1"),
    (
        {"key": {"within": {"kind": "outliers", "count": 17, "factor": 2}}},
        r"^key\.within\.count = 17 is not allowed with d_k = 16: it must be at most the number of components$",
    ),
    (
        {"key": {"within": {"kind": "outliers", "count": 17, "factor": 2}}, "projection": {**HE, "d_model": [32, 8]}},
        r"^key\.within\.count = 17 is not allowed with projection\.d_model = 8",
    ),
    (
        {"key": {"within": {"kind": "equicorrelated", "rho": [0, -0.25]}}, "d_k": 5},
        r"^key\.within\.rho = -0\.25 is not allowed with d_k = 5: it must be above -0\.25, ",
    ),
    (
        {"vectors": {"within": {"kind": "equicorrelated", "rho": -0.1}}},
        r"^vectors\.within\.rho = -0\.1 is not allowed with d_k = 16: it must be above -0\.0666667",
    ),
    # where the scale acts
    ({"scale_at": "query", "score": "cosine"}, r"^scale_at = 'query' is not allowed with score = 'cosine': only a dot"),
    ({"scale_at": ["scores", "both"], "score": {"kind": "additive", "units": 3}}, r"^scale_at = 'both' is not allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), [*WRONG_VALUES, *COMBINATIONS])
def test_refused(fields, message):
    with pytest.raises(InputError, match=message) as caught:
        sweep(**fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not re.search(r"[Pp]ydantic|Choice\(|Record", str(caught.value))


@pytest.mark.parametrize(
    "fields",
    [
        {"vectors": {"within": {"kind": "equicorrelated", "rho": -0.066}}},
        {"vectors": {"within": {"kind": "equicorrelated", "rho": -0.5}}, "d_k": [1, 2]},
        {"vectors": {"within": {"kind": "outliers", "count": 16, "factor": 2}}},
        {"vectors": {"within": {"kind": "outliers", "count": 32, "factor": 2}}, "projection": HE},
        {"vectors": {"rotation": {}, "normalize": "layer"}, "d_k": 2},
        {"vectors": {"normalize": "rms", "std": 0, "mean": 1}},
        {"vectors": {"normalize": "layer", "std": 0, "mean": 1}, "projection": HE},
        {"vectors": {"normalize": "layer", "std": 0}, "projection": {**HE, "bias_std": 1}},
        {"vectors": {"std": 0, "mean": 1}, "score": "cosine"},
        {"query": {"normalize": "rms"}, "key": {"rotation": {}}, "projection": SELF},
        {"projection": {**HE, "init": ["he", "gpt2"], "tied": True}},
        {"projection": {**HE, "init": "t5", "attention": "self"}},
        {"pair": {"kind": "paired", "rho": 0.5}, "projection": HE, "score": "cosine"},
        {"scale_at": "both", "scale": ["sqrt_dk", {"kind": "softcap", "cap": 5}]},
        {**IID, "pair": "none", "projection": "none", "scale_at": "scores"},
        {"score": {"kind": "additive", "units": 2**20}},
    ],
)
def test_what_can_be_combined_is_accepted(fields):
    assert sweep(**fields).cells


def test_a_cell_by_itself_refuses_as_well():
    sizes = {"n_queries": 8, "n_keys": 8}
    for fields in (
        sizes,
        {**sizes, "d_k": 16, "score": "iid"},
        {**sizes, "d_k": 15, "query": {"rotation": {}}},
        {**sizes, "d_k": 16, "projection": {"init": "t5", "d_model": 8, "tied": True}},
    ):
        with pytest.raises(ValidationError):
            Cell(**fields)
    assert Cell(**sizes, score="iid").d_k is None
