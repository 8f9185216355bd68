"""What may not be imported early. Who may import whom: the contracts in pyproject.toml (make lint)."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def fresh(code: str, path: str | None = None) -> str:
    """The output of a new interpreter, which must end well."""
    env = {**os.environ, "PYTHONPATH": path or str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = {"numba", "llvmlite", "pandas", "matplotlib", "scipy", "torch"}
SLOW = {"numpy", "tokenizers", "prompt_toolkit", "rich"}
"""What `ds4 --help` does without, too."""
LOADED = f"import sys; print(sorted({HEAVY} & set(sys.modules)))"


@pytest.mark.parametrize(
    "statement",
    [
        "import ds4ref",
        "import ds4ref.kernels.formats",
        "import ds4ref.weights.gguf, ds4ref.archs.deepseek4.weights, ds4ref.archs.deepseek4.shape",
        "import ds4ref.cli.ds4",
        "import ds4ref.nano.recipe, ds4ref.nano.cache",
        "import ds4ref.speed_bench.cli, ds4ref.speed_bench.sweep, ds4ref.speed_bench.plot",
        "import ds4ref.runs.store, ds4ref.runs.results, ds4ref.runs.drift, ds4ref.runs.spread, ds4ref.runs.provenance",
        "import ds4ref.runs.evals, ds4ref.console.tables",
        "import ds4ref.engine",
        "import ds4ref.cli.kv, ds4ref.session.store",
        "import ds4ref.cli.quantize, ds4ref.weights.quantize.run, ds4ref.weights.quantize.splice",
    ],
)
def test_light_modules_stay_light(statement):
    assert fresh(f"{statement}\n{LOADED}") == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "ds4ref.cli.ds4",
        "ds4ref.cli.server",
        "ds4ref.cli.kv",
        "ds4ref.cli.quantize",
        "ds4ref.speed_bench.cli",
        "ds4ref.reports.cli",
    ],
)
def test_help_imports_neither_numba_nor_scipy(module):
    code = (
        f"import contextlib, io, {module} as m\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert m.main(['--help']) == 0\n"
    )
    heavy = HEAVY | SLOW if module == "ds4ref.cli.ds4" else HEAVY
    assert fresh(f"{code}import sys; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_inspect_imports_neither_numba_nor_scipy(nano_path):
    code = (
        "import contextlib, io, ds4ref.cli.ds4 as m\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        f"    assert m.main(['--inspect', {nano_path!r}]) == 0\n"
    )
    assert fresh(code + LOADED) == "[]"


def modules(folder: Path, package: str) -> list[str]:
    """Every module of a package; links to other rooms are followed."""
    names = []
    for path in sorted(folder.iterdir()):
        if (
            path.is_dir() and (path / "__init__.py").exists() and path.name != "probes"
        ):  # scripts for other interpreters
            names += [f"{package}.{path.name}", *modules(path, f"{package}.{path.name}")]
        elif path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            names.append(f"{package}.{path.stem}")
    return names


LIGHT = [m for m in modules(ROOT / "ds4ref", "ds4ref") if not m.startswith("ds4ref.kernels")]


def theirs() -> set[str]:
    """What our modules import of others as they are imported themselves."""
    names = set()
    for module in LIGHT:
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return {m for m in names if m.split(".")[0] != "ds4ref"}


@pytest.mark.thorough
def test_every_module_can_be_imported_alone():
    """No module depends on another one having been imported before it."""
    assert len(LIGHT) > 400
    code = f"""
import importlib, os
for module in {sorted(theirs())!r}:  # once, not in every child; some are no modules but names in one
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        pass
for module in {LIGHT!r}:
    if not os.fork():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != "torch" or not module.startswith("ds4ref.nano.train."):  # the extra `train`
                print(f"{{module}}: {{error!r}}", flush=True)
        except BaseException as error:
            print(f"{{module}}: {{error!r}}", flush=True)
        os._exit(0)
    os.wait()
"""
    assert fresh(code) == ""


def test_the_table_of_rooms_is_that_of_the_contracts():
    """CONTRIBUTING.md lists every room, from top to bottom as the layers of pyproject.toml have it."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package | holds |\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[1:]]
    listed = [re.sub(r"^ds4ref/|/$|\.py$", "", name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    listed = [re.sub(r"/$|\.py$", "", name) for name in listed]
    assert sorted(listed) == sorted(room for layer in layers for room in layer)
    floors = [next(at for at, layer in enumerate(layers) if room in layer) for room in listed]
    assert floors == sorted(floors)
