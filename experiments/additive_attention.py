"""Does additive attention need no scale because tanh is bounded, and what does it cost?

Question
    An additive score is vᵀ tanh(W_q q + W_k k): d_a units, W_q and W_k as Xavier's rule draws them, v with independent
    normal elements of standard deviation v_std. How large do such scores get beside q·k, do rows saturate, and how long
    does a matrix of them take?

Prediction
    tanh bounds each unit, not their sum: the variance is d_a v_std² E tanh²(z). It does not grow with d_k once the
    units are fixed, nor with the size of q and k beyond a unit's saturation, and there the argument holds. But with
    v_std = 1 it grows like the number of units, just as that of q·k grows like d_k: with d_a = d_k the scores' standard
    deviation is 0.72 √d_k, and unscaled rows saturate too, if later: half of the variance is the query's own, and the
    same for all keys. What keeps additive scores small is v: with a variance of about 1 / d_a, as initialisations give
    it, the division by √d_a is there already, hidden in the parameters. As for time, n² d_a values of tanh take the
    place of one product of matrices.

Sources
    B11 (no scale is needed, because tanh is bounded), B13 (dot products are chosen for speed: one matrix product) and
    C10 (dot-product scores need no parameters, additive ones need matrices and a tanh). Bahdanau et al. (2015);
    Vaswani et al. (2017), who note that additive attention does better than unscaled dot products at large d_k.

Spreads are exact (a row's own by a limit), the largest weights of additive scores drawn beside those of normal rows of
the same spread. Times are one thread's, of the same Q, K and parameters, interleaved; they differ between machines.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import Sweep, run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

SIZES = [16, 64, 256, 1024]


def _numpy(n: int, size: int) -> dict[str, Callable[[], int]]:
    """Return what makes n × n scores of given vectors in NumPy, tanh a row at a time, and says how many matrices."""
    random = np.random.default_rng(0)
    # Of the queries and keys as they enter: for additive scores W_q q and W_k k, for dot products their projections.
    Q, K = (random.standard_normal((n, size), np.float32) for _ in range(2))
    v = random.standard_normal(size, np.float32)

    def dot() -> int:
        often = 10_000 // size  # one alone is over too soon to be timed
        for _ in range(often):
            Q @ K.T
        return often

    def additive() -> int:
        for q in Q:
            np.tanh(q + K) @ v
        return 1

    return {"dot": dot, "additive": additive}


def _engine(n: int, size: int, work: int) -> dict[str, Callable[[], int]]:
    """Return what draws and measures scores by the compiled engine, and says how many matrices it made."""
    scores = {"dot": "dot", "additive": {"kind": "additive", "units": size}}
    # Enough matrices that what a run costs beside them does not count.
    trials = {"dot": max(2, 60_000 // work // size), "additive": max(2, 6_000 // work // size)}
    shared: dict[str, Any] = {"d_k": size, "n_tokens": n, "scale": ["none"], "observables": ["scores"]}
    sweeps = {kind: Sweep(score=score, trials=trials[kind], **shared) for kind, score in scores.items()}

    def simulate(kind: str) -> int:
        run(sweeps[kind], threads=1)
        return trials[kind]

    return {kind: partial(simulate, kind) for kind in scores}


def times(quick: bool) -> Dataset:
    """Return the seconds of a matrix of 128 × 128 scores, dot and additive in turns, and the ratio of each turn."""
    import xarray as xr
    from threadpoolctl import threadpool_limits

    from sim.dataset import versions

    n, repeats, work = 128, (3 if quick else 5), (10 if quick else 1)
    kinds = ["dot", "additive"]
    seconds = np.empty((2, len(kinds), len(SIZES), repeats))
    with threadpool_limits(1):
        for i, size in enumerate(SIZES):
            for j, ways in enumerate((_numpy(n, size), _engine(n, size, work))):
                for kind in kinds:  # whatever is prepared once
                    ways[kind]()
                for repeat, (k, kind) in product(range(repeats), enumerate(kinds)):
                    start = clock.perf_counter()
                    made = ways[kind]()
                    seconds[j, k, i, repeat] = (clock.perf_counter() - start) / made
    dims = ("implementation", "score", "size", "repeat")
    attrs = {"title": "additive_attention: times of score matrices", **versions()}
    coords = {"implementation": ["NumPy", "engine"], "score": kinds, "size": SIZES, "n_tokens": n}
    found = xr.Dataset({"seconds": (dims, seconds, {"units": "s"})}, coords, attrs)
    return found.assign(
        ratio=found["seconds"].sel(score="additive", drop=True) / found["seconds"].sel(score="dot", drop=True)
    )


_SHARED: dict[str, Any] = {
    "name": "additive_attention",
    "trials": 200,
    "n_queries": 32,
    "n_keys": 128,
    "observables": ["scores", "weights"],
    "threshold": [0.9],
}


def _additive(d_k: Any, units: int) -> Sweep:
    return Sweep(d_k=d_k, scale=["none", units**-0.5], score={"kind": "additive", "units": units}, **_SHARED)


SWEEP = {
    "fixed": _additive(SIZES, 64),
    **{f"units_{size}": _additive(size, size) for size in SIZES if size != 64},
    "dot": Sweep(d_k=SIZES, scale=["none", "sqrt_dk"], **_SHARED),
    "time": times,
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_DOT, _ADDITIVE, _FIXED = 0, 4, 2  # looks


def as_many_units(datasets: Mapping[str, Dataset], normalized: bool = False) -> Dataset:
    """Return the cells with units = d_k, along `d_k`: with v_std = 1, or 1 / √units, which is the same as a scale."""
    import xarray as xr

    parts = [datasets["fixed"].sel(d_k=64), *(part for name, part in datasets.items() if name.startswith("units"))]
    names = ["groups", *(name for name in parts[0] if str(name).startswith(("score_std", "score_row", "weight_max")))]
    plain = [part[names].isel(scale=int(normalized)).drop_vars(["scale", "score"]) for part in parts]
    return xr.concat(plain, "d_k", coords="minimal", compat="override").sortby("d_k")


def with_normal_rows(dataset: Dataset) -> Dataset:
    """Add the largest weight of normal rows with the limiting variance within a row, as `weight_max_limit`."""
    from sim.theory.normal_rows import normal_rows
    from sim.theory.row_integrals import RowIntegrals

    sigma = np.sqrt(dataset["score_row_variance_limit"])
    largest = RowIntegrals(*normal_rows(sigma.values, dataset["n_keys"].item())).weight_max
    return dataset.assign(weight_max_limit=(sigma.dims, largest))


def _sizes(axes: Axes, words: str) -> None:
    axes.set_xscale("log", base=4)
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    axes.set(xlabel=words, xlim=(11, 1500))


def _draw_spread(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    from sim import figures

    dot = datasets["dot"]
    parts = {
        "raw": (as_many_units(datasets), _ADDITIVE),
        "small": (as_many_units(datasets, True), _ADDITIVE),
        "fixed": (datasets["fixed"].sel(scale="none"), _FIXED),
        "dot": (dot.sel(scale="none"), _DOT),
        "scaled": (dot.sel(scale="sqrt_dk"), _DOT),
    }
    for name, (part, first) in parts.items():
        figures.points(axes, part, "score_std", first=first)
        if name in ("small", "scaled"):
            axes.containers[-1][0].set_markerfacecolor("white")
    words = {
        "dot": ("q·k", 256, (-14, 10)),
        "raw": ("additive, $d_k$ units", 32, (30, -16)),
        "fixed": ("additive, 64 units", 512, (-6, -12)),
        "scaled": ("q·k / √$d_k$", 256, (0, 11)),
        "small": ("additive, v of variance 1/units", 128, (0, -12)),
    }
    for name, (text, at, aside) in words.items():
        value = parts[name][0]["score_std_theory"].interp(d_k=at).item()
        axes.annotate(text, (at, value), aside, **_TEXT)
    _sizes(axes, "vector length $d_k$")
    axes.set(yscale="log", ylabel="standard deviation of the scores", ylim=(0.4, 45))
    axes.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_title("tanh bounds a unit, not the sum of many")


def _draw_weights(axes: Axes, datasets: Mapping[str, Dataset]) -> None:
    from sim import figures

    dot = datasets["dot"]
    for rule in ("none", "sqrt_dk"):
        figures.points(axes, dot, "weight_max", first=_DOT, scale=rule)
        if rule != "none":
            axes.containers[-1][0].set_markerfacecolor("white")
    for normalized in (False, True):
        part = with_normal_rows(as_many_units(datasets, normalized))
        figures.points(axes, part, "weight_max", first=_ADDITIVE, theory=False)
        axes.plot(part["d_k"], part["weight_max_limit"], color=figures.look(_ADDITIVE)["color"], ls="--", alpha=0.7)
        if normalized:
            axes.containers[-1][0].set_markerfacecolor("white")
    axes.annotate("q·k", (64, dot["weight_max"].sel(d_k=64, scale="none").item()), (-14, 10), **_TEXT)
    axes.annotate("additive, v of\nvariance 1 (dashed:\nnormal rows)", (256, 0.58), (22, -32), **_TEXT)
    axes.annotate("both divided by the\nroot of their size", (128, 0.1), (0, 14), **_TEXT)
    _sizes(axes, "$d_k$, and as many units")
    axes.set(ylabel="largest weight of a row  (%)")
    figures.percent(axes)
    axes.set_title("So unscaled rows saturate as well")


def _draw_times(axes: Axes, dataset: Dataset) -> None:
    """Draw the ratios of times: the median of the turns, and their quartiles."""
    from sim import figures

    looks = {"NumPy": ("NumPy, scores alone", 3, 250), "engine": ("this engine,\ndraws and moments included", 5, 3)}
    for name, (words, first, height) in looks.items():
        ratio = dataset["ratio"].sel(implementation=name)
        middle = ratio.median("repeat")
        ends = np.abs(ratio.quantile([0.25, 0.75], "repeat") - middle)
        shape = figures.look(first)
        axes.errorbar(ratio["size"], middle, yerr=ends, color=shape["color"], marker=shape["marker"], lw=1)
        axes.annotate(words, (128, height), (0, 0), **_TEXT)
    axes.axhline(1, color="black", lw=1, ls=":")
    axes.annotate("as long", (16, 1), (6, 8), **_TEXT)
    axes.annotate("bars: quartiles of the turns", (1400, 1), (-2, -9), fontsize=8, **{**_TEXT, "ha": "right"})
    _sizes(axes, "$d_k$, and as many units")
    axes.set(yscale="log", ylabel="time of additive scores / of q·k", ylim=(0.6, 1500))
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    medians = dataset["ratio"].median("repeat")
    axes.set_title(f"{medians.min().item():.0f} to {medians.max().item():.0f} times as slow as one product")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the scores' spread and the largest weight over the size, and the ratio of the times."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_spread(axes[0], datasets)
    _draw_weights(axes[1], datasets)
    _draw_times(axes[2], datasets["time"])
    title = "Additive scores grow with their units as q·k does with $d_k$: it is a small v that scales them, not tanh"
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["fixed"])
    return drawing
