"""Hostile model files of every kind: one line of error or something usable, soon, in little memory.

``CASES`` names what each reader has to look at; tests/benchmarks/test_campaign.py draws what nobody thought of.
"""

from __future__ import annotations

import json
import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs import arch_of
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.weights import bind, expected_tensors
from ds4ref.engine import Engine
from ds4ref.errors import BackendError, Ds4Error, ModelFileError
from ds4ref.kernels.formats import FORMATS
from ds4ref.text.vocabulary import open_tokenizer
from ds4ref.weights import open_source
from ds4ref.weights.gguf import MAX_STRINGS, GGUFFile
from ds4ref.weights.quantize.imatrix import read_imatrix
from ds4ref.weights.safetensors import INDEX, MAX_HEADER_BYTES, SINGLE

from ..text.test_library import definition  # noqa: F401
from . import checkpointfile, llama2c
from .checkpointfile import edit_json, entry, write_small
from .modelfile import SMALL, TOKENS, container, kv, sane_bytes, tensor, with_metadata, write_model

U64_MAX = 2**64 - 1
P, NAN, INF = "deepseek4.", float("nan"), float("inf")
TEXT = "the stone <|im_end|> é€ sat"
ARCH = kv("general.architecture", "string", "deepseek4")


def array(key: str, item_type: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IIQ", 9, item_type, count) + items


def value(key: str, type_id: int, data: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", type_id) + data


def load(path: Path) -> None:
    """All that an engine does before it computes; the tokenizer at work."""
    if path.suffix in (".dat", ".imatrix"):
        for found in read_imatrix(path).entries.values():
            assert np.isfinite(found.usable()).all()
        return
    with open_source(path) as source:
        arch = arch_of(source)
        arch.bind(source, arch.read_shape(source))
        if path.name in ("stories.bin", "m"):
            tokenizer = open_tokenizer(source)
            ids = tokenizer.encode(TEXT)
            assert all(0 <= i < len(tokenizer) for i in (*ids, *tokenizer.ends))


# --- named cases: build(folder) -> path


def raw(data: bytes, name: str = "bad.gguf") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return build


def keys(**changes: tuple[str, object] | None) -> Callable[[Path], Path]:
    """The small model with other metadata under the family's keys; ``__`` stands for a dot."""
    named = {P + key.replace("__", "."): change for key, change in changes.items()}
    return lambda folder: write_model(folder / "bad.gguf", data=True,
                                      metadata=with_metadata(SMALL.metadata() + TOKENS, named))  # fmt: skip


def weight(name: str, **change: object) -> Callable[[Path], Path]:
    """The small model with one tensor's spec changed, or one value at its end (``last``)."""
    specs = expected_tensors(SMALL)
    spec = next(s for s in specs if s.name == name)
    if "last" not in change:
        changed = [replace(s, **change) if s is spec else s for s in specs]
        return lambda folder: write_model(folder / "bad.gguf", specs=changed, data=True)
    data = sane_bytes(spec, np.random.default_rng(1), SMALL)
    blocks = data.view("<i4" if spec.fmt == "I32" else FORMATS[spec.fmt].layout)
    for field in FORMATS[spec.fmt].scale_fields[-1:]:
        blocks = blocks[field]
    blocks[-1] = change["last"]
    return lambda folder: write_model(folder / "bad.gguf", data={name: data})


def header(entries: object, **lies: object) -> Callable[[Path], Path]:
    return raw(checkpointfile.container(entries, **lies), SINGLE)  # type: ignore[arg-type]


def index(places: object) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        for name, part in (("one", "a"), ("two", "b")):
            (folder / f"{name}.safetensors").write_bytes(checkpointfile.container({part: OK}))
        (folder / INDEX).write_text(json.dumps(places))
        return folder

    return build


def config(**changes: object) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        edit_json(write_small(folder / "m") / "config.json", changes)
        return folder / "m"

    return build


def story(part: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """A llama2.c checkpoint of version 2, or its vocabulary, changed."""

    def build(folder: Path) -> Path:
        c = llama2c.Config()
        path = llama2c.write(folder, llama2c.version_2(c, llama2c.draw(c))[0], llama2c.vocabulary(c))
        (folder / part).write_bytes(change((folder / part).read_bytes()))
        return path

    return build


def at(offset: int, layout: str, number: float) -> Callable[[bytes], bytes]:
    code = struct.pack(layout, number)
    return lambda data: data[:offset] + code + data[offset + len(code) :]


def dat(name: bytes = b"a", calls: int = 1, values: tuple[float, ...] = (1.0,), count: int | None = None) -> bytes:
    size = len(values) if count is None else count
    body = struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, size)
    return struct.pack("<i", 1) + body + np.array(values, "<f4").tobytes()


OK = entry("F32", (2,))
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    # GGUF: the container
    "empty": (raw(b""), "too short"),
    "magic G U G F": (raw(container(magic=b"GUGF")), "not a GGUF file"),
    "big-endian": (raw(container(version=3 << 24)), "big-endian"),
    "version 2": (raw(container(version=2)), "version 2"),
    "key count 2^64-1": (raw(container(n_keys=U64_MAX)), "keys declared"),
    "tensor count beyond the file": (raw(container(n_tensors=60)), "more than fit"),
    "key length past the end": (raw(container(struct.pack("<Q", 500) + b"x" * 40)), "file ends"),
    "duplicate key": (raw(container(ARCH, ARCH)), "appears twice"),
    "string that is not UTF-8": (raw(container(kv("a", "string", b"\xc3\x28"))), "not valid UTF-8"),
    "boolean 7": (raw(container(value("a", 7, b"\x07"))), "boolean"),
    "u64 array of 2^64-1": (raw(container(array("a", 10, U64_MAX))), "bytes"),
    "string array of 2^61": (raw(container(array("a", 8, 2**61))), "more than fit"),
    "item of 2^64-1 bytes": (raw(container(array("a", 8, 2, struct.pack("<QQ", U64_MAX, 0)))), "item of"),
    "array of arrays": (raw(container(array("a", 9, 1, struct.pack("<IQ", 4, 0)))), "nested"),
    "alignment 48": (raw(container(kv("general.alignment", "u32", 48))), "alignment"),
    "rank 9": (raw(container(tensors=(tensor("t", (1,) * 9),))), "rank 9"),
    "zero dimension": (raw(container(tensors=(tensor("t", (8, 0)),))), "dimension of 0"),
    "element product wraps to 0": (raw(container(tensors=(tensor("t", (2**32, 2**32)),))), "elements"),
    "unknown tensor type": (raw(container(tensors=(tensor("t", (32,), 99),))), "unknown type 99"),
    "ragged row": (raw(container(tensors=(tensor("t", (33,), 8),), data=999)), "whole blocks"),
    "unaligned offset": (raw(container(tensors=(tensor("a\nb", offset=8),))), "multiple of 32"),
    "one byte beyond": (raw(container(tensors=(tensor("t", (16,)),), data=63)), "past the end"),
    "overlapping": (raw(container(tensors=(tensor("t", (16,)), tensor("u", (8,), offset=32)))), "overlap"),
    "duplicate tensor": (raw(container(tensors=(tensor("t"), tensor("t", offset=32)))), "appears twice"),
    # GGUF: the model in it
    "layer count 2^32-1": (keys(block_count=("u32", 2**32 - 1)), "block_count|entries"),
    "other width than tensors": (keys(embedding_length=("u32", 512)), "dims"),
    "swapped dims": (weight("blk.1.attn_q_a.weight", dims=(64, 256)), "attn_q_a"),
    "unsupported experts": (weight("blk.3.ffn_down_exps.weight", fmt="Q8_K"), "ffn_down_exps.weight is Q8_K"),
    "gate unlike up": (weight("blk.3.ffn_up_exps.weight", fmt="Q2_K"), "but blk.3.ffn_up_exps"),
    "infinite sink": (weight("blk.0.attn_sinks.weight", last=INF), "attn_sinks"),
    "NaN Q8_0 scale": (weight("output.weight", last=NAN), "output.weight' holds a NaN or infinite scale"),
    "infinite Q2_K minimum": (weight("blk.3.ffn_down_exps.weight", last=INF), "ffn_down_exps"),
    "expert id too large": (weight("blk.0.ffn_gate_tid2eid.weight", last=5), "names expert 5"),
    # safetensors: header, index, config.json
    "length over the limit": (header({"a": OK}, length=MAX_HEADER_BYTES + 1), "at most"),
    "length past the end": (header({"a": OK}, length=10_000), "truncated: the header"),
    "depth 66": (header(b'{"a":' + b"[" * 65 + b"1" + b"]" * 65 + b"}"), "nested more than 64 deep"),
    "depth 100,000": (header(b'{"a":' + b"[" * 100_000), "nested more than 64 deep"),
    "a name twice": (header(b'{"a":%s,"a":%s}' % ((json.dumps(OK).encode(),) * 2)), "'a' appears twice"),
    "unknown dtype": (header({"a": {**OK, "dtype": "F31"}}), "unknown dtype 'F31'"),
    "product wraps to 2": (header({"a": {**OK, "shape": [2**32, 2**32, 2]}}), r"more than 2\^63 elements"),
    "5,000 digits": (header(b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % (b"9" * 5000)), "digits"),
    "offsets backwards": (header({"a": {**OK, "data_offsets": [8, 0]}}), "data_offsets"),
    "offsets too near": (header({"a": {**OK, "data_offsets": [0, 7]}}), "do not fit into 7 bytes"),
    "past the end": (header({"a": OK}, data=7), "reach past the end"),
    "a hole between": (header({"a": OK, "b": entry("F32", (2,), 12)}, data=20), "'b' leaves a hole"),
    "one inside another": (header({"a": entry("F32", (4,)), "b": entry("F32", (2,), 4)}, data=16), "overlaps"),
    "a name with an escape": (header({"\x1b[31m": OK}), "unusable name"),
    "a file above": (index({"weight_map": {"a": "../x.safetensors"}}), "not the name"),
    "a tensor that is not there": (index({"weight_map": {"a": "one.safetensors", "c": "one.safetensors"}}), "not in"),
    "a tensor too many": (index({"weight_map": {"c": "one.safetensors"}}), "does not list 'a' in"),
    "2,000 files": (index({"weight_map": {f"t{i}": f"f{i}.safetensors" for i in range(2000)}}), "maximum is 1024"),
    "another family": (config(model_type="gpt2"), "model_type is 'gpt2', not one of"),
    "2^70 layers": (config(num_hidden_layers=2**70), "from 1 to 1024"),
    "an epsilon of 10^400": (config(rms_norm_eps=10**400), "wanted a number"),
    # llama2.c and its tokenizer.bin; importance
    "heads 0": (story("stories.bin", at(20, "<i", 0)), "heads 0"),
    "other sizes than the file's": (story("stories.bin", at(28, "<i", 321)), "of these dimensions takes"),
    "groups of 5": (story("stories.bin", at(37, "<i", 5)), "groups of 5"),
    "one byte more": (story("stories.bin", lambda data: data + b"\0"), "of these dimensions takes"),
    "piece past the end": (story("tokenizer.bin", lambda data: data[:-1]), "reaches past the end|ends after"),
    "piece too long": (story("tokenizer.bin", at(8, "<i", 1000)), "has 1000 bytes, at most"),
    "score NaN": (story("tokenizer.bin", at(4, "<f", NAN)), "a score that is not finite"),
    "values without end": (raw(dat(count=2**31 - 1) + bytes(4), "i.dat"), "needs 8589934588 bytes"),
    "name of two gigabytes": (raw(struct.pack("<iiii", 1, 2**31 - 1, 1, 1) + bytes(4), "i.dat"), "has 2147483647"),
    "importance not finite": (raw(dat(values=(1.0, NAN)), "i.dat"), "not finite"),
    "importance below zero": (raw(dat(values=(-1.0,)), "i.dat"), "below zero"),
    "importance of text": (raw(b"===== DS4_IMATRIX_PROMPT\nhello\n" * 10, "i.dat"), "entries cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case, tmp_path):
    build, reason = CASES[case]
    path = build(tmp_path)
    tracemalloc.start()
    with pytest.raises(Ds4Error) as caught:
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    text = str(caught.value)
    assert re.search(reason, text) and "\n" not in text and text.isprintable() and len(text) < 600
    assert str(tmp_path) in text and peak < 96 << 20


# --- limits, and what a file system does


def test_what_is_just_allowed(tmp_path):
    """The limits themselves, next to what is refused beyond them."""
    path = tmp_path / "m.gguf"

    def opened(data: bytes, size: int = 0) -> GGUFFile:
        path.write_bytes(data)
        os.truncate(path, max(size, len(data)))
        return GGUFFile.open(path)

    def refused(data: bytes, reason: str, size: int = 0) -> None:
        with pytest.raises(ModelFileError, match=reason):
            opened(data, size)

    with opened(container(data=0)) as file:
        assert (len(file.metadata), file.tensors, path.stat().st_size) == (0, {}, 32)
    with opened(container(*(value(key, 0, b"\x07") for key in "abc"), data=0)[: 24 + 3 * 14]) as file:
        assert dict(file.metadata) == {"a": 7, "b": 7, "c": 7}  # three smallest entries, and not a byte more
    with opened(container(kv("k" * 1024, "u32", 1), tensors=(tensor("t" * 1024, (1,) * 7 + (2,)),))) as file:
        assert file.metadata["k" * 1024] == 1
        assert file.tensors["t" * 1024].shape == (2, 1, 1, 1, 1, 1, 1, 1)
    refused(container(kv("k" * 1025, "u32", 1)), "metadata key is 1025 bytes long, at most 1024")
    refused(container(tensors=(tensor("t" * 1025),)), "tensor name is 1025 bytes long, at most 1024")
    refused(container(value("a", 8, struct.pack("<Q", 2**24 + 1))), "at most 16777216")
    refused(container(value("a", 8, struct.pack("<Q", 2**24))), "file ends")
    for alignment in (8, 2**20):
        whole = container(kv("general.alignment", "u32", alignment), tensors=(tensor("t"), tensor("u", (2,), 0, 2**20)))
        with opened(whole, 2**22) as file:
            start = file.tensors["t"].offset
            assert start % alignment == 0 and 0 <= start - (24 + 3 * 33) < alignment
            assert file.tensors["u"].offset == start + 2**20 and file.alignment == alignment
    # strings are counted over all arrays; a sparse file costs nothing
    with opened(container(array("a", 8, MAX_STRINGS), data=0), 1 << 30) as file:
        assert file.metadata.count("a") == MAX_STRINGS
    more = container(kv("b", "string[]", ["x"]), array("a", 8, MAX_STRINGS), data=0)
    refused(more, "strings in metadata arrays", 1 << 30)


def test_truncation_at_every_byte_of_a_directory(tmp_path):
    whole = container(ARCH, kv("a", "u32", 7), kv("b", "string[]", ["x", "yz"]), kv("c", "f64[]", [1.0, 2.0]),
                      tensors=(tensor("t", (8, 2)), tensor("u", (3,), offset=64)), data=64 + 12)  # fmt: skip
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    GGUFFile.open(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)


def test_where_posix_calls_are_missing_one_line_names_the_way_out(tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.gguf")
    with monkeypatch.context() as patch:  # pytest removes folders with these calls
        for name in ("pread", "O_CLOEXEC", "O_NONBLOCK"):
            patch.delattr(os, name)
        for attempt in (lambda: GGUFFile.open(path), lambda: Engine.open(path)):
            with pytest.raises(BackendError, match="WSL") as caught:
                attempt()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["none.gguf", ".", "pipe", "/dev/zero", "a\0b"])
def test_what_is_not_a_file(what, tmp_path):
    if what == "pipe":
        os.mkfifo(tmp_path / what)
    with pytest.raises(ModelFileError, match="cannot open|regular"):
        GGUFFile.open(what if "\0" in what else tmp_path / what)


def test_shrinking_while_open(tmp_path):
    """A shrunken file is noticed before its map is read, which would be a bus error."""
    path = write_model(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        shape = ModelShape.from_metadata(file)
        os.truncate(path, 5000)
        with pytest.raises(ModelFileError, match="truncated from"):
            bind(file, shape)
        os.truncate(path, 100)
        with pytest.raises(ModelFileError, match="truncated while open"):
            file.metadata["tokenizer.ggml.tokens"]


def test_array_contents_are_checked_when_decoded(tmp_path):
    path = tmp_path / "bad.gguf"
    flags = array("flags", 7, 3, b"\x01\x00\x02")
    path.write_bytes(container(kv("text", "string[]", ["ok", b"\xff"]), flags, kv("good", "bool[]", [1, 0])))
    with GGUFFile.open(path) as file:
        with pytest.raises(ModelFileError, match="item 1 of 'text' is not valid UTF-8"):
            file.metadata["text"]
        with pytest.raises(ModelFileError, match="boolean"):
            file.metadata["flags"]
        assert file.metadata["good"] == [True, False]
