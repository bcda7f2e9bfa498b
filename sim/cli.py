"""The command line: ``sim list``, ``sim run``, ``sim measure``, ``sim figures`` and ``sim show``.

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
import warnings
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.errors import InputError, RunInterrupted

if TYPE_CHECKING:
    from xarray import Dataset

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
    if not experiment.sweeps:
        options = {"--trials": trials, "--seed": seed, "--threads": threads}
        _refuse(experiment, [option for option, value in options.items() if value is not None])
    changes = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
    sweeps = {key: _changed(sweep, changes, quick) for key, sweep in experiment.sweeps.items()}
    for key, path in experiment.paths(folder).items():
        label = experiment.name if experiment.single else f"{experiment.name}/{key}"
        if key in experiment.makers:
            _make(label, experiment.makers[key], path, quick)
        elif if_stale and _is_current(path, sweeps[key]):
            print(f"{path} is up to date")
        else:
            _simulate(label, sweeps[key], path, threads)


@_command("measure")
def measure(
    query: Annotated[
        str, typer.Option(metavar="FILE", help="Q as .npy, .npz or .safetensors; FILE:KEY for one of several.")
    ],
    key: Annotated[str, typer.Option(metavar="FILE", help="K, likewise. The last two axes are token × d_k.")],
    scale: Annotated[
        str,
        typer.Option(metavar="RULES", help="Names, such as sqrt_dk or softcap(cap=50), and factors, such as 0.125."),
    ] = "none,sqrt_dk,dk",
    observables: Annotated[str | None, typer.Option(metavar="FAMILIES", help="All unless given.")] = None,
    precision: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    causal: Annotated[bool, typer.Option("--causal", help="Each query sees the keys up to its own place.")] = False,
    dims: Annotated[str | None, typer.Option(metavar="NAMES", help="Of the leading axes, such as layer,head.")] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Names the folder under DIR.")] = "measure",
    out: Out = RESULTS,
    experiments: Folder = None,
) -> None:
    """Measure queries and keys of your own.

    Writes DIR/NAME/data.nc: the same observables as of drawn vectors, exactly. Leading axes become dimensions, the last
    of them is the heads; fewer key heads than query heads are shared out.
    """
    from sim.arrays import read_array
    from sim.dataset import write
    from sim.kinds import short_forms
    from sim.measuring import measure as measured
    from sim.settings import folder_name
    from sim.tally import FAMILIES

    path = out / _free(folder_name(name, "--name"), "--name", experiments) / "data.nc"
    Q, K = read_array(query, "--query"), read_array(key, "--key")
    absent = [folder for folder in path.parents if not folder.exists()]
    _check_writable(path)
    start = time.monotonic()
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always", RuntimeWarning)
            dataset = measured(
                Q,
                K,
                scale=short_forms(scale),
                dims=_names(dims),
                causal=causal,
                precision=precision,
                observables=_names(observables) or FAMILIES,
            )
    except InputError as error:
        for folder in absent:  # of wrong input nothing is left
            folder.rmdir()
        options = ("scale", "observables", "precision", "causal", "dims")
        where = "--" if str(error).startswith(options) else f"{query} and {key}: "
        raise InputError(f"{where}{error}") from None
    except KeyboardInterrupt:
        raise RunInterrupted(f"{name} was not finished, nothing was written to {path}") from None
    for warning in noticed:
        print(f"Warning: {warning.message}", file=sys.stderr)
    write(dataset.assign_attrs(query=query, key=key, command=_command_line()), path)
    print(f"{path}  ({time.monotonic() - start:.1f} s)")


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [part.strip() for part in given.split(",")]


def _command_line() -> str:
    return shlex.join(["sim", *sys.argv[1:]])


def _free(name: str, given_as: str, folder: Path | None) -> str:
    """Return a name of the user's own if it is not an experiment's."""
    from sim.experiments import find_all

    if name in {entry.name for entry in find_all(folder)}:
        raise InputError(
            f"{given_as} = {name!r} is an experiment's, whose dataset would be replaced; choose another name"
        )
    return name


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
    out: Out = RESULTS,
) -> None:
    """Print a dataset: estimates ± errors, and theory."""
    from rich.console import Console

    from sim.show import find_datasets, print_dataset

    paths = find_datasets(dataset, out)
    # A pipe has no width: there a table takes what it needs.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    for path in paths:
        print_dataset(path, console, variables or ())


def _find(target: str, folder: Path | None) -> Experiment:
    """Take what ends in .toml, or is a file, as a sweep of the user's own; all else as an experiment's name."""
    from sim.experiments import Experiment, find, load

    if not target.endswith(".toml") and not Path(target).is_file():
        return load(find(target, folder))
    from sim.sweep import Sweep

    sweep = Sweep.from_toml(target)
    return Experiment(_free(sweep.name, f"{target}: name", folder), {"data": sweep})


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


def _announce_compiling(sweep: Sweep) -> None:
    from sim import jit  # written so, it makes no kernel of this module (sim.provenance)

    if not all(map(jit.is_compiled, {cell.computes_in for cell in sweep.cells})):
        print("compiling the kernels, once: a minute or two", file=sys.stderr, flush=True)


def _simulate(label: str, sweep: Sweep, path: Path, threads: int | None) -> None:
    _check_writable(path)
    start = time.monotonic()
    try:
        from sim.dataset import write
        from sim.engine import run as simulate
        from sim.meter import Meter

        _announce_compiling(sweep)

        with Meter(label) as meter:
            dataset = simulate(sweep, threads=threads, progress=meter, command=_command_line())
        write(dataset, path)
    except (KeyboardInterrupt, RunInterrupted):
        raise RunInterrupted(f"{label} was not finished, nothing was written to {path}") from None
    print(f"{path}  ({time.monotonic() - start:.1f} s)")


def _make(label: str, maker: Callable[[bool], Dataset], path: Path, quick: bool) -> None:
    """Write a dataset that no sweep describes; it is short, and so always made anew."""
    from sim.dataset import write

    _check_writable(path)
    start = time.monotonic()
    try:
        write(maker(quick), path)
    except (KeyboardInterrupt, RunInterrupted):
        raise RunInterrupted(f"{label} was not finished, nothing was written to {path}") from None
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
