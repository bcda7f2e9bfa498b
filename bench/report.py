"""What was measured as a labelled dataset, and as a table."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.table import Table

import sim
from bench.contestants import ENGINE, ONE_THREAD
from bench.floor import PARTS
from bench.race import Result
from bench.work import PEERS, Peer

__all__ = ["dataset", "duration", "floor_table", "processor", "table"]

THREAD_TARGET = 0.9  # of the number of threads: 1.8 with two
_MICRO = 1e6

_VARIABLES = {
    "time": ("time of one trial", "us"),
    "cpu_time": ("CPU time of one trial, all threads together", "us"),
    "trials": ("trials of one run", "1"),
    "batch": ("trials computed at a time", "1"),
    "ratio": ("how many times as fast as the fastest peer the engine is", "1"),
    "ratio_target": ("the least that this ratio has to be", "1"),
    "ratio_aim": ("what this ratio is meant to be", "1"),
    "thread_ratio": ("how many times as fast the engine is with all its threads as with one", "1"),
    "floor": ("CPU time of one part of a trial, done alone by one thread", "us"),
    "floor_distance": ("the engine's CPU time with one thread over the sum of the floor's parts", "1"),
    "d_k": ("length of a vector", "1"),
    "n_queries": ("queries of one trial", "1"),
    "n_keys": ("keys of one trial", "1"),
    "gradients": ("whether the backward pass is part of the work", "1"),
    "round": ("interleaved round", "1"),
    "row": ("d_k, queries × keys", "1"),
    "contestant": ("who does the work", "1"),
    "part": ("part of the floor", "1"),
}


def processor() -> str:
    """Return the name of the processor's model."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # only Linux has it
        pass
    return platform.processor() or platform.machine()


def dataset(results: Sequence[Result], peers: dict[str, Peer], threads: int) -> xr.Dataset:
    """Return everything that was measured, with coordinates row, contestant, round and part."""
    names = list(results[0].timings)
    rows = [result.row for result in results]
    wall, cpu = (
        np.array([[[getattr(t, field) for t in result.timings[name]] for name in names] for result in results])
        for field in ("wall", "cpu")
    )
    blank = [np.nan] * wall.shape[2]
    floor = np.array([[result.floor.get(part, blank) for part in PARTS] for result in results])
    data = xr.Dataset(
        {
            "time": (("row", "contestant", "round"), _MICRO * wall),
            "cpu_time": (("row", "contestant", "round"), _MICRO * cpu),
            "trials": (("row", "contestant"), [[result.trials[name] for name in names] for result in results]),
            "batch": (("row", "contestant"), [[result.batches[name] for name in names] for result in results]),
            "floor": (("row", "part", "round"), _MICRO * floor),
            "ratio_target": ("row", [float(row.target) for row in rows]),
            "ratio_aim": ("row", [float(row.aim) for row in rows]),
        },
        coords={
            "row": [row.name for row in rows],
            "contestant": names,
            "round": np.arange(1, wall.shape[2] + 1),
            "part": list(PARTS),
            **{name: ("row", [getattr(row, name) for row in rows]) for name in ("d_k", "n_queries", "n_keys")},
            "gradients": ("row", [row.gradients for row in rows]),
        },
    )
    return _labelled(_derived(data), peers, threads)


def _derived(data: xr.Dataset) -> xr.Dataset:
    """Add what is computed of the times."""
    engine, alone = (data["time"].sel(contestant=name, drop=True) for name in (ENGINE, ONE_THREAD))
    others = [name for name in PEERS if name in data["contestant"]]
    cpu = data["cpu_time"].sel(contestant=ONE_THREAD, drop=True).median("round")
    return data.assign(
        ratio=data["time"].sel(contestant=others).min("contestant") / engine,
        thread_ratio=alone / engine,
        floor_distance=cpu / data["floor"].median("round").sum("part", skipna=False),
    )


def _labelled(data: xr.Dataset, peers: dict[str, Peer], threads: int) -> xr.Dataset:
    for name, (words, units) in _VARIABLES.items():
        data[name].attrs.update(long_name=words, units=units)
    return data.assign_attrs(
        title="the engine against its peers, in interleaved rounds",
        sim_version=sim.__version__,
        numba_version=numba.__version__,
        numpy_version=np.__version__,
        **{f"{name}_version": peer.version for name, peer in peers.items() if name != "numpy"},
        processor=processor(),
        threads=threads,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def duration(microseconds: float) -> str:
    """Write a time with its unit, in two or three digits.

    >>> duration(48.3), duration(1234.0), duration(91_500.0)
    ('48 µs', '1.2 ms', '92 ms')
    """
    value, unit = (microseconds, "µs") if microseconds < 1000 else (microseconds / 1000, "ms")
    return f"{value:.{1 if value < 10 else 0}f} {unit}"


def _range(values: Any, digits: int = 1) -> str:
    """Write the median with the range over the rounds."""
    low, middle, high = (float(f) for f in (values.min(), values.median(), values.max()))
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _verdict(ratio: float, target: float) -> str:
    return f"{target:.3g} " + ("met" if ratio >= target else "missed")


def table(data: xr.Dataset) -> Table:
    """Return the times, the ratios and what they have to be, a line for each row."""
    peers = [name for name in PEERS if name in data["contestant"]]
    threads = int(data.attrs["threads"])
    columns = {"ratio": "fastest peer / engine", "thread_ratio": f"{threads} threads against 1"}
    shown = _new_table(f"time per trial, median of {data.sizes['round']} rounds (in brackets: range over the rounds)")
    for name in (ENGINE, *peers):
        shown.add_column(name, justify="right")
    for words in (columns["ratio"], "target", columns["thread_ratio"], "target"):
        shown.add_column(words, justify="right")
    times = data["time"].median("round")
    for row in data["row"].values:
        here = data.sel(row=row)
        thread_words = ["–", "–"]
        if threads > 1:
            median = float(here["thread_ratio"].median())
            thread_words = [_range(here["thread_ratio"], 2), _verdict(median, THREAD_TARGET * threads)]
        shown.add_row(
            row,
            *(duration(float(times.sel(row=row, contestant=name))) for name in (ENGINE, *peers)),
            _range(here["ratio"]),
            _verdict(float(here["ratio"].median()), float(here["ratio_target"])),
            *thread_words,
        )
    return shown


def _new_table(title: str) -> Table:
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    shown.add_column("d_k, queries × keys", no_wrap=True)
    return shown


def floor_table(data: xr.Dataset) -> Table:
    """Return the floor's parts and the engine's distance from their sum."""
    shown = _new_table("the floor: µs of CPU per trial, each part alone in one thread")
    for name in (*PARTS, "sum", "engine", "engine / sum"):
        shown.add_column(name, justify="right")
    parts = data["floor"].median("round")
    cpu = data["cpu_time"].sel(contestant=ONE_THREAD).median("round")
    for row in data["row"].values[~data["gradients"].values]:
        numbers = [float(parts.sel(row=row, part=part)) for part in PARTS]
        numbers = [*numbers, sum(numbers), float(cpu.sel(row=row))]
        shown.add_row(row, *(f"{x:.1f}" for x in numbers), f"{float(data['floor_distance'].sel(row=row)):.2f}")
    return shown
