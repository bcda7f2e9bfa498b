"""Which scale rule keeps the scores' spread, and with it the softmax weights, the same for every d_k?

Question
    Dot products of Gaussian queries and keys go into the softmax as they are, divided by √d_k, or divided by d_k.
    What becomes of the spread of the scores, and of the weights?

Prediction
    The standard deviation is √d_k, 1 and 1 / √d_k: at d_k = 64 it is 8, 1 and 0.125. Only √d_k keeps it, and so the
    weights, independent of d_k. Unscaled scores saturate: one of the 128 keys takes nearly all the weight. Scores
    divided by d_k fade: the weights become uniform, and attention cannot tell the keys apart.

Sources
    A11 (0.125 after division by 64, 1 after division by 8), B8 (dividing by the standard deviation gives variance 1)
    and B9 (dividing by d_k gives variance 1 / d_k, and nearly uniform weights).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

SWEEP = Sweep(
    name="scale_rules",
    trials=1000,
    n_queries=64,
    n_keys=128,
    d_k=[8, 16, 32, 64, 128, 256, 512, 1024],
    scale=["none", "sqrt_dk", "dk"],
    vectors={"law": "gaussian"},
    observables=["scores", "weights"],
)


def _draw(axes: Axes, dataset: Dataset, variable: str) -> None:
    """Draw one variable over d_k, a series for each rule."""
    from sim import figures

    figures.points(axes, dataset, variable, by="scale")
    axes.set_xscale("log", base=2)
    axes.set_xticks(dataset["d_k"].values, dataset["d_k"].values.astype(str), fontsize=9.5)
    axes.set_xlabel("vector length $d_k$")


def _powers(axes: Axes, ticks: dict[str, float]) -> None:
    axes.set_yscale("log")
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.minorticks_off()


def _name_rules(axes: Axes, dataset: Dataset, variable: str, at: dict[str, tuple[int, int]]) -> None:
    """Write each rule beside its points: `at` has a d_k and how many typographic points above (below: negative)."""
    words = {"none": "not scaled", "sqrt_dk": "divided by √$d_k$", "dk": "divided by $d_k$"}
    for rule, (d_k, above) in at.items():
        value = dataset[variable].sel(d_k=d_k, scale=rule).item()
        axes.annotate(words[rule], (d_k, value), (0, above), textcoords="offset points", ha="center", va="center")


def _draw_spread(axes: Axes, dataset: Dataset) -> None:
    _draw(axes, dataset, "score_std")
    _name_rules(axes, dataset, "score_std", {"none": (16, 26), "sqrt_dk": (512, 14), "dk": (16, -26)})
    for rule, digits in (("none", 2), ("sqrt_dk", 2), ("dk", 4)):
        std = dataset["score_std"].sel(d_k=64, scale=rule).item()
        text = f"{std:.{digits}f}"
        axes.annotate(text, (64, std), (0, 10), textcoords="offset points", ha="center", fontweight="bold")
    _powers(axes, {"1/32": 1 / 32, "1/8": 1 / 8, "1": 1, "8": 8, "32": 32})
    axes.set_ylabel("standard deviation of the scores")
    axes.set_title("Spread: √$d_k$ keeps it at 1")


def _draw_effective(axes: Axes, dataset: Dataset) -> None:
    _draw(axes, dataset, "weight_effective_keys")
    _name_rules(axes, dataset, "weight_effective_keys", {"none": (64, 18), "sqrt_dk": (64, -18), "dk": (64, -18)})
    keys = dataset["n_keys"].item()
    for level, words, above in ((keys, f"uniform weights: {keys}", 5), (1, "one key takes all: 1", -13)):
        axes.axhline(level, color="black", lw=1, ls=":")
        axes.annotate(words, (1024, level), (4, above), textcoords="offset points", ha="right", fontsize=9.5)
    axes.set(ylabel="effective number of keys", ylim=(-12, keys + 14), yticks=range(0, keys + 1, 32))
    axes.set_title("Weights: √$d_k$ keeps them as they are")


def _draw_largest(axes: Axes, dataset: Dataset) -> None:
    _draw(axes, dataset, "weight_max")
    _name_rules(axes, dataset, "weight_max", {"none": (64, -18), "sqrt_dk": (64, 16), "dk": (64, 22)})
    keys = dataset["n_keys"].item()
    for level in (1, 1 / keys):
        axes.axhline(level, color="black", lw=1, ls=":")
    _powers(axes, {f"1/{keys}": 1 / keys, "1/64": 1 / 64, "1/16": 1 / 16, "1/4": 1 / 4, "1": 1})
    axes.set_ylabel("largest weight of a row")
    axes.set_title("Unscaled saturates, 1/$d_k$ goes uniform")


def figure(dataset: Dataset) -> Figure:
    """Draw spread, effective number of keys and largest weight over d_k under the three rules."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_spread(axes[0], dataset)
    _draw_effective(axes[1], dataset)
    _draw_largest(axes[2], dataset)
    title = "Only division by √$d_k$ leaves scores and weights as they are, however long the vectors"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
