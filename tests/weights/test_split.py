"""Models in several files: read as one by any part, or one line that names the part and what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from ds4ref.archs.deepseek4.weights import expected_tensors
from ds4ref.archs.report import describe, inspect_text
from ds4ref.cli.ds4 import main as ds4
from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError
from ds4ref.nano import random_path
from ds4ref.runs.provenance import engine_facts
from ds4ref.server.worker import Worker
from ds4ref.session.identity import Identity
from ds4ref.session.session import Session
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors.cli import main as vectors
from ds4ref.variants import LIBRARY, Runner
from ds4ref.weights import open_source
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.quantize.part import PartFile
from tests.cluster.links import split
from tests.server.conftest import running

from .modelfile import SMALL, TOKENS, container, kv, write_model

SPECS = expected_tensors(SMALL, "q2")


def part_name(number: int, count: int) -> str:
    return f"m-{number + 1:05}-of-{count:05}.gguf"


def write_split(folder: Path, counts: list[int], **keys: object) -> list[Path]:
    """Write the small model in parts of so many tensors; ``keys`` replace split keys of the last part."""
    folder.mkdir(exist_ok=True)
    whole = write_model(folder / "whole.gguf")
    paths, start = [], 0
    with open_source(whole) as source:
        data = {name: source.raw(name).copy() for name in source.tensors}
    for number, count in enumerate(counts):
        values = {"no": number, "count": len(counts), "tensors.count": len(SPECS)}
        values |= keys if number == len(counts) - 1 else {}
        split = [(f"split.{key}", "i32" if "." in key else "u16", value) for key, value in values.items()]
        own = SMALL.metadata() + TOKENS if number == 0 else []
        path = folder / part_name(number, len(counts))
        paths.append(write_model(path, metadata=own + split, specs=SPECS[start : start + count], data=data))
        start += count
    return paths


def equal_parts(count: int) -> list[int]:
    return [len(chunk) for chunk in np.array_split(SPECS, count)]


@pytest.mark.parametrize("counts", [equal_parts(2), equal_parts(46), [0, *equal_parts(3)], [len(SPECS), 0]])
@pytest.mark.parametrize("opened", [0, -1])
def test_a_set_reads_as_the_whole(tmp_path, counts, opened):
    paths = write_split(tmp_path, counts)
    with open_source(tmp_path / "whole.gguf") as whole, open_source(paths[opened]) as parts:
        assert list(parts.tensors) == list(whole.tensors)
        assert all(np.array_equal(parts.raw(name), whole.raw(name)) for name in whole.tensors)
        assert parts.metadata["general.name"] == whole.metadata["general.name"]
        assert parts.paths == [str(path) for path in paths] and parts.size == sum(map(os.path.getsize, paths))
        assert sum(size for size, _ in parts.touch()) == sum(info.nbytes for info in whole.tensors.values())


IDS = list(range(5, 25))


def opened(use, **options):
    """Return a use of an open engine, as one of its path."""

    def run(path: str, folder: Path):
        with Engine.open(path, numerics="ds4", threads=1, **options) as engine:
            return use(engine)

    return run


def made_by(main, *arguments):
    """Return a use that runs a command: what it writes into OUT; SET is the model, WHOLE always the whole one."""

    def run(path: str, folder: Path):
        out = folder / "out.gguf"
        places = {"SET": path, "WHOLE": str(random_path()), "OUT": str(out), "TEXT": str(folder / "text")}
        assert main([places.get(argument, argument) for argument in arguments]) == 0
        data = out.read_bytes()
        out.unlink()
        return re.sub(rb"s-0000[0-9]-of", b"NAME", data)

    return run


def shown(path: str, folder: Path):
    assert ("GGUF v3, alignment 32, in 3 files" in inspect_text(path)) == ("00000" not in path)
    own = {"path", "file_bytes", "metadata_keys", "computed_with", "accounts"}
    return {key: value for key, value in describe(path).items() if key not in own}


def damaged(path: str, folder: Path):
    """The set damages nothing."""
    (folder / "ids").write_text(json.dumps(IDS))
    return vectors(["damage", str(random_path()), path, "--token-ids", str(folder / "ids"), "--json"])


def answered(engine: Engine):
    with running(Worker(engine, ctx=128)) as server:
        body = {"prompt": "A set", "max_tokens": 6, "temperature": 0, "logprobs": 1}
        return server.client.post("/v1/completions", json=body).json()["choices"]


USES = {
    "logits, token by token": opened(lambda engine: engine.session(64).extend(IDS, one_by_one=True)),
    "experts read when chosen": opened(lambda engine: engine.session(64).extend(IDS), expert_cache=700_000),
    "layers on two workers": opened(lambda engine: Session(split(engine, "ds4", 2), 64).extend(IDS)),
    "a bug put into the pass": opened(lambda engine: Runner(engine).run(IDS, "ds4", [LIBRARY["no_sink"]])[0]),
    "server": opened(answered),
    "damage": damaged,
    "inspect": shown,
    "quantize": made_by(quantize, "SET", "-o", "OUT", "--recipe", "q2"),
    "template": made_by(quantize, "WHOLE", "-o", "OUT", "--template", "SET"),
    "donor": made_by(quantize, "WHOLE", "-o", "OUT", "--donor", "SET", "--layers", "1-2"),
    "imatrix": made_by(ds4, "imatrix", "TEXT", "-m", "SET", "-o", "OUT"),
}


@pytest.fixture(scope="module")
def random_set(tmp_path_factory):
    """The random model, in three parts."""
    folder = tmp_path_factory.mktemp("set")
    assert quantize([str(random_path()), "-o", str(folder / "s.gguf"), "--split-max-size", "6MB"]) == 0
    parts = sorted(folder.glob("s-*.gguf"))
    shutil.copy(random_path(), folder / "s-00000-of-00003.gguf")  # the whole, under a name of the same length
    (folder / "text").write_text("Every part of a set is read, whatever reads it. " * 4)
    return folder, parts


@pytest.mark.parametrize("use", USES)
def test_a_set_does_what_the_whole_does(random_set, use):
    folder, paths = random_set
    whole, parts = (USES[use](str(path), folder) for path in (folder / "s-00000-of-00003.gguf", paths[1]))
    assert np.array_equal(whole, parts) if isinstance(whole, np.ndarray) else whole == parts


def test_a_set_is_written_and_equals_the_whole(tmp_path, monkeypatch, capsys):
    """Also after an interruption in its second file; llama.cpp's names and keys, the first file last."""
    whole = str(write_model(tmp_path / "w.gguf"))
    command = [whole, "-o", str(tmp_path / "q.gguf"), "--recipe", "q8"]
    assert quantize(command) == 0
    split = [whole, "-o", str(tmp_path / "s.gguf"), "--recipe", "q8", "--split-max-size", "1MB"]
    write, calls = PartFile.write, []

    def stopped(out, rows, data):
        calls.append(out.path.name)
        if "00002" in out.path.name and calls.count(out.path.name) == 2:
            raise KeyboardInterrupt
        write(out, rows, data)

    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "write", stopped)
        assert quantize(split) == 130
    assert not list(tmp_path.glob("s-*.gguf"))
    capsys.readouterr()
    assert quantize(split) == 0
    assert "resuming" in capsys.readouterr().err
    made = sorted(tmp_path.glob("s-*.gguf"))
    assert len(made) == int(made[0].stem[-5:]) > 2 and not list(tmp_path.glob("*.part*"))
    with open_source(tmp_path / "q.gguf") as one, open_source(made[0]) as parts:
        assert list(parts.tensors) == list(one.tensors)
        assert all(np.array_equal(parts.raw(name), one.raw(name)) for name in one.tensors)
    reader = gguf.GGUFReader(made[1])
    keys = {name: int(field.parts[-1][0]) for name, field in reader.fields.items() if name.startswith("split.")}
    assert keys == {"split.no": 1, "split.count": len(made), "split.tensors.count": len(SPECS)}
    assert quantize(split) == 1
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize("small_first", [False, True])
def test_sets_of_the_reference_writer(tmp_path, small_first):
    writer = gguf.GGUFWriter(str(tmp_path / "t.gguf"), "llama", split_max_tensors=3, small_first_shard=small_first)
    writer.add_block_count(1)
    tensors = {f"t{i}": np.full((2, 32), i, np.float32) for i in range(8)}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, *_ = sorted(tmp_path.iterdir())
    with GGUFFile.open(first) as made:
        assert {name: made.raw(name).view(np.float32)[0] for name in made.tensors} == {
            n: v[0, 0] for n, v in tensors.items()
        }
        assert len(made.paths) == 3 + small_first


SERVE = """
import json, os, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = sys.argv[1], 256, 1, 1
server = xllamacpp.Server(params)
body = {"prompt": [*range(5, 25)], "n_predict": 8, "temperature": 0, "n_probs": 3}
request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["completion_probabilities"]
print("ANSWER", [(place["id"], place["logprob"]) for place in answer], flush=True)
os._exit(0)
"""


def llama_cpp(path: Path) -> list[str]:
    """Tokens and their logarithms that llama.cpp answers ``IDS`` with."""
    pytest.importorskip("xllamacpp")
    run = subprocess.run([sys.executable, "-c", SERVE, path], capture_output=True, text=True, timeout=120)
    return [line for line in run.stdout.splitlines() if line.startswith("ANSWER")]


@pytest.mark.peers
def test_llama_cpp_reads_a_set_as_the_whole(random_set):
    folder, (first, *_) = random_set
    whole = llama_cpp(folder / "s-00000-of-00003.gguf")
    assert whole and llama_cpp(first) == whole


def refused(path: Path) -> str:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelFileError) as caught:
        open_source(path)
    assert len(os.listdir("/proc/self/fd")) == before, "a file stays open"
    return str(caught.value)


def other_set(parts: list[Path], counts: list[int], **keys: object) -> list[Path]:
    return write_split(parts[0].parent / "other", counts, **keys)


BROKEN = {
    "a part is missing": (lambda parts: parts[1].unlink(), "part 2 of 3: cannot open"),
    "a part is cut off": (lambda parts: os.truncate(parts[1], parts[1].stat().st_size - 64), "past the end of"),
    "a part is cut within its header": (lambda parts: os.truncate(parts[1], 40), "m-00002-of-00003.gguf"),
    "a part is under another's name": (
        lambda parts: shutil.copy(parts[2], parts[1]),
        "is part 3 of 3, its name says part 2 of 3: fetch it again"),
    "a part repeats tensors of another": (
        lambda parts: parts[1].write_bytes(
            parts[0].read_bytes().replace(kv("split.no", "u16", 0), kv("split.no", "u16", 1))),
        "is in 'm-00001-of-00003.gguf', too"),
    "a part of a model cut elsewhere": (
        lambda parts: shutil.copy(other_set(parts, [40, 40, len(SPECS) - 80])[2], parts[2]),
        "a part is of another model"),
    "a part of a set of another length": (
        lambda parts: shutil.copy(other_set(parts, equal_parts(3), count=4)[2], parts[2]),
        "is part 3 of 4, its name says part 3 of 3"),
    "the first is renamed": (
        lambda parts: parts[0].rename(parts[0].with_name("model.gguf")),
        "is part 1 of 3 of a split model, and must be named PREFIX-00001-of-00003.gguf"),
    "the others are renamed": (lambda parts: parts[2].rename(parts[2].with_name("n.gguf")), "part 3 of 3: cannot open"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_sets_name_the_part_and_the_remedy(tmp_path, case):
    parts = write_split(tmp_path, equal_parts(3))
    spoil, says = BROKEN[case]
    spoil(parts)
    text = refused(next(path for path in (tmp_path / "model.gguf", *parts) if path.exists()))
    assert says in text.replace('"', "'") and "\n" not in text


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([("split.count", "string", "3")], "split.count has type string, wanted u16"),
        ([("split.no", "bool", True)], "split.no has type bool, wanted u16"),
        ([("split.no", "u16", 1)], "is part 2 of 1"),
        ([("split.count", "u16", 1025)], "is part 1 of 1025, at most 1024"),
        ([("split.no", "u16", 0), ("split.count", "u16", 1), ("split.tensors.count", "i32", 9)], None),
        ([("split.no", "u16", 0), ("split.count", "u16", 0)], None),
    ],
)
def test_split_keys(tmp_path, keys, says):
    path = tmp_path / "p.gguf"
    path.write_bytes(container(*(kv(*entry) for entry in keys)))
    if says is None:
        GGUFFile.open(path).close()
    else:
        assert says in refused(path)


def test_any_part_changes_what_a_model_is_called(random_set):
    """Headers of all parts, and weights of all parts: in runs, saved sessions and vectors."""
    _, (first, *others) = random_set

    def named() -> tuple[str, ...]:
        with Engine.open(first, backend="reference") as engine:
            model = engine_facts(engine)["model"]
            saved, target = Identity.of(engine).facts["model"], LocalTarget(engine).identity()["digest"]
        return model["header_sha256"], model["sha256"], saved, target

    before = named()
    with open(others[-1], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    after = named()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]
