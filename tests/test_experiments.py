"""Experiments are found by name without being run, and read once they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import InputError
from sim.experiments import find, find_all, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text(
        '"""Does one hold?\n\nMore.\n"""\nSWEEP = "a sweep"\n\ndef figure(ds):\n    return ds\n'
    )
    (tmp_path / "two.py").write_text('"""Do both?"""\nSWEEP = {"left": 1, "right": 2}\n')
    (tmp_path / "made.py").write_text("def dataset(quick):\n    return quick\n")
    (tmp_path / "_helper.py").write_text("raise RuntimeError\n")
    (tmp_path / "broken.py").write_text('"""Fails when it is run."""\nraise RuntimeError("not now")\n')
    return tmp_path


def test_experiments_are_listed_without_being_run(folder: Path) -> None:
    found = {entry.name: entry.summary for entry in find_all(folder)}
    assert found == {"broken": "Fails when it is run.", "made": "", "one": "Does one hold?", "two": "Do both?"}


def test_a_file_with_an_error_is_listed_with_it(folder: Path) -> None:
    (folder / "typo.py").write_text("def (:\n")
    assert "cannot be read" in {entry.name: entry.summary for entry in find_all(folder)}["typo"]


def test_a_single_sweep_becomes_data(folder: Path) -> None:
    experiment = load(find("one", folder))
    assert experiment.single
    assert experiment.paths(Path("out")) == {"data": Path("out/one/data.nc")}
    assert experiment.figure is not None


def test_a_dict_of_sweeps_becomes_a_file_each(folder: Path) -> None:
    experiment = load(find("two", folder))
    assert not experiment.single
    assert experiment.paths(Path("out")) == {"left": Path("out/two/left.nc"), "right": Path("out/two/right.nc")}


def test_a_function_makes_a_dataset(folder: Path) -> None:
    experiment = load(find("made", folder))
    assert experiment.paths(Path("out")) == {"data": Path("out/made/data.nc")}
    assert experiment.makers["data"](True) is True
    assert not experiment.sweeps


def test_a_function_may_stand_beside_sweeps(folder: Path) -> None:
    (folder / "mixed.py").write_text("def timed(quick):\n    return quick\n\nSWEEP = {'left': 1, 'time': timed}\n")
    experiment = load(find("mixed", folder))
    assert experiment.paths(Path("out")) == {"left": Path("out/mixed/left.nc"), "time": Path("out/mixed/time.nc")}
    assert list(experiment.sweeps) == ["left"]
    assert experiment.makers["time"](True) is True


def test_a_misspelt_name_is_told_the_nearest(folder: Path) -> None:
    with pytest.raises(InputError, match=r"'tow' is not known; did you mean 'two'\?"):
        find("tow", folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--experiments: .*nowhere.* is no folder"):
        find_all(tmp_path / "nowhere")


def test_a_failing_module_is_named(folder: Path) -> None:
    with pytest.raises(ImportError, match=r"experiment broken .*RuntimeError: not now"):
        load(find("broken", folder))


@pytest.mark.parametrize("source", ["", "SWEEP = 1\n\ndef dataset(quick):\n    return quick\n"])
def test_an_experiment_says_in_one_way_what_it_simulates(folder: Path, source: str) -> None:
    (folder / "vague.py").write_text(source)
    with pytest.raises(InputError, match="either SWEEP or a function dataset"):
        load(find("vague", folder))


@pytest.mark.parametrize("swept", ["{}", "{'../up': 1}", "{3: 1}", "{'': 1}"])
def test_the_keys_of_several_sweeps_name_files(folder: Path, swept: str) -> None:
    (folder / "odd.py").write_text(f"SWEEP = {swept}\n")
    with pytest.raises(InputError, match=r"experiment odd: .* is not allowed"):
        load(find("odd", folder))


def test_a_module_that_leaves_is_named(folder: Path) -> None:
    (folder / "leaving.py").write_text("import sys\n\nsys.exit(3)\n")
    with pytest.raises(ImportError, match=r"experiment leaving .*SystemExit: 3"):
        load(find("leaving", folder))


def test_a_file_that_cannot_be_read_is_listed_all_the_same(folder: Path) -> None:
    (folder / "lost.py").symlink_to(folder / "nowhere")
    assert find("lost", folder).summary.startswith("(cannot be read: ")


def test_the_package_s_own_experiments_load_and_can_be_drawn() -> None:
    entries = find_all()
    assert entries
    for entry in entries:
        assert entry.summary, f"{entry.name} has no docstring"
        assert load(entry).figure is not None
