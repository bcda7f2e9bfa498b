"""What is left of √d_k when elements have heavy tails, down to those without a variance?

Question
    Elements of Student's t with 30 degrees of freedom down to 1: independent of each other, or Gaussian with one random
    magnitude a vector (the multivariate t). Does the estimate of the variance settle, does division by √d_k keep the
    scores' size, and how often does one key take the whole row?

Prediction
    The variance exists only above 2 degrees of freedom, where the law is standardised; at 2 and below its scale is 1,
    and the running estimate jumps whenever a larger element comes in, by orders of magnitude, and never settles. Up to
    4 the variance exists but the error of its estimate does not: there are no error bars, and at 2.5 the estimate is
    still a tenth off, mostly below, after millions of scores. √d_k is the scale as long as a central limit theorem
    holds. At ν < 2 the sum of d_k products grows like (d_k ln d_k)^(1/ν), and the scores' size escapes √d_k. A common
    magnitude is not summed over: given it, the components are Gaussian, so that √d_k keeps the quartile at every ν,
    even at 1, where there is no mean; but then longer vectors do not thin the tails either. Without a variance one key
    takes most rows, although they are divided by √d_k.

Sources
    B1 and B8 (variance d_k, 1 after scaling: both assume that the variance exists), A13 (components are not so
    distributed), C6 (weights depend on the distribution) and A10 (68 % if roughly normal). The quartiles of vectors
    with a common magnitude are exact. Products without a variance: Cline (1986).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep, running

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

_SHARED: dict[str, Any] = {
    "name": "heavy_tails",
    "trials": 400,
    "n_queries": 64,
    "n_keys": 128,
    "d_k": [16, 64, 256, 1024],
    "scale": ["sqrt_dk"],
    "observables": ["scores", "distribution", "weights"],
    "threshold": [0.9, 0.99],
}
_DF = [1, 1.5, 2, 2.5, 3, 5, 10, 30]

SWEEP = {
    "elements": Sweep(vectors={"law": {"kind": "student_t", "df": _DF}}, **_SHARED),
    "magnitudes": Sweep(vectors={"dependent": {"kind": "magnitude", "df": _DF}}, **_SHARED),
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_LOOKS = {1: 4, 1.5: 1, 2: 2, 3: 3, 30: 0}  # which look a number of degrees of freedom has
_QUARTILE_WORDS = {"1 d.f.": (90, 90), "1.5 d.f.": (181, 12), "2 d.f.": (181, 5)}
_QUARTILE_WORDS |= {"one magnitude for a vector, 1 d.f.": (128, 1.22), "30 d.f., and normal": (128, 0.5)}
_SATURATION_WORDS = {"independent elements": (1.85, 0.86), "one magnitude for a vector": (2.15, 0.535)}
_SATURATION_WORDS |= {"no\nvariance": (1.05, 0.1), "variance 1": (2.6, 0.12)}
_QUARTILE_WORDS |= {"one magnitude, 3 d.f.": (128, 0.21)}


def together(datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return both datasets, after division by √d_k, with `df` as the name of the degrees of freedom."""
    magnitudes = datasets["magnitudes"].rename(dependent_df="df")
    return {"elements": datasets["elements"].sel(scale="sqrt_dk"), "magnitudes": magnitudes.sel(scale="sqrt_dk")}


def quartile(df: float, d: int) -> float:
    """Return the exact upper quartile of a score of vectors with a common magnitude, divided by √d."""
    from scipy.optimize import brentq

    from sim.cell import Cell
    from sim.kinds import Choice
    from sim.side import Side
    from sim.theory.distributions import score_distribution

    side = Side(dependent=Choice("magnitude", {"df": float(df)}))
    distribution = score_distribution(Cell(seed=0, d_k=d, n_queries=2, n_keys=2, query=side, key=side))
    assert distribution is not None  # it is known for Gaussian components
    return float(brentq(lambda x: distribution(np.array([x * d**0.5]))[1][0] - 0.75, 0, 100))


def growth(df: float, d: Any) -> Any:
    """Return how fast the size of Σ q_i k_i / √d grows where t elements have no variance, up to a constant."""
    return (d * np.log(d)) ** (1 / df) / np.sqrt(d)


def _draw_running(axes: Axes, dataset: Dataset) -> None:
    """Draw the estimate of the variance as the trials come in."""
    from sim import figures

    estimates: DataArray = running(dataset, "score_variance").sel(d_k=64, scale="sqrt_dk")
    for df in (1, 1.5, 2, 30):
        one, look = estimates.sel(df=df), figures.look(_LOOKS[df])
        axes.plot(one["group_trials"], one, color=look["color"], ls=look["linestyle"], drawstyle="steps-post")
        last = one.dropna("group")[-1]
        words = f"{df:g} d.f." if df < 30 else "30 d.f.: at once, and stays"
        axes.annotate(words, (last["group_trials"].item(), last.item()), (-2, 11), **{**_TEXT, "ha": "right"})
    axes.set(yscale="log", ylim=(0.3, 1e12), xlim=(0, None), xlabel="trials so far, of 64 × 128 scores")
    axes.set_yticks([1, 1e3, 1e6, 1e9, 1e12])
    axes.minorticks_off()
    axes.set_ylabel("estimate of the variance, $d_k$ = 64")
    axes.set_title("Up to 2 d.f. the variance never settles")


def _draw_quartiles(axes: Axes, both: Mapping[str, Dataset]) -> None:
    from sim import figures

    d_k = both["elements"]["d_k"].values
    grid = np.geomspace(d_k[0], d_k[-1], 50)
    chosen: dict[str, Any] = {"quantile": 0.75, "theory": False}
    for df in (1, 1.5, 2, 30):
        figures.points(axes, both["elements"], "score_quantile", first=_LOOKS[df], df=df, **chosen)
        color, last = (
            figures.look(_LOOKS[df])["color"],
            both["elements"]["score_quantile"].sel(df=df, quantile=0.75)[-1],
        )
        limit = growth(df, grid) / growth(df, grid[-1]) if df < 2 else np.log(grid) / np.log(grid[-1])
        if df <= 2:
            axes.plot(grid, last.item() * limit, color=color, lw=1.2, ls="--", alpha=0.7)
    for df in (1, 3):
        figures.points(axes, both["magnitudes"], "score_quantile", first=_LOOKS[df], df=df, **chosen)
        axes.containers[-1][0].set_markerfacecolor("white")
        axes.plot(d_k, [quartile(df, int(d)) for d in d_k], color=figures.look(_LOOKS[df])["color"], alpha=0.7)
    axes.axhline(0.6745, color="black", lw=1, ls="--", alpha=0.6, zorder=1)
    for words, at in _QUARTILE_WORDS.items():
        axes.annotate(words, at, (0, 0), **_TEXT)
    axes.set_xscale("log", base=2)
    axes.set_xticks(d_k, d_k.astype(str))
    axes.set_xlabel("vector length $d_k$")
    axes.set(yscale="log", ylim=(0.15, 300), ylabel="upper quartile of the scores / √$d_k$")
    axes.set_yticks([0.3, 1, 3, 10, 30, 100], ["0.3", "1", "3", "10", "30", "100"])
    axes.minorticks_off()
    axes.set_title("Sums of such elements outgrow √$d_k$")


def _draw_saturation(axes: Axes, both: Mapping[str, Dataset]) -> None:
    from sim import figures

    axes.axvspan(0.9, 2, color="#d8d8d8", alpha=0.6, lw=0, zorder=0)
    for first, (name, part) in enumerate(both.items()):
        options: dict[str, Any] = {"x": "df", "first": (0, 5)[first], "theory": False, "joined": True}
        for range_ in (slice(None, 2), slice(2.1, None)):  # other scales: without a variance, and with variance 1
            figures.points(axes, part.sel(df=range_), "saturation_rate", d_k=64, threshold=0.9, **options)
            if name == "magnitudes":
                axes.containers[-1][0].set_markerfacecolor("white")
    for words, at in _SATURATION_WORDS.items():
        axes.annotate(words, at, (0, 0), **{**_TEXT, "ha": "left"})
    axes.set_xscale("log")
    axes.set_xticks([1, 1.5, 2, 3, 5, 10, 30], ["1", "1.5", "2", "3", "5", "10", "30"])
    axes.minorticks_off()
    axes.set(xlim=(0.9, 33), xlabel="degrees of freedom", ylabel="rows with one key ≥ 0.9  (%)")
    figures.percent(axes, -0.05, 1.05)
    axes.set_title("Without a variance, one key takes most rows")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the running variance, the scores' quartile over d_k, and saturated rows over the degrees of freedom."""
    from sim import figures

    both = together(datasets)
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_running(axes[0], datasets["elements"])
    _draw_quartiles(axes[1], both)
    _draw_saturation(axes[2], both)
    title = "√$d_k$ needs elements that have a variance: Student's t of 2 degrees of freedom (d.f.) or fewer has none"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["elements"])
    return drawing
