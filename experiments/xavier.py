"""Does Xavier's initialisation give scores of variance 1, and keep the variance of a layer both ways?

Question
    Queries and keys are projected from tokens of width d_model, by matrices as eight initialisations draw them. What is
    the variance of the scores divided by √d_k? And what does a layer y = W x do to the variance of x, and to that of
    the gradient which comes back through it?

Prediction
    An element of W x has variance n_in σ_W², an element of Wᵀ g n_out σ_W². With Xavier's σ_W² = 2 / (n_in + n_out)
    they are 2 n_in / (n_in + n_out) and 2 n_out / (n_in + n_out): both are 1 only where n_in = n_out, else one grows
    by what the other loses. A score of projected queries and keys has variance d_k (d_model σ_W²)², whatever the
    law of the weights, so that after division by √d_k Xavier leaves (2 d_model / (d_model + d_k))²: 1 for d_k =
    d_model, 3.16 for one head of 64 out of 512. One matrix for Q, K and V makes it 1/4, PyTorch's Linear 1/9, He 4,
    and GPT-2's constant 0.02 lets it grow with the model's width. σ_W² = 1 / n_in (LeCun) gives 1 for every
    head, and T5, which folds the scale into W_Q, has 1 without any.

Sources
    B10 (y = W x keeps the variance of x; √d_k follows the same logic) and B21 (forward the variance, backward that of
    the gradients), both after Glorot and Bengio (2010), whose compromise holds in square layers.
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

INITS = ["xavier_uniform", "xavier_normal", "he", "lecun", "torch_linear", "gpt2", "fused_xavier", "t5"]


def layer(quick: bool) -> Dataset:
    """Return the variances of y = W x and of ∂L/∂x = Wᵀ ∂L/∂y, for standard normal x and ∂L/∂y.

    Each draw of W is a replicate, with 32 x and 32 gradients of its own.
    """
    import xarray as xr

    from sim.dataset import versions
    from sim.structure import INITS as KINDS

    draws, batch, n_in = (8 if quick else 30), 32, 512
    lengths = [64, 128, 256, 512, 1024, 2048, 4096]
    inits = ["xavier_uniform", "lecun"]
    random = np.random.default_rng(0)
    found = np.empty((2, len(inits), len(lengths), draws))
    theory = np.empty((2, len(inits), len(lengths)))
    for i, j in np.ndindex(len(inits), len(lengths)):
        std, n_out = KINDS[inits[i]].std("query", n_in, lengths[j]), lengths[j]
        theory[:, i, j] = n_in * std**2, n_out * std**2
        for draw in range(draws):
            # The law of a weight does not matter, its variance does: the uniform law for both.
            W = (12**0.5 * std) * (random.random((n_out, n_in), np.float32) - np.float32(0.5))
            x, g = (random.standard_normal((batch, n), np.float32) for n in (n_in, n_out))
            found[:, i, j, draw] = np.mean((x @ W.T) ** 2), np.mean((g @ W) ** 2)
    dims = ("init", "n_out")
    values: dict[str, Any] = {"groups": draws}
    for name, each, exact in zip(("forward_variance", "backward_variance"), found, theory, strict=True):
        values[name] = (dims, each.mean(axis=-1))
        values[f"{name}_se"] = (dims, each.std(axis=-1, ddof=1) / draws**0.5)
        values[f"{name}_theory"] = (dims, exact)
    coords = {"init": inits, "n_out": lengths, "n_in": n_in, "seed": 0}
    return xr.Dataset(values, coords, {"title": "xavier: variances through one layer", **versions()})


_SHARED: dict[str, Any] = {
    "name": "xavier",
    "trials": 200,
    "n_tokens": 16,
    "scale": ["none", "sqrt_dk"],
    "observables": ["scores"],
}

SWEEP = {
    "heads": Sweep(d_k=[8, 16, 32, 64, 128, 256, 512], projection={"init": INITS, "d_model": 512}, **_SHARED),
    **{f"square_{d}": Sweep(d_k=d, projection={"init": INITS, "d_model": d}, **_SHARED) for d in (64, 128, 256)},
    "layer": layer,
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
# Series that lie on one another are drawn apart: how many steps of a few per cent of d_k to the right.
_ASIDE = {"xavier_normal": 1, "t5": 1}
_LOOKS = {"he": 6, "xavier_uniform": 0, "xavier_normal": 5, "lecun": 2, "t5": 2, "fused_xavier": 1}
_LOOKS |= {"torch_linear": 4, "gpt2": 3}


def by_its_rule(dataset: Dataset) -> Dataset:
    """Return the variance as each initialisation means its scores to be scaled: T5's not at all, the others by √d_k."""
    import xarray as xr

    folded = dataset["projection_init"] == "t5"
    names = [f"score_variance{ending}" for ending in ("", "_se", "_theory")]
    chosen = {
        name: xr.where(folded, *(dataset[name].sel(scale=rule) for rule in ("none", "sqrt_dk"))) for name in names
    }
    return dataset[["groups"]].assign(chosen)


def squares(datasets: Mapping[str, Dataset]) -> Dataset:
    """Return the cells with d_model = d_k, along `d_k`, scaled as each initialisation means them to be."""
    import xarray as xr

    parts = [each for name, each in datasets.items() if name.startswith("square")]
    parts.append(datasets["heads"].sel(d_k=datasets["heads"]["projection_d_model"].item()))
    plain = [by_its_rule(part).drop_vars("projection_d_model") for part in parts]
    return xr.concat(plain, "d_k", coords="minimal", compat="override").sortby("d_k")


def _draw_inits(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    axes.axhline(1, color="black", lw=1, ls=":")
    for init, first in _LOOKS.items():
        part = dataset.sel(projection_init=init)
        part = part.assign_coords(d_k=part["d_k"] * 1.12 ** _ASIDE.get(init, 0))
        figures.points(axes, part, "score_variance", first=first)
        if init == "t5":
            axes.containers[-1][0].set_markerfacecolor("white")
    axes.set_xscale("log", base=2)
    axes.set_xticks(dataset["d_k"].values, dataset["d_k"].values.astype(str), fontsize=9.5)
    axes.minorticks_off()


def _name_inits(axes: Axes, dataset: Dataset, names: Mapping[str, tuple[str, int, int]]) -> None:
    """Write words beside an initialisation's points: at which d_k, and how many typographic points above."""
    for init, (words, d_k, above) in names.items():
        value = dataset["score_variance_theory"].sel(projection_init=init).interp(d_k=d_k).item()
        axes.annotate(words, (d_k, value), (0, above), **_TEXT)


def _draw_heads(axes: Axes, dataset: Dataset) -> None:
    _draw_inits(axes, dataset)
    names = {"he": ("He", 256, 11), "xavier_uniform": ("Xavier", 16, -14), "lecun": ("LeCun; T5, not scaled", 20, -13)}
    names |= {"fused_xavier": ("Xavier, Q, K, V at once", 190, 12), "torch_linear": ("PyTorch's Linear", 64, -13)}
    _name_inits(axes, dataset, names | {"gpt2": ("GPT-2: σ$_W$ = 0.02", 64, -14)})
    one = dataset["score_variance"].sel(d_k=64, projection_init="xavier_uniform").item()
    axes.annotate(f"{one:.2f}", (64, one), (2, -14), fontweight="bold", **_TEXT)
    axes.set(xlabel="length of a head $d_k$", ylabel="variance of the scores / √$d_k$", yscale="log", ylim=(4e-4, 9))
    axes.set_yticks([0.001, 0.01, 1 / 9, 1 / 4, 1, 4], ["0.001", "0.01", "1/9", "1/4", "1", "4"])
    axes.minorticks_off()
    axes.set_title("Heads of $d_{model}$ = 512: Xavier gives more")


def _draw_squares(axes: Axes, dataset: Dataset) -> None:
    _draw_inits(axes, dataset)
    axes.annotate("Xavier, LeCun; T5, not scaled", (181, 1), (0, 13), **_TEXT)
    axes.annotate("GPT-2's 0.02 grows\nwith the width", (300, 0.0017), (0, 0), **_TEXT)
    axes.set(xlabel="$d_k$ = $d_{model}$")
    axes.set_title("$d_k$ = $d_{model}$: Xavier gives 1")


def _draw_layer(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    n_in = dataset["n_in"].item()
    axes.axhline(1, color="black", lw=1, ls=":")
    for variable, first in (("forward_variance", 0), ("backward_variance", 4)):
        figures.points(axes, dataset, variable, x="n_out", first=first, init="xavier_uniform")
    figures.points(axes, dataset, "backward_variance", x="n_out", first=2, init="lecun")
    axes.containers[-1][0].set_markerfacecolor("white")
    head = dataset.sel(init="xavier_uniform", n_out=64)
    for variable, above in (("forward_variance", 12), ("backward_variance", 12)):
        axes.annotate(
            f"{head[variable].item():.2f}", (64, head[variable].item()), (6, above), fontweight="bold", **_TEXT
        )
    axes.annotate("Xavier, forward: y", (300, 1.9), (0, 0), **_TEXT)
    axes.annotate("Xavier,\nbackward:\n∂L/∂x", (88, 0.62), (0, 0), **_TEXT)
    axes.annotate("LeCun,\nbackward", (860, 4.6), (0, 0), **_TEXT)
    axes.set_xscale("log", base=2)
    lengths = dataset["n_out"].values
    axes.set_xticks(lengths, [f"1/{n_in // n}" if n < n_in else f"{n // n_in}" for n in lengths])
    axes.set(xlabel=f"n_out / n_in of y = W x, n_in = {n_in}", ylabel="variance, if 1 before the layer")
    axes.set(yscale="log", ylim=(0.1, 9))
    axes.set_yticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_title("One layer: both are kept only if square")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw the scores' variance over d_k, for one width and for d_k = d_model, and the variances through one layer."""
    from sim import figures

    drawing, axes = figures.new(1, 3, width=13.5, height=4.8, width_ratios=[1.15, 1, 1.1])
    axes[1].sharey(axes[0])
    _draw_heads(axes[0], by_its_rule(datasets["heads"]))
    _draw_squares(axes[1], squares(datasets))
    _draw_layer(axes[2], datasets["layer"])
    title = (
        "Xavier gives scores of variance 1 only if $d_k$ = $d_{model}$, and keeps both variances only in a square layer"
    )
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, datasets["heads"])
    return drawing
