"""How the experiments' figures look: measured points with 95 % intervals over the curve of theory.

Figures are made without pyplot: no global state, no window, and the same bytes from the same dataset.
Series differ in colour, lightness, marker and dash, so that they can be told apart in grey too.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import DataArray, Dataset

__all__ = ["PALETTE", "half_width", "look", "new", "percent", "points", "save", "stamp", "style"]

# Okabe and Ito's colours (2008), ordered so that neighbours differ in lightness as well as in hue.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)))

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "errorbar.capsize": 3,
    "figure.dpi": 100,
    "figure.titlesize": 13,
    "font.family": "DejaVu Sans",  # it comes with Matplotlib, so that every machine sets the same text
    "font.size": 10.5,
    "grid.alpha": 0.5,
    "grid.color": "#cccccc",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "mathtext.fontset": "dejavusans",
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "attention-sim",  # names of clip paths are random otherwise
}

# What Matplotlib would write of its own accord: dates and versions change while the dataset does not.
_METADATA: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the experiments' style, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def new(
    rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 5.0, **options: Any
) -> tuple[Figure, Any]:
    """Return an empty figure and its axes.

    Parameters
    ----------
    rows, columns : int
        How many axes; with one, the axes are returned as they are, otherwise as an array.
    width, height : float
        In inches.
    **options
        Passed on to ``Figure.subplots``: ``sharex``, ``width_ratios``, ...
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def look(index: int) -> dict[str, Any]:
    """Return colour, marker and dash of a series; after seven they begin again."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def half_width(dataset: Dataset, variable: str, confidence: float = 0.95) -> DataArray:
    """Return half the width of Student's t interval, with one degree of freedom less than groups.

    Parameters
    ----------
    dataset : Dataset
        With `variable_se` and `groups`.
    variable : str
        The estimate's name.
    confidence : float
        Between 0 and 1.

    Returns
    -------
    DataArray
        In the variable's units; NaN where there is no standard error.
    """
    from scipy.stats import t

    groups = dataset["groups"]
    # One group leaves no degree of freedom; NaN spares SciPy the domain error.
    freedom = (groups - 1.0).where(groups > 1)
    quantile = freedom.copy(data=t.ppf((1 + confidence) / 2, freedom))
    return quantile * dataset[f"{variable}_se"]


def points(
    axes: Axes,
    dataset: Dataset,
    variable: str,
    *,
    x: str = "d_k",
    by: str | None = None,
    first: int = 0,
    label: str | None = None,
    theory: bool = True,
    joined: bool = False,
    **chosen: Any,
) -> None:
    """Draw measured points with their 95 % intervals over the curve of theory.

    Parameters
    ----------
    axes : Axes
        Where to draw; its scales, labels and legend are the caller's.
    dataset : Dataset
        With the variable, and where they exist `variable_se` and `variable_theory`.
    variable : str
        The estimate's name.
    x : str
        The dimension along the axis.
    by : str, optional
        A dimension with one series for each of its values.
    first : int
        The look of the first series.
    label : str, optional
        Of a single series; the series of `by` are labelled by their values.
    theory : bool
        Whether to draw the curve, which has no label: its colour is the points'.
    joined : bool
        Whether to join the points by a pale line, for the eye, where there is no theory.
    **chosen
        The value of every other dimension.

    Raises
    ------
    ValueError
        If a dimension is left over.
    """
    picked = dataset.sel(chosen)
    series = [(label, picked)] if by is None else [(str(v), picked.sel({by: v})) for v in picked[by].values]
    for index, (name, part) in enumerate(series):
        values = part[variable]
        if values.dims != (x,):
            raise ValueError(f"{variable}: choose a value for {sorted(set(map(str, values.dims)) - {x})}")
        shape = look(first + index)
        dash = shape.pop("linestyle")
        error = half_width(part, variable).values if f"{variable}_se" in part else None
        axes.errorbar(values[x].values, values.values, yerr=error, label=name, linestyle="none", zorder=3, **shape)
        if joined:
            axes.plot(values[x].values, values.values, color=shape["color"], linestyle=dash, alpha=0.4)
        if theory and f"{variable}_theory" in part:
            axes.plot(
                values[x].values, part[f"{variable}_theory"].values, color=shape["color"], linestyle=dash, alpha=0.7
            )


def percent(axes: Axes, low: float = -0.09, high: float = 1.0) -> None:
    """Mark a vertical axis of shares from 0 to 100 per cent, with room for words below and above."""
    axes.set_ylim(low, high)
    axes.set_yticks(np.linspace(0, 1, 6), ["0", "20", "40", "60", "80", "100"])


def _range(values: Any) -> str:
    flat = np.unique(np.asarray(values))
    if flat.dtype.kind in "US":
        return ", ".join(map(str, flat))
    return f"{flat[0]:g}" if flat.size == 1 else f"{flat[0]:g} to {flat[-1]:g}"


# What a figure's foot says of each parameter, in this order.
_FOOT = {
    "law": "{} elements",
    "trials": "{} trials a point",
    "n_queries": "{} queries",
    "n_keys": "{} keys",
    "seed": "seed {}",
}


def stamp(figure: Figure, dataset: Dataset) -> None:
    """Write the run's parameters at the figure's foot: no time, host or commit, which say nothing about the numbers."""
    known = [words.format(_range(dataset[name])) for name, words in _FOOT.items() if name in dataset]
    text = "  ·  ".join([*known, "bars: 95 % intervals"])
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color="#666666")


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write `figure.png` and `figure.svg`; a file that would not change is left as it is, date included.

    Parameters
    ----------
    figure : Figure
        Drawn within :func:`style`.
    folder : Path
        Made if it is not there.

    Returns
    -------
    list of Path
        Both files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind, metadata in _METADATA.items():
        drawn = io.BytesIO()
        with style():
            figure.savefig(drawn, format=kind, metadata=metadata)
        content = _with_palette(drawn.getvalue()) if kind == "png" else drawn.getvalue()
        path = folder / f"figure.{kind}"
        if not path.is_file() or path.read_bytes() != content:
            _replace(path, content)
        paths.append(path)
    return paths


def _with_palette(png: bytes) -> bytes:
    """Return the image in 256 colours: a quarter of the size, and no difference to be seen."""
    from PIL import Image

    small = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)  # temporary files are private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
