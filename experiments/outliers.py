"""What do a few components of much larger scale do to the scores and the weights?

Question
    Trained models have outliers: a few components of keys and of hidden states, always the same ones, are many times
    as large as the others. Here the first 1 or 4 of 128 components have `factor` times the standard deviation of the
    others, in queries and keys or in the keys alone; the vectors' mean squared length is d_k = 128 throughout. What
    becomes of scores that are divided by √d_k?

Prediction
    With covariances Σ_q and Σ_k and M = Σ_q Σ_k the scores' variance is tr M, and their excess kurtosis 6 / d_eff,
    with d_eff = (tr M)² / tr M² the number of components that count. Where both sides have the same outliers, tr M is
    not d_k but up to d_k² / count: the scaled variance goes from 1 to d_k / count, as in unscaled attention, and rows
    saturate. Where the keys alone have them, tr M = d_k and the variance stays 1, but the scores become those of few
    components: as many rows get sharper as get flat. Divided by their own standard deviation √tr M, scores of both
    kinds leave the weights nearly where they were: it is the scale that is wrong.

Sources
    A13 (in a trained Transformer the components are not so distributed: √d_k is a reasonable scale, not a theorem) and
    C6 (the weights depend on the distribution). Outliers up to 20 times as large in few components of the hidden
    states: Dettmers et al. (2022); in fixed channels of the keys: Liu et al. (2024, KIVI). All curves are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

D_K = 128
COUNTS = [1, 4]
FACTORS = [1, 2, 4, 8, 16, 32]


def eigenvalues(count: int, factor: float) -> np.ndarray:
    """Return the variances of the components, of sum d_k."""
    variances = np.ones(D_K)
    variances[:count] = factor**2
    return variances * D_K / variances.sum()


def traces(count: int, factor: float, both: bool) -> tuple[float, float]:
    """Return tr M and tr M² of M = Σ_q Σ_k, with outliers on both sides or on one."""
    product = eigenvalues(count, factor) ** (2 if both else 1)
    return float(product.sum()), float((product**2).sum())


def own_scale(count: int, factor: float) -> float:
    """Return 1 / (the scores' own standard deviation), with outliers on both sides."""
    return float(f"{1 / math.sqrt(traces(count, factor, True)[0]):.6g}")


_SHARED: dict[str, Any] = {
    "name": "outliers",
    "trials": 400,
    "n_queries": 32,
    "n_keys": 128,
    "d_k": D_K,
    "observables": ["scores", "weights"],
    "threshold": [0.9],
}
_WITHIN = {"kind": "outliers", "count": COUNTS, "factor": FACTORS}

SWEEP = {
    "both": Sweep(
        scale=["sqrt_dk", *dict.fromkeys(own_scale(count, factor) for count in COUNTS for factor in FACTORS)],
        vectors={"within": _WITHIN},
        **_SHARED,
    ),
    "keys": Sweep(scale=["sqrt_dk"], key={"within": _WITHIN}, **_SHARED),
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_BOTH, _KEYS, _OWN = 4, 0, 2  # looks: outliers on both sides, in the keys, on both with a scale of their own


def effective(dataset: Dataset, both: bool) -> Dataset:
    """Add d_eff = (tr M)² / tr M², the number of components that count."""
    counts, factors = (dataset[name] for name in _names(both))
    found = [[traces(count, factor, both) for factor in factors.values] for count in counts.values]
    first, second = np.moveaxis(np.array(found), -1, 0)
    return dataset.assign_coords(d_eff=(_names(both), first**2 / second))


def own_scaled(dataset: Dataset) -> Dataset:
    """Return the cells with outliers on both sides, each divided by its own scores' standard deviation."""
    import xarray as xr

    from sim.kinds import number_label

    counts, factors = (dataset[name] for name in _names(True))
    labels = [[number_label(own_scale(count, factor)) for factor in factors.values] for count in counts.values]
    return dataset.sel(scale=xr.DataArray(labels, coords=[counts, factors]))


def _names(both: bool) -> tuple[str, str]:
    side = "" if both else "key_"
    return f"{side}within_count", f"{side}within_factor"


def _draw(axes: Axes, dataset: Dataset, variable: str, both: bool, first: int) -> None:
    """Draw a variable over the factor, filled for one outlier and hollow for four."""
    from sim import figures

    count, factor = _names(both)
    for value in dataset[count].values:
        figures.points(axes, dataset.sel({count: value}), variable, x=factor, first=first)
        if value > 1:
            axes.containers[-1][0].set_markerfacecolor("white")


def _factors(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    axes.set_xlabel("outliers' size, in that of the others")


def _draw_variance(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    both, keys = (datasets[name].sel(scale="sqrt_dk") for name in ("both", "keys"))
    _draw(axes, both, "score_variance", True, _BOTH)
    _draw(axes, keys, "score_variance", False, _KEYS)
    for count, aside in ((1, (-46, 6)), (4, (34, -12))):
        value = both["score_variance"].sel(within_count=count, within_factor=8).item()
        words = "one outlier in\nq and in k" if count == 1 else "four"
        axes.annotate(words, (8, value), aside, **_TEXT)
        axes.axhline(D_K / count, color="black", lw=1, ls=":")
        axes.annotate(
            f"$d_k$ / {count}" if count > 1 else "$d_k$: as if not scaled",
            (1, D_K / count),
            (0, 7),
            **{**_TEXT, "ha": "left"},
        )
    axes.annotate("in the keys alone: 1", (8, 1), (0, -13), **_TEXT)
    _factors(axes)
    axes.set(yscale="log", ylabel="variance of the scores / √$d_k$", ylim=(0.6, 260))
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.set_title("Outliers on both sides undo the scale")


def _draw_kurtosis(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    """Draw the excess kurtosis over d_eff."""
    from sim import figures

    at = np.array([1, D_K])
    axes.plot(at, 6 / at, color="black", lw=1.2)
    for name, first in (("both", _BOTH), ("keys", _KEYS)):
        both = name == "both"
        part = effective(datasets[name].sel(scale="sqrt_dk"), both)
        half = figures.half_width(part, "score_excess_kurtosis")
        shape = figures.look(first) | {"linestyle": "none"}
        for count in part[_names(both)[0]].values:
            one = {_names(both)[0]: count}
            values = [each.sel(one).values for each in (part["d_eff"], part["score_excess_kurtosis"], half)]
            axes.errorbar(*values[:2], yerr=values[2], mfc="white" if count > 1 else None, **shape)
    axes.annotate("6 / $d_{eff}$", (20, 0.3), (26, 8), **_TEXT)
    axes.annotate("Gaussian: 6 / $d_k$", (D_K, 6 / D_K), (-62, -2), **_TEXT)
    axes.annotate("one component\nis all: 6", (1, 6), (48, 4), **_TEXT)
    axes.set(xscale="log", yscale="log", xlabel="components that count, $d_{eff}$ = (tr M)² / tr M²")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.set_yticks([0.05, 0.1, 1, 5], ["0.05", "0.1", "1", "5"])
    axes.minorticks_off()
    axes.set(ylabel="excess kurtosis of the scores", xlim=(0.85, 170), ylim=(0.03, 11))
    axes.set_title("Scores become those of few components")


def _draw_weights(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    both = datasets["both"]
    _draw(axes, both.sel(scale="sqrt_dk"), "weight_max", True, _BOTH)
    _draw(axes, datasets["keys"].sel(scale="sqrt_dk"), "weight_max", False, _KEYS)
    _draw(axes, own_scaled(both), "weight_max", True, _OWN)
    value = both["weight_max"].sel(scale="sqrt_dk", within_count=1, within_factor=8).item()
    axes.annotate("in q and k,\ndivided by √$d_k$", (8, value), (-84, 20), **_TEXT)
    axes.annotate("the same divided by their std √tr M;\nin the keys alone", (7, 0.02), (0, 0), **_TEXT)
    _factors(axes)
    axes.set(ylabel="largest weight of a row", ylim=(-0.03, 0.72))
    axes.set_title("Rows saturate, as the scale is wrong")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the scaled scores' variance over the outliers' size, their kurtosis over d_eff, and the largest weight."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_variance(axes[0], datasets)
    _draw_kurtosis(axes[1], datasets)
    _draw_weights(axes[2], datasets)
    title = "One outlier among 128 components of q and k undoes the scale: √$d_k$ counts components that do not count"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["both"])
    return drawing
