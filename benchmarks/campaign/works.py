"""What writes files, each as one piece of work that can be done again and whose result can be read.

A ``Work`` is set up in an empty folder, where the state before is made, too. ``act`` does it, ``look`` returns what is
there as a tuple of whole parts. Whatever happens to ``act``, the parts must be those before it or the first of those
after it: never a part of one, nor a mixture. Doing it again must bring the state after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

State = tuple[Any, ...]


@dataclass
class Work:
    """One piece of work.

    act   does it in a folder; raises one of our exceptions or an OSError with a name, or returns False, if it cannot
    look  what is there
    adds  whether doing it twice brings the result twice
    names whether an error names the file or its folder
    """

    act: Callable[[Path], object]
    look: Callable[[Path], State]
    begin: Callable[[Path], None] = lambda folder: None
    adds: bool = False
    names: bool = True


def _read(path: Path) -> Any:
    return path.read_bytes() if path.exists() else None


def _file(write: Callable[[Path, int], object], name: str = "file") -> Work:
    """Return the work that replaces one file by another."""
    return Work(lambda f: write(f / name, 2), lambda f: (_read(f / name),), lambda f: write(f / name, 1) and None)


def atomic_file() -> Work:
    """Any file of several buffers, by ``files.atomic_write``."""
    from ds4ref.files import atomic_write

    def write(path: Path, number: int) -> None:
        with atomic_write(path) as out:
            for _ in range(4):
                out.write(bytes([number]) * 100_000)

    return _file(write)


def save() -> Work:
    """A session's payload."""
    from ds4ref.engine import Engine
    from ds4ref.nano import random_path

    session = Engine.open(random_path(), threads=1).session(64)
    session.sync([5, 6])
    one = session.snapshot()
    session.extend([7])
    snapshots = {1: one, 2: session.snapshot()}

    def write(path: Path, number: int) -> None:
        session.restore(snapshots[number])
        session.save(path)

    return _file(write)


def export() -> Work:
    """A published folder: shards, then the index of them."""
    from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder

    data = np.zeros(50_000, np.float32)
    tensors = [PlannedTensor(f"t{i}", "F32", data.shape, lambda i=i: data + i) for i in range(5)]  # type: ignore[misc]

    def look(folder: Path) -> State:
        order = sorted(folder.glob("*"), key=lambda file: (file.suffix != ".safetensors", file.name))
        return tuple((file.name, hash(file.read_bytes())) for file in order if not file.name.startswith("."))

    return Work(lambda folder: write_folder(folder, tensors, 2 * data.nbytes), look)


def quantize() -> Work:
    """A model file that is written row by row and resumed."""
    from ds4ref.weights.quantize import part
    from tests.weights.quantized import DIM, METADATA, SPECS

    part.SYNC_SECONDS = 0
    specs = SPECS[:3]

    def act(folder: Path) -> None:
        with part.PartFile(folder / "o.gguf", METADATA, specs, 32, "P") as out:
            while out.tensor < len(specs):
                spec = specs[out.tensor]
                rows = min(16, spec.elements // DIM - out.row)
                size = spec.nbytes * DIM // spec.elements
                out.write(rows, bytes([out.tensor + 1, out.row + 1]) * (rows * size // 2))

    return Work(act, lambda f: (_read(f / "o.gguf"),))


def capture() -> Work:
    """A folder of vectors, recorded case by case."""
    from ds4ref.test_vectors.capture import record_missing, start
    from ds4ref.test_vectors.schema import Vectors
    from tests.test_vectors.scripted import Scripted
    from tests.test_vectors.test_capture_and_check import GREEDY, PROMPTS

    def act(folder: Path) -> None:
        target = Scripted(GREEDY)
        record_missing(start(str(folder / "v"), target, PROMPTS, max_tokens=2, repetitions=2), target)

    def look(folder: Path) -> State:
        if not Vectors.exists(folder / "v"):
            return ()
        vectors = Vectors.open(folder / "v")
        return tuple(vectors.case(entry).id for entry in vectors.manifest.cases if entry.sha256 is not None)

    return Work(act, look)


def eval_log() -> Work:
    """A log that has one sample and gets two more."""
    from ds4ref.eval import log as logs
    from tests.eval.test_log import header, sample

    def begin(folder: Path) -> None:
        with logs.Writer.create(folder / "run.jsonl", header()) as log:
            log.add(sample(0))

    def act(folder: Path) -> None:
        with logs.Writer.resume(folder / "run.jsonl", header()) as log:
            for i in (1, 2):
                if sample(i) not in log.samples.values():
                    log.add(sample(i))

    return Work(act, lambda f: tuple(s.id for s in logs.read(f / "run.jsonl").samples), begin)


def new_log() -> Work:
    """A log that is begun."""
    from ds4ref.eval import log as logs
    from tests.eval.test_log import header, sample

    def act(folder: Path) -> None:
        path = folder / "run.jsonl"
        with logs.Writer.resume(path, header()) if logs.begun(path) else logs.Writer.create(path, header()) as log:
            if sample(0) not in log.samples.values():
                log.add(sample(0))

    def look(folder: Path) -> State:
        path = folder / "run.jsonl"
        return tuple(s.id for s in logs.read(path).samples) if logs.begun(path) else ()

    return Work(act, look)


def run_store(new: bool = False) -> Work:
    """A database that gets a run with rows."""
    from ds4ref.runs.store import Store

    rows = [{"ctx_tokens": n, "text": "x" * 300} for n in range(40)]

    def act(folder: Path) -> None:
        with Store.open(folder / "runs.sqlite") as store:
            store.add("bench", {"a": 1}, rows, tags=["t"])

    def look(folder: Path) -> State:
        if not (folder / "runs.sqlite").exists():
            return ()
        with Store.open(folder / "runs.sqlite") as store:
            store.check()
            return tuple((len(store.rows(run.id)), run.tags) for run in reversed(store.runs()))

    return Work(act, look, (lambda folder: None) if new else act, adds=True)


def new_store() -> Work:
    """A database that is created."""
    return run_store(new=True)


def results_csv() -> Work:
    """A CSV of ds4-bench with its JSON: never one of this run beside one of that."""
    from ds4ref.speed_bench.output import Output

    def write(folder: Path, number: int) -> None:
        row = {"ctx_tokens": 10, "prefill_tokens": 10, "prefill_tps": number, "gen_tokens": 1, "gen_tps": number,
               "kvcache_bytes": 1}  # fmt: skip
        planned = SimpleNamespace(name="", streams=1)
        target = SimpleNamespace(rows=[row], facts={"number": number}, planned=planned, name="", run=None)
        run: Any = SimpleNamespace(targets=[target], status="complete", reps=1)
        options: Any = SimpleNamespace(csv=str(folder / "r.csv"), plot=None, label=None)
        output = Output(options, [planned])  # type: ignore[list-item]
        output.run = run
        output.row(target)  # type: ignore[arg-type]
        output._files(run)

    def look(folder: Path) -> State:
        from ds4ref.runs.results import read_rows

        facts = folder / "r.json"
        rows = [int(row["gen_tps"]) for row in read_rows(folder / "r.csv")]
        found = json.loads(facts.read_text())["number"] if facts.exists() else rows[0]
        assert rows == [found], "rows of one run beside facts of another"
        return tuple(rows)

    return Work(lambda f: write(f, 2), look, lambda f: write(f, 1))


def kernel_cache() -> Work:
    """Compiled kernels; the compiler is replaced by one that copies what was compiled before."""
    from ds4ref.errors import BackendError
    from ds4ref.kernels.cpu import library

    made = {file.name: file.read_bytes() for file in library.objects("F16").iterdir()}

    def compiled(command: list[str], **options: Any) -> Any:
        work, part, groups = Path(command[-3]), command[-2], command[-1:]
        try:
            for group in groups:
                (work / group).mkdir(parents=True, exist_ok=True)
                for ending in (".o", ".txt"):
                    (work / group / f"{part}{ending}").write_bytes(made[f"0{ending}"])
        except OSError:
            return SimpleNamespace(poll=lambda: 1, returncode=1)
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    library.subprocess.Popen = compiled  # type: ignore[misc, assignment]
    library.available_cores = lambda: 1  # type: ignore[attr-defined]
    key = library.cache_key("F16")
    library.cache_keys = lambda groups: {"F16": key}  # type: ignore[assignment]

    def act(folder: Path) -> bool:
        os.environ["DS4_CACHE_DIR"] = str(folder)
        try:
            made = library.objects("F16")
        except (OSError, RuntimeError) as error:  # as backends.py does
            raise BackendError(str(error)) from error
        assert library.complete(made), "kernels that are not whole"
        return folder in made.parents  # else of this process only, as a line says

    return Work(act, lambda f: (library.complete(f / "kernels" / key) or None,), names=False)


def model_cache() -> Work:
    """A generated model."""
    from ds4ref.nano.cache import is_complete, kept
    from ds4ref.weights.writer import write_gguf
    from tests.weights.quantized import METADATA, SPECS

    def make(path: Path) -> None:
        with write_gguf(path, METADATA, SPECS[:2]) as out:
            for spec in SPECS[:2]:
                out.write(spec.name, np.ones(spec.elements, np.float32))

    def act(folder: Path) -> None:
        assert is_complete(Path(kept(folder / "m.gguf", is_complete, make)))

    return Work(act, lambda f: (_read(f / "m.gguf"),))


def disk_cache() -> Work:
    """A session in the disk cache of a server, beside another one."""
    from tests.session.fake_kv import FakeSession, store
    from tests.session.storing import TALK, loaded, saved

    def look(folder: Path) -> State:
        if (folder / "kv").exists():
            kept = store(folder / "kv")
            assert loaded(kept, TALK[:20]) == TALK[:20]
            return (TALK[:20],) + (() if loaded(kept, TALK) == TALK[:20] else (loaded(kept, TALK),))
        return ()

    def act(folder: Path) -> object:
        return store(folder / "kv").save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]

    def begin(folder: Path) -> None:
        saved(store(folder / "kv"), TALK[:20])

    return Work(act, look, begin)


WORKS: dict[str, Callable[[], Work]] = {
    make.__name__: make
    for make in (atomic_file, save, export, quantize, capture, eval_log, new_log, run_store, new_store, results_csv,
                 kernel_cache, model_cache, disk_cache)
}  # fmt: skip
"""All of them by name."""
