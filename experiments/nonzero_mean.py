"""Which variance does softmax see when queries or keys do not have mean 0?

Question
    The usual argument takes elements of mean 0. Give all elements of the queries a mean μ_q, of the keys a mean μ_k:
    what becomes of the scores' variance, and what of the weights?

Prediction
    Over all scores the variance is d_k(1 + μ_q² + μ_k²): it grows with either mean, so that division by √d_k no
    longer gives 1. But a mean of the keys adds the same number, μ_k Σ_i q_i, to all scores of a row, and softmax does
    not see what a row has in common. Within a row the variance is d_k(1 + μ_q²), whatever μ_k: the keys' mean changes
    no weight, the queries' mean makes the weights sharper. And with both means the scores have the mean
    d_k μ_q μ_k, so that the mean square E s² is no longer the variance: its square must be subtracted.

    Rotary position embedding turns every key by its place before the product. What was the same number for all keys of
    a row then differs from key to key, and softmax sees it: the keys' mean widens the rows too, and sharpens the
    weights. It does less than the queries' mean, as the slow planes hardly turn and still add the same to all keys.

Sources
    A4 (Var Z = E Z² − (E Z)², equal to E Z² only for a mean of 0), B1 (mean 0, variance d_k, which assumes elements
    of mean 0) and C5 (softmax does not change when a constant is subtracted from the row). Variances are exact for
    every law, rotated ones too; the weights for Gaussian keys that are not rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

_SHARED: dict[str, Any] = {
    "name": "nonzero_mean",
    "trials": 1000,
    "n_queries": 64,
    "n_keys": 128,
    "d_k": 64,
    "scale": ["none", "sqrt_dk"],
    "observables": ["scores", "weights"],
}
_QUERY: dict[str, Any] = {"law": "gaussian", "mean": [0.0, 1.0]}
_KEY: dict[str, Any] = {"law": "gaussian", "mean": [0.0, 0.5, 1.0, 1.5, 2.0]}
_ROTATION = {"rotation": {"base": 10000}}

SWEEP = {
    "plain": Sweep(query=_QUERY, key=_KEY, **_SHARED),
    "rotated": Sweep(query=_QUERY | _ROTATION, key=_KEY | _ROTATION, **_SHARED),
}

_TEXT: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
_SCALED: dict[str, Any] = {"x": "key_mean", "scale": "sqrt_dk"}


def with_mean_square(dataset: Dataset) -> Dataset:
    """Add E s² = Var s + (E s)²; its error is at most the sum of theirs, however the two are correlated."""
    variance, mean = dataset["score_variance"], dataset["score_mean"]
    return dataset.assign(
        score_mean_square=variance + mean**2,
        score_mean_square_se=dataset["score_variance_se"] + 2 * abs(mean) * dataset["score_mean_se"],
        score_mean_square_theory=dataset["score_variance_theory"] + dataset["score_mean_theory"] ** 2,
    )


def _beside(axes: Axes, words: str, at: tuple[float, Any], aside: tuple[int, int], **look: Any) -> None:
    axes.annotate(words, (at[0], at[1].item()), aside, **{**_TEXT, **look})


def _keys(axes: Axes, dataset: Dataset) -> None:
    means = dataset["key_mean"].values
    axes.set_xticks(means, [f"{mean:g}" for mean in means])
    axes.set_xlabel("mean of the keys' elements μ$_k$")


def _draw_variances(axes: Axes, plain: Dataset, rotated: Dataset) -> None:
    from sim import figures

    for index, mean in enumerate(plain["query_mean"].values):
        for variable in ("score_variance", "score_row_variance"):
            figures.points(axes, plain, variable, first=index, query_mean=mean, **_SCALED)
        axes.containers[-1][0].set_markerfacecolor("white")  # filled: over all scores
    figures.points(axes, rotated, "score_row_variance", first=4, query_mean=0, **_SCALED)
    axes.containers[-1][0].set_markerfacecolor("white")
    pooled, row = (plain[name].sel(scale="sqrt_dk") for name in ("score_variance", "score_row_variance"))
    turned = rotated["score_row_variance"].sel(scale="sqrt_dk")
    _beside(axes, "over all scores\n1 + μ$_q$² + μ$_k$²", (1.5, pooled.sel(key_mean=1.5, query_mean=1)), (-58, 18))
    _beside(axes, "within a row: 1 + μ$_q$²", (2, row.sel(key_mean=2, query_mean=0)), (4, -14), ha="right")
    _beside(
        axes, "within a row\nif rotated, μ$_q$ = 0", (2, turned.sel(key_mean=1.5, query_mean=0)), (4, -22), ha="right"
    )
    for mean in (0, 1):
        at = row.sel(key_mean=0, query_mean=mean)
        _beside(axes, f"μ$_q$ = {mean}", (0, at), (-2, 14), ha="left")
    _keys(axes, plain)
    axes.set(ylabel="variance, scores divided by √$d_k$", ylim=(0, 6.6))
    axes.set_title("The keys' mean widens no row, unless rotated")


def _draw_weights(axes: Axes, plain: Dataset, rotated: Dataset) -> None:
    from sim import figures

    for index, mean in enumerate(plain["query_mean"].values):
        figures.points(axes, plain, "weight_max", first=index, query_mean=mean, **_SCALED)
        options: dict[str, Any] = {"first": (4, 3)[index], "query_mean": mean, "theory": False, "joined": True}
        figures.points(axes, rotated, "weight_max", **options, **_SCALED)
        axes.containers[-1][0].set_markerfacecolor("white")
    largest, turned = (part["weight_max"].sel(scale="sqrt_dk") for part in (plain, rotated))
    _beside(axes, "rotated, μ$_q$ = 1", (1, turned.sel(key_mean=1, query_mean=1)), (-46, 12))
    _beside(axes, "rotated, μ$_q$ = 0", (2, turned.sel(key_mean=2, query_mean=0)), (6, 14), ha="right")
    for mean, aside in ((0, -13), (1, 13)):
        at = largest.sel(key_mean=1, query_mean=mean)
        _beside(axes, f"not rotated, μ$_q$ = {mean}", (1, at), (0, aside))
    _keys(axes, plain)
    axes.set(ylabel="largest weight of a row", ylim=(0, 0.5))
    axes.set_title("Weights see the keys' mean only if rotated")


def _draw_mean_square(axes: Axes, dataset: Dataset) -> None:
    from sim import figures

    series = {"score_mean_square": 2, "score_variance": 1}
    for variable, first in series.items():
        figures.points(axes, dataset, variable, first=first, query_mean=1, **_SCALED)
    one = dataset.sel(scale="sqrt_dk", query_mean=1)
    _beside(axes, "mean square E s²", (1, one["score_mean_square"].sel(key_mean=1)), (-46, 12))
    _beside(axes, "variance E s² − (E s)²", (1.5, one["score_variance"].sel(key_mean=1.5)), (0, -18))
    at = one["score_mean"].sel(key_mean=2)
    axes.annotate(f"E s = {at.item():.1f}", (2, one["score_mean_square"].sel(key_mean=2).item()), (-30, 12), **_TEXT)
    axes.annotate("E s = 0: equal", (0, 2), (4, -18), **{**_TEXT, "ha": "left"})
    _keys(axes, dataset)
    axes.set(yscale="log", ylim=(1, 600), ylabel="scores divided by √$d_k$")
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.set_title("At μ$_q$ = 1, E s² is not the variance")


def figure(datasets: Mapping[str, Dataset]) -> Figure:
    """Draw both variances, the largest weight, and the mean square, over the keys' mean."""
    from sim import figures

    plain, rotated = with_mean_square(datasets["plain"]), datasets["rotated"]
    drawing, axes = figures.new(1, 3, width=13.5, height=4.8)
    _draw_variances(axes[0], plain, rotated)
    _draw_weights(axes[1], plain, rotated)
    _draw_mean_square(axes[2], plain)
    title = (
        "Softmax sees the variance within a row: a mean of the keys leaves it alone, unless positions rotate the keys"
    )
    drawing.suptitle(title, x=0.01, ha="left")
    figures.stamp(drawing, plain.assign_coords(law=plain["query_law"]))
    return drawing
