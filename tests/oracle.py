"""One slow, obvious oracle for everything that is simulated: from the definitions, in plain NumPy.

Nothing here calls a formula of ``sim``. Softmax is computed in extended precision, so that what a
saturated row leaves (its entropy, say) is right too.
"""

from __future__ import annotations

import math

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


def standardised(law: str, words: np.ndarray) -> np.ndarray:
    """Return one element for each word (Gaussian: words in pairs, Box-Muller), in float64."""
    words = np.asarray(words, np.uint32)
    if law == "rademacher":
        return np.where(words >= 2**31, 1.0, -1.0)
    if law == "uniform":  # a word as a signed number, in the middle of its step, over (-sqrt 3, sqrt 3)
        return (words.astype(np.int32) + 0.5) / 2**31 * math.sqrt(3)
    radial, angular = words[0::2], words[1::2]
    radius = np.sqrt(-2 * np.log(((radial >> 1) + 0.5) / 2**31))
    angle = 2 * math.pi * angular / 2**32
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).ravel()


def vector(law: str, d_k: int, token: int, trial: int, tensor: int, key: tuple[int, int]) -> np.ndarray:
    """Return the standardised elements of one token's vector: four to a counter."""
    words = [philox((element, token, trial, tensor), key) for element in range(-(-d_k // 4))]
    return standardised(law, np.array(words, np.uint32).ravel())[:d_k]


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


def row_quantities(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is measured of the weights of every row of scaled scores."""
    p, log_p = softmax(scores)
    terms = np.zeros_like(p)
    np.multiply(p, log_p, out=terms, where=p > 0)  # p ln p -> 0
    entropy = -terms.sum(axis=-1)
    return {
        "weight_max": p.max(axis=-1),
        "weight_entropy": entropy,
        "weight_effective_keys": np.exp(entropy),
        "weight_sum_squares": (p**2).sum(axis=-1),
    }


# Moments -------------------------------------------------------------------------------------------


def moments(x: np.ndarray) -> np.ndarray:
    """Return (n, mean, M2, M3, M4) by two passes in extended precision."""
    x = np.asarray(x, np.longdouble).ravel()
    mean = x.sum() / x.size
    mean += (x - mean).sum() / x.size
    d = x - mean
    return np.array([x.size, mean, (d**2).sum(), (d**3).sum(), (d**4).sum()])


# Whole cells ---------------------------------------------------------------------------------------


def estimates(raw: np.ndarray, factor: float, thresholds: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Return the observables of raw scores (trials, queries, keys) under one linear rule.

    Without those that need theory's numbers or bins: see :func:`within` and :func:`histogram`.
    """
    s = factor * np.asarray(raw, float)
    n, mean, m2, m3, m4 = moments(s)
    variance = m2 / n
    result = {
        "score_mean": mean,
        "score_variance": variance,
        "score_std": np.sqrt(variance),
        "score_skewness": m3 / n / variance**1.5 if variance else np.nan,
        "score_excess_kurtosis": m4 / n / variance**2 - 3 if variance else np.nan,
        "score_min": s.min(),
        "score_max": s.max(),
        "score_trial_max": abs(s).max(axis=(1, 2)).mean(),
        "score_row_variance": s.var(axis=-1, ddof=1).mean() if s.shape[-1] > 1 else np.nan,
    }
    rows = row_quantities(s)
    result |= {name: values.mean() for name, values in rows.items()}
    largest = rows["weight_max"].astype(float)
    result["saturation_rate"] = np.array([(largest >= threshold).mean() for threshold in thresholds])
    return {name: np.asarray(value, float) for name, value in result.items()}


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
