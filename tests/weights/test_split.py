"""Models in several files: read as one by any part, or one line that names the part and what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from ds4ref.archs.deepseek4.weights import expected_tensors
from ds4ref.archs.report import describe
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


def refused(path: Path) -> str:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelFileError) as caught:
        open_source(path)
    assert len(os.listdir("/proc/self/fd")) == before, "a file stays open"
    return str(caught.value)


def test_broken_sets_name_the_part_and_the_remedy(tmp_path):
    first, second, third = write_split(tmp_path, equal_parts(3))
    kept = second.read_bytes()

    second.unlink()
    assert part_name(1, 3) in refused(first) and "part 2 of 3: cannot open" in refused(third)
    second.write_bytes(kept[:-64])
    assert part_name(1, 3) in refused(first) and "past the end of the file" in refused(first)
    second.write_bytes(third.read_bytes())  # another part under its name
    assert "is part 3 of 3, its name says part 2 of 3: fetch it again" in refused(first)
    second.write_bytes(kept)
    third.write_bytes(write_split(tmp_path / "other", [30, 30, len(SPECS) - 60])[2].read_bytes())
    assert "a part is of another model" in refused(first) or "too" in refused(first)
    moved = tmp_path / "model.gguf"
    first.rename(moved)
    assert "is part 1 of 3 of a split model, and must be named PREFIX-00001-of-00003.gguf" in refused(moved)


def test_two_parts_with_one_tensor(tmp_path):
    first, second = write_split(tmp_path, equal_parts(2))
    second.write_bytes(first.read_bytes().replace(kv("split.no", "u16", 0), kv("split.no", "u16", 1)))
    assert f"is in {part_name(0, 2)!r}, too" in refused(first).replace('"', "'")


def test_a_part_of_a_set_of_another_length(tmp_path):
    first, *_ = write_split(tmp_path, equal_parts(3), count=4)
    assert "is part 3 of 4, its name says part 3 of 3" in refused(first)


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
