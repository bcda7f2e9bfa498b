"""What does a wrong scale cost, and from which difference on is it seen in entropy, saturation and gradients?

Question
    The scale applied twice, or with the square root of the whole width instead of the head's, or √144 for a head of
    128, or off by a factor of ½ to 2: nothing fails, attention is only flatter or sharper than meant. How much, and
    would one notice: in one row, or in one head of 64 rows, whose entropy and gradients scatter by themselves?

Prediction
    Gaussian vectors of length 128, 128 keys. Entropy is ln n − σ²/2 near the right scale, σ = 1: a scale off by a share
    δ moves it by some −δ. Applied twice (1/128: σ = 0.09), or with the width of 8 heads (σ = 0.35), it leaves weights
    that are nearly uniform, of 99 % and more of the largest entropy, and gradients by a query that are 18 and 4 times
    smaller. Without a scale one key holds 0.9 and more of every other row.
    A single row's entropy scatters by 0.11, so that a quarter too little goes unseen; the mean over a head of 64 rows
    by 0.013, which shows 3 %. So √144 for √128, 6 % too small, is lost in a row, and plain in a head. Saturation sees
    only what is much too large: three rows of 64 with a weight of 0.5 and more take a scale nearly twice too large.

Sources
    A9, A11, B8, B9, B18 and C16 (what the right scale is for). Public reports: the whole width instead of the head's
    (set_transformer issue 18, ng-video-lecture PR 6); the scale applied twice (transformers PR 38290); 1/√144 with a
    head of 128 (gemma_pytorch issue 71). Entropy, and so its slope, is exact for Gaussian keys; gradients by a query
    are drawn over the part of them across the query, within 1 % at this length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

D_K, HEADS = 128, 8
# What is meant to be 1/√d_k, as a multiple of it.
MISTAKES = {
    "twice": D_K**-0.5,
    f"√$d_{{model}}$, {HEADS} heads": HEADS**-0.5,
    "√144 for √128": (128 / 144) ** 0.5,
    "no scale": D_K**0.5,
}
_TIMES = [0.0625, 0.125, 0.1768, 0.25, 0.5, 0.6, 0.7071, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4142, 1.6]
_TIMES = sorted([*_TIMES, *MISTAKES.values(), 2.0, 2.8284, 4.0, 5.6569, 8.0, 16.0])

SWEEP = Sweep(
    name="wrong_scale",
    trials=1000,
    d_k=D_K,
    n_queries=[1, 64],
    n_keys=128,
    scale=[times / D_K**0.5 for times in _TIMES],
    vectors={"law": "gaussian"},
    threshold=[0.5, 0.9],
    gradient_threshold=[0.01],
    observables=["scores", "weights", "jacobian", "gradients"],
)

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}


def over_times(dataset: Dataset) -> Dataset:
    """Return the dataset over `times`, the scale as a multiple of 1/√d_k, instead of `scale`."""
    times = (dataset["scale_factor"] * np.sqrt(dataset["d_k"])).isel(n_queries=0, drop=True)
    return dataset.assign_coords(times=("scale", times.values.round(6))).swap_dims(scale="times").drop_vars("scale")


def scatter(dataset: Dataset, variable: str) -> Any:
    """Return the standard deviation of a single trial's value: the error of the mean times the root of the trials."""
    return dataset[f"{variable}_se"] * np.sqrt(dataset["trials"])


def seen_from(dataset: Dataset, variable: str, n_queries: int, upward: bool = False) -> float:
    """Return the nearest multiple of the right scale, below it or `upward`, at which a wrong scale is seen.

    There the expected value lies two standard deviations of a single trial at the right scale away from what that
    gives; interpolated between the multiples at hand, and NaN where none of them is seen.
    """
    part = over_times(dataset).sel(n_queries=n_queries)
    values = part[variable]
    apart = abs(values - values.sel(times=1)) - 2 * scatter(part, variable).sel(times=1)
    away = apart.sel(times=slice(1, None)) if upward else apart.sel(times=slice(None, 1))[::-1]
    is_seen = away.values > 0
    if not is_seen.any():
        return float("nan")
    first = int(is_seen.argmax())
    pair = away.isel(times=[first - 1, first])
    return float(np.exp(np.interp(0, pair.values, np.log(pair["times"].values))))


def _mistakes(axes: Axes, height: float | None = None) -> None:
    """Mark the mistakes by lines, with their names at `height` beside them."""
    for name, times in MISTAKES.items():
        axes.axvline(times, color="#707070", lw=1, ls=":", zorder=0)
        if height is not None:
            axes.annotate(name, (times, height), (-8, 0), rotation=90, fontsize=9.5, **_TEXT)


def _times(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    axes.set_xticks(ticks, ["1/16", "1/8", "1/4", "1/2", "1", "2", "4", "8", "16"], fontsize=9)
    axes.set_xlabel("scale, as a multiple of 1/√$d_k$")


def _draw_entropy(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    part = over_times(dataset).sel(n_queries=64)
    figures.points(axes, part, "weight_entropy", x="times", first=0)
    highest = np.log(dataset["n_keys"].item())
    axes.axhline(highest, color="black", lw=1, ls=":")
    axes.annotate("uniform weights: ln n", (4, highest), (0, 8), fontsize=9.5, **_TEXT)
    _mistakes(axes, 1.6)
    _times(axes)
    axes.set(ylabel="entropy of the weights", ylim=(0, 5.3))
    axes.set_title("Too small a scale: nearly uniform")


def _draw_rows(top: Axes, bottom: Axes, dataset: Dataset) -> None:
    from sim import figures

    part = over_times(dataset).sel(n_queries=64)
    for threshold, first in ((0.5, 5), (0.9, 0)):
        chosen: dict[str, Any] = {"threshold": threshold, "theory": False, "joined": True}
        figures.points(top, part, "saturation_rate", x="times", first=first, **chosen)
    figures.percent(top, -0.07, 1.03)
    top.set_yticks([0, 0.5, 1], ["0", "50", "100"])
    top.set(ylabel="saturated rows  (%)")
    for words, at in {"one key\n≥ 0.5": (2, 0.55), "one key\n≥ 0.9": (12.5, 0.22)}.items():
        top.annotate(words, at, (0, 0), fontsize=9.5, **_TEXT)
    figures.points(bottom, part, "gradient_query", x="times", first=1, theory=False)
    bottom.plot(part["times"], part["gradient_query_limit"], color=figures.look(1)["color"], ls="--", alpha=0.7)
    for axes in (top, bottom):
        _mistakes(axes)
    _times(bottom)
    bottom.set(yscale="log", ylim=(0.003, 8), ylabel="gradient, ‖∂L/∂q‖")
    bottom.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    bottom.minorticks_off()
    top.set_title("Small gradients, or saturated rows")


SEEN_IN = {
    "score_row_variance": "spread of a row",
    "weight_entropy": "entropy",
    "weight_max": "largest weight",
    "jacobian_frobenius_sq": "Jacobian, ‖J‖$_F$²",
    "gradient_query": "gradient, ‖∂L/∂q‖",
}


def _draw_seen(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    rows = np.arange(len(SEEN_IN))
    for n, inside in ((1, "white"), (64, None)):
        off = np.array([100 * (1 - seen_from(dataset, variable, n)) for variable in SEEN_IN])
        shape = figures.look(4) | {"linestyle": "none", "ms": 8}
        axes.plot(off, rows, **{"mfc": inside or shape["color"]} | shape)
        words = "a head of 64 rows" if n == 64 else "one row"
        axes.annotate(words, (off[0], rows[0]), (0, 16), **_TEXT)
        for row in rows[np.isnan(off)]:
            axes.annotate("one row: never" if n == 1 else "never", (26, row), (0, 0), fontsize=9.5, **_TEXT)
    for (name, times), height in zip(MISTAKES.items(), (4.65, 5.15, 4.65), strict=False):
        axes.axvline(100 * (1 - times), color="#707070", lw=1, ls=":", zorder=0)
        axes.annotate(name, (100 * (1 - times), height), (-4, 0), fontsize=9.5, **{**_TEXT, "ha": "right"})
    axes.set_yticks(rows, list(SEEN_IN.values()))
    axes.set(xscale="log", xlim=(1, 110), ylim=(len(rows) + 0.5, -0.8))
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel("by how much a scale is too small when it is seen  (%)")
    axes.set_title("Seen: beyond two standard deviations")


def figure(dataset: Dataset) -> Figure:
    """Draw entropy, saturation and gradients over the scale, and from which difference on each tells it."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    place = axes[1].get_subplotspec()
    axes[1].remove()
    top, bottom = place.subgridspec(2, 1).subplots(sharex=True)
    _draw_entropy(axes[0], dataset)
    _draw_rows(top, bottom, dataset)
    _draw_seen(axes[2], dataset)
    title = "A wrong scale only makes attention flatter or sharper: 6 % go unseen in one row, and show in a head of 64"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset.sel(n_queries=[64]))
    return drawing
