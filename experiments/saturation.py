"""When does one key take all the weight: is it d_k alone, or the length of the row too?

Question
    Gaussian queries and keys, scores not scaled, divided by √d_k or by d_k. How often does one key hold nearly all
    of a row's weight as the vectors get longer, and what does the number of keys in the row change?

Prediction
    Unscaled, the scores' standard deviation σ = √d_k passes every bound, and so the share of rows whose largest weight
    is at least 0.9 tends to 1. Divided by √d_k, σ is 1 for every d_k, and next to no row of 128 keys saturates. But
    d_k is not alone: more keys share the weight, so that the largest weight falls with the row's length under every
    rule, and of rows of 2 keys one in eight saturates even when scaled. What decides is σ against √(2 ln n), the
    freezing point of the random energy model: below it the weight is spread over a power of n, with entropy
    (1 − σ²/(2 ln n)) ln n, above it a few keys hold it all. The finite row is smoother.

Sources
    C6 (weights are no function of d_k alone: the row's length counts) and C7 (unscaled a larger d_k saturates more,
    scaled it stays put); A14, A17 and B6 behind them: a large difference leaves the second key nothing. The
    threshold: Derrida (1981). The curves are exact for Gaussian keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

_SHARED: dict[str, Any] = {
    "name": "saturation",
    "trials": 1000,
    "n_queries": 64,
    "scale": ["none", "sqrt_dk", "dk"],
    "vectors": {"law": "gaussian"},
    "observables": ["weights"],
    "threshold": [0.9, 0.99],
}

SWEEP = {
    "d_k": Sweep(d_k=[4, 8, 16, 32, 64, 128, 256, 512, 1024], n_keys=128, **_SHARED),
    "n_keys": Sweep(d_k=64, n_keys=[2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096], **_SHARED),
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}


def over_threshold(dataset: Dataset) -> DataArray:
    """Return σ / √(2 ln n): the standard deviation of the scores by the one at which a row of n keys freezes."""
    return abs(dataset["scale_factor"]) * np.sqrt(dataset["d_k"]) / np.sqrt(2 * np.log(dataset["n_keys"]))


def _doubling(axes: Axes, ticks: Any, words: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=9.5)
    axes.set_xlabel(words)


def _draw_rates(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    rate = "saturation_rate"
    for scale, threshold, first in (("none", 0.9, 0), ("none", 0.99, 5), ("sqrt_dk", 0.9, 1)):
        chosen: dict[str, Any] = {"scale": scale, "threshold": threshold}
        figures.points(axes, dataset, rate, first=first, theory=False, joined=True, **chosen)
    for threshold, d_k, aside in ((0.9, 64, (-52, 14)), (0.99, 256, (34, -24))):
        value = dataset[rate].sel(d_k=d_k, scale="none", threshold=threshold).item()
        axes.annotate(f"not scaled:\none key ≥ {threshold}", (d_k, value), aside, **_TEXT)
    axes.annotate("divided by √$d_k$: next to none ≥ 0.9", (64, 0), (0, -14), **_TEXT)
    _doubling(axes, dataset["d_k"].values, "vector length $d_k$")
    axes.set_ylabel("saturated rows  (%)")
    figures.percent(axes)
    axes.set_title(f"{dataset['n_keys'].item()} keys: only unscaled rows saturate")


def _draw_largest(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    figures.points(axes, dataset, "weight_max", x="n_keys", by="scale")
    keys = dataset["n_keys"].values
    axes.plot(keys, 1 / keys, color="black", lw=1, ls=":")
    words = {"none": ("not scaled", 64, (0, -17)), "sqrt_dk": ("divided by √$d_k$", 256, (44, 14))}
    for rule, (name, n, aside) in (words | {"dk": ("divided by $d_k$", 16, (-40, -14))}).items():
        axes.annotate(name, (n, dataset["weight_max"].sel(n_keys=n, scale=rule).item()), aside, **_TEXT)
    axes.annotate("uniform: 1/n", (512, 1 / 512), (-44, -12), fontsize=9.5, **_TEXT)
    _doubling(axes, keys[::2], "keys in the row n")
    axes.set_yscale("log")
    axes.set_yticks([1, 0.1, 0.01, 0.001], ["1", "0.1", "0.01", "0.001"])
    axes.set_ylabel("largest weight of a row")
    axes.set_title(f"$d_k$ = {dataset['d_k'].item()}: more keys, a smaller largest weight")


def _draw_threshold(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    from sim import figures
    from sim.theory.normal_rows import normal_rows

    axes.axvspan(1, 16, color="#d8d8d8", alpha=0.6, lw=0, zorder=0)
    ratio = np.geomspace(1 / 32, 16, 200)
    for n, dash in ((16, ":"), (4096, "-")):
        entropy = normal_rows(ratio * np.sqrt(2 * np.log(n)), n)[1]
        axes.plot(ratio, entropy / np.log(n), color="#707070", lw=1, ls=dash)
    axes.plot(ratio, np.maximum(0, 1 - ratio**2), color="black", lw=1.4, ls="--")
    for dataset, inside in ((datasets["d_k"], None), (datasets["n_keys"].sel(n_keys=slice(16, None)), "white")):
        at, share = over_threshold(dataset), dataset["weight_entropy"] / np.log(dataset["n_keys"])
        half = figures.half_width(dataset, "weight_entropy") / np.log(dataset["n_keys"])
        for index, rule in enumerate(("none", "sqrt_dk", "dk")):
            shape = figures.look(index) | {"linestyle": "none", "ms": 5}
            shape["mfc"] = inside or shape["color"]
            x, y, yerr = (values.sel(scale=rule).values for values in (at, share, half))
            axes.errorbar(x, y, yerr=yerr, **shape)
    _doubling(axes, [1 / 16, 1 / 4, 1, 4, 16], "standard deviation σ of the scores / √(2 ln n)")
    axes.set_xticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "1", "4", "16"])
    axes.annotate("frozen:\na few keys\nhold it all", (4, 0.72), (0, 0), **_TEXT)
    axes.annotate("n → ∞", (0.71, 0.5), (-28, -14), **_TEXT)
    for words, at in {"n = 16": (3.3, 0.28), "n = 4096": (1.8, 0.04)}.items():
        axes.annotate(words, at, (0, 0), color="#505050", fontsize=9.5, **_TEXT)
    names = {"divided by $d_k$": (1 / 13, 0.925), "divided by √$d_k$": (0.13, 0.86), "not scaled": (0.29, 0.68)}
    for words, at in names.items():
        axes.annotate(words, at, (0, 0), **_TEXT)
    axes.annotate("filled: over $d_k$\nhollow: over n", (1 / 12, 0.1), (0, 0), fontsize=9.5, **_TEXT)
    axes.set(xlim=(1 / 32, 16), ylim=(0, 1.04), ylabel="entropy of the weights / ln n")
    axes.set_title("What decides: σ against √(2 ln n)")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw saturated rows over d_k, the largest weight over n, and the entropy over σ by its threshold."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_rates(axes[0], datasets["d_k"])
    _draw_largest(axes[1], datasets["n_keys"])
    _draw_threshold(axes[2], datasets)
    title = (
        "Unscaled rows freeze on one key as vectors get longer, rows divided by √$d_k$ do not; their length counts too"
    )
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["n_keys"])
    return drawing
