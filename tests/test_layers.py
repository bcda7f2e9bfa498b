"""The shape of the code: imports in ``sim`` point down, and ``import sim`` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sim
from sim.provenance import PRESENTATION

PACKAGE = Path(sim.__file__).parent
# From the top down. A module may import those of its own floor (but in no circle) and of lower ones. A folder is one.
FLOORS = [
    ["__main__", "cli"],
    ["experiments", "figures", "fits", "meter", "running", "show"],
    ["engine", "measuring"],
    ["dataset", "observables", "score_observables", "row_observables", "observable", "quantiles", "estimates", "cpu"],
    [
        "plan",
        "given",
        "first_scores",
        "block",
        "stream",
        "finish",
        "gradients",
        "slopes",
        "rounded",
        "spectrum",
        "vectors",
        "views",
        "arguments",
    ],
    ["theory"],
    ["sweep", "grid", "settings", "cell", "side"],
    [
        "structure",
        "reading",
        "draw",
        "tiles",
        "rows",
        "laws",
        "scales",
        "kinds",
        "tally",
        "moments",
        "sizes",
        "elementary",
        "arrays",
    ],
    ["philox", "jit", "blas", "provenance", "errors"],
]
ANYWHERE = {"__init__"}  # the public names, each of which brings its module when it is first used


def top(name: str) -> str:
    """Return the module or the folder in ``sim`` that a module is or stands in."""
    return name.split(".")[0]


def imports_of(source: str, top_level_only=False) -> set[str]:
    """Return the modules of ``sim`` that a source imports, wherever the import stands."""
    found = set()
    tree = ast.parse(source)
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("sim.") for alias in node.names if alias.name.startswith("sim.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sim" and not node.level:
            inside = node.module.removeprefix("sim").lstrip(".")
            names = {alias.name for alias in node.names}
            found |= {inside} if inside else {name for name in names if (PACKAGE / f"{name}.py").exists()}
    return found | {top(name) for name in found if (PACKAGE / top(name)).is_dir()}


def sources() -> dict[str, str]:
    """Return the text of every module, by its name without ``sim.``."""
    paths = {path.relative_to(PACKAGE).with_suffix(""): path.read_text() for path in PACKAGE.rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): text for path, text in paths.items()}


def upward(modules: dict[str, str], floors: list[list[str]]) -> list[str]:
    """Return the imports that point up."""
    floor = {name: i for i, names in enumerate(floors) for name in names}
    return [
        f"{name} imports {other}"
        for name, source in modules.items()
        for other in sorted(imports_of(source))
        if name not in ANYWHERE and floor[top(other)] < floor[top(name)]
    ]


def circles(modules: dict[str, str]) -> list[str]:
    """Return the modules that import themselves through others."""
    reached = {name: imports_of(source) for name, source in modules.items() if name not in ANYWHERE}
    for middle in reached:
        for name in reached:
            if middle in reached[name]:
                reached[name] = reached[name] | reached[middle]
    return [name for name, others in reached.items() if name in others]


def closure(name: str, modules: dict[str, str]) -> set[str]:
    seen, ahead = set(), {name}
    while ahead:
        module = ahead.pop()
        seen.add(module)
        ahead |= imports_of(modules[module]) - seen
    return seen


def test_every_module_stands_on_one_floor():
    named = [name for names in FLOORS for name in names]
    assert len(named) == len(set(named))
    assert set(named) | ANYWHERE == {top(name) for name in sources()}


def test_imports_point_down():
    assert upward(sources(), FLOORS) == []


def test_there_are_no_circles():
    assert circles(sources()) == []


def test_no_import_is_relative():
    for name, source in sources().items():
        for node in ast.walk(ast.parse(source)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), name


@pytest.mark.parametrize("line", ["from sim.engine import run", "import sim.engine", "from sim import engine"])
def test_the_check_can_fail(line):
    broken = {**sources(), "philox": f"def late():\n    {line}\n"}
    assert upward(broken, FLOORS) == ["philox imports engine"]
    assert "philox" in circles(broken)


def test_what_only_presents_takes_no_part_in_simulating():
    """All that makes numbers is digested, as an edit there makes datasets stale; and nothing else is."""
    modules = sources()
    simulating = set().union(*(closure(name, modules) for name in ("engine", "measuring") if name in modules))
    presenting = {Path(name).stem for name in PRESENTATION} - ANYWHERE
    assert presenting == set(modules) - simulating - ANYWHERE


HEAVY = ("numba", "scipy", "matplotlib", "pydantic", "xarray", "numpy")


def loaded_by(line: str) -> set[str]:
    code = f"import sys; {line}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True)
    return set(done.stdout.split())


def test_importing_the_package_is_light():
    assert loaded_by("import sim") == set()
    assert loaded_by("import sim; dir(sim); sim.__version__; sim.InputError") == set()
    assert loaded_by("import sim; sim.run") >= {"numba", "xarray", "numpy"}
