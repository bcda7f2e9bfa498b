"""One cell for every formula of the scores' moments, and what must be known of it."""

from sim.scales import Rule

AR1, EQUI = {"kind": "ar1", "rho": -0.6}, {"kind": "equicorrelated", "rho": 0.3}
POWER, OUTLIERS = {"kind": "power_law", "exponent": 1.0}, {"kind": "outliers", "count": 1, "factor": 3.0}
TWO_POINT = {"kind": "two_point", "p": 0.3}
SPARSE = {"kind": "sparse", "density": 0.5}
MAGNITUDE = {"kind": "magnitude", "df": 40}
TOKENS, TURN = {"rho": 0.4}, {"base": 10.0}


def projected(init="xavier_uniform", **fields):
    return {"projection": {"init": init, "d_model": 4, **fields}}


def both(**side):
    return {"query": side, "key": side}


# What is known beside each: mean, variance, row variance, skewness, excess kurtosis.
ALL, NO_ROWS, VARIANCES, ONLY_VARIANCE, NO_SHAPE = "mvrsk", "mvsk", "mvrs", "mv", "mvr"
CASES = {
    "tokens": (both(law="exponential", mean=0.5, tokens=TOKENS, within=AR1), ALL),
    "dependent": (
        {"query": {"law": "uniform", "dependent": "signs"}, "key": {"dependent": MAGNITUDE, "mean": 0.5}},
        ALL,
    ),
    "unequal": ({"query": {"within": POWER, "law": TWO_POINT}, "key": {"within": OUTLIERS, "mean": 1.0}}, ALL),
    "paired": (both(mean=0.3) | {"pair": {"kind": "paired", "rho": 0.6}}, ALL),
    "paired, correlated": (both(within=EQUI, tokens=TOKENS) | {"pair": {"kind": "paired", "rho": -0.6}}, ALL),
    "paired, of two values": (both(law=TWO_POINT) | {"pair": {"kind": "paired", "rho": 0.8}}, ALL),
    "paired, any": (
        both(law="exponential", within=AR1, dependent=MAGNITUDE) | {"pair": {"kind": "paired", "rho": 0.5}},
        NO_SHAPE,
    ),
    "paired, causal": (
        {"key": {"within": AR1}, "causal": True, "n_keys": 5, "pair": {"kind": "paired", "rho": 0.9}},
        ALL,
    ),
    "paired, few keys": (
        both(tokens=TOKENS) | {"n_queries": 4, "n_keys": 2, "pair": {"kind": "paired", "rho": 0.7}},
        ALL,
    ),
    "shared": (both(law="uniform") | {"pair": {"kind": "shared", "rho": 0.5}}, ALL),
    "shared, of unlike sides": (
        {
            "query": {"within": AR1, "mean": 0.2},
            "key": {"within": POWER, "std": 2.0},
            "pair": {"kind": "shared", "rho": 0.5},
        },
        ALL,
    ),
    "cross": (projected(bias_std=0.5) | both(law="exponential", mean=0.3, tokens=TOKENS), ALL),
    "self": (projected("xavier_normal", attention="self") | both(law="uniform") | {"n_keys": 3}, ALL),
    "self, uniform weights": (
        projected(attention="self", bias_std=0.5) | both(law="uniform", mean=0.5) | {"n_keys": 3},
        ALL,
    ),
    "self, correlated": (
        projected("he", attention="self") | both(within=AR1, tokens=TOKENS) | {"n_keys": 3},
        VARIANCES,
    ),
    "tied": (
        projected(tied=True, bias_std=0.5) | {"query": {"mean": 0.5}, "key": {"law": TWO_POINT, "mean": -1.0}},
        NO_SHAPE,
    ),
    "tied, self": (
        projected("lecun", tied=True, attention="self") | both(law="uniform", tokens=TOKENS) | {"n_keys": 3},
        NO_SHAPE,
    ),
    "tied, paired": (projected(tied=True) | both(within=EQUI) | {"pair": {"kind": "paired", "rho": 0.5}}, NO_SHAPE),
    "projected and rotated": (projected("t5", bias_std=1.0) | both(mean=1.0, rotation=TURN), ALL),
    "projected, normalized": (projected("gpt2", bias_std=0.1) | both(mean=1.0, normalize="rms"), NO_ROWS),
    "one projected side normalized": (
        projected("he", attention="self") | {"query": {"normalize": "l2"}, "n_keys": 3},
        ALL,
    ),
    "normal, normalized": (both(normalize="rms", tokens=TOKENS), ALL),
    "symmetric, normalized": (
        {"query": {"law": "laplace", "normalize": "rms"}, "key": {"law": "exponential", "mean": 1.0}},
        VARIANCES,
    ),
    "sparse, normalized": (
        {"query": {"law": SPARSE, "normalize": "l2"}, "key": {"law": SPARSE, "normalize": "l2"}},
        VARIANCES,
    ),
    "sparse, projected, normalized": (projected("he") | both(law=SPARSE, normalize="rms"), NO_ROWS),
    "sparse, projected with a bias, normalized, self": (
        projected("lecun", attention="self", bias_std=0.5) | both(law=SPARSE, normalize="rms") | {"n_keys": 3},
        NO_ROWS,
    ),
    "any centered": (
        {"query": {"law": "exponential", "mean": 2.0, "normalize": "layer"}, "key": {"within": AR1, "mean": 1.0}},
        NO_SHAPE,
    ),
    "normal, centered": (both(mean=1.0, within=EQUI, normalize={"kind": "layer", "gain": 0.5}), ALL),
    "centered and not": ({"query": {"normalize": "layer"}, "key": {"normalize": "rms", "tokens": TOKENS}}, ALL),
    "signs, normalized": (both(law="rademacher", dependent=MAGNITUDE, within=POWER, normalize="rms"), ALL),
    "cosine": ({"score": "cosine", "key": {"law": "exponential", "mean": 1.0}}, NO_ROWS),
    "cosine of centered": ({"score": "cosine", **both(mean=1.0, normalize="layer")}, ALL),
    "cosine of centered, any": ({"score": "cosine", **both(law="laplace", normalize="layer")}, VARIANCES),
    "cosine of centered, projected": (
        projected("he") | {"score": "cosine", **both(law="uniform", normalize="layer")},
        NO_ROWS,
    ),
    "cosine of pairs": ({"score": "cosine", "pair": {"kind": "paired", "rho": -0.7}}, NO_SHAPE),
    "cosine of sharing": ({"score": "cosine", "pair": {"kind": "shared", "rho": 0.4}}, ONLY_VARIANCE),
    "rotated": (both(mean=1.0, rotation=TURN), ALL),
    "rotated, unequal": (
        {
            "query": {"within": POWER, "law": TWO_POINT, "rotation": TURN},
            "key": {"within": OUTLIERS, "mean": 1.0, "tokens": TOKENS, "rotation": TURN},
        },
        ALL,
    ),
    "rotated, causal": (
        both(mean=0.5, law=TWO_POINT, tokens=TOKENS, rotation=TURN) | {"causal": True, "n_keys": 5},
        ALL,
    ),
    "rotated, one side alike": ({"query": {"rotation": TURN}, "key": {"within": AR1, "rotation": TURN}}, NO_ROWS),
    "rotated pairs": (both(rotation=TURN) | {"pair": {"kind": "paired", "rho": 0.7}, "n_keys": 5}, ALL),
    "rotated sharing": (both(rotation=TURN, within=POWER) | {"pair": {"kind": "shared", "rho": 0.7}}, NO_ROWS),
    "rotated and normalized": (both(rotation=TURN, normalize="l2"), ALL),
    "additive": (
        {
            "score": {"kind": "additive", "units": 3},
            "query": {"law": "rademacher", "mean": 0.5},
            "key": {"within": AR1},
        },
        NO_ROWS,
    ),
    "additive, sparse, normalized": (
        {"score": {"kind": "additive", "units": 2}, **both(law=SPARSE, normalize="l2")},
        NO_ROWS,
    ),
    "additive, normalized": (
        {"score": {"kind": "additive", "units": 2, "v_std": 2.0}, **both(law="laplace", normalize="rms")},
        NO_ROWS,
    ),
    "iid": ({"score": {"kind": "iid", "law": TWO_POINT}}, ALL),
}

# Cell, and a rule under which its moments have limits.
LIMITS = {
    "means": (both(mean=0.2) | {"d_k": 16}, Rule(0.25, cap=2.0)),
    "unlike means": ({"query": {"mean": 1.0}, "key": {"mean": -0.5}, "d_k": 64}, Rule(0.125, cap=4.0)),
    "skewed": (both(law=TWO_POINT) | {"d_k": 64}, Rule(0.125, cap=1.0)),
    "tokens": ({"key": {"tokens": {"rho": 0.7}, "mean": -1.0}, "d_k": 64}, Rule(0.125, cap=2.0)),
    "paired": (both(law="uniform") | {"d_k": 64, "pair": {"kind": "paired", "rho": 0.2}}, Rule(0.125, cap=2.0)),
    "projected": (projected("he") | {"d_k": 32, "projection": {"init": "he", "d_model": 64}}, Rule(0.1, cap=1.0)),
    "additive": ({"score": {"kind": "additive", "units": 8}, "d_k": 16, **both(law="uniform")}, Rule(1.0)),
    "additive, means": ({"score": {"kind": "additive", "units": 2}, "d_k": 32, **both(mean=1.0)}, Rule(2.0)),
    "additive, tokens": (
        {"score": {"kind": "additive", "units": 3}, "d_k": 16, **both(tokens=TOKENS)},
        Rule(1.0, cap=3.0),
    ),
    "additive, rotated": (
        {"score": {"kind": "additive", "units": 3}, "d_k": 16, **both(mean=1.0, rotation=TURN)},
        Rule(1.0),
    ),
}
