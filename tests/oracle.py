"""One slow, obvious oracle for everything that is simulated: from the definitions, in plain NumPy.

Nothing here calls a formula of ``sim``. Softmax is computed in extended precision, and 1 - p as the sum of the
other weights, so that what a saturated row leaves (its entropy, its Jacobian) is right too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# Random words and elements -----------------------------------------------------------------------


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python integers, as Salmon et al. (2011) write it: figure 2 and table 2."""
    (c0, c1, c2, c3), (k0, k1) = map(int, counter), map(int, key)
    low = 2**32 - 1
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & low, (p0 >> 32) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


# A parameter for each law that takes one
SHAPES = {"student_t": 3.0, "two_point": 0.2, "sparse": 0.3, "lognormal": 1.0}


def standardised(law: str, words: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return one element for each of `words` (normals in pairs, Box-Muller), in float64.

    `second` are as many further words; a law with a parameter has that of :data:`SHAPES`.
    """
    words, second, shape = np.asarray(words, np.uint32), np.asarray(second, np.uint32), SHAPES.get(law, math.nan)
    logs = np.log(((words >> 1) + 0.5) / 2**31)
    if law == "rademacher":
        return np.where(words >= 2**31, 1.0, -1.0)
    if law == "uniform":  # a word as a signed number, in the middle of its step, over (-sqrt 3, sqrt 3)
        return (words.astype(np.int32) + 0.5) / 2**31 * math.sqrt(3)
    if law == "laplace":
        return np.where(words % 2 == 1, logs, -logs) / math.sqrt(2)
    if law == "exponential":
        return -logs - 1
    if law == "student_t":
        radius = np.sqrt(shape * np.expm1(-2 / shape * logs)) * math.sqrt((shape - 2) / shape)
        return radius * np.sin((second.astype(np.int32) + 0.5) / 2**32 * math.pi)
    if law == "two_point":
        return np.where(words < shape * 2**32, math.sqrt((1 - shape) / shape), -math.sqrt(shape / (1 - shape)))
    radius, angle = np.sqrt(-2 * logs[0::2]), 2 * math.pi * words[1::2] / 2**32
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).ravel()
    if law == "sparse":
        return np.where(second < shape * 2**32, normal, 0) / math.sqrt(shape)
    if law == "lognormal":
        return (np.exp(shape * normal - shape**2 / 2) - 1) / math.sqrt(math.expm1(shape**2))
    assert law == "gaussian"
    return normal


def vector(law: str, d_k: int, token: int, trial: int, tensor: int, key: tuple[int, int]) -> np.ndarray:
    """Return the standardised elements of one token's vector: four to a counter."""
    elements = range(-(-d_k // 4))
    words, second = (
        np.array([philox((element, token, trial, number), key) for element in elements], np.uint32).ravel()
        for number in (tensor, tensor + 2**16)
    )
    return standardised(law, words, second)[:d_k]


# Rows ----------------------------------------------------------------------------------------------


def softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (p, ln p) of every row, in extended precision."""
    s = np.asarray(scores, np.longdouble)
    largest = s.argmax(axis=-1, keepdims=True)
    x = s - np.take_along_axis(s, largest, axis=-1)
    e = np.exp(x)
    others = e.copy()
    np.put_along_axis(others, largest, 0, axis=-1)
    log_p = x - np.log1p(others.sum(axis=-1, keepdims=True))
    return np.exp(log_p), log_p


def hidden(scores: np.ndarray, visible: np.ndarray | None) -> np.ndarray:
    """Return scaled scores (..., rows, keys) in which the keys that a row does not see have no weight."""
    s = np.array(scores, np.longdouble)
    if visible is not None:
        s[..., np.arange(s.shape[-1]) >= np.asarray(visible)[:, None]] = -np.inf
    return s


def sum_of_others(x: np.ndarray) -> np.ndarray:
    """Return for each element the sum of all the others of its row: nothing is subtracted."""
    before, after = np.zeros_like(x), np.zeros_like(x)
    before[..., 1:] = x[..., :-1].cumsum(axis=-1)
    after[..., :-1] = x[..., :0:-1].cumsum(axis=-1)[..., ::-1]
    return before + after


def jacobian(scores: np.ndarray) -> np.ndarray:
    """Return J = dp/ds of one row of scaled scores, (keys, keys): p_i (1 - p_i), and -p_i p_j elsewhere."""
    p, _ = softmax(scores)
    matrix = -np.multiply.outer(p, p)
    np.fill_diagonal(matrix, p * sum_of_others(p))
    return matrix


def spectral(scores: np.ndarray) -> float:
    """Return the largest eigenvalue of J of one row."""
    matrix = jacobian(scores)
    size = abs(matrix).max()
    return float(size * np.linalg.eigvalsh((matrix / size).astype(float))[-1]) if size else 0.0


def spectral_of_many(scores: np.ndarray) -> float:
    """Return the same for rows too long for their matrix: the root of 1 = sum p^2 / (p - x), by halving.

    It lies between the two largest weights: with d = 1 - p_1 the equation is (x - p_1 d) / (p_1 - x) =
    sum p^2 / (x - p) over all but the largest.
    """
    p, _ = softmax(np.ravel(scores))
    largest = p.argmax()
    top, delta, others = p[largest], sum_of_others(p)[largest], np.delete(p, largest)
    low, high = others.max(), min(top, 2 * top * delta)
    for _ in range(90):
        x = (low + high) / 2
        if x in (low, high):
            break
        too_large = (x - top * delta) / (top - x) > (others**2 / (x - others)).sum()
        low, high = (low, x) if too_large else (x, high)
    return float(high)


def row_quantities(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is measured of weights and Jacobian of every row of scaled scores, but for the spectrum."""
    p, log_p = softmax(scores)
    terms = np.zeros_like(p)
    np.multiply(p, log_p, out=terms, where=p > 0)  # p ln p -> 0
    entropy = -terms.sum(axis=-1)
    diagonal = p * sum_of_others(p)
    square = (diagonal**2).sum(axis=-1) + (p**2 * sum_of_others(p**2)).sum(axis=-1)
    return {
        "weight_max": p.max(axis=-1),
        "weight_entropy": entropy,
        "weight_effective_keys": np.exp(entropy),
        "weight_sum_squares": (p**2).sum(axis=-1),
        "jacobian_frobenius": np.sqrt(square),
        "jacobian_frobenius_sq": square,
        "jacobian_trace": diagonal.sum(axis=-1),
    }


# Score functions and scale rules -----------------------------------------------------------------------


class Rule(NamedTuple):
    """A scale rule in numbers."""

    factor: float
    log_n: bool = False
    cap: float = math.inf


def cosine(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the cosines of queries and keys, (queries, keys); 0 of a vector without length."""
    lengths = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)
    return np.divide(query @ key.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def additive(query: np.ndarray, key: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return v.tanh(W_q q + W_k k), (queries, keys); the weights are (d_k, units)."""
    return np.array([np.tanh(q @ w_q + key @ w_k) @ v for q in query])


def scaled(raw: np.ndarray, rule: Rule, visible=None) -> np.ndarray:
    """Return cap tanh(factor s / cap) of raw scores (..., queries, keys), the factor times ln of a row's keys."""
    s = _row_factors(raw, rule, visible) * raw
    return rule.cap * np.tanh(s / rule.cap) if math.isfinite(rule.cap) else s


def slopes(raw: np.ndarray, rule: Rule, visible=None) -> np.ndarray:
    """Return the derivative of :func:`scaled` by the raw scores."""
    factors = _row_factors(raw, rule, visible)
    return factors / np.cosh(np.clip(factors * raw / rule.cap, -350, 350)) ** 2


def _row_factors(raw: np.ndarray, rule: Rule, visible) -> np.ndarray:
    counts = np.full(raw.shape[-2], raw.shape[-1]) if visible is None else np.asarray(visible)
    factors = rule.factor * (np.log(counts) if rule.log_n else np.ones(len(counts)))
    return np.broadcast_to(factors[:, None], raw.shape)


# Gradients of L = sum g p for standard normal g, one for each weight: E ||A g||^2 is ||A||_F^2 ----------


def gradients(query: np.ndarray, key: np.ndarray, factor: float, visible=None) -> dict[str, np.ndarray]:
    """Return E ||dL/ds||^2 and E ||dL/dq||^2 of every query, and E ||dL/dk||^2 of every key.

    By the scores s = q.k of a row, dL/ds = factor J g; dL/dq = K' dL/ds; dL/dk_j = sum_i q_i (dL/ds_i)_j.
    """
    q, k = query.astype(np.longdouble), key.astype(np.longdouble)
    p, _ = softmax(hidden(factor * (q @ k.T), visible))
    squares = (p * sum_of_others(p)) ** 2 + p**2 * sum_of_others(p**2)  # of the rows of every J
    by_query = np.empty(len(q), np.longdouble)
    for row, weights in enumerate(p):
        # J 1 = 0: the keys relative to that of the largest weight, so that nothing cancels in a saturated row
        relative = k - k[weights.argmax()]
        by_query[row] = ((weights[:, None] * (relative - weights @ relative)) ** 2).sum()
    found = {"score": squares.sum(axis=1), "query": by_query, "key": (q**2).sum(axis=1) @ squares}
    return {name: (factor**2 * values).astype(float) for name, values in found.items()}


def sloped_gradients(s: np.ndarray, slope: np.ndarray, by_query, by_key) -> dict[str, np.ndarray]:
    """Return E ||dL/ds||^2 and E ||dL/dq||^2 of every row, and E ||dL/dk||^2 of every key.

    Parameters
    ----------
    s : array (rows, keys)
        Scaled scores, -infinity for keys that a row does not see.
    slope : array (rows, keys)
        Of the scaled score by the raw score.
    by_query, by_key : function row -> array (keys, d)
        The raw score's derivatives by the row's query and by each key.
    """
    by_score, of_queries, of_keys = [], [], np.zeros(s.shape[1])
    for i, row in enumerate(s):
        p, _ = softmax(row)
        squares = (p * sum_of_others(p)) ** 2 + p**2 * sum_of_others(p**2)  # of the rows of J
        by_scores = np.asarray(slope[i], np.longdouble) ** 2 * squares
        h = slope[i][:, None] * by_query(i).astype(np.longdouble)
        h = h - h[p.argmax()]  # J 1 = 0
        by_score.append(by_scores.sum())
        of_queries.append(((p[:, None] * (h - p @ h)) ** 2).sum())
        of_keys += (by_scores * (by_key(i).astype(np.longdouble) ** 2).sum(axis=1)).astype(float)
    return {"score": np.array(by_score, float), "query": np.array(of_queries, float), "key": of_keys}


# Moments -------------------------------------------------------------------------------------------


def moments(x: np.ndarray) -> np.ndarray:
    """Return (n, mean, M2, M3, M4) by two passes in extended precision."""
    x = np.asarray(x, np.longdouble).ravel()
    mean = x.sum() / x.size
    mean += (x - mean).sum() / x.size
    d = x - mean
    square = d * d
    return np.array([x.size, mean, square.sum(), (square * d).sum(), (square * square).sum()])


# Whole cells ---------------------------------------------------------------------------------------


def estimates(
    raw: np.ndarray, factor: float, thresholds: tuple[float, ...], gradient_thresholds=(), visible=None
) -> dict[str, np.ndarray]:
    """Return the observables of raw scores (trials, queries, keys) under one linear rule.

    Without those that need theory's numbers, bins or the vectors: see :func:`within`, :func:`histogram`,
    :func:`middle` and :func:`gradients`.
    """
    s = factor * np.asarray(raw, float)
    counts = np.full(s.shape[1], s.shape[2]) if visible is None else np.asarray(visible)
    seen = [s[:, i, :count] for i, count in enumerate(counts)]
    n, mean, m2, m3, m4 = moments(np.concatenate([row.ravel() for row in seen]))
    variance = m2 / n
    varied = [row.var(axis=-1, ddof=1).mean() for row in seen if row.shape[-1] > 1]
    result = {
        "score_mean": mean,
        "score_variance": variance,
        "score_std": np.sqrt(variance),
        "score_skewness": m3 / n / variance**1.5 if variance else np.nan,
        "score_excess_kurtosis": m4 / n / variance**2 - 3 if variance else np.nan,
        "score_min": min(row.min() for row in seen),
        "score_max": max(row.max() for row in seen),
        "score_trial_max": np.max([abs(row).max(axis=-1) for row in seen], axis=0).mean(),
        "score_row_variance": np.mean(varied) if varied else np.nan,
    }
    rows = row_quantities(hidden(s, counts))
    result |= {name: values.mean() for name, values in rows.items()}
    largest, norm = (rows[name].astype(float) for name in ("weight_max", "jacobian_frobenius"))
    result["saturation_rate"] = np.array([(largest >= threshold).mean() for threshold in thresholds])
    result["vanishing_rate"] = np.array([(norm < threshold).mean() for threshold in gradient_thresholds])
    return {name: np.asarray(value, float) for name, value in result.items()}


def middle(values: np.ndarray) -> tuple[float, float]:
    """Return the two values between which every number is a median; they are equal for an odd count."""
    ordered = np.sort(np.ravel(values))
    return float(ordered[(ordered.size - 1) // 2]), float(ordered[ordered.size // 2])


def within(raw: np.ndarray, mean: float, limit: float) -> float:
    """Return the share of scores with abs(s - mean) <= limit."""
    return float((abs(np.asarray(raw, float) - mean) <= limit).mean())


def histogram(raw: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the counts below, in each bin [edge, next edge), and from the last edge on."""
    return np.bincount(np.searchsorted(edges, np.ravel(raw), side="right"), minlength=len(edges) + 1)


def jackknife(estimate, trials: list[np.ndarray]) -> np.ndarray:
    """Return the delete-a-group standard error of ``estimate(all trials)``, as the textbook has it.

    Busing, Meijer and van der Leeden (1999), equations 6 to 8; `trials` has an array for each group.
    """
    n = sum(len(group) for group in trials)
    g = len(trials)
    whole = estimate(np.concatenate(trials))
    without = [estimate(np.concatenate([*trials[:j], *trials[j + 1 :]])) for j in range(g)]
    h = [n / len(group) for group in trials]
    center = g * whole - sum((1 - 1 / hj) * other for hj, other in zip(h, without, strict=True))
    total = sum((hj * whole - (hj - 1) * other - center) ** 2 / (hj - 1) for hj, other in zip(h, without, strict=True))
    return np.sqrt(total / g)
