"""The README's code blocks run as they stand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sim.cli import main
from sim.engine import run as simulate
from sim.laws import LAWS
from sim.scales import SCALES
from sim.structure import DEPENDENT, INITS, NORMALIZE, PAIR, SCORES, WITHIN
from sim.sweep import Sweep

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


def sim(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0


def test_every_block_is_of_a_kind_that_is_run_here():
    assert {kind for kind, _ in BLOCKS} == {"sh", "toml", "python"}


def test_the_commands_named_exist():
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)`", README):
        assert re.search(rf"^{target}:", targets, re.MULTILINE), target
    for name in re.findall(r"^\| `(\w+)` \|", README.split("| experiment |")[1].split("\n\n")[0], re.MULTILINE):
        assert (ROOT / "experiments" / f"{name}.py").exists(), name


def test_pictures_exist():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).exists(), path


def test_the_sweep_runs_and_is_shown(tmp_path, monkeypatch, capsys):
    (toml,) = [text for text in blocks("toml") if "my.toml" in text]
    (commands,) = [text for text in blocks("sh") if "my.toml" in text]
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(toml, encoding="utf-8")
    for line in commands.splitlines():
        words = line.split("#")[0].split()
        assert words[0] == ".venv/bin/sim"
        sim(*words[1:])
    assert "score_variance" in capsys.readouterr().out


def test_the_structured_sweep_runs(tmp_path):
    (toml,) = [text for text in blocks("toml") if "structured.toml" in text]
    path = tmp_path / "structured.toml"
    path.write_text(toml, encoding="utf-8")
    dataset = simulate(Sweep.from_toml(path).replace(trials=20))
    assert dict(dataset.sizes) | {"df": 2, "within_rho": 3, "scale": 2} == dict(dataset.sizes)
    assert "partner_weight" in dataset


def test_every_kind_is_in_the_table():
    table = README.split("### Breaking the assumptions")[1].split("A kind with parameters")[0]
    for registry in (LAWS, SCALES, SCORES, PAIR, WITHIN, DEPENDENT, NORMALIZE, INITS):
        for name in set(registry) - {"none"}:
            assert f"`{name}" in table, name


def test_given_arrays_are_measured(tmp_path, monkeypatch, capsys):
    (code,) = [text for text in blocks("python") if "sim.measure" in text]
    (commands,) = [text for text in blocks("sh") if "sim measure" in text]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    for line in commands.splitlines():
        sim(*line.split()[1:])
    assert "weight_entropy" in capsys.readouterr().out


def test_the_python_blocks_run(tmp_path):
    made = tmp_path / "made"
    sim("run", "variance_growth", "--quick", "--out", str(made))
    shutil.copytree(made / "quick" / "variance_growth", tmp_path / "results" / "variance_growth")
    for code in blocks("python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
