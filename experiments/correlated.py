"""Which dependence changes the scores' variance, and which only their tails?

Question
    The components of a vector, or the vectors of one side, are no longer independent of each other. Which kind of
    dependence changes the variance of q·k, which the variance within a row, and which neither?

Prediction
    For mean 0 the variance is tr(Σ_q Σ_k), with Σ the covariance of a vector's components; nothing else counts.
    Components that are dependent but uncorrelated, by a common magnitude (the multivariate t) or as random signs of
    one |z|, leave it at d_k: covariance 0 is enough, independence is not needed. So do correlated components of one
    side alone. Correlated on both sides, they raise it: by 1 + (d_k − 1)ρ² when all pairs of components are
    correlated, so that √d_k is no longer the scale, by about (1 + ρ²)/(1 − ρ²) when only neighbours are. Vectors
    correlated with each other leave all that as it is, but a row whose keys have the correlation γ varies less by the
    factor 1 − γ. What a variance of d_k does not settle are the tails: the excess kurtosis, 6/d_k if components are
    independent, stays at 24 for the signs however long the vectors, and that alone more than doubles the largest
    weight.

Sources
    A6 (variances add if the covariance is 0; independence is sufficient, not necessary), A13 (trained components are
    neither independent nor so distributed) and A9. Moments are exact; the weights are exact where, given the query, the
    scores of a row are normal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

_SHARED: dict[str, Any] = {
    "name": "correlated",
    "trials": 1000,
    "n_queries": 64,
    "n_keys": 128,
    "d_k": [16, 64, 256],
    "scale": ["sqrt_dk"],
    "observables": ["scores", "weights"],
}
_WITHIN = ["none", {"kind": "equicorrelated", "rho": 0.3}, {"kind": "ar1", "rho": 0.7}]

SWEEP = {
    "dependent": Sweep(vectors={"dependent": ["none", {"kind": "magnitude", "df": 12}, "signs"]}, **_SHARED),
    "within": Sweep(query={"within": _WITHIN}, key={"within": _WITHIN}, **_SHARED),
    "tokens": Sweep(query={"tokens": {"rho": [0.0, 0.5]}}, key={"tokens": {"rho": [0.0, 0.5]}}, **_SHARED),
}

_EQUAL, _NEAR = "equicorrelated(rho=0.3)", "ar1(rho=0.7)"
# What is drawn from top to bottom: the words, the look, the dataset, and the cells of it.
_ROWS: list[tuple[str, int, str, dict[str, Any]]] = [
    ("all independent", 6, "dependent", {"dependent": "none"}),
    ("one random magnitude\nfor a vector (t, 12 d.f.)", 1, "dependent", {"dependent": "magnitude(df=12)"}),
    ("random signs\nof one |z|", 1, "dependent", {"dependent": "signs"}),
    ("all pairs 0.3,\nqueries only", 0, "within", {"query_within": _EQUAL, "key_within": "none"}),
    ("all pairs 0.3,\nboth sides", 0, "within", {"query_within": _EQUAL, "key_within": _EQUAL}),
    ("neighbours 0.7,\nboth sides", 0, "within", {"query_within": _NEAR, "key_within": _NEAR}),
    ("between queries 0.5", 2, "tokens", {"query_tokens_rho": 0.5, "key_tokens_rho": 0.0}),
    ("between keys 0.5", 2, "tokens", {"query_tokens_rho": 0.0, "key_tokens_rho": 0.5}),
]
# Where a kind of dependence begins, and its name.
_KINDS = {1: "uncorrelated, not independent", 3: "components correlated", 6: "vectors correlated"}
_TEXT: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9.5}


def row(datasets: Mapping[str, Dataset], index: int) -> Dataset:
    """Return the cells of one row of the figure, along d_k, after division by √d_k."""
    _, _, key, chosen = _ROWS[index]
    return datasets[key].sel(chosen).sel(scale="sqrt_dk")


def _places(index: int, count: int) -> Any:
    """Return where the points of a row stand, the shortest vectors uppermost."""
    return index + np.linspace(-0.24, 0.24, count)


def _draw(axes: Axes, datasets: Mapping[str, Dataset], variable: str, hollow: bool = False) -> None:
    """Draw a variable of every row, a point for each d_k, over a black stroke at the exact value."""
    from sim import figures

    for index, (_, first, _, _) in enumerate(_ROWS):
        part = row(datasets, index)
        at, look = _places(index, part.sizes["d_k"]), figures.look(first)
        shape: dict[str, Any] = {"linestyle": "none", "color": look["color"], "marker": look["marker"]}
        shape |= {"mfc": "white", "ms": 4.6} if hollow else {"ms": 7}  # a ring where both stand on one place
        half = figures.half_width(part, variable).values
        axes.errorbar(part[variable].values, at, xerr=half, zorder=3, **shape)
        exact = part[f"{variable}_theory"].values if f"{variable}_theory" in part else np.full(len(at), np.nan)
        axes.plot(exact, at, ls="none", marker="|", ms=11, mew=1.6, color="black", zorder=2)


def _rows(axes: Axes, reference: float | None) -> None:
    axes.set_ylim(len(_ROWS) - 0.4, -0.6)
    axes.set_yticks(range(len(_ROWS)), [])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    for index in _KINDS:
        axes.axhline(index - 0.5, color="#b0b0b0", lw=0.8)
    if reference is not None:
        axes.axvline(reference, color="black", lw=1, ls=":", zorder=1)


def _logarithmic(axes: Axes, low: float, high: float, ticks: tuple[float, ...]) -> None:
    axes.set(xscale="log", xlim=(low, high))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _draw_variance(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    _draw(axes, datasets, "score_variance")
    _draw(axes, datasets, "score_row_variance", hollow=True)
    _rows(axes, 1.0)
    _logarithmic(axes, 0.35, 60, (0.5, 1, 2, 5, 10, 20))
    axes.set_yticks(range(len(_ROWS)), [words for words, *_ in _ROWS])
    for index, words in _KINDS.items():
        axes.annotate(words, (58, index - 0.5), (0, -9), color="#505050", ha="right", **_TEXT)
    grown = row(datasets, 4)
    for d_k, at in zip(grown["d_k"].values, _places(4, grown.sizes["d_k"]), strict=True):
        value = grown["score_variance"].sel(d_k=d_k).item()
        axes.annotate(f"$d_k$ = {d_k}", (value, at), (12, 0), **_TEXT)
    lengths = ", ".join(map(str, grown["d_k"].values))
    axes.annotate(f"$d_k$ = {lengths}\nfrom top to bottom", (1, 0), (26, 0), **_TEXT)
    axes.annotate("filled: all scores\nhollow: within a row\nstrokes: exact", (1, 7), (26, 0), **_TEXT)
    axes.set_xlabel("variance, scores divided by √$d_k$")
    axes.set_title("Variance: uncorrelated is enough")


def _draw_kurtosis(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    _draw(axes, datasets, "score_excess_kurtosis")
    _rows(axes, None)
    _logarithmic(axes, 0.006, 60, (0.01, 0.1, 1, 10))
    one = row(datasets, 0)
    for d_k, at in zip(one["d_k"].values, _places(0, one.sizes["d_k"]), strict=True):
        value = one["score_excess_kurtosis_theory"].sel(d_k=d_k).item()
        axes.annotate(f"6/{d_k}", (value, at), (10, 0), **_TEXT)
    axes.set_xlabel("excess kurtosis of the scores")
    axes.set_title("Tails: uncorrelated is not enough")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw variance, excess kurtosis and largest weight of every kind of dependence."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=6.0)
    _draw_variance(axes[0], datasets)
    _draw_kurtosis(axes[1], datasets)
    _draw(axes[2], datasets, "weight_max")
    _rows(axes[2], row(datasets, 0)["weight_max_theory"].values[-1])
    _logarithmic(axes[2], 0.03, 0.7, (0.03, 0.05, 0.1, 0.2, 0.5))
    axes[2].set_xlabel("largest weight of a row")
    axes[2].set_title("Weights: tails alone double the largest")
    title = "Uncorrelated components keep the variance at $d_k$, dependent or not; tails and weights see the dependence"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["within"])
    return drawing
