"""The figure: a bar for each contestant and row on a logarithmic axis, and how many times as fast the engine is."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.contestants import ENGINE
from bench.report import duration
from bench.work import PEERS
from sim import figures

__all__ = ["draw"]

_COLOURS = {ENGINE: figures.PALETTE[0], "torch": "#8c8c8c", "jax": "#aaaaaa", "numpy": "#c8c8c8"}
_NAMES = {ENGINE: "engine", "torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}


def _label(row: Any) -> str:
    n_queries, n_keys = (f"{int(row[name]):,}".replace(",", "\u2009") for name in ("n_queries", "n_keys"))
    return f"$d_k$ = {int(row['d_k'])}\n{n_queries} × {n_keys}"


def _times_as_fast(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 1 else f"{ratio:.2g}×"


def _draw_row(axes: Axes, row: xr.Dataset, shown: list[str], top: float) -> None:
    """Draw the bars of one row downwards from `top`."""
    times = {name: float(row["time"].sel(contestant=name).median()) for name in shown}
    peer = min((name for name in shown if name != ENGINE), key=times.__getitem__)
    for k, name in enumerate(shown):
        look: dict[str, Any] = {"color": "#444444"}
        text = f"{_NAMES[name]}  {duration(times[name])}"
        if name == ENGINE:
            look = {"color": _COLOURS[ENGINE], "fontweight": "bold"}
            text += f"  –  {_times_as_fast(float(row['ratio'].median()))} as fast as {_NAMES[peer]}"
        place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9.5}
        axes.barh(top + k, times[name], height=0.86, color=_COLOURS[name], zorder=2)
        axes.annotate(text, (times[name], top + k), (5, 0), zorder=3, **place, **look)


def _draw_panel(axes: Axes, data: xr.Dataset, shown: list[str], title: str) -> None:
    pitch = len(shown) + 0.9
    tops = pitch * np.arange(data.sizes["row"])
    for index, top in enumerate(tops):
        _draw_row(axes, data.isel(row=index), shown, top)
    axes.set_yticks(tops + (len(shown) - 1) / 2, [_label(data.isel(row=i)) for i in range(len(tops))])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    axes.set_xlabel("time per trial")
    axes.set_title(title)


def _share_limits(panels: Any, times: xr.DataArray, bars: float) -> None:
    """Give all panels the same axes, so that bars can be compared; room for the words at the right."""
    low = 10 ** np.floor(np.log10(float(times.min()) / 1.5))
    high = max(30 * float(times.max()), 2500 * float(times.sel(contestant=ENGINE).max()))  # its words are longer
    powers = [10.0**k for k in range(round(np.log10(low)), int(np.log10(float(times.max()))) + 2)]
    words = [f"{x:g} µs" if x < 1e3 else f"{x / 1e3:g} ms" if x < 1e6 else f"{x / 1e6:g} s" for x in powers]
    for axes in panels:
        axes.set_xlim(low, high)
        axes.set_xticks(powers, words)
        axes.minorticks_off()
        axes.set_ylim(bars - 0.4, -0.9)


def _title(ratios: np.ndarray) -> str:
    low, high = (_times_as_fast(f)[:-1] for f in (ratios.min(), ratios.max()))
    return f"The engine is {low} to {high} times as fast as the fastest of its peers"


def draw(data: xr.Dataset) -> Figure:
    """Return the figure of a dataset of :func:`bench.report.dataset`."""
    shown = [ENGINE, *(name for name in reversed(PEERS) if name in data["contestant"])]
    panels = [(False, "Scores, weights and Jacobian, three scale rules"), (True, "The same, and gradients")]
    parts = [(data.isel(row=np.flatnonzero(data["gradients"].values == g)), title) for g, title in panels]
    parts = [(part, title) for part, title in parts if part.sizes["row"]]
    most = max(part.sizes["row"] for part, _ in parts)
    threads = int(data.attrs["threads"])
    with figures.style():
        figure, axes = figures.new(1, len(parts), width=6.6 * len(parts), height=1.4 + 1.25 * most, squeeze=False)
        for at, (part, title) in zip(axes[0], parts, strict=True):
            _draw_panel(at, part, shown, title)
        _share_limits(axes[0], data["time"].sel(contestant=shown).median("round"), most * (len(shown) + 0.9))
        figure.suptitle(_title(data["ratio"].median("round").values), x=0.01, ha="left")
        foot = f"median of {data.sizes['round']} interleaved rounds  ·  {data.attrs['processor']}, {threads} threads"
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color="#666666")
    return figure
