"""How far does a walk of n steps of ±1 get, and how often does it end where?

Question
    The dot product of two vectors of random signs is a walk of d_k steps of ±1. Where does it end?

Prediction
    At 2b − n with probability C(n, b) / 2ⁿ: after 4 steps at −4, −2, 0, 2, 4 in 1, 4, 6, 4 and 1 sixteenths of
    the walks. The root mean square distance from the start is √n, since n independent steps of variance 1 sum to
    variance n: 2 after 4 steps, 8 after 64. The bound is n, and hardly any walk comes near it.

Sources
    A3 (four steps: the sixteenths, variance 4, standard deviation 2), A7 (variance n), A12 (64 steps: 64 at most,
    8 typically), and A18 (dot product and walk are one structure).

All walks of a trial share its 8 queries and 8 keys. Any two are independent, the whole set is not: the error
bars come from whole groups of trials. The mean being 0, the root mean square is the standard deviation.
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
    name="random_walk",
    trials=1000,
    n_tokens=8,
    d_k=[4, 8, 16, 32, 64],
    scale=["none"],
    vectors={"law": "rademacher"},
    observables=["scores", "distribution"],
    # An even number of steps ends at an even sum: each has the middle of a bin to itself.
    histogram={"low": -65, "high": 65, "bins": 65},
)


def end_points(dataset: Dataset, steps: int) -> Dataset:
    """Return the measured and exact share of the walks at each possible end, along the dimension `end`."""
    names = ["score_histogram", "score_histogram_se", "score_histogram_theory", "groups"]
    walk = dataset.sel(d_k=steps, scale="none")
    edges = walk["score_bin_edge"].values
    shares = walk[names].isel(bin=slice(1, -1))  # without the open ends
    shares = shares.rename(bin="end").assign_coords(end=(edges[1:] + edges[:-1]) / 2)
    return shares.sel(end=slice(-steps, steps))


def _draw_ends(axes: Axes, dataset: Dataset, steps: int) -> None:
    from sim import figures

    ends = end_points(dataset, steps)
    exact = ends["score_histogram_theory"]
    axes.bar(exact["end"], exact, width=1.5, color="#d0d0d0", edgecolor="#909090", lw=0.6, label="exact")
    # Ends that no walk reached are left out: next to the others, their bars would only be clutter at the foot.
    reached = ends.isel(end=np.flatnonzero(ends["score_histogram"].values))
    figures.points(axes, reached, "score_histogram", x="end", theory=False, label="measured")
    axes.set(xlabel=f"sum of {steps} steps", ylabel="share of the walks")
    axes.grid(axis="x", visible=False)


def _draw_four(axes: Axes, dataset: Dataset) -> None:
    _draw_ends(axes, dataset, 4)
    axes.set_title("4 steps: 1, 4, 6, 4, 1 sixteenths")
    axes.set(ylim=(0, 7.3 / 16), xticks=range(-4, 5, 2))
    axes.set_yticks([count / 16 for count in (0, 1, 4, 6)], ["0", "1/16", "4/16", "6/16"])
    axes.legend(loc="upper right", borderaxespad=0)


def _draw_sixty_four(axes: Axes, dataset: Dataset) -> None:
    _draw_ends(axes, dataset, 64)
    axes.set_title("64 steps: three in four end within ±8")
    axes.axvspan(-8, 8, color="#E69F00", alpha=0.25, lw=0, zorder=0)
    text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5}
    axes.text(0, 0.121, "±1 std", **text)
    for side in (-1, 1):
        axes.axvline(64 * side, color="black", lw=1.2, ls=":")
        axes.text(57.5 * side, 0.06, f"{64 * side:+d} at most".replace("-", "−"), rotation=90, **text)
    walk = dataset.sel(d_k=64, scale="none")
    furthest = max(walk["score_min"].item(), walk["score_max"].item(), key=abs)
    walks = (walk["trials"] * walk["n_tokens"] ** 2).item()
    seen = f"furthest of\n{walks:,} walks:\n{furthest:.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", "−")
    arrow = {"arrowstyle": "->", "lw": 1, "shrinkB": 4}
    axes.annotate(seen, (furthest, 0.0005), (33 if furthest > 0 else -33, 0.055), arrowprops=arrow, **text)
    axes.set(xlim=(-70, 70), ylim=(0, 0.127), xticks=[-64, -32, -8, 8, 32, 64])


def _draw_growth(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    steps = dataset["d_k"].values
    axes.plot(steps, steps, color="black", ls=":", lw=1.2)
    figures.points(axes, dataset, "score_std", scale="none", label="measured")
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9.5}
    axes.annotate("bound: n", (16, 16), (-8, 8), ha="right", **text)
    axes.annotate("exact: √n", (16, 4), (8, -16), **text)
    for n in (4, 64):
        root = dataset["score_std"].sel(d_k=n, scale="none").item()
        axes.annotate(f"{root:.2f}", (n, root), (0, 9), ha="center", fontweight="bold", **text)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(steps, map(str, steps))
    axes.set_yticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
    axes.set(xlim=(2.9, 88), xlabel="steps n", ylabel="root mean square of the sum")
    axes.set_title("The spread grows like √n")


def figure(dataset: Dataset) -> Figure:
    """Draw the ends of walks of 4 and of 64 steps, and how the spread grows with the steps."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=12, height=4.4, width_ratios=[3.4, 5, 3.2])
    _draw_four(axes[0], dataset)
    _draw_sixty_four(axes[1], dataset)
    _draw_growth(axes[2], dataset)
    drawing.suptitle("A walk of 64 random steps of ±1 ends about 8 from its start, not 64", x=0.01, ha="left")
    figures.stamp(drawing, dataset)
    return drawing
