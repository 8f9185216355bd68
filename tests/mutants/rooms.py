"""Every room of the product, and the tests that should notice a mistake in it: the one table of both.

A room is the modules below a path (or one module). Where a longer path has an entry of its own, its modules belong to
that one alone, so that every module belongs to exactly one room.
"""

from __future__ import annotations

import re
from pathlib import Path

# Room: (path, tests). An edit below kernels/cpu or kernels/formats compiles the kernels anew, for a minute.
ROOMS = {
    "reports": ("reports", "tests/reports"),
    "eval": ("eval", "tests/eval"),
    "grading": ("eval/grading.py", "tests/eval/test_grading.py"),
    "screen": ("eval/tui", "tests/eval/test_tui.py"),
    "speed_bench": ("speed_bench", "tests/speed_bench"),
    "test_vectors": ("test_vectors", "tests/test_vectors"),
    "diagnosis": (
        "test_vectors/diagnosis",
        "tests/test_vectors/test_diagnose.py tests/test_vectors/test_posterior.py tests/test_vectors/test_evidence.py "
        "tests/test_vectors/test_families.py tests/test_vectors/test_signatures.py "
        "tests/test_vectors/test_reading.py tests/benchmarks/test_diagnosis.py",
    ),
    "doctor": (
        "test_vectors/doctor",
        "tests/test_vectors/test_doctor.py tests/test_vectors/test_doctor_run.py "
        "tests/test_vectors/test_doctor_targets.py tests/test_vectors/test_preflight.py",
    ),
    "trace": (
        "test_vectors/trace",
        "tests/test_vectors/test_budget.py tests/test_vectors/test_trace.py tests/test_vectors/test_trace_cli.py "
        "tests/test_vectors/test_trace_constants.py tests/test_vectors/test_trace_dumps.py "
        "tests/test_vectors/test_trace_ops.py tests/test_vectors/test_record.py",
    ),
    "cli": (
        "ds4ref/cli",
        "tests/cli tests/agent/test_cli.py tests/weights/test_quantize_files.py tests/weights/test_quantize_stops.py "
        "tests/test_importance.py",
    ),
    "server": ("ds4ref/server", "tests/server"),
    "apis": (
        "ds4ref/server/apis",
        "tests/server/test_requests.py tests/server/test_answers.py tests/server/test_forms.py "
        "tests/server/test_generation.py",
    ),
    "conformance": ("ds4ref/conformance", "tests/conformance"),
    "agent": ("ds4ref/agent", "tests/agent"),
    "console": ("ds4ref/console", "tests/cli tests/test_importance.py"),
    "targets": ("ds4ref/targets", "tests/targets tests/speed_bench/test_targets.py"),
    "steering": ("ds4ref/steering", "tests/steering tests/cli/test_steer.py"),
    "variants": (
        "ds4ref/variants",
        "tests/variants tests/test_vectors/test_families.py tests/test_vectors/test_damage.py",
    ),
    "importance": ("ds4ref/importance.py", "tests/test_importance.py"),
    "runs": (
        "ds4ref/runs",
        "tests/runs tests/eval/test_thinking.py tests/speed_bench/test_columns.py tests/speed_bench/test_runner.py "
        "tests/speed_bench/test_warnings.py",
    ),
    "engine": ("ds4ref", "tests/test_engine.py tests/test_api.py tests/test_environment.py tests/test_imports.py"),
    "cluster": ("ds4ref/cluster", "tests/cluster"),
    "nano": ("ds4ref/nano", "tests/nano tests/archs/test_published.py"),
    "generate": ("ds4ref/generate.py", "tests/test_generate.py tests/cli/test_oneshot.py tests/cli/test_chat.py"),
    "session": ("ds4ref/session", "tests/session"),
    "drafts": ("ds4ref/drafts", "tests/drafts"),
    "decode": ("ds4ref/decode.py", "tests/test_decode.py tests/session/test_forks.py"),
    "archs": (
        "ds4ref/archs",
        "tests/archs tests/test_decode.py tests/session tests/test_importance.py tests/test_costs.py "
        "tests/weights/test_tensors.py",
    ),
    "text": ("ds4ref/text", "tests/text"),
    "weights": ("ds4ref/weights", "tests/weights"),
    "residency": ("ds4ref/residency", "tests/residency"),
    "sampling": ("ds4ref/sampling", "tests/test_sampling.py tests/weights/test_llama2c.py"),
    "costs": ("ds4ref/costs.py", "tests/test_costs.py tests/speed_bench/test_model.py"),
    "kernels": ("kernels", "tests/kernels/test_ops.py tests/kernels/test_pitfalls.py tests/kernels/test_cpu_cores.py"),
    "formats": ("kernels/formats", "tests/kernels/test_formats.py"),
    "reference": ("kernels/reference", "tests/kernels/test_pitfalls.py tests/kernels/test_cpu_ops.py"),
    "cpu": ("kernels/cpu", "tests/kernels"),
    # kernels are noticed where they can be compiled (make cuda)
    "cuda": ("kernels/cuda", "tests/kernels/cuda"),
}


def room_of(module: str) -> str | None:
    """Return the room of a module, given by its path from the root of the tree; None if it has none."""
    rooms = [name for name, (path, _) in ROOMS.items() if module == path or module.startswith(path + "/")]
    return max(rooms, key=lambda name: len(ROOMS[name][0]), default=None)


def modules(tree: Path) -> dict[str, list[Path]]:
    """Return the modules of each room; rooms at the top of the tree are not found again through the links to them."""
    found: dict[str, list[Path]] = {name: [] for name in ROOMS}
    for top in sorted({path.partition("/")[0] for path, _ in ROOMS.values()}):
        for path in sorted((tree / top).rglob("*.py")):
            module = path.relative_to(tree)
            room = room_of(module.as_posix())
            if room is not None and not tree.joinpath(*module.parts[:2]).is_symlink():
                found[room].append(path)
    return found


def narrow(tree: Path, module: Path, tests: list[str]) -> list[str]:
    """Return the test files among ``tests`` (files, folders) that name a module or what its package exports."""
    files = [
        file for test in tests for file in ([tree / test] if test.endswith(".py") else (tree / test).rglob("test_*.py"))
    ]
    stem = module.parent.name if module.stem == "__init__" else module.stem
    wanted = re.compile(rf"\b{module.parent.name}(?: import (?:\w+, )*|\.){stem}\b|^from ds4ref\.{stem} ", re.MULTILINE)
    first = [file for file in files if file.stem == f"test_{stem}"]
    named = [file for file in files if file not in first and wanted.search(file.read_text(encoding="utf-8"))]
    return [file.relative_to(tree).as_posix() for file in [*first, *named]]
