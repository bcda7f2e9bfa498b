"""Where do scores and their exponentials overflow, and which cure reaches which overflow?

Question
    A naive softmax takes exp of the scores as they are, and half precision ends at 65504. How long may the vectors be
    before exp overflows, and how large their elements before the raw score itself does?

Prediction
    exp overflows float16 above ln 65520 = 11.1 and float32 above 88.7. Unscaled scores of standard deviation √d_k, 128
    to a row, get there from d_k = 16 and from d_k = 1024; divided by √d_k they have standard deviation 1, and never do.
    So for elements of size 1 the scale alone prevents it. It does not once the elements are larger: with both sides'
    standard deviation 2 float16 overflows again, with 6 float32. Subtracting the row's maximum cures exp at any size,
    as no exponent is then above 0; but it comes too late for a raw score beyond 65504, which is infinite by then, and
    so does a scale that follows the product. At d_k = 256 this takes elements of 30 to 40; with the scale within Q,
    or d_k^(−1/4) in Q and in K, four times as much.

Sources
    B17 (subtracting the maximum cures overflow, the scale the variance: both are needed) and B24 (after the subtraction
    no exponent is above 0). Such elements are not the rule, but reported: float16 attention overflowed because the
    scale came after QKᵀ (ultralytics PR 24990, mistral issue 66), and some keys have a bias of norm 600 to 900
    (llama.cpp issue 21385): 40 to 80 an element, spread over 128 or 256.

The curves are exact: given q, a row is normal with standard deviation c σ_k ‖q‖, and the law of ‖q‖ is known.
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

_SHARED: dict[str, Any] = {
    "name": "overflow",
    "trials": 500,
    "n_queries": 64,
    "n_keys": 128,
    "observables": ["numerics"],
}
_EXP_STDS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8]
_SCORE_STDS = [30, 35, 40, 50, 60, 80, 120, 160, 240, 320]

SWEEP = {
    "d_k": Sweep(
        d_k=[4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        scale=["none", "sqrt_dk", "dk"],
        vectors={"law": "gaussian"},
        **_SHARED,
    ),
    "std": Sweep(d_k=256, scale=["sqrt_dk"], vectors={"law": "gaussian", "std": [*_EXP_STDS, *_SCORE_STDS]}, **_SHARED),
}

# The smallest numbers that round to infinity.
LIMITS = {"float16": 65520.0, "float32": (2 - 2.0**-24) * 2.0**127}
_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_LOOKS = {"float16": 0, "float32": 1}


def _within(limit: float, d: int, std: float) -> tuple[np.ndarray, np.ndarray]:
    """Return limit / (standard deviation of a row) for both sides' `std`, over ‖q‖, and the weights of ‖q‖."""
    from sim.cell import Side
    from sim.theory.normal_rows import norm_law

    law = norm_law(Side(), d)
    assert law is not None  # it is known for Gaussian queries
    return limit / (std**2 * law.norms), law.weights


def exp_overflow(dtype: str, d: int, n: int, factor: float, std: float = 1.0) -> float:
    """Return the exact probability that exp overflows in a row of n Gaussian keys."""
    from scipy.special import log_ndtr

    reach, weights = _within(math.log(LIMITS[dtype]), d, std * math.sqrt(factor))
    return float(-np.expm1(n * log_ndtr(reach)) @ weights)


def score_overflow(dtype: str, d: int, std: float) -> float:
    """Return the exact probability that a raw score of Gaussian vectors overflows."""
    from scipy.special import ndtr

    reach, weights = _within(LIMITS[dtype], d, std)
    return float(2 * ndtr(-reach) @ weights)


def scale_first(dataset: Dataset) -> Dataset:
    """Return the rates of raw scores with d_k^(−1/4) in Q and in K: those of vectors that are so much smaller."""
    return dataset.assign_coords(std=dataset["std"] * dataset["d_k"].item() ** 0.25)


def _draw_lengths(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    n, lengths = dataset["n_keys"].item(), dataset["d_k"].values
    grid = np.unique(np.geomspace(lengths[0], lengths[-1], 100).astype(int))
    for dtype, first in _LOOKS.items():
        shape = figures.look(first)
        exact = [exp_overflow(dtype, int(d), n, 1.0) for d in grid]
        axes.plot(grid, exact, color=shape["color"], ls=shape["linestyle"], alpha=0.7)
        figures.points(axes, dataset, "exp_overflow_rate", first=first, theory=False, scale="none", dtype=dtype)
    figures.points(axes, dataset, "exp_overflow_rate", first=2, theory=False, scale="sqrt_dk", dtype="float16")
    axes.annotate("float16,\nnot scaled", (16, 0.5), (-26, 8), **_TEXT)
    axes.annotate("float32,\nnot scaled", (1024, 0.5), (-26, 8), **_TEXT)
    axes.annotate("divided by √$d_k$, float16: none", (128, 0), (0, -13), **_TEXT)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, lengths.astype(str), fontsize=9.5)
    axes.set(xlabel="vector length $d_k$, elements of standard deviation 1", ylabel="rows in which exp overflows  (%)")
    axes.set_title("Elements of size 1: the scale keeps exp finite")


def _draw_stds(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    d, n = dataset["d_k"].item(), dataset["n_keys"].item()
    grid = np.geomspace(1, 320, 200)
    root = d**0.25
    curves = {0: [exp_overflow("float16", d, n, d**-0.5, std) for std in grid]}
    curves[1] = [exp_overflow("float32", d, n, d**-0.5, std) for std in grid]
    curves[3] = [score_overflow("float16", d, std) for std in grid]
    curves[4] = [score_overflow("float16", d, std / root) for std in grid]
    for first, exact in curves.items():
        shape = figures.look(first)
        axes.plot(grid, exact, color=shape["color"], ls=shape["linestyle"], alpha=0.7)
    for dtype, first in _LOOKS.items():
        chosen: dict[str, Any] = {"scale": "sqrt_dk", "dtype": dtype}
        figures.points(
            axes, dataset.sel(std=_EXP_STDS), "exp_overflow_rate", x="std", first=first, theory=False, **chosen
        )
    raw = dataset.sel(std=_SCORE_STDS)
    for part, first in ((raw, 3), (scale_first(raw).sel(std=slice(320)), 4)):
        figures.points(axes, part, "score_overflow_rate", x="std", first=first, theory=False, dtype="float16")
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    words = {"exp,\nfloat16": (1.55, 0.55), "exp,\nfloat32": (4.2, 0.55), "raw score,\nfloat16": (42, 0.55)}
    words |= {"the same, scale\nbefore product": (124, 0.26)}
    words |= {"exp: cured by subtracting the maximum": (3.4, 1.09), "raw score: infinite before that": (100, 1.09)}
    for text, at in words.items():
        axes.annotate(text, at, (0, 0), **_TEXT)
    axes.set(
        xlabel="standard deviation of the elements of Q and of K", ylabel="rows (exp) or raw scores that overflow  (%)"
    )
    axes.set_title(f"Larger elements: it does not ($d_k$ = {d}, divided by √$d_k$)")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the overflow of exp over d_k, and that of exp and of raw scores over the elements' size."""
    from sim import figures

    drawing, axes = figures.new(1, 2, width=13.5, height=4.8, width_ratios=[1, 1.4])
    _draw_lengths(axes[0], datasets["d_k"])
    _draw_stds(axes[1], datasets["std"])
    for one in axes:
        figures.percent(one, -0.1, 1.15)
    title = (
        "The scale keeps exp finite while elements are small; large ones overflow float16 before any scale is applied"
    )
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["std"])
    return drawing
