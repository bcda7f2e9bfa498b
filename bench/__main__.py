"""``python -m bench``: measure, print the tables, write ``results/bench/``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.work import PEERS, ROWS

BUSY = 0.3  # of the processors in use before the run starts

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    quick: Annotated[bool, typer.Option("--quick", help="Two short rounds, half a minute: does it run?")] = False,
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Interleaved rounds.")] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="All cores unless given (JAX: always).")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of results.")] = Path("results"),
) -> None:
    """Measure the engine against NumPy, and against PyTorch and JAX where they are installed."""
    from dataclasses import replace

    from bench import costs, picture, report
    from bench.contestants import INSTALL, installed
    from bench.race import QUICK, Effort, race
    from sim import dataset, figures
    from sim.cpu import available_threads

    # Piped output has no width of its own, and tables would be folded.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    start = time.perf_counter()
    peers, missing = installed(PEERS)
    if missing:
        console.print(f"not installed, so left out: {', '.join(missing)} (to have them: {INSTALL})", markup=False)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * available_threads():
        console.print("other programs are running: peers whose threads wait for each other suffer most", markup=False)
    effort = QUICK if quick else Effort()
    effort = replace(effort, rounds=rounds or effort.rounds)
    threads = threads or available_threads()
    for peer in peers.values():
        peer.start(threads)
    results = []
    for row in ROWS:
        console.print(f"{time.perf_counter() - start:5.0f} s  {row.name}", markup=False)
        results.append(race(row, peers, threads, effort))
    console.print(f"{time.perf_counter() - start:5.0f} s  laws and structures", markup=False)
    prices = costs.measure_costs(effort.rounds, effort.floor_budget)
    data = report.dataset(results, peers, threads)
    folder = out / "quick" / "bench" if quick else out / "bench"
    console.print(report.table(data), report.floor_table(data), costs.table(prices))
    dataset.write(data, folder / "data.nc")
    dataset.write(prices, folder / "costs.nc")
    drawn = figures.save(picture.draw(data), folder)
    console.print(f"{time.perf_counter() - start:5.0f} s  wrote {', '.join(map(str, [folder / 'data.nc', *drawn]))}")


if __name__ == "__main__":
    app(prog_name="python -m bench")
