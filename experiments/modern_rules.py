"""What do QK normalisation, a soft cap, log n and 1/d_k hold, as vectors and rows get longer and elements larger?

Question
    Division by √d_k assumes elements of size 1, and knows nothing of the row. Newer rules replace it or come on top:
    queries and keys normalised to length √d_k with a learned gain g (QK normalisation); the cosine times a learned
    temperature, here 10; a soft cap, 50 tanh(s / 50); a factor 0.43 ln n for rows of n keys; 1/d_k instead of 1/√d_k.
    Side by side on Gaussian vectors: which of them holds the spread of a row, its largest weight, its gradient, when
    the vectors get longer, the rows longer, or the elements larger?

Prediction
    Longer vectors: under 1/√d_k the row's standard deviation is 1 whatever d_k, with the gain g², with 0.43 ln n that
    number. A temperature that is not learned anew fades like 1/d_k does, τ/√d_k. The cap is not noticed: at a standard
    deviation of 1 no score comes near 50.
    Longer rows: whatever keeps the spread lets the largest weight fall, as ever more keys share. Only ln n raises the
    spread as rows get longer, and keeps the largest weight about a quarter from 16 keys to 4096.
    Larger elements: the spread goes with the product of both sides' sizes, and without normalisation rows saturate and
    the typical gradient dies. Normalised ones do not see the size. A soft cap comes too late: with 128 keys a row
    freezes at a spread of about 3, and it takes scores of 50 to be capped: up to half the rows saturate. Far beyond,
    all large scores are cut to the same 50, so that no row saturates, nor are the large ones told apart. On top of
    normalisation, which bounds the scores by g² √d_k, the cap is of no use.

Sources
    A11, A16, B8, B9, B18, C6, C12 and C16 (what the scale does and does not control); B20 (larger inputs, sharper
    weights). Public questions: is a soft cap of any use once q and k are normalised (nanochat issue 362)? When is 1/d_k
    right (NTK4A issue 3: experiment `aligned`)? The rules: Henry et al. 2020 and Dehghani et al. 2023 (QK
    normalisation), Liu et al. 2022 (cosine), Gemma 2 (soft cap of 50), Nakanishi 2025 (0.43 ln n), Yang et al. 2022
    (1/d_k). Spreads are exact; weights are where the keys are Gaussian. Gradients are by the vectors that the score
    sees, times the size of their elements: per relative change.
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

GAIN, TEMPERATURE, CAP = 1.25, 10.0, 50.0

_SHARED: dict[str, Any] = {
    "name": "modern_rules",
    "trials": 200,
    "n_queries": 64,
    "scale": [
        "sqrt_dk",
        "dk",
        {"kind": "softcap", "cap": CAP, "after": "sqrt_dk"},
        {"kind": "log_n", "factor": 0.43, "after": "sqrt_dk"},
        TEMPERATURE,
    ],
    "threshold": [0.9],
    "gradient_threshold": [0.01],
}
_FAMILIES = ["scores", "weights", "jacobian"]
_SIDES: list[Any] = ["none", {"kind": "rms", "gain": GAIN}]

SWEEP = {
    "d_k": Sweep(
        d_k=[8, 16, 32, 64, 128, 256, 512],
        n_keys=128,
        vectors={"normalize": [*_SIDES, "l2"]},  # the dot product of vectors of length 1 is their cosine
        observables=_FAMILIES,
        **_SHARED,
    ),
    "n_keys": Sweep(
        d_k=64,
        n_keys=[16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        vectors={"normalize": _SIDES},
        observables=_FAMILIES,
        **_SHARED,
    ),
    "std": Sweep(
        d_k=64,
        n_keys=128,
        vectors={"normalize": _SIDES, "std": [0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16]},
        observables=[*_FAMILIES, "gradients"],
        **_SHARED,
    ),
}

# Each rule: how the vectors are normalised, the scale, and which look it has.
RULES: dict[str, tuple[str, str, int]] = {
    "1/√d": ("none", "sqrt_dk", 1),
    "1/d": ("none", "dk", 2),
    "soft cap": ("none", "softcap(cap=50, after=sqrt_dk)", 4),
    "log n": ("none", "log_n(factor=0.43, after=sqrt_dk)", 3),
    "normalised": (f"rms(gain={GAIN:g})", "sqrt_dk", 0),
    "cosine": ("l2", "10", 5),
    "normalised, capped": (f"rms(gain={GAIN:g})", "softcap(cap=50, after=sqrt_dk)", 4),
}
_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}


def under(dataset: Dataset, rule: str) -> Dataset:
    """Return the part of a dataset that one of :data:`RULES` makes."""
    normalize, scale, _ = RULES[rule]
    return dataset.sel(normalize=normalize, scale=scale)


def with_relative(dataset: Dataset) -> Dataset:
    """Add the row's standard deviation, and the gradient by a query times the size of the elements that a score sees.

    That size is the vectors' own, or what normalising leaves: the gain.
    """
    variance = dataset["score_row_variance"]
    spread = np.sqrt(variance)
    added = {
        "row_spread": spread,
        "row_spread_se": dataset["score_row_variance_se"] / (2 * spread),
        "row_spread_theory": np.sqrt(dataset["score_row_variance_theory"]),
    }
    if "gradient_query_median" in dataset:
        normalize, own = dataset["normalize"], dataset["std"]
        size = own.where(normalize == "none", GAIN)
        for end in ("", "_se"):
            scaled = size * dataset[f"gradient_query_median{end}"]
            added[f"relative_gradient{end}"] = scaled.transpose(*dataset["gradient_query_median"].dims)
    return dataset.assign(added)


def _draw(axes: Axes, dataset: Dataset, variable: str, x: str, rules: tuple[str, ...], **options: Any) -> None:
    """Draw a series for each rule."""
    from sim import figures

    for rule in rules:
        figures.points(axes, under(dataset, rule), variable, x=x, first=RULES[rule][2], **options)


def _beside(axes: Axes, words: str, dataset: Dataset, variable: str, at: Any, aside: tuple[int, int]) -> None:
    """Write beside a rule's point: `at` has the rule and the point's place, such as {"d_k": 64}."""
    rule, place = at
    value = under(dataset, rule)[variable].sel(place)
    axes.annotate(words, (next(iter(place.values())), value.item()), aside, **_TEXT)


def _doubling(axes: Axes, ticks: Any, words: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=9.5)
    axes.set_xlabel(words)


def _powers(axes: Axes, low: float, high: float, ticks: tuple[float, ...]) -> None:
    axes.set(yscale="log", ylim=(low, high))
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _hollow(axes: Axes) -> None:
    """Leave the outline of the last series, so that what lies below is seen."""
    line = axes.containers[-1][0]
    line.set(markerfacecolor="none", markersize=10, markeredgewidth=1.4)


def _draw_lengths(axes: Axes, dataset: Dataset) -> None:
    variable = "row_spread"
    _draw(axes, dataset, variable, "d_k", ("log n", "normalised", "cosine", "1/d", "1/√d"))
    _draw(axes, dataset, variable, "d_k", ("soft cap",), theory=False)
    _hollow(axes)
    _beside(axes, "0.43 ln n", dataset, variable, ("log n", {"d_k": 256}), (10, 12))
    _beside(axes, "normalised, g² = 1.56", dataset, variable, ("normalised", {"d_k": 16}), (12, -10))
    _beside(axes, "1/√$d_k$; outlined: capped too", dataset, variable, ("1/√d", {"d_k": 16}), (46, -16))
    _beside(axes, "cosine × 10", dataset, variable, ("cosine", {"d_k": 256}), (-30, -14))
    _beside(axes, "1/$d_k$", dataset, variable, ("1/d", {"d_k": 64}), (-18, -12))
    _doubling(axes, dataset["d_k"].values, "vector length $d_k$")
    _powers(axes, 0.03, 5, (0.05, 0.1, 0.2, 0.5, 1, 2, 4))
    axes.set_ylabel("standard deviation within a row")
    axes.set_title("Longer vectors: a fixed temperature fades")


def _draw_rows(axes: Axes, dataset: Dataset) -> None:
    variable, keys = "weight_max", dataset["n_keys"].values
    _draw(axes, dataset, variable, "n_keys", ("normalised",), joined=True)
    _draw(axes, dataset, variable, "n_keys", ("log n", "1/d", "1/√d"))
    _draw(axes, dataset, variable, "n_keys", ("soft cap",), theory=False)
    _hollow(axes)
    _beside(axes, "0.43 ln n", dataset, variable, ("log n", {"n_keys": 1024}), (0, 14))
    _beside(axes, "normalised", dataset, variable, ("normalised", {"n_keys": 512}), (34, 10))
    axes.annotate("1/√$d_k$;\noutlined: capped", (2200, 0.0026), (0, 0), **_TEXT)
    _beside(axes, "1/$d_k$", dataset, variable, ("1/d", {"n_keys": 128}), (-16, -14))
    _doubling(axes, keys[::2], "keys in the row n")
    _powers(axes, 2e-4, 1, (0.001, 0.01, 0.1, 1))
    axes.set_ylabel("largest weight of a row")
    axes.set_title("Longer rows: only ln n keeps a focus")


def _draw_elements(top: Axes, bottom: Axes, dataset: Dataset) -> None:
    from sim import figures

    rate, gradient = "saturation_rate", "relative_gradient"
    rules = ("log n", "1/√d", "soft cap", "normalised")
    _draw(top, dataset, rate, "std", rules, joined=True, theory=False, threshold=0.9)
    figures.percent(top, -0.07, 1.02)
    top.set_yticks([0, 0.5, 1], ["0", "50", "100"])
    top.set_ylabel("saturated rows  (%)")
    for words, at in {"0.43 ln n": (1.6, 0.72), "1/√$d_k$": (6.3, 0.7), "soft cap": (8, 0.36)}.items():
        top.annotate(words, at, (0, 0), **_TEXT)
    top.annotate("normalised: none", (0.88, 0.17), (0, 0), **_TEXT)
    _draw(bottom, dataset, gradient, "std", rules, joined=True, theory=False)
    for words, at in {"0.43 ln n": (2.5, 0.008), "1/√$d_k$": (7.4, 0.06), "soft cap": (10.5, 1.9)}.items():
        bottom.annotate(words, at, (0, 0), **_TEXT)
    _beside(bottom, "normalised", dataset, gradient, ("normalised", {"std": 0.7}), (-2, 14))
    _doubling(bottom, [0.5, 1, 2, 4, 8, 16], "standard deviation of the elements")
    _powers(bottom, 1e-3, 5, (0.001, 0.01, 0.1, 1))
    bottom.set_ylabel("typical gradient")
    top.set_title("Larger elements: only a norm holds")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the spread over d_k, the largest weight over n, and saturation and gradients over the elements' size."""
    from sim import figures

    made = {key: with_relative(dataset) for key, dataset in datasets.items()}
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8, width_ratios=[1, 1, 1.15])
    place = axes[2].get_subplotspec()
    axes[2].remove()
    top, bottom = place.subgridspec(2, 1).subplots(sharex=True)
    _draw_lengths(axes[0], made["d_k"])
    _draw_rows(axes[1], made["n_keys"])
    _draw_elements(top, bottom, made["std"])
    title = "Each rule holds against one thing: √$d_k$ against long vectors, ln n long rows, a norm large elements"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["std"].drop_vars("std"))
    return drawing
