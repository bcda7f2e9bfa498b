"""When is 1/d_k the right scale: what do longer vectors do to a query that has a key of its own?

Question
    Every query is correlated, component by component, with one of the 128 keys, as it may be after training. What
    becomes of the weight of that key as the vectors get longer, divided by √d_k, by d_k, and by d_k times a constant?

Prediction
    The query's own key has a score of mean ρ d_k, the others one of standard deviation √d_k: the former grows by
    the law of large numbers, the latter by the central limit. √d_k is made for the others: the own key's mean becomes
    ρ√d_k, grows without bound, and takes all the weight, for a ρ as small as one likes. Divided by d_k the mean is ρ at
    every length, and the noise fades like 1/√d_k. But e^ρ against 127 other keys is next to nothing: 1/d_k needs a
    constant, chosen once. With 8, the rule is 1/√d_k at d_k = 64, and longer vectors have nearly the weights of these,
    with the limit 1 / (1 + 127 e^(−8ρ)). Without correlation it is the other way round: √d_k keeps the weights, and any
    constant over d_k lets them become uniform. Whether the own key has the largest score is the same under every rule.

Sources
    B9 (1/d_k makes the weights uniform, which assumes independent vectors), B18 (√d_k as the balance), A13 (trained
    components are not independent) and B15. 1/d_k: Yang et al. (2022), maximal update parametrisation.

All curves are exact: given q of length r, the own key's score is normal with mean ρr² and variance (1 − ρ²)r², the
others' are normal with mean 0 and variance r².
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep
from sim.fits import Line, weighted_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

_CONSTANT = 8  # 8 / d_k is 1 / √d_k at d_k = 64

SWEEP = Sweep(
    name="aligned",
    trials=400,
    n_tokens=128,
    d_k=[16, 32, 64, 128, 256, 512, 1024, 2048],
    scale=["sqrt_dk", "dk", {"kind": "power", "exponent": -1, "factor": _CONSTANT}],
    pair={"kind": "paired", "rho": [0.0, 0.1, 0.25, 0.5]},
    observables=["scores", "weights"],
)

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_TIMES = f"power(exponent=-1, factor={_CONSTANT})"


def with_partner_score(dataset: Dataset) -> Dataset:
    """Add the mean score of a query with its own key: n times the mean over all keys, as the others' is 0."""
    n = dataset["n_keys"]
    parts = {"partner_score" + end: n * dataset["score_mean" + end] for end in ("", "_se", "_theory")}
    return dataset.assign(parts)


def log_log_slope(dataset: Dataset, scale: str, rho: float) -> Line:
    """Fit ln(mean score of the own key) over ln d_k: a slope of 0 is a score that does not depend on the width."""
    part = dataset.sel(scale=scale, pair_rho=rho)
    mean, se = part["partner_score"].values, part["partner_score_se"].values
    return weighted_line(np.log(part["d_k"].values), np.log(mean), se / mean, part["groups"].values - 1)


def _lengths(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of a Gaussian query, and their weights."""
    from sim.cell import Side
    from sim.theory.norm_laws import norm_law

    law = norm_law(Side(), d)
    assert law is not None  # it is known for Gaussian queries
    counts = law.weights > 1e-8
    return law.norms[counts], law.weights[counts]


def partner_weight(d: int, n: int, factor: float, rho: float) -> float:
    """Return the exact mean weight of the own key among n, for scores times `factor`.

    With w = t e^s and v = ln t, it is int E[w e^-w of the own key] (E[e^-w of another])^(n-1) dv given the length.
    """
    v, z = np.arange(-40.0 - factor * rho * d, 8.0, 0.5)[:, None], np.arange(-6.0, 6.1, 0.25)
    density = 0.25 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    total = 0.0
    for length, share in zip(*_lengths(d), strict=True):
        sigma = factor * length
        other = np.exp(-np.exp(v + sigma * z)) @ density
        own = np.exp(v + sigma * (rho * length + np.sqrt(1 - rho**2) * z))
        total += share * 0.5 * float((own * np.exp(-own) @ density) @ other ** (n - 1))
    return total


def partner_top_rate(d: int, n: int, rho: float) -> float:
    """Return the exact probability that the own key has the largest score of n."""
    from scipy.special import log_ndtr

    z = np.arange(-8.0, 8.1, 0.1)
    density = 0.1 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    norms, shares = _lengths(d)
    above = np.exp((n - 1) * log_ndtr(rho * norms[:, None] + np.sqrt(1 - rho**2) * z))
    return float(shares @ above @ density)


def _axis(axes: Axes, dataset: Dataset) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(dataset["d_k"].values, dataset["d_k"].values.astype(str), fontsize=9.5)
    axes.set_xlabel("vector length $d_k$")


def _draw_weights(axes: Axes, dataset: Dataset, rule: str) -> None:
    """Draw the own key's weight over its exact curves, a series for each correlation."""
    from sim import figures

    d_k, n = dataset["d_k"].values, dataset["n_keys"].item()
    for index, rho in enumerate(dataset["pair_rho"].values):
        look, factors = figures.look(index), dataset["scale_factor"].sel(scale=rule, pair_rho=rho).values
        exact = [partner_weight(int(d), n, factor, rho) for d, factor in zip(d_k, factors, strict=True)]
        axes.plot(d_k, exact, color=look["color"], ls=look["linestyle"], alpha=0.7)
        figures.points(axes, dataset, "partner_weight", first=index, theory=False, scale=rule, pair_rho=rho)
    _axis(axes, dataset)
    figures.percent(axes, -0.06, 1.05)


def _draw_root(axes: Axes, dataset: Dataset) -> None:
    _draw_weights(axes, dataset, "sqrt_dk")
    for rho, at, aside in ((0.5, 128, (-34, 0)), (0.25, 512, (36, 0)), (0.1, 2048, (-36, 4)), (0, 256, (0, -11))):
        value = dataset["partner_weight"].sel(d_k=at, pair_rho=rho, scale="sqrt_dk").item()
        axes.annotate(f"ρ = {rho:g}", (at, value), aside, **_TEXT)
    axes.set_ylabel("weight of the query's own key  (%)")
    axes.set_title("Divided by √$d_k$: the own key takes all")


def _draw_constant(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    _draw_weights(axes, dataset, _TIMES)
    n, d_k = dataset["n_keys"].item(), dataset["d_k"].values
    grid = np.geomspace(d_k[0], d_k[-1], 60)
    top = [partner_top_rate(int(d), n, 0.25) for d in grid]
    axes.plot(grid, top, color="#707070", lw=1.2)
    rate: dict[str, Any] = {"first": 2, "theory": False, "scale": _TIMES, "pair_rho": 0.25}
    figures.points(axes, dataset, "partner_top_rate", **rate)
    for mark in axes.containers[-1].get_children():
        mark.set_color("#707070")
    axes.containers[-1][0].set_markerfacecolor("white")
    axes.annotate(
        "ρ = 0.25: how often the\nown key's score is largest,\nunder every rule", (640, 0.66), (0, 0), **_TEXT
    )
    weight = dataset["partner_weight"].sel(d_k=1024, scale=_TIMES)
    for rho, above in ((0.5, 14), (0.25, 13), (0, -11)):
        limit = 1 / (1 + (n - 1) * np.exp(-_CONSTANT * rho))
        axes.axhline(limit, color="black", lw=1, ls="--", alpha=0.6, zorder=1)
        words = f"ρ = {rho:g}, limit {100 * limit:.1f} %" if rho else "ρ = 0: uniform"
        axes.annotate(words, (1024, weight.sel(pair_rho=rho).item()), (-20, above), **_TEXT)
    axes.set_title(f"{_CONSTANT}/$d_k$: nearly the same weight at every length")


def _draw_scores(axes: Axes, dataset: Dataset, rho: float) -> None:
    from sim import figures

    places = ((110, 26), (400, 3.1), (100, 0.7))
    names = {"sqrt_dk": "divided by √$d_k$", _TIMES: f"times {_CONSTANT}/$d_k$", "dk": "divided by $d_k$"}
    for index, (rule, words) in enumerate(names.items()):
        figures.points(axes, dataset, "partner_score", first=index + 4, scale=rule, pair_rho=rho)
        if (dataset["groups"] > 1).all():  # a single trial has no standard errors, and so no fit
            line = log_log_slope(dataset, rule, rho)
            words += f": slope {round(line.slope, 3) + 0.0:.3f} ± {line.half_width():.3f}"
        axes.annotate(words, places[index], (0, 0), **_TEXT)
    _axis(axes, dataset)
    axes.set(yscale="log", ylim=(0.2, 60), ylabel="mean score of the own key")
    axes.set_yticks([0.5, 1, 4, 16], ["0.5", "1", "4", "16"])
    axes.minorticks_off()
    axes.set_title(f"Over $d_k$ the own score stays (ρ = {rho:g})")


def figure(dataset: Dataset) -> Figure:
    """Draw the own key's weight under 1/√d_k and 8/d_k, and its mean score, over d_k."""
    from sim import figures

    dataset = with_partner_score(dataset)
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_root(axes[0], dataset)
    _draw_constant(axes[1], dataset)
    _draw_scores(axes[2], dataset, 0.5)
    title = (
        "Once a query and its key correlate, 1/√$d_k$ saturates as vectors get longer; a constant over $d_k$ does not"
    )
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
