"""Does softmax's gradient vanish without the scale, for the typical row and on average?

Question
    Gaussian queries and keys, rows of 128 scores, L = Σ g p with a standard normal g. What becomes of softmax's
    Jacobian J, and of ∂L/∂q behind it, as the vectors get longer: in the median row, and in the root mean square?

Prediction
    Divided by √d_k, neither depends on d_k. Unscaled, a saturated row has a Jacobian near 0, and ever more rows are
    saturated: the median of ‖J‖_F falls by orders of magnitude. The mean does not: it lives on the few rows whose two
    largest scores are close, a share that falls only like 1/√d_k, and behind the Jacobian ∂L/∂q has no 1/√d_k to
    shrink it. So ‖∂L/∂q‖² averages far more than with the scale: gradients do not vanish, they become erratic, next to
    nothing for most queries and very large for a few. At d_k = 512 ‖J‖_F² averages 0.034, and its median is 4e-5.
    Divided by d_k, the Jacobian is that of uniform weights, and ∂L/∂q shrinks like 1/√d_k.

Sources
    A15 and B6 (∂p_i/∂s_j = p_i(δ_ij − p_j), all near 0 when one weight is near 1) and B7 (without the scale the
    gradient all but vanishes). The root mean square of ‖J‖_F is exact for Gaussian keys. Times
    c √(d_k − 1), with c the rule's factor, it is exactly the part of ∂L/∂q at right angles to the query, the
    curve drawn: all of it but 5 % at d_k = 16, and less beyond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

SWEEP = Sweep(
    name="gradients",
    trials=1000,
    n_queries=64,
    n_keys=128,
    d_k=[4, 8, 16, 32, 64, 128, 256, 512, 1024],
    scale=["none", "sqrt_dk", "dk"],
    vectors={"law": "gaussian"},
    observables=["jacobian", "gradients"],
)

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_RULES = {"none": 0, "sqrt_dk": 1, "dk": 2}  # which look a rule has


def with_roots(dataset: Dataset) -> Dataset:
    """Add the root mean square of ‖J‖_F, and the theory of ∂L/∂q at right angles to the query."""
    square, root = dataset["jacobian_frobenius_sq"], np.sqrt(dataset["jacobian_frobenius_sq"])
    across = dataset["gradient_score_theory"] * np.sqrt(dataset["d_k"] - 1)
    return dataset.assign(
        jacobian_root_mean_square=root,
        jacobian_root_mean_square_se=root * dataset["jacobian_frobenius_sq_se"] / (2 * square),
        jacobian_root_mean_square_theory=np.sqrt(dataset["jacobian_frobenius_sq_theory"]),
        gradient_query_theory=across.transpose(*dataset["gradient_query"].dims),
    )


def _draw_pair(axes: Axes, dataset: Dataset, mean: str, median: str, rule: str) -> None:
    """Draw the root mean square filled, over its theory, and the median hollow, joined by a thin line."""
    from sim import figures

    first = _RULES[rule]
    color = figures.look(first)["color"]
    figures.points(axes, dataset, mean, first=first, scale=rule)
    figures.points(axes, dataset, median, first=first, scale=rule, theory=False)
    axes.containers[-1][0].set_markerfacecolor("white")
    axes.plot(dataset["d_k"], dataset[median].sel(scale=rule), color=color, lw=0.8, alpha=0.7)


def _lengths(axes: Axes, dataset: Dataset) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(dataset["d_k"].values, dataset["d_k"].values.astype(str), fontsize=9.5)
    axes.set_xlabel("vector length $d_k$")


def _powers(axes: Axes, low: float, high: float) -> None:
    axes.set(yscale="log", ylim=(low, high))
    ticks = [tick for tick in (0.001, 0.01, 0.1, 1, 10) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _beside(axes: Axes, words: str, dataset: Dataset, variable: str, at: tuple[int, str], aside: Any) -> None:
    d_k, rule = at
    axes.annotate(words, (d_k, dataset[variable].sel(d_k=d_k, scale=rule).item()), aside, **_TEXT)


def _draw_jacobian(axes: Axes, dataset: Dataset) -> None:
    mean, median = "jacobian_root_mean_square", "jacobian_frobenius_median"
    for rule in ("none", "sqrt_dk"):
        _draw_pair(axes, dataset, mean, median, rule)
    _beside(axes, "not scaled: root mean square", dataset, mean, (64, "none"), (10, 16))
    _beside(axes, "not scaled:\nmedian", dataset, median, (256, "none"), (-40, -12))
    _beside(axes, "divided by √$d_k$: both", dataset, mean, (16, "sqrt_dk"), (4, -18))
    _lengths(axes, dataset)
    _powers(axes, 3e-4, 1)
    axes.set_ylabel("norm of a row's Jacobian, ‖J‖$_F$")
    axes.set_title("Jacobian: the median vanishes")


def _draw_vanishing(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    rate = "vanishing_rate"
    for scale, threshold, first in (("none", 0.01, 0), ("none", 0.001, 5), ("sqrt_dk", 0.01, 1)):
        chosen: dict[str, Any] = {"scale": scale, "gradient_threshold": threshold}
        figures.points(axes, dataset, rate, first=first, theory=False, joined=True, **chosen)
    for threshold, d_k, aside in ((0.01, 128, (-46, 18)), (0.001, 512, (8, -42))):
        value = dataset[rate].sel(d_k=d_k, scale="none", gradient_threshold=threshold).item()
        axes.annotate(f"not scaled:\n‖J‖$_F$ < {threshold}", (d_k, value), aside, **_TEXT)
    axes.annotate("divided by √$d_k$: none < 0.01", (64, 0), (0, -14), **_TEXT)
    _lengths(axes, dataset)
    axes.set_ylabel("rows with a vanishing Jacobian  (%)")
    figures.percent(axes)
    axes.set_title("Ever more rows have next to none")


def _draw_query(axes: Axes, dataset: Dataset) -> None:
    mean, median = "gradient_query", "gradient_query_median"
    for rule in _RULES:
        _draw_pair(axes, dataset, mean, median, rule)
    _beside(axes, "not scaled: root mean square", dataset, mean, (64, "none"), (-46, 20))
    _beside(axes, "not scaled:\nmedian", dataset, median, (256, "none"), (-44, -6))
    _beside(axes, "divided by √$d_k$: both", dataset, mean, (16, "sqrt_dk"), (14, 14))
    _beside(axes, "divided by $d_k$: both", dataset, mean, (64, "dk"), (-40, -16))
    _lengths(axes, dataset)
    _powers(axes, 1e-3, 12)
    axes.set_ylabel("gradient by a query, ‖∂L/∂q‖")
    axes.set_title("‖∂L/∂q‖: the root mean square grows")


def figure(dataset: Dataset) -> Figure:
    """Draw the Jacobian's norm, the share of rows in which it vanishes, and the gradient by a query, over d_k."""
    from sim import figures

    dataset = with_roots(dataset)
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_jacobian(axes[0], dataset)
    _draw_vanishing(axes[1], dataset)
    _draw_query(axes[2], dataset)
    title = "Unscaled gradients do not vanish on average: the typical one collapses, a few large ones raise the mean"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
