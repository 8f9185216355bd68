"""Who may import whom (design of the rooms: CONTRIBUTING.md), and what may not be imported early."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("ds4ref", "kernels", "speed_bench", "eval", "test_vectors", "reports", "benchmarks")
TOOLS = ("speed_bench", "eval", "test_vectors", "reports")

# What a tool may use of ds4ref. Tensors (model, weights.tensors), caches (session) and files (shape aside, the
# vocabulary is read through weights.open_source) belong to the engine; a tool measures it from outside.
OPEN_TO_TOOLS = (
    "ds4ref.backends",
    "ds4ref.cancellation",
    "ds4ref.cli",
    "ds4ref.archs.deepseek4.costs",
    "ds4ref.archs.deepseek4.shape",
    "ds4ref.costs",
    "ds4ref.engine",
    "ds4ref.environment",
    "ds4ref.errors",
    "ds4ref.files",
    "ds4ref.generate",
    "ds4ref.nano",
    "ds4ref.numerics",
    "ds4ref.peaks",
    "ds4ref.runs",
    "ds4ref.sampling",
    "ds4ref.targets",
    "ds4ref.text",
    "ds4ref.variants",
    "ds4ref.weights.gguf",
)
# Of these packages, what stands in their own __init__ alone.
OPEN_ALONE = ("ds4ref", "ds4ref.weights")


def imports(path: Path) -> set[str]:
    """Absolute dotted names of every module imported anywhere in a file, functions included."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            # `from package import module` imports the module, too.
            found |= {f"{module}.{a.name}" if _is_module(module, a.name) else module for a in node.names}
    return found


def _is_module(package: str, name: str) -> bool:
    folder = ROOT.joinpath(*package.split("."))
    return folder.joinpath(name + ".py").is_file() or folder.joinpath(name, "__init__.py").is_file()


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Our modules and the modules of ours that each one imports."""
    edges = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            edges[name] = {other for other in imports(path) if other.split(".")[0] in ROOMS}
    return edges


def within(name: str, packages) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_the_graph_is_not_empty(graph):
    assert "kernels" in {target.split(".")[0] for target in graph["ds4ref.weights.container"]}
    assert "ds4ref.errors" in graph["speed_bench.results"]
    assert "kernels.formats.format" in graph["kernels.formats.q8_0"], "relative imports are resolved"


@pytest.mark.parametrize("room", ROOMS)
def test_import_order(graph, room):
    for module, used in graph.items():
        if not within(module, [room]):
            continue
        foreign = {name for name in used if name.split(".")[0] != room}
        if room == "kernels":
            assert not foreign, f"{module}: kernels imports nothing of ours"
        elif room == "ds4ref":
            assert within_all(foreign, ("kernels",)), f"{module}: ds4ref imports kernels only"
        elif room in TOOLS:
            closed = {name for name in foreign if name not in OPEN_ALONE and not within(name, OPEN_TO_TOOLS)}
            assert not closed, f"{module} reaches behind the engine, or for another tool"


def within_all(names, packages) -> bool:
    return all(within(name, packages) for name in names)


def test_backends_do_not_know_each_other(graph):
    for module, used in graph.items():
        for one, other in (("cpu", "cuda"), ("cuda", "cpu"), ("reference", "cpu"), ("reference", "cuda")):
            if within(module, [f"kernels.{one}"]):
                assert not any(within(name, [f"kernels.{other}"]) for name in used), module
        if within(module, ["kernels.formats"]):
            assert within_all({n for n in used if n.startswith("kernels")}, ["kernels.formats"]), module


def fresh(code: str, path: str | None = None) -> str:
    """The output of a new interpreter, which must end well."""
    env = {**os.environ, "PYTHONPATH": path or str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOADED = "import sys; print(sorted({'numba', 'llvmlite', 'pandas', 'matplotlib', 'scipy', 'torch'} & set(sys.modules)))"


@pytest.mark.parametrize(
    "statement",
    [
        "import ds4ref",
        "import kernels.formats",
        "import ds4ref.weights.gguf, ds4ref.archs.deepseek4.weights, ds4ref.archs.deepseek4.shape",
        "import ds4ref.cli.ds4",
        "import ds4ref.nano.recipe, ds4ref.nano.cache",
        "import speed_bench.cli, speed_bench.sweep, speed_bench.results, speed_bench.plot",
        "import ds4ref.runs.store, ds4ref.runs.results, ds4ref.runs.drift, ds4ref.runs.spread, ds4ref.runs.provenance",
        "import ds4ref.runs.evals, ds4ref.cli.tables",
        "import ds4ref.engine",
        "import ds4ref.cli.kv, ds4ref.session.store",
        "import ds4ref.cli.quantize, ds4ref.weights.quantize.run, ds4ref.weights.quantize.splice",
    ],
)
def test_light_modules_stay_light(statement):
    assert fresh(f"{statement}\n{LOADED}") == "[]"


@pytest.mark.parametrize(
    "module", ["ds4ref.cli.ds4", "ds4ref.cli.server", "ds4ref.cli.kv", "ds4ref.cli.quantize", "speed_bench.cli"]
)
def test_help_imports_neither_numba_nor_pandas(module):
    code = (
        f"import contextlib, io, {module} as m\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert m.main(['--help']) == 0\n"
    )
    assert fresh(code + LOADED) == "[]"


def test_inspect_imports_neither_numba_nor_pandas(nano_path):
    code = (
        "import contextlib, io, ds4ref.cli.ds4 as m\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        f"    assert m.main(['--inspect', {nano_path!r}]) == 0\n"
    )
    assert fresh(code + LOADED) == "[]"


def theirs() -> set[str]:
    """What our modules import of others as they are imported themselves."""
    found = set()
    for room in ("ds4ref", "speed_bench"):
        for path in (ROOT / room).rglob("*.py"):
            if "probes" not in path.parts:
                for node in ast.parse(path.read_text()).body:
                    if isinstance(node, ast.Import):
                        found |= {alias.name for alias in node.names}
                    elif isinstance(node, ast.ImportFrom) and not node.level:
                        found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return {m for m in found if m.split(".")[0] not in ROOMS}


def test_every_module_can_be_imported_alone(graph):
    """No module depends on another one having been imported before it."""
    ours = [m for m in graph if m.split(".")[0] in ("ds4ref", "speed_bench") and not m.endswith("__main__")]
    modules = [m for m in ours if ".probes" not in m]  # scripts for the interpreters of clients
    code = f"""
import importlib, os
for module in {sorted(theirs())!r}:  # once, not in every child; some are no modules but names in one
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        pass
for module in {modules!r}:
    if not os.fork():
        try:
            importlib.import_module(module)
        except BaseException as error:
            print(f"{{module}}: {{error!r}}", flush=True)
        os._exit(0)
    os.wait()
"""
    assert fresh(code) == ""


@pytest.mark.oracle
def test_a_folder_named_kernels_does_transformers_no_harm():
    """transformers looks for an optional package of this name; ours must not be taken for it."""
    code = (
        "import kernels, transformers\n"
        "from transformers import DeepseekV4Config, DeepseekV4ForCausalLM\n"
        "assert kernels.__file__.startswith(ROOT)\n"
        "print(DeepseekV4ForCausalLM.__name__)"
    )
    assert fresh(f"ROOT = {str(ROOT)!r}\n" + code).splitlines()[-1] == "DeepseekV4ForCausalLM"
