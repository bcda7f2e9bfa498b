"""Scores drawn in plain NumPy from the definitions of law, structure and score function: an oracle for closed forms.

Nothing here is of the engine: only a cell's fields are read.
"""

import math

import numpy as np
from scipy import special

from sim.structure import INITS


def elements(rng, law, size):
    """Return standardised elements of a law (unit scale for Student's t to df = 2)."""
    kind, p = law.kind, dict(law.parameters)
    if kind == "student_t":
        df = p["df"]
        return rng.standard_t(df, size) * (math.sqrt((df - 2) / df) if df > 2 else 1)
    if kind == "two_point":
        up, down = math.sqrt((1 - p["p"]) / p["p"]), -math.sqrt(p["p"] / (1 - p["p"]))
        return np.where(rng.random(size) < p["p"], up, down)
    if kind == "sparse":
        return rng.standard_normal(size) * (rng.random(size) < p["density"]) / math.sqrt(p["density"])
    if kind == "lognormal":
        variance = math.exp(p["shape"] ** 2) * math.expm1(p["shape"] ** 2)
        x = np.exp(p["shape"] * rng.standard_normal(size))
        return (x - math.exp(p["shape"] ** 2 / 2)) / math.sqrt(variance)
    simple = {
        "gaussian": lambda: rng.standard_normal(size),
        "rademacher": lambda: rng.choice([-1.0, 1.0], size),
        "uniform": lambda: rng.uniform(-math.sqrt(3), math.sqrt(3), size),
        "laplace": lambda: rng.laplace(0, math.sqrt(0.5), size),
        "exponential": lambda: rng.exponential(1, size) - 1,
    }
    return simple[kind]()


def _correlate(z, within):
    """Return vectors with correlated components, of independent ones on the last axis."""
    width, p = z.shape[-1], dict(within.parameters)
    if within.kind == "equicorrelated":
        rho = p["rho"]
        common = (math.sqrt(1 + (width - 1) * rho) - math.sqrt(1 - rho)) / width
        return math.sqrt(1 - rho) * z + common * z.sum(axis=-1, keepdims=True)
    if within.kind == "ar1":
        x = z.copy()
        for i in range(1, width):
            x[..., i] = p["rho"] * x[..., i - 1] + math.sqrt(1 - p["rho"] ** 2) * z[..., i]
        return x
    scale = np.ones(width)
    if within.kind == "power_law":
        scale = np.arange(1, width + 1) ** (-p["exponent"] / 2)
    if within.kind == "outliers":
        scale[: int(p["count"])] = p["factor"]
    return z * scale * math.sqrt(width / (scale**2).sum())


def vectors(rng, side, width, size):
    """Return standardised vectors of a side's law, dependence and covariance; none of them knows another."""
    kind = side.dependent.kind
    z = elements(rng, side.law, (*size, width))
    if kind == "magnitude":
        df = side.dependent.get("df")
        z = z * np.sqrt((df - 2 if df > 2 else df) / rng.chisquare(df, (*size, 1)))
    if kind == "signs":
        z = rng.choice([-1.0, 1.0], z.shape) * np.abs(elements(rng, side.law, (*size, 1)))
    return _correlate(z, side.within)


def _tokens(rng, side, width, trials, n):
    x = vectors(rng, side, width, (trials, n))
    if side.tokens:
        rho = side.tokens.rho
        x = math.sqrt(rho) * vectors(rng, side, width, (trials, 1)) + math.sqrt(1 - rho) * x
    return x


def _sides(rng, cell, trials):
    """Return q and k (trials, n, width), before projection, normalization and rotation."""
    query, key, width = cell.query, cell.key, cell.width
    q = _tokens(rng, query, width, trials, cell.n_queries)
    if cell.projection and cell.projection.attention == "self":
        q = query.mean + query.std * q
        return q, q
    k = _tokens(rng, key, width, trials, cell.n_keys)
    if cell.pair.kind == "paired":
        rho, pairs = cell.pair.get("rho"), min(cell.n_queries, cell.n_keys)
        k[:, :pairs] = rho * q[:, :pairs] + math.sqrt(1 - rho**2) * k[:, :pairs]
    if cell.pair.kind == "shared":
        rho = cell.pair.get("rho")
        common = math.sqrt(rho) * vectors(rng, query, width, (trials, 1))
        q, k = (common + math.sqrt(1 - rho) * x for x in (q, k))
    return query.mean + query.std * q, key.mean + key.std * k


def _project(rng, cell, q, k):
    made, trials = cell.projection, len(q)
    law = {"gaussian": lambda size: rng.standard_normal(size), "uniform": lambda s: rng.uniform(-(3**0.5), 3**0.5, s)}
    w = [
        INITS[made.init].std(side, made.d_model, cell.d_k) * law[INITS[made.init].law]((trials, made.d_model, cell.d_k))
        for side in ("query", "key")
    ]
    bias = [made.bias_std * rng.standard_normal((trials, 1, cell.d_k)) for _ in w]
    if made.tied:
        w[1] = w[0]
    return (np.einsum("tnd,tdk->tnk", x, weight) + b for x, weight, b in zip((q, k), w, bias, strict=True))


def _normalize(x, normalize):
    d = x.shape[-1]
    if normalize.kind == "none":
        return x
    if normalize.kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    length = 1 if normalize.kind == "l2" else math.sqrt(d)
    return normalize.get("gain") * length * _directions(x)


def _directions(x):
    """Return vectors of length 1; a vector of length 0 stays as it is."""
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, size, out=np.zeros_like(x), where=size > 1e-12)


def _rotate(x, rotation, first):
    """Turn plane j of components 2j, 2j + 1 by place * base^(-2j/d), as a complex number."""
    if rotation is None:
        return x
    d = x.shape[-1]
    places = first + np.arange(x.shape[1])
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(
        1j * np.outer(places, rotation.base ** (-np.arange(0, d, 2) / d))
    )
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def queries_and_keys(rng, cell, trials):
    """Return q and k (trials, n, d_k) as the score sees them."""
    q, k = _sides(rng, cell, trials)
    if cell.projection:
        q, k = _project(rng, cell, q, k)
    q, k = _normalize(q, cell.query.normalize), _normalize(k, cell.key.normalize)
    return _rotate(q, cell.query.rotation, cell.n_keys - cell.n_queries), _rotate(k, cell.key.rotation, 0)


def scores(rng, cell, trials):
    """Return raw scores (trials, n_queries, n_keys)."""
    if cell.score.kind == "iid":
        return elements(rng, cell.score.get("law"), (trials, cell.n_queries, cell.n_keys))
    q, k = queries_and_keys(rng, cell, trials)
    if cell.score.kind == "cosine":
        q, k = _directions(q), _directions(k)
    if cell.score.kind != "additive":
        return np.einsum("tid,tjd->tij", q, k)
    units = int(cell.score.get("units"))
    v = cell.score.get("v_std") * rng.standard_normal((trials, units))
    of_q, of_k = (
        np.einsum("tnd,tdu->tnu", x, math.sqrt(2 / (cell.d_k + units)) * rng.standard_normal((trials, cell.d_k, units)))
        for x in (q, k)
    )
    return np.einsum("tu,tiju->tij", v, np.tanh(of_q[:, :, None] + of_k[:, None, :]))


def scaled(raw, rule, visible):
    """Return the scaled scores, of each row as many as it sees and NaN beyond."""
    factor = rule.factor * (np.log(visible)[:, None] if rule.log_n else 1.0)
    s = raw * factor
    if math.isfinite(rule.cap):
        s = rule.cap * np.tanh(s / rule.cap)
    return np.where(np.arange(raw.shape[2]) < visible[:, None], s, np.nan)


def moments(s):
    """Return mean, variance, row variance, skewness and excess kurtosis of scores (trials, rows, keys), NaN unseen."""
    seen = s[np.isfinite(s)]
    mean = seen.mean()
    m2, m3, m4 = (((seen - mean) ** r).mean() for r in (2, 3, 4))
    rows = s.reshape(-1, s.shape[2])
    several = np.isfinite(rows).sum(axis=1) > 1
    of_rows = np.nanvar(rows[several], axis=1, ddof=1).mean() if several.any() else np.nan
    return np.array([mean, m2, of_rows, m3 / m2**1.5 if m2 > 0 else np.nan, m4 / m2**2 - 3 if m2 > 0 else np.nan])


def weights_of_rows(s):
    """Return max p, entropy, sum p^2, ||J||_F^2 and tr J of every row of scores (rows, keys)."""
    log_p = s - special.logsumexp(s, axis=-1, keepdims=True)
    p = np.exp(log_p)
    p2, p4 = (p**2).sum(axis=-1), (p**4).sum(axis=-1)
    frobenius = ((p - p**2) ** 2).sum(axis=-1) + p2**2 - p4
    return np.array([p.max(axis=-1), -(p * log_p).sum(axis=-1), p2, frobenius, (p - p**2).sum(axis=-1)])
