"""At which spread of the scores does a row freeze on a few keys, and do its length and their law count?

Question
    Softmax alone: n independent scores of mean 0 and standard deviation σ, without queries or keys. How does the
    concentration of the weights grow with σ, for rows of 16 to 65 536 keys, and for another law of the scores?

Prediction
    This is the random energy model. For normal scores the sum of the exponentials is made by scores of about σ² as
    long as the row has such, that is, while σ² is below the row's largest score, σ √(2 ln n). Beyond
    σ_c = √(2 ln n) a few keys at the end hold all the weight, and Σp², the chance that two looks meet the same key,
    tends to 1 − σ_c / σ; the entropy tends to (1 − (σ / σ_c)²) ln n below, and stays finite above. So longer rows take
    larger scores to freeze, and over σ / σ_c they freeze together, up to terms that fall like 1 / ln n. But √(2 ln n)
    belongs to the normal tail. With Laplace's, as exp(−√2 |s| / σ), e^s is a Pareto variable of exponent √2 / σ, whose
    sum is held by its largest terms from exponent 1 down: rows freeze at σ = √2, at any length, and Σp² tends to
    1 − √2 / σ.

Sources
    C6 (weights are no function of d_k alone: the row's length and the distribution count); Derrida (1981); for Pareto
    terms Bovier, Kurkova and Löwe (2002). Curves are exact for normal scores, limits for n → ∞ dashed.
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
    name="freezing",
    trials=200,
    n_queries=16,
    n_keys=[16, 256, 4096, 65536],
    scale=[0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16],
    score={"kind": "iid", "law": ["gaussian", "laplace"]},
    observables=["weights"],
    threshold=[0.9],
)

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}


def over_sigma(dataset: Dataset) -> Dataset:
    """Return the dataset with numbers along `scale`, which are the scores' standard deviations."""
    return dataset.assign_coords(scale=dataset["scale"].astype(float))


def threshold(n: Any) -> Any:
    """Return the standard deviation √(2 ln n) at which a row of n normal scores freezes."""
    return np.sqrt(2 * np.log(n))


def with_share(dataset: Dataset) -> Dataset:
    """Add the entropy by its largest value, ln n."""
    most = np.log(dataset["n_keys"])
    endings = ("", "_se", "_theory")
    return dataset.assign({f"entropy_share{ending}": dataset[f"weight_entropy{ending}"] / most for ending in endings})


def exact(sigma: Any, n: int, variable: str) -> Any:
    """Return Σp², or the entropy by ln n, of a row of n normal scores."""
    from sim.theory.normal_rows import normal_rows
    from sim.theory.row_integrals import RowIntegrals

    rows = RowIntegrals(*normal_rows(sigma, n))
    return rows.weight_sum_squares if variable == "weight_sum_squares" else rows.weight_entropy / np.log(n)


def frozen(m: Any, level: float = 0.9) -> tuple[Any, Any]:
    """Return the limits for n → ∞ of Σp² and of the share of rows with a weight of `level` > 1/2 or more.

    The weights are then those of Poisson and Dirichlet of parameter m = σ_c / σ (above 1: nothing is frozen). Keys of
    weight p to p + dp number p^(−m−1) (1 − p)^(m−1) dp / (Γ(m) Γ(1 − m)) a row (Pitman and Yor 1997).
    """
    m = np.minimum(m, 1)
    return 1 - m, ((1 - level) / level) ** m * np.sinc(m)


def _lengths(dataset: Dataset) -> list[int]:
    return [int(n) for n in dataset["n_keys"].values]


def _words(n: int) -> str:
    return f"n = {n:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _draw_normal(axes: Axes, dataset: Dataset, variable: str, collapsed: bool) -> None:
    """Draw a variable of normal rows, a look for each length, over σ or over σ by the length's own threshold."""
    from sim import figures

    sigma = np.geomspace(dataset["scale"].values[0], dataset["scale"].values[-1], 200)
    for index, n in enumerate(_lengths(dataset)):
        unit = threshold(n) if collapsed else 1.0
        part = dataset.sel(n_keys=n).assign_coords(scale=dataset["scale"] / unit)
        figures.points(axes, part, variable, x="scale", first=index, theory=False)
        axes.containers[-1][0].set_markersize(5)
        axes.plot(sigma / unit, exact(sigma, n, variable), color=figures.look(index)["color"], lw=1.2, alpha=0.7)


def _halving(axes: Axes, low: float, high: float, words: str) -> None:
    axes.set_xscale("log", base=2)
    ticks = [2.0**power for power in range(round(np.log2(low)), round(np.log2(high)) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" if tick >= 1 else f"1/{round(1 / tick)}" for tick in ticks])
    axes.set(xlabel=words, ylim=(-0.04, 1.04))


def _draw_rows(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    _draw_normal(axes, dataset, "weight_sum_squares", False)
    for index, n in enumerate(_lengths(dataset)):
        axes.axvline(threshold(n), ymax=0.06, color=figures.look(index)["color"], lw=2.5)
        axes.containers[index].set_label(f"{n:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"))
    axes.annotate("√(2 ln n)", (10, -0.005), (0, 0), fontsize=9.5, **_TEXT)
    axes.legend(title="keys in the row n", loc="upper left", alignment="left")
    _halving(axes, 0.25, 16, "standard deviation σ of the scores")
    axes.set_ylabel("Σp² of a row")
    axes.set_title("Normal scores: longer rows freeze later")


def _draw_collapsed(axes: Axes, dataset: Dataset) -> None:
    axes.axvspan(1, 8, color="#d8d8d8", alpha=0.6, lw=0, zorder=0)
    for variable in ("weight_sum_squares", "entropy_share"):
        _draw_normal(axes, dataset, variable, True)
    ratio = np.geomspace(1 / 16, 8, 400)
    look: dict[str, Any] = {"color": "black", "lw": 1.4, "ls": "--"}
    axes.plot(ratio, frozen(1 / ratio)[0], **look)
    axes.plot(ratio, np.maximum(0, 1 - ratio**2), **look)
    axes.annotate("entropy / ln n", (0.15, 0.83), (0, 0), **_TEXT)
    axes.annotate("Σp²", (2, 0.78), (0, 0), **_TEXT)
    axes.annotate("n → ∞", (0.45, 0.5), (0, 0), **_TEXT)
    axes.annotate("frozen", (4.5, 0.45), (0, 0), **_TEXT)
    _halving(axes, 1 / 16, 8, "σ / √(2 ln n)")
    axes.set_title("Over σ / √(2 ln n) they come together")


def _draw_laplace(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    axes.axvspan(2**0.5, 18, color="#d8d8d8", alpha=0.6, lw=0, zorder=0)
    for variable, inside in (("weight_sum_squares", None), ("saturation_rate", "white")):
        # Below √2 next to no row has such a key.
        part = dataset if inside is None else dataset.sel(scale=slice(2**0.5, None))
        for index, n in enumerate(_lengths(dataset)):
            figures.points(axes, part.sel(n_keys=n), variable, x="scale", first=index, theory=False)
            axes.containers[-1][0].set(markersize=5, markerfacecolor=inside or figures.look(index)["color"])
    sigma = np.geomspace(0.22, 18, 400)
    for limit in frozen(2**0.5 / sigma):
        axes.plot(sigma, limit, color="black", lw=1.4, ls="--")
    axes.annotate("Σp²", (2.9, 0.55), (-22, 10), **_TEXT)
    axes.annotate("rows with one\nkey ≥ 0.9", (9, 0.3), (0, 0), **_TEXT)
    axes.annotate("√2", (1.25, 0.04), (0, 0), **_TEXT)
    _halving(axes, 0.25, 16, "standard deviation σ of the scores")
    axes.set(xlim=(0.22, 18))
    axes.set_title("Laplace scores: at √2, whatever their number")


def figure(dataset: Dataset) -> Figure:
    """Draw Σp² of normal rows over σ, it and the entropy over σ by the threshold, and Σp² of rows of Laplace scores."""
    from sim import figures

    dataset = with_share(over_sigma(dataset))
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    normal = dataset.sel(score_law="gaussian")
    _draw_rows(axes[0], normal)
    _draw_collapsed(axes[1], normal)
    _draw_laplace(axes[2], dataset.sel(score_law="laplace", threshold=0.9))
    title = "How large scores must be to freeze a row depends on its length if they are normal, and on their law"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
