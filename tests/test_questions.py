"""The answers of `results/questions.md` are what its blocks print.

Words must be equal, numbers within a unit of the last digit that is printed: the random words are the same everywhere,
the last bits of sums are not. The numbers of one array, [0.5 1.  ], have the digits of its longest.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sim.cli import main

PAGE = (Path(__file__).parent.parent / "results" / "questions.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]\d+)?(?!\w)")


def blocks(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(kind: str, code: str) -> None:
    """Run a block in the working directory."""
    if kind == "python":
        exec(compile(code, "questions.md", "exec"), {})
    elif kind == "toml":
        Path(code.split("\n", 1)[0].removeprefix("# ")).write_text(code, encoding="utf-8")
    else:
        for line in code.splitlines():
            command, *arguments = shlex.split(line)
            assert command == ".venv/bin/sim"
            with pytest.raises(SystemExit) as end:
                main(arguments)
            assert end.value.code == 0, line


def numbers(line: str) -> list[tuple[float, float]]:
    """Return a line's numbers, each with a unit of its last digit; a whole number is exact."""
    found = []
    for part in re.split(r"(\[.*?\])", line):
        texts = _NUMBER.findall(part)
        decimals = [len(re.sub(r"e.*", "", text).partition(".")[2]) for text in texts]
        if part.startswith("["):
            decimals = [max(decimals, default=0)] * len(texts)
        powers = [int(text.partition("e")[2] or 0) for text in texts]
        units = [10.0 ** (p - d) if d else 0.0 for d, p in zip(decimals, powers, strict=True)]
        found += list(zip(map(float, texts), units, strict=True))
    return found


def words(line: str) -> list[str]:
    """Return what stands between the numbers; rules of a table are as long as its columns are wide."""
    return re.sub(r"─+", "─", _NUMBER.sub(" # ", line)).split()


def is_same(line: str, printed: str) -> bool:
    if words(line) != words(printed):
        return False
    pairs = zip(numbers(line), numbers(printed), strict=True)
    return all(abs(a - b) <= unit * (1 + 1e-9) for (a, unit), (b, _) in pairs)


def missing(answer: str, printed: str) -> list[str]:
    """Return the lines of an answer that were not printed in their order."""
    rest = iter(printed.splitlines())
    return [line for line in answer.splitlines() if not any(is_same(line, other) for other in rest)]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_answer_is_what_is_printed(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *steps, (kind, answer) = blocks(SECTIONS[title])
    assert kind == "text"
    monkeypatch.chdir(tmp_path)
    for step in steps:
        run(*step)
    printed = capsys.readouterr().out
    assert not missing(answer, printed), f"printed:\n{printed}"


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_has_its_source_an_answer_and_a_conclusion(title: str) -> None:
    source, _, rest = SECTIONS[title].strip().partition("\n")
    assert re.fullmatch(r"[\w./-]+(#| PR |, comment )\d+(, [\w./-]+(#| PR )\d+)*", source)
    assert {kind for kind, _ in blocks(rest)} <= {"python", "toml", "sh", "text"}
    assert [kind for kind, _ in blocks(rest)][-1] == "text"
    assert rest.rstrip()[-1] == "."
    assert len(rest.rpartition("```")[2].strip()) > 80


def test_every_question_is_there() -> None:
    assert len(SECTIONS) == 14


def test_numbers_may_differ_in_a_unit_of_their_last_digit() -> None:
    line = "std 0.998 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05, 12 %"
    for same in ("std 0.999 ± 0.010 of 64, [0.6  1.1] and 1.3e-05, 12 %", line.replace("  ", " ")):
        assert is_same(line, same)
    for other in (
        "std 0.996 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05, 12 %",
        "std 0.998 ± 0.011 of 65, [0.5  1.  ] and 1.2e-05, 12 %",
        "std 0.998 ± 0.011 of 64, [0.5  1.3] and 1.2e-05, 12 %",
        "std 0.998 ± 0.011 of 64, [0.5  1.  ] and 1.4e-05, 12 %",
        "std 0.998 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05, 13 %",
        "std 0.998 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05",
        "mean 0.998 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05, 12 %",
        "std -0.998 ± 0.011 of 64, [0.5  1.  ] and 1.2e-05, 12 %",
    ):
        assert not is_same(line, other), other


def test_lines_are_found_in_their_order() -> None:
    assert missing("a 1.0\nb 2.0", "head\na 1.0\nelse\nb 2.1\n") == []
    assert missing("a 1.0\nb 2.0", "b 2.0\na 1.0\n") == ["b 2.0"]
    assert missing("rule\n──\n", "rule\n────\n") == []
