"""What does half precision lose, and which of the two cures reaches it: subtracting the maximum, or the scale?

Question
    Attention in float16 and bfloat16, as hardware computes it: Q, K, the raw scores, the scaled scores and the weights
    are rounded, sums are taken in float32, and each row's maximum is subtracted before exp. When does a score become
    infinite all the same, and does it help to scale Q, or Q and K by d_k^(−1/4) each, before the product? When are
    weights, and whole Jacobians, exactly 0? And what becomes of a row whose scores are all large?

Prediction
    A raw score of 65520 and more is infinite in float16, and no maximum can be subtracted from it: at d_k = 256 rows
    are lost from elements of standard deviation 30 on. A scale that comes before the product puts that off to √√d_k =
    4 times as large elements, in Q alone or d_k^(−1/4) on both sides alike: the products are the same. bfloat16 has the
    range of float32, and loses no row.
    Weights below 2^−25 are 0 in float16. Unscaled scores spread by √d_k, so that nearly all weights get there, and
    where the two largest scores are more than 17 apart the row's whole Jacobian is 0: in half of the rows at d_k =
    4096. There the gradient does vanish, and a larger loss scale does not bring it back. In bfloat16 weights vanish
    below 2^−134, 93 apart: most weights at that length, and one Jacobian in a hundred. The scale cures that;
    subtracting the maximum does not.
    Neither cures what a large common part does. A mean of the keys adds the same to all scores of a row, which softmax
    does not see; but rounded to steps of 2^−10 (float16) or 2^−7 (bfloat16) of it, the scores' differences drown. The
    rounding adds step²/12 to the variance within a row while the step is not far above the spread: around 32 000
    bfloat16 has added four times what was there. float16 is finer, and infinite soon after.

Sources
    B17 (subtracting the maximum cures overflow, the scale variance and gradients: both are needed), B24 (no exponent
    above 0). Public reports: is d_k^(−1/4) on both sides the same as d_k^(−1/2) on the product (guided-diffusion
    issue 38)? float16 overflowed as the scale came after QKᵀ (ultralytics PR 24990, mistral issue 66); keys with a
    common bias of norm 600 to 900 (llama.cpp issue 21385). The curves of lost rows and of zero Jacobians are exact but
    for the rounding of single scores: given q a row is normal with standard deviation σ_k ‖q‖, whose law is known.
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

_SHARED: dict[str, Any] = {"name": "low_precision", "n_queries": 64, "n_keys": 128}
_LARGE: dict[str, Any] = {"d_k": 256, "scale": ["sqrt_dk"], "observables": ["numerics"], "trials": 150, **_SHARED}
_STDS = [20, 28, 32, 36, 40, 48, 64, 90, 112, 128, 144, 160, 192, 320]

SWEEP = {
    "std": Sweep(
        precision="float16", scale_at=["scores", "query", "both"], vectors={"law": "gaussian", "std": _STDS}, **_LARGE
    ),
    "bfloat16": Sweep(precision="bfloat16", vectors={"law": "gaussian", "std": [20, 64, 112, 320]}, **_LARGE),
    "d_k": Sweep(
        d_k=[4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        precision=["float16", "bfloat16"],
        scale=["none", "sqrt_dk"],
        vectors={"law": "gaussian"},
        observables=["numerics"],
        trials=150,
        **_SHARED,
    ),
    "key_mean": Sweep(
        d_k=256,
        precision=["float32", "float16", "bfloat16"],
        scale=["sqrt_dk"],
        query={"law": "gaussian", "mean": 1.0},
        key={"law": "gaussian", "mean": [0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256]},
        observables=["scores", "weights", "numerics"],
        trials=100,
        **_SHARED,
    ),
}

INFINITE = 65520.0  # the smallest number that rounds to infinity in float16
SMALLEST = {"float16": -25, "bfloat16": -134}  # weights below this power of two are 0
_BITS = {"float16": 11, "bfloat16": 8}  # of a significand, the leading one included
_LOOKS = {"float16": 0, "bfloat16": 4, "float32": 2}
_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}


def _row_law(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values of ‖q‖ and their weights, of q of elements of size 1."""
    from sim.cell import Side
    from sim.theory.norm_laws import norm_law

    law = norm_law(Side(), d)
    assert law is not None  # it is known for Gaussian queries
    return law.norms, law.weights


def lost_rows(d: int, n: int, std: float) -> float:
    """Return the probability that one of a row's n raw scores is infinite in float16."""
    from scipy.special import log_ndtr

    norms, weights = _row_law(d)
    inside = np.log1p(-2 * np.exp(log_ndtr(-INFINITE / (std**2 * norms))))
    return float(-np.expm1(n * inside) @ weights)


def zero_jacobians(precision: str, d: int, n: int) -> float:
    """Return the probability that the largest of a row's n raw scores is so far above all others that these weigh 0.

    n ∫ φ(z) Φ(z − g / σ)^(n−1) dz, averaged over σ = ‖q‖, with e^−g the smallest weight that is not 0.
    """
    from scipy.special import log_ndtr

    norms, weights = _row_law(d)
    z = np.linspace(-9, 40, 4901)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    apart = -SMALLEST[precision] * math.log(2)
    others = np.exp((n - 1) * log_ndtr(z[:, None] - apart / norms))
    return float(n * (z[1] - z[0]) * density @ others @ weights)


def rounding_noise(step: np.ndarray, spread: float) -> np.ndarray:
    """Return what rounding to multiples of `step` adds to the variance of normal numbers of deviation `spread`.

    Of two numbers that differ by δ steps, at any place between two multiples, the rounded ones differ by the two whole
    numbers about δ, in the mean by δ, and in the mean square by δ² + f(1 − f), f = δ − ⌊δ⌋. Half of E f(1 − f), δ being
    normal of variance 2 spread² / step², is in Fourier's series

        1/12 − Σ_k exp(−4π² k² spread² / step²) / (2π² k²):

    step²/12 (Sheppard 1898) for steps below the spread, and step · spread / √π for steps far above it.
    """
    k = np.arange(1, 2001)
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.where(step > 0, spread / step, np.inf)
    series = np.exp(-4 * np.pi**2 * np.multiply.outer(ratio, k) ** 2) / (2 * np.pi**2 * k**2)
    return step**2 * (1 / 12 - series.sum(axis=-1))


def rounded_variance(dataset: Dataset, precision: str, sizes: np.ndarray) -> np.ndarray:
    """Return the variance within a row of scaled scores about `sizes`, numbers of raw scores, when these are rounded.

    What a row has in common is d_k μ_q μ_k in the mean, and has the standard deviation √d_k σ_q μ_k.
    """
    d, exact = dataset["d_k"].item(), dataset["score_row_variance_theory"]
    spread = math.sqrt(exact.sel(precision="float32", scale="sqrt_dk", key_mean=0).item() * d)
    z = np.linspace(-4, 4, 401)
    share = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    common = np.abs(sizes[:, None] * (1 + z / (math.sqrt(d) * dataset["query_mean"].item())))
    steps, place = np.unique(np.floor(np.log2(np.maximum(common, 1e-3))), return_inverse=True)
    noise = rounding_noise(2.0 ** (steps + 1 - _BITS[precision]), spread)
    return (spread**2 + noise[place.reshape(common.shape)] @ share) / d


def _draw_stds(axes: Axes, half: Dataset, brain: Dataset) -> None:
    from sim import figures

    d, n = half["d_k"].item(), half["n_keys"].item()
    grid = np.geomspace(20, 320, 200)
    for by, first in ((1.0, 0), (d**0.25, 1)):
        shape = figures.look(first)
        axes.plot(grid, [lost_rows(d, n, std / by) for std in grid], color=shape["color"], ls=shape["linestyle"])
    rate: dict[str, Any] = {"x": "std", "theory": False, "scale": "sqrt_dk"}
    for place, first in (("scores", 0), ("query", 1), ("both", 3)):
        figures.points(axes, half, "row_overflow_rate", first=first, scale_at=place, **rate)
    axes.containers[-1][0].set(markerfacecolor="none", markersize=10, markeredgewidth=1.4)
    figures.points(axes, brain, "row_overflow_rate", first=4, **rate)
    words = {"float16,\nscale\nafter QKᵀ": (29, 0.62), "scale before:\nin Q or, outlined,\nin Q and K": (88, 0.62)}
    words |= {"bfloat16: none": (242, 0.1)}
    for text, at in words.items():
        axes.annotate(text, at, (0, 0), **_TEXT)
    axes.set_xscale("log", base=2)
    axes.set_xticks([20, 40, 80, 160, 320], ["20", "40", "80", "160", "320"])
    axes.set(xlabel="standard deviation of the elements", ylabel="rows lost to an infinite score  (%)")
    figures.percent(axes, -0.14, 1.03)
    axes.set_title(f"Overflow: scale before QKᵀ ($d_k$ = {d})")


def _draw_zeros(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    n, lengths = dataset["n_keys"].item(), dataset["d_k"].values
    grid = np.unique(np.geomspace(lengths[0], lengths[-1], 60).astype(int))
    for precision, first in (("float16", 0), ("bfloat16", 4)):
        chosen: dict[str, Any] = {"precision": precision, "theory": False, "first": first}
        figures.points(axes, dataset, "jacobian_zero_rate", scale="none", **chosen)
        exact = [zero_jacobians(precision, int(d), n) for d in grid]
        axes.plot(grid, exact, color=figures.look(first)["color"], alpha=0.7)
        figures.points(axes, dataset, "weight_zero_rate", scale="none", joined=True, **chosen)
        axes.containers[-1][0].set_markerfacecolor("white")
    for variable in ("weight_zero_rate", "jacobian_zero_rate"):
        figures.points(axes, dataset, variable, first=1, scale="sqrt_dk", precision="float16", theory=False)
    words = {"float16:\nweights that\nare 0": (10, 0.62), "bfloat16:\nweights\nthat are 0": (340, 0.66)}
    words |= {"rows whose whole\nJacobian is 0": (120, 0.22), "bfloat16": (2300, 0.055)}
    words |= {"divided by √$d_k$: none": (32, -0.07)}
    for text, at in words.items():
        axes.annotate(text, at, (0, 0), **_TEXT)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, lengths.astype(str), fontsize=8.5)
    axes.set(xlabel="vector length $d_k$, elements of size 1", ylabel="share  (%)")
    figures.percent(axes, -0.14, 1.03)
    axes.set_title("Not scaled: weights and gradients of exactly 0")


def shifted(dataset: Dataset, precision: str) -> Dataset:
    """Return the part of a precision, over what the keys' mean adds to the scores; of float16 what is finite."""
    part = dataset.sel(precision=precision, scale="sqrt_dk")
    part = part.assign_coords(key_mean=part["d_k"].item() * part["query_mean"].item() * part["key_mean"])
    return part.sel(key_mean=slice(0, 50000)) if precision == "float16" else part


def _draw_shift(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    sizes = np.concatenate([[0.0], np.geomspace(64, 131072, 200)])
    for precision, first in _LOOKS.items():
        part, is_exact = shifted(dataset, precision), precision == "float32"
        figures.points(axes, part, "score_row_variance", x="key_mean", first=first, theory=is_exact)
        if not is_exact:
            inside = sizes <= part["key_mean"].values.max()
            variance = rounded_variance(dataset, precision, sizes[inside])
            axes.plot(sizes[inside], variance, color=figures.look(first)["color"], ls="--", alpha=0.7)
    axes.axvline(INFINITE, color="black", lw=1, ls=":")
    words = {"bfloat16": (9000, 7), "float16": (16000, 2.5), "float32: as if there\nwere no shift": (1700, 1.55)}
    for text, at in words.items():
        axes.annotate(text, at, (0, 0), **_TEXT)
    axes.annotate("float16: infinite from here on", (INFINITE, 4.5), (10, 0), rotation=90, **_TEXT)
    axes.set_xscale("symlog", base=2, linthresh=256, linscale=0.8)
    axes.set_xticks([0, 256, 1024, 4096, 16384, 65536], ["0", "256", "1024", "4096", "16 384", "65 536"], fontsize=9)
    axes.minorticks_off()
    axes.set(yscale="log", ylim=(1.3, 30), xlim=(-40, 110000))
    axes.set_yticks([2, 5, 10, 20], ["2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set(xlabel="what the keys' mean adds to all scores of a row", ylabel="variance within a row")
    axes.set_title("A common shift: bfloat16 drowns the row")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw lost rows over the elements' size, zeros over d_k, and what is left of a row under a common shift."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_stds(axes[0], datasets["std"], datasets["bfloat16"])
    _draw_zeros(axes[1], datasets["d_k"])
    _draw_shift(axes[2], datasets["key_mean"])
    title = "Half precision needs the scale before the product: subtracting the maximum restores no score, no gradient"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["d_k"])
    return drawing
