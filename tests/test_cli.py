"""The command line: what it writes, what it says, and the exit code it ends with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

from sim.cli import _unraisable, app
from sim.errors import InputError, RunInterrupted
from sim.meter import Meter

SWEEP = """\
name = "tiny"
trials = 40
n_tokens = 8
d_k = [4, 16]

[vectors]
law = "rademacher"
"""


@dataclass(frozen=True)
class Plan:
    """Stands for a sweep where the engine is replaced."""

    name: str = "plan"
    trials: int = 1000
    seed: int = 0
    cells: tuple[Any, ...] = (SimpleNamespace(computes_in="float32"),)

    def replace(self, **changes: Any) -> Plan:
        if changes.get("trials", 1) < 1:
            raise InputError(f"trials: {changes['trials']} is not allowed; give a whole number of at least 1")
        return replace(self, **changes)


def measured(trials: int = 100) -> xr.Dataset:
    return xr.Dataset({"score_variance": ("d_k", [4.1, 15.0])}, coords={"d_k": [4, 16]}, attrs={"trials": trials})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine that returns at once, and records what it was asked; it needs no kernels."""
    monkeypatch.setattr("sim.jit.is_compiled", lambda _: True)
    calls: list[tuple[Any, dict[str, Any]]] = []

    def run(sweep: Any, **options: Any) -> xr.Dataset:
        calls.append((sweep, options))
        options["progress"](1.0)
        return measured(sweep.trials)

    fake = SimpleNamespace(calls=calls, run=run, current=False)
    monkeypatch.setitem(
        sys.modules, "sim.engine", SimpleNamespace(run=lambda sweep, **options: fake.run(sweep, **options))
    )
    monkeypatch.setitem(
        sys.modules,
        "sim.dataset",
        SimpleNamespace(
            write=lambda dataset, path: dataset.to_netcdf(path, engine="h5netcdf"),
            read=lambda path: xr.load_dataset(path, engine="h5netcdf"),
            is_current=lambda path, sweep: fake.current,
        ),
    )
    return fake


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiments' folder, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "plans", SimpleNamespace(Plan=Plan))
    figure = "\ndef figure(ds):\n    from sim.figures import new\n    return new()[0]\n"
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    (experiments / "one.py").write_text('"""Does one hold?"""\nfrom plans import Plan\nSWEEP = Plan()\n' + figure)
    (experiments / "two.py").write_text('"""Do both?"""\nfrom plans import Plan\nSWEEP = {"a": Plan(), "b": Plan()}\n')
    (experiments / "made.py").write_text(
        '"""Nothing swept."""\nimport xarray as xr\n\ndef dataset(quick):\n    return xr.Dataset({"quick": quick})\n'
    )
    return experiments


def sim(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_list_names_the_experiments_one_a_line(folder: Path) -> None:
    result = sim("list", "--experiments", folder)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["made  Nothing swept.", "one   Does one hold?", "two   Do both?"]


def test_run_writes_one_dataset_and_says_where(
    folder: Path, engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/a/path/sim", "run", "two words"])
    result = sim("run", "one", "--threads", 2, "--experiments", folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("results/one/data.nc  (")
    assert Path("results/one/data.nc").is_file()
    ((sweep, options),) = engine.calls
    assert sweep == Plan()
    assert options["threads"] == 2
    assert options["command"] == "sim run 'two words'"


def test_run_writes_a_file_for_each_of_several_sweeps(folder: Path, engine: SimpleNamespace) -> None:
    assert sim("run", "two", "--out", "out", "--experiments", folder).exit_code == 0
    assert sorted(path.as_posix() for path in Path("out").rglob("*.nc")) == ["out/two/a.nc", "out/two/b.nc"]
    assert len(engine.calls) == 2


def test_options_replace_the_sweep_s_own_values(folder: Path, engine: SimpleNamespace) -> None:
    assert sim("run", "one", "--trials", 7, "--seed", 5, "--experiments", folder).exit_code == 0
    assert engine.calls[0][0] == Plan(trials=7, seed=5)


@pytest.mark.parametrize(("options", "trials"), [((), 64), (("--trials", 10), 10), (("--trials", 500), 64)])
def test_quick_is_small_and_has_a_folder_of_its_own(
    folder: Path, engine: SimpleNamespace, options: tuple[object, ...], trials: int
) -> None:
    assert sim("run", "one", "--quick", *options, "--experiments", folder).exit_code == 0
    assert engine.calls[0][0].trials == trials
    assert [path.as_posix() for path in Path("results").rglob("*.nc")] == ["results/quick/one/data.nc"]


def test_if_stale_leaves_a_current_dataset_alone(folder: Path, engine: SimpleNamespace) -> None:
    arguments = ("run", "one", "--if-stale", "--experiments", folder)
    engine.current = True
    assert sim(*arguments).exit_code == 0  # nothing is there yet
    assert len(engine.calls) == 1
    assert "up to date" in sim(*arguments).stdout
    assert len(engine.calls) == 1
    engine.current = False
    sim(*arguments)
    assert len(engine.calls) == 2


def test_an_experiment_may_make_its_own_dataset(folder: Path, engine: SimpleNamespace) -> None:
    assert sim("run", "made", "--quick", "--experiments", folder).exit_code == 0
    assert xr.load_dataset("results/quick/made/data.nc")["quick"]
    result = sim("run", "made", "--trials", 3, "--seed", 1, "--experiments", folder)
    assert result.exit_code == 2
    assert "--trials and --seed" in result.stderr


def test_an_experiment_may_make_a_dataset_beside_its_sweeps(folder: Path, engine: SimpleNamespace) -> None:
    (folder / "mixed.py").write_text(
        "import xarray as xr\nfrom plans import Plan\n\ndef timed(quick):\n    return xr.Dataset({'quick': quick})\n\n"
        "SWEEP = {'a': Plan(), 'time': timed}\n"
    )
    assert sim("run", "mixed", "--trials", 7, "--experiments", folder).exit_code == 0
    assert engine.calls[0][0] == Plan(trials=7)  # what has trials has them changed
    assert Path("results/mixed/a.nc").is_file()
    assert not xr.load_dataset("results/mixed/time.nc")["quick"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "oen"), "'oen' is not known; did you mean 'one'?"),
        (("run", "one", "--trials", 0), "trials: 0 is not allowed"),
        (("run", "one", "--threads", 0), "--threads"),
        (("run", "one", "--threads", 10**20), "--threads"),
        (("run", "x" * 300), "a name is too long for a file: 'xxx"),
        (("run", "one", "--device", "cuda"), "--device: 'cuda' is not there yet"),
        (("run", "one", "--device", "tpu"), "--device"),
        (("run", "one", "--seed", "x"), "--seed"),
        (("run", "one", "--out", "file/below"), "--out: 'file/below/one' cannot be written"),
        (("run", "one", "--tirals", 3), "--tirals"),
        (("run", "absent.toml"), "absent.toml"),
        (("run", "broken.toml"), "broken.toml"),
        (("figures",), "sim run NAME makes one"),
        (("figures", "one"), "sim run one makes it"),
        (("figures", "oen"), "did you mean 'one'?"),
        (("show", "nothing"), "'nothing' is neither a file nor a name under 'results'"),
        (("show", "x" * 300), "a name is too long for a file: 'xxx"),
        (("show", "file"), "'file' cannot be read as netCDF"),
    ],
)
def test_wrong_input_ends_in_one_message(
    folder: Path, engine: SimpleNamespace, arguments: tuple[object, ...], message: str
) -> None:
    Path("file").write_text("not a folder")
    Path("broken.toml").write_text("name = ")
    options = () if arguments[0] == "show" else ("--experiments", folder)
    result = sim(*arguments, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not engine.calls
    assert not list(Path().rglob("*.nc"))


def test_a_failure_is_told_without_a_traceback(folder: Path, engine: SimpleNamespace) -> None:
    def fail(sweep: Any, **options: Any) -> xr.Dataset:
        raise OSError("disk full")

    engine.run = fail
    result = sim("run", "one", "--experiments", folder)
    assert result.exit_code == 1
    assert result.stderr == "Failed: OSError: disk full (SIM_DEBUG=1 shows where)\n"


def test_compiling_is_announced(folder: Path, engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.jit.is_compiled", lambda _: False)
    assert "compiling the kernels" in sim("run", "one", "--experiments", folder).stderr


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RunInterrupted])
def test_an_interrupted_run_leaves_what_was_there(
    folder: Path, engine: SimpleNamespace, stop: type[BaseException]
) -> None:
    assert sim("run", "one", "--experiments", folder).exit_code == 0
    before = Path("results/one/data.nc").read_bytes()

    def interrupt(sweep: Any, **options: Any) -> xr.Dataset:
        raise stop

    engine.run = interrupt
    result = sim("run", "one", "--experiments", folder)
    assert result.exit_code == 130
    assert result.stderr == "Interrupted: one was not finished, nothing was written to results/one/data.nc\n"
    assert Path("results/one/data.nc").read_bytes() == before


def test_figures_draws_what_is_stored_and_never_simulates(folder: Path, engine: SimpleNamespace) -> None:
    sim("run", "one", "--experiments", folder)
    sim("run", "two", "--experiments", folder)
    result = sim("figures", "--experiments", folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["results/one/figure.png", "results/one/figure.svg", "two has no figure"]
    assert len(engine.calls) == 3


def test_a_dataset_that_lacks_what_the_figure_needs_is_named(folder: Path, engine: SimpleNamespace) -> None:
    (folder / "one.py").write_text("from plans import Plan\nSWEEP = Plan()\n\ndef figure(ds):\n    return ds['gone']\n")
    sim("run", "one", "--experiments", folder)
    result = sim("figures", "one", "--experiments", folder)
    assert result.exit_code == 2
    assert "experiment one: results/one/data.nc lacks what the figure needs" in result.stderr
    assert "sim run one makes it" in result.stderr


def test_an_interrupt_lost_in_a_c_library_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (it comes a moment later)
        _unraisable(SimpleNamespace(exc_type=KeyboardInterrupt))  # type: ignore[arg-type]
        time.sleep(10)


def test_progress_is_timed_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Meter("one") as meter:
        for second in range(13):
            now[0] = 100.0 + second
            meter(second / 12)
        meter(1.0)
    assert capsys.readouterr().err.splitlines() == ["one  41 %  5 s", "one  83 %  10 s", "one  100 %  12 s"]


def test_a_short_run_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("one") as meter:
        meter(0.5)
        meter(1.0)
    assert capsys.readouterr().err == ""


# From here on in processes of their own, with the real engine.


def process(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sim", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, sim.cli\n"
        "heavy = {'numba', 'numpy', 'scipy', 'xarray', 'pandas', 'matplotlib', 'pydantic', 'rich', 'h5py'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_the_package_is_light_and_its_names_are_there() -> None:
    code = (
        "import sys, sim\n"
        "assert not {'numba', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "assert issubclass(sim.InputError, ValueError)\n"
        "assert sim.Sweep(d_k=4, n_tokens=8).trials == 1000\n"
        "assert callable(sim.run)\n"
        "assert set(sim.__all__) <= set(dir(sim))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_toml_sweep_runs_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(SWEEP)
    result = process("run", "my.toml", "--out", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("out/tiny/data.nc  (")
    assert [path.name for path in tmp_path.glob("out/tiny/*")] == ["data.nc"]
    with xr.open_dataset(tmp_path / "out/tiny/data.nc", engine="h5netcdf") as dataset:
        assert {"score_variance", "score_variance_se", "score_variance_theory"} <= set(dataset.data_vars)
        assert dataset.sizes["d_k"] == 2
    shown = process("show", "out/tiny", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "score_variance" in shown.stdout
    assert "±" in shown.stdout
    again = process("run", "my.toml", "--out", "out", "--if-stale", cwd=tmp_path)
    assert again.stdout == "out/tiny/data.nc is up to date\n"
    other = process("run", "my.toml", "--out", "out", "--if-stale", "--seed", 1, cwd=tmp_path)
    assert other.stdout.startswith("out/tiny/data.nc  (")


@pytest.mark.skipif(os.name == "nt", reason="the shell is POSIX's")
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_reason_to_fail(tmp_path: Path, closed: str) -> None:
    measured().to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    command = f"{sys.executable} -m sim show data.nc {closed}"
    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("d_k = [4, 16]\ndk = 3", ["dk", "did you mean"]),
        ("d_k = 0", ["d_k", "0"]),
        ("d_k = []", ["d_k"]),
        ("d_k = [4, 4]", ["d_k", "4"]),
        ("d_k = [4", ["my.toml"]),
    ],
)
def test_a_wrong_toml_sweep_is_refused_before_anything_is_written(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "my.toml").write_text(SWEEP.replace("d_k = [4, 16]", line))
    result = process("run", "my.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert [path.name for path in tmp_path.iterdir()] == ["my.toml"]


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_ctrl_c_leaves_the_old_dataset(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(SWEEP.replace("trials = 40", "trials = 1_000_000_000"))
    data = tmp_path / "results/tiny/data.nc"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"old")
    running = subprocess.Popen(
        [sys.executable, "-m", "sim", "run", "my.toml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    first = running.stderr.readline()  # the first line of progress: by now it simulates
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=60)[1]
    assert "tiny" in first
    assert rest.splitlines()[-1].startswith("Interrupted: tiny was not finished, nothing was written")
    assert running.returncode == 130
    assert data.read_bytes() == b"old"
    assert [path.name for path in data.parent.iterdir()] == ["data.nc"]


def test_a_sweep_may_not_have_the_name_of_an_experiment(folder: Path, engine: SimpleNamespace) -> None:
    Path("mine.toml").write_text(SWEEP.replace("tiny", "one"), encoding="utf-8")
    result = sim("run", "mine.toml", "--experiments", folder)
    assert result.exit_code == 2
    assert "mine.toml: name = 'one' is an experiment's" in result.stderr
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--query no.npy", "--query: no.npy: there is no such file"),
        ("--key k.npz:q", "--key: k.npz:q: there is no array q in the file; KEY is one of k, short"),
        ("--query cut.npy", "--query: cut.npy is damaged or was not written to its end"),
        ("--query nan.npy", "--query: nan.npy has 24 entries that are NaN or infinite, the first [0, 0, 0] = nan"),
        ("--key k.npz:short", "q.npy and k.npz:short: query and key have vectors of different lengths, 3 and 2"),
        ("--name one", "--name = 'one' is an experiment's"),
        ("--name a/b", "--name = 'a/b' is not allowed"),
        ("--out file", "--out: 'file/measure' cannot be written"),
        ("--dims layer,head", "--dims: got ['layer', 'head']; the arrays have 1 leading axis"),
        ("--scale=", "--scale is empty"),
        ("--scale softcup(cap=50)", "--scale.kind = 'softcup' is not allowed: it must be one of none"),
        (
            "--scale softcap(cap=50,after=log_n)",
            "--scale.after = 'log_n' is not allowed: it must be one of none, sqrt_dk",
        ),
        ("--observables= --out a/b", "--observables = '' is not allowed: it must be one of scores"),
    ],
)
def test_measure_refuses_in_one_line_and_leaves_nothing(folder: Path, words: str, says: str) -> None:
    np.save("q.npy", np.ones((2, 4, 3)))
    np.save("nan.npy", np.full((2, 4, 3), np.nan))
    np.savez("k.npz", k=np.ones((2, 5, 3)), short=np.ones((2, 5, 2)))
    Path("cut.npy").write_bytes(Path("q.npy").read_bytes()[:-8])
    Path("file").touch()
    before = set(Path().rglob("*"))
    result = sim("measure", "--query", "q.npy", "--key", "k.npz:k", *words.split(), "--experiments", folder)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"Error: {says}")
    assert before == set(Path().rglob("*"))
