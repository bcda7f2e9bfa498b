"""The command line: ``sim list``, ``sim run``, ``sim figures`` and ``sim show``.

What is heavy is imported inside the commands, so that ``sim --help`` answers at once.
"""

from __future__ import annotations

import _thread
import errno
import functools
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.errors import InputError, RunInterrupted

if TYPE_CHECKING:
    from rich.progress import Progress

    from sim.experiments import Entry, Experiment
    from sim.sweep import Sweep

__all__ = ["main"]

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130
QUICK_TRIALS = 64
MAX_THREADS = 1024
RESULTS = Path("results")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich would take longer to load than all the rest
    pretty_exceptions_enable=False,
    help="Monte Carlo laboratory for dot-product attention: simulate, draw and read experiments.",
)

Threads = Annotated[int | None, typer.Option(metavar="N", min=1, max=MAX_THREADS, help="All cores unless given.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder of results.")]
Folder = Annotated[Path | None, typer.Option(metavar="DIR", help="The experiments' folder, if not the package's own.")]


class Device(StrEnum):
    """Where the blocks run."""

    CPU = "cpu"
    CUDA = "cuda"


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that ends in a message and an exit code, not in a traceback."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except InputError as error:
                code, message = WRONG_INPUT, f"Error: {error}"
            except RunInterrupted as stop:
                code, message = INTERRUPTED, f"Interrupted: {stop}"
            except KeyboardInterrupt:
                code, message = INTERRUPTED, "Interrupted."
            except BrokenPipeError:  # the reader has had enough, which typer ends quietly
                raise
            except Exception as error:
                if os.environ.get("SIM_DEBUG"):
                    raise
                if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                    code, message = WRONG_INPUT, f"Error: a name is too long for a file: {_short(error.filename)}"
                else:
                    code = FAILED
                    message = f"Failed: {type(error).__name__}: {error} (SIM_DEBUG=1 shows where)"
            else:
                return
            typer.echo(message, err=True)
            raise typer.Exit(code)

        return app.command(name)(guarded)

    return register


def _short(name: object) -> str:
    from sim.reading import show

    return show(name)


@_command("list")
def list_experiments(experiments: Folder = None) -> None:
    """List the experiments, one line each."""
    from sim.experiments import find_all

    entries = find_all(experiments)
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(f"{entry.name:{width}}  {entry.summary}".rstrip())


@_command("run")
def run(
    target: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="An experiment, or a file with a sweep.")],
    trials: Annotated[int | None, typer.Option(metavar="N", help="Trials per cell, in place of the sweep's.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The seed, in place of the sweep's.")] = None,
    threads: Threads = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.CPU,
    out: Out = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help=f"At most {QUICK_TRIALS} trials; into DIR/quick.")] = False,
    if_stale: Annotated[bool, typer.Option("--if-stale", help="Only where the stored dataset is out of date.")] = False,
    experiments: Folder = None,
) -> None:
    """Simulate an experiment or a sweep of your own.

    The dataset is DIR/NAME/data.nc; for an experiment of several sweeps it is DIR/NAME/KEY.nc for each.
    """
    if device is Device.CUDA:
        raise InputError(
            "--device: 'cuda' is not there yet, this version has no CUDA kernels; leave it out, or give cpu"
        )
    experiment = _find(target, experiments)
    folder = out / "quick" if quick else out
    if experiment.dataset is not None:
        options = {"--trials": trials, "--seed": seed, "--threads": threads}
        _refuse(experiment, [option for option, value in options.items() if value is not None])
        _make(experiment, folder, quick)
        return
    changes = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
    sweeps = {key: _changed(sweep, changes, quick) for key, sweep in experiment.sweeps.items()}
    for key, path in experiment.paths(folder).items():
        if if_stale and _is_current(path, sweeps[key]):
            print(f"{path} is up to date")
        else:
            label = experiment.name if experiment.single else f"{experiment.name}/{key}"
            _simulate(label, sweeps[key], path, threads)


@_command("figures")
def figures(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="All with a dataset unless given.")] = None,
    out: Out = RESULTS,
    experiments: Folder = None,
) -> None:
    """Draw figures from stored datasets; never simulates."""
    from sim.experiments import find, find_all

    entries = [find(name, experiments) for name in names or ()]
    if not names:
        entries = [entry for entry in find_all(experiments) if any((out / entry.name).glob("*.nc"))]
    if not entries:
        raise InputError(f"no experiment has a dataset under {str(out)!r}: sim run NAME makes one")
    for entry in entries:
        _draw(entry, out)


@_command("show")
def show(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A file, or a name under results.")],
    variables: Annotated[list[str] | None, typer.Argument(metavar="VARIABLE", help="All unless given.")] = None,
) -> None:
    """Print a dataset: estimates ± errors, and theory."""
    from rich.console import Console

    from sim.show import find_datasets, print_dataset

    paths = find_datasets(dataset, RESULTS)
    # A pipe has no width: there a table takes what it needs.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    for path in paths:
        print_dataset(path, console, variables or ())


def _find(target: str, folder: Path | None) -> Experiment:
    """Take what ends in .toml, or is a file, as a sweep of the user's own; all else as an experiment's name."""
    from sim.experiments import Experiment, find, find_all, load

    if not target.endswith(".toml") and not Path(target).is_file():
        return load(find(target, folder))
    from sim.sweep import Sweep

    sweep = Sweep.from_toml(target)
    if sweep.name in {entry.name for entry in find_all(folder)}:
        raise InputError(
            f"{target}: name = {sweep.name!r} is an experiment's, whose dataset would be replaced; choose another name"
        )
    return Experiment(sweep.name, {"data": sweep})


def _changed(sweep: Sweep, changes: Mapping[str, int], quick: bool) -> Sweep:
    sweep = sweep.replace(**changes) if changes else sweep
    return sweep.replace(trials=min(sweep.trials, QUICK_TRIALS)) if quick else sweep


def _refuse(experiment: Experiment, options: list[str]) -> None:
    if options:
        raise InputError(f"{' and '.join(options)}: experiment {experiment.name} has no sweep to change; leave out")


def _is_current(path: Path, sweep: Sweep) -> bool:
    from sim.dataset import is_current

    return path.is_file() and is_current(path, sweep)


def _check_writable(path: Path) -> None:
    """Find out before the work whether its result can be stored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"--out: {str(path.parent)!r} cannot be written ({error.strerror}); give a folder that can"
        ) from error


def _simulate(label: str, sweep: Sweep, path: Path, threads: int | None) -> None:
    _check_writable(path)
    start = time.monotonic()
    try:
        from sim.dataset import write
        from sim.engine import run as simulate

        with Meter(label) as meter:
            dataset = simulate(sweep, threads=threads, progress=meter, command=shlex.join(["sim", *sys.argv[1:]]))
        write(dataset, path)
    except (KeyboardInterrupt, RunInterrupted):
        raise RunInterrupted(f"{label} was not finished, nothing was written to {path}") from None
    print(f"{path}  ({time.monotonic() - start:.1f} s)")


def _make(experiment: Experiment, folder: Path, quick: bool) -> None:
    """Write the dataset of an experiment that sweeps nothing; it is short, and so always made anew."""
    from sim.dataset import write

    assert experiment.dataset is not None
    (path,) = experiment.paths(folder).values()
    _check_writable(path)
    start = time.monotonic()
    try:
        write(experiment.dataset(quick), path)
    except (KeyboardInterrupt, RunInterrupted):
        raise RunInterrupted(f"{experiment.name} was not finished, nothing was written to {path}") from None
    print(f"{path}  ({time.monotonic() - start:.1f} s)")


def _draw(entry: Entry, out: Path) -> None:
    from sim import figures
    from sim.dataset import read
    from sim.experiments import load

    experiment = load(entry)
    paths = experiment.paths(out)
    if missing := [str(path) for path in paths.values() if not path.is_file()]:
        raise InputError(f"experiment {entry.name}: no dataset {' or '.join(missing)}; sim run {entry.name} makes it")
    if experiment.figure is None:
        print(f"{entry.name} has no figure")
        return
    datasets = {key: read(path) for key, path in paths.items()}
    with figures.style():
        try:
            figure = experiment.figure(next(iter(datasets.values())) if experiment.single else datasets)
        except KeyError as error:  # what Xarray raises for a variable, a coordinate or a value that is not there
            files = " or ".join(map(str, paths.values()))
            raise InputError(
                f"experiment {entry.name}: {files} lacks what the figure needs ({error}); sim run {entry.name} makes it"
            ) from error
    _check_writable(out / entry.name / "figure.png")
    for path in figures.save(figure, out / entry.name):
        print(path)


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


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Bring Ctrl-C back where it was lost, and keep tracebacks of finalisers from the user.

    An exception cannot leave a C library's call back into Python, which is where compiling spends its time.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.05, _thread.interrupt_main).start()
    elif os.environ.get("SIM_DEBUG"):
        sys.__unraisablehook__(lost)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line on `arguments` (default: the process's own).

    The exit code is 0 done, 1 failed, 2 wrong input, 130 interrupted.
    """
    # Closed by the shell (>&-): there is nobody to tell, which is no reason to fail.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal without ± is no reason to fail
    hook, sys.unraisablehook = sys.unraisablehook, _unraisable
    try:
        app(arguments, prog_name="sim")
    finally:
        sys.unraisablehook = hook
