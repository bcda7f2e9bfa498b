"""Does the variance of a dot product grow like d_k, and does dividing by √d_k undo it?

Question
    Queries and keys have independent elements of mean 0 and variance 1. How does the spread of q·k depend on
    their length d_k, and does it matter whether the elements are random signs, Gaussian or uniform?

Prediction
    Var q·k = d_k for every such law, as variances of independent terms add: on log-log axes a line of slope 1. The
    standard deviation is √d_k, so that after division by it the variance is 1 for every d_k. At d_k = 64 about
    68 % of the scores lie within one standard deviation, if they are roughly normal; ±1 elements give 74 %,
    because −8 and 8 are themselves possible sums.

Sources
    A9 (standard deviation 2 at 4, 8 at 64, 1 after scaling), A10 (68 %), B1 (mean 0, variance d_k), B2 (8 and 22.6)
    and C4 (the table of variances 16, 64, 128, 512 and standard deviations 4.0, 8.0, 11.3, 22.6).

C4's table, from the stored dataset, for Gaussian elements::

    table = dataset.sel(d_k=[16, 64, 128, 512], law="gaussian", scale="none")
    table[["score_variance", "score_variance_se", "score_std", "score_std_se"]].to_dataframe()
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

SWEEP = Sweep(
    name="variance_growth",
    trials=4000,
    n_tokens=64,
    d_k=[8, 16, 32, 64, 128, 256, 512, 1024],
    scale=["none", "sqrt_dk"],
    vectors={"law": ["rademacher", "gaussian", "uniform"]},
    observables=["scores"],
)

C4_LENGTHS = (16, 64, 128, 512)  # the lengths of C4's table


def log_log_slope(dataset: Dataset, scale: str = "none") -> dict[str, Line]:
    """Fit ln variance = intercept + slope · ln d_k for each law: a slope of 1 is growth like d_k.

    Parameters
    ----------
    dataset : Dataset
        Of :data:`SWEEP`, or another with `score_variance` along `d_k` and `law`.
    scale : str
        The scale rule.
    """
    lines = {}
    for law in dataset["law"].values:
        part = dataset.sel(law=law, scale=scale)
        variance = part["score_variance"].values
        error = part["score_variance_se"].values / variance  # that of the logarithm, to first order
        lines[str(law)] = weighted_line(np.log(part["d_k"].values), np.log(variance), error, part["groups"].values - 1)
    return lines


def _beside(dataset: Dataset, index: int) -> Dataset:
    """Move one law's points aside by a few per cent of d_k: on the same spot they would hide each other."""
    return dataset.assign_coords(d_k=dataset["d_k"] * 1.12 ** (index - 1))


def _lengths(axes: Axes, dataset: Dataset) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(dataset["d_k"].values, dataset["d_k"].values.astype(str), fontsize=9.5)
    axes.set_xlabel("vector length $d_k$")


def _draw_variance(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    d_k = dataset["d_k"].values
    for theory in (d_k, np.ones(len(d_k))):
        axes.plot(d_k, theory, color="black", lw=1.2)
    # A single trial has no standard errors, and so no fit.
    lines = log_log_slope(dataset) if (dataset["groups"] > 1).all() else {}
    for index, law in enumerate(map(str, dataset["law"].values)):
        label = f"{law}: {lines[law].slope:.4f} ± {lines[law].half_width():.4f}" if law in lines else law
        one: dict[str, Any] = {"law": law, "first": index, "theory": False}
        figures.points(axes, _beside(dataset, index), "score_variance", scale="none", label=label, **one)
        figures.points(axes, _beside(dataset, index), "score_variance", scale="sqrt_dk", **one)
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9.5}
    for d in C4_LENGTHS:
        std = dataset["score_std"].sel(d_k=d, law="gaussian", scale="none").item()
        axes.annotate(f"std {std:.1f}", (d, d), (-9, 8), ha="right", **text)
    axes.annotate("not scaled:\nvariance = $d_k$", (256, 256), (14, -24), **text)
    axes.annotate("divided by √$d_k$: variance = 1", (90, 1), (0, -18), ha="center", **text)
    _lengths(axes, dataset)
    axes.set(ylabel="variance of the scores", yscale="log", ylim=(0.4, 2500))
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.set_title("Slope 1: ten times as long, ten times the variance")
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 0.15), "alignment": "left"}
    axes.legend(title="slope on log-log axes, 95 % interval", fontsize=9.5, title_fontsize=9.5, **place)


def _draw_deviation(axes: Axes, dataset: Dataset) -> None:
    """Draw by how many per cent the measured variance misses theory's."""
    from sim import figures

    raw = dataset.sel(scale="none")
    exact = raw["score_variance_theory"]
    percent = raw.assign(
        score_variance=100 * (raw["score_variance"] / exact - 1),
        score_variance_se=100 * raw["score_variance_se"] / exact,
    )
    axes.axhline(0, color="black", lw=1.2)
    for index, law in enumerate(raw["law"].values):
        figures.points(axes, _beside(percent, index), "score_variance", first=index, theory=False, law=law)
    half = figures.half_width(percent, "score_variance")
    hits = (abs(percent["score_variance"]) <= half).sum().item()
    _lengths(axes, dataset)
    axes.set(ylabel="variance / $d_k$ − 1  (%)")
    axes.set_title(f"{hits} of {half.count().item()} intervals hold the exact value")


def _draw_within(axes: Axes, dataset: Dataset) -> None:
    """Draw the share of the scores within one standard deviation, which tends to the normal distribution's."""
    from scipy.special import erf

    from sim import figures

    normal = erf(0.5**0.5)
    axes.axhline(normal, color="black", lw=1.2)
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9.5}
    axes.annotate("normal: 68.3 %", (8, normal), (-7, -15), **text)
    chosen: dict[str, Any] = {"scale": "none", "sigma": 1}
    figures.points(axes, dataset, "score_within_sigma", by="law", theory=False, **chosen)
    for index, law in enumerate(dataset["law"].values):
        # Marks, not a curve: on a lattice the lengths between have other values.
        exact = dataset["score_within_sigma_theory"].sel(law=law, **chosen)
        color = figures.look(index)["color"]
        axes.plot(exact["d_k"], exact, ls="none", marker="_", ms=20, mew=1.4, color=color)
    lattice = dataset["score_within_sigma"].sel(d_k=64, law="rademacher", **chosen).item()
    words = f"±1 is a lattice, and the\nends ±8 count: {100 * lattice:.0f} %"
    axes.annotate(words, (64, lattice), (10, 10), **text)
    axes.annotate("dashes: exact", (1024, 0.6), (10, 8), ha="right", **text)
    _lengths(axes, dataset)
    axes.set(ylabel="share within one standard deviation  (%)", ylim=(0.6, 0.815))
    axes.set_yticks([0.6, 0.65, 0.7, 0.75, 0.8], ["60", "65", "70", "75", "80"])
    axes.set_title("About 68 % within one std")


def figure(dataset: Dataset) -> Figure:
    """Draw the variance over d_k, its deviation from theory, and the share within one standard deviation."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8, width_ratios=[1.35, 1, 1])
    _draw_variance(axes[0], dataset)
    _draw_deviation(axes[1], dataset)
    _draw_within(axes[2], dataset)
    title = "The variance of a dot product is $d_k$ for every law; divided by √$d_k$, it is 1"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
