"""How far a run is, on the terminal or in plain lines."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Meter"]


class Meter:
    """Shows how far a run is: a bar on a terminal, a line every few seconds elsewhere; nothing for short runs.

    Call it with the fraction done, from the main thread; it starts no thread of its own.
    """

    BAR_AFTER, LINE_EVERY = 0.5, 5.0

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = self._last = time.monotonic()
        self._ended = False
        self._bar: Progress | None = None
        self._open = ExitStack()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __call__(self, fraction: float) -> None:
        """Show the fraction, if it is time to."""
        now = time.monotonic()
        if sys.stderr.isatty():
            if now - self._start > self.BAR_AFTER:
                self._draw(fraction)
        elif now - self._last >= self.LINE_EVERY or (fraction >= 1 and self._last > self._start and not self._ended):
            self._last, self._ended = now, fraction >= 1
            print(f"{self._label}  {int(100 * fraction)} %  {now - self._start:.0f} s", file=sys.stderr, flush=True)

    def _draw(self, fraction: float) -> None:
        if self._bar is None:
            self._bar = self._open.enter_context(_bar())
            self._bar.add_task(self._label, total=1.0)
        self._bar.update(self._bar.task_ids[0], completed=fraction, refresh=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Without a refreshing thread: the bar moves when the engine reports.
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
