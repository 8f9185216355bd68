"""Hostile model files: each one must end in one line of ``ModelFileError``, in bounded time and memory."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.weights import bind, expected_tensors
from ds4ref.engine import Engine
from ds4ref.errors import BackendError, ModelFileError
from ds4ref.kernels.formats import FORMATS
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.gguf import MAX_STRINGS, GGUFFile
from tests.system import need_mapped

from .modelfile import SMALL, TOKENS, container, kv, sane_bytes, tensor, with_metadata, write_model

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
ARCH = kv("general.architecture", "string", "deepseek4")


def array(key: str, item_type: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IIQ", 9, item_type, count) + items


def value(key: str, type_id: int, data: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", type_id) + data


def nested(depth: int) -> bytes:
    return array("deep", 9, 1, struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 4, 0))


# name -> (bytes, a word of the reason)
CONTAINERS = {
    "empty": (b"", "too short"),
    "one byte": (b"G", "too short"),
    "31 bytes": (container()[:24] + bytes(7), "too short"),
    "magic only": (b"GGUF", "too short"),
    "bad magic": (container(magic=b"GGML"), "not a GGUF"),
    "swapped magic": (container(magic=b"GUGF"), "not a GGUF"),
    "text file": (b"# a text file, certainly longer than a header\n", "not a GGUF"),
    "version 0": (container(version=0), "version 0"),
    "version 1": (container(version=1), "version 1"),
    "version 2": (container(version=2), "version 2"),
    "version 4": (container(version=4), "version 4"),
    "big-endian": (container(version=3 << 24), "big-endian"),
    "key count 2^32": (container(n_keys=2**32), "keys declared"),
    "key count 2^63": (container(n_keys=2**63), "keys declared"),
    "key count 2^64-1": (container(n_keys=U64_MAX), "keys declared"),
    "key count beyond the file": (container(n_keys=60), "more than fit"),
    "one key too many": (container(ARCH, n_keys=2, data=0), "empty metadata key"),
    "tensor count 2^32": (container(n_tensors=2**32), "tensors declared"),
    "tensor count 2^63": (container(n_tensors=2**63), "tensors declared"),
    "tensor count 2^64-1": (container(n_tensors=U64_MAX), "tensors declared"),
    "tensor count beyond the file": (container(n_tensors=60), "more than fit"),
    "key length 2^64-1": (container(struct.pack("<Q", U64_MAX) + b"x" * 40), "bytes long"),
    "key length past the end": (container(struct.pack("<Q", 500) + b"x" * 40), "file ends"),
    "empty key": (container(kv("", "u32", 1)), "empty metadata key"),
    "key that is not UTF-8": (container(kv(b"a\xff\xfeb", "u32", 1)), "not valid UTF-8"),
    "duplicate key": (container(ARCH, ARCH), "appears twice"),
    "value type 13": (container(value("a", 13, bytes(8))), "unknown metadata type 13"),
    "value type 2^32-1": (container(value("a", U32_MAX, bytes(8))), "unknown metadata type"),
    "string length 2^40": (container(value("a", 8, struct.pack("<Q", 2**40))), "bytes long"),
    "string length past the end": (container(value("a", 8, struct.pack("<Q", 5000))), "file ends"),
    "string that is not UTF-8": (container(kv("a", "string", b"\xc3\x28")), "not valid UTF-8"),
    "boolean 7": (container(value("a", 7, b"\x07")), "boolean"),
    "u8 array of 2^40": (container(array("a", 0, 2**40)), "bytes"),
    "f64 array of 2^62": (container(array("a", 12, 2**62)), "bytes"),
    "u64 array of 2^64-1": (container(array("a", 10, U64_MAX)), "bytes"),
    "string array of 2^40": (container(array("a", 8, 2**40)), "more than fit"),
    "string array of 2^61": (container(array("a", 8, 2**61)), "more than fit"),
    "string array with a long item": (container(array("a", 8, 2, struct.pack("<QQ", 0, 2**50))), "item of"),
    "string array with an item of 2^64-1": (container(array("a", 8, 2, struct.pack("<QQ", U64_MAX, 0))), "item of"),
    "string array cut short": (container(array("a", 8, 3, struct.pack("<QQ", 0, 0)), data=0)[:70], "item of|more than"),
    "array of unknown items": (container(array("a", 77, 1, bytes(8))), "unknown item type"),
    "array of arrays": (container(nested(1)), "nested"),
    "nested arrays, depth 9": (container(nested(9)), "nested"),
    "nested arrays, depth 5000": (container(nested(5000)), "nested"),
    "alignment 0": (container(kv("general.alignment", "u32", 0)), "alignment"),
    "alignment 1": (container(kv("general.alignment", "u32", 1)), "alignment"),
    "alignment 2": (container(kv("general.alignment", "u32", 2)), "alignment"),
    "alignment 4": (container(kv("general.alignment", "u32", 4)), "alignment"),
    "alignment 2^21": (container(kv("general.alignment", "u32", 2**21)), "alignment"),
    "alignment 3": (container(kv("general.alignment", "u32", 3)), "alignment"),
    "alignment 48": (container(kv("general.alignment", "u32", 48)), "alignment"),
    "alignment 2^30": (container(kv("general.alignment", "u32", 2**30)), "alignment"),
    "alignment of type i32": (container(kv("general.alignment", "i32", 32)), "alignment"),
    "alignment of type u32[]": (container(kv("general.alignment", "u32[]", [32])), "alignment"),
    "rank 0": (container(tensors=(tensor("t", (), rank=0),)), "rank 0"),
    "rank 9": (container(tensors=(tensor("t", (1,) * 9),)), "rank 9"),
    "rank 2^32-1": (container(tensors=(tensor("t", (8,), rank=U32_MAX),)), "rank"),
    "zero dimension": (container(tensors=(tensor("t", (8, 0)),)), "dimension of 0"),
    "element product 2^65": (container(tensors=(tensor("t", (2**62, 8)),)), "elements"),
    "element product wraps to 0": (container(tensors=(tensor("t", (2**32, 2**32)),)), "elements"),
    "byte product wraps": (container(tensors=(tensor("t", (2**61,), 28),)), "past the end"),
    "dimension 2^42+1": (container(tensors=(tensor("t", (2**42 + 1,)),)), "past the end"),
    "dimension 2^63-1 twice": (container(tensors=(tensor("t", (2**63 - 1, 2)),)), "elements"),
    "unknown tensor type": (container(tensors=(tensor("t", (32,), 99),)), "unknown type 99"),
    "removed tensor type": (container(tensors=(tensor("t", (32,), 4),)), "unknown type 4"),
    "ragged row": (container(tensors=(tensor("t", (33,), 8),), data=999), "whole blocks"),
    "ragged K row": (container(tensors=(tensor("t", (128, 2), 10),), data=999), "whole blocks"),
    "unaligned offset": (container(tensors=(tensor("t", offset=8),)), "multiple of 32"),
    "offset beyond the file": (container(tensors=(tensor("t", offset=4096),)), "past the end"),
    "offset 2^64-32": (container(tensors=(tensor("t", offset=2**64 - 32),)), "past the end"),
    "offset plus size one byte beyond": (container(tensors=(tensor("t", (16,)),), data=63), "past the end"),
    "overlapping tensors": (container(tensors=(tensor("t", (16,)), tensor("u", (8,), offset=32))), "overlap"),
    "tensors at one place": (container(tensors=(tensor("t"), tensor("u"))), "overlap"),
    "duplicate tensor": (container(tensors=(tensor("t"), tensor("t", offset=32))), "appears twice"),
    "empty tensor name": (container(tensors=(tensor(""),)), "empty tensor name"),
    "tensor name that is not UTF-8": (container(tensors=(tensor(b"\xff"),)), "not valid UTF-8"),
    "tensor name of 2^40": (container(tensors=(struct.pack("<Q", 2**40) + bytes(60),)), "bytes long"),
    "name with a line break": (container(tensors=(tensor("a\nb", offset=8),)), "multiple of 32"),
    "no metadata at all": (container(), "missing"),
}

META = SMALL.metadata() + TOKENS
P = "deepseek4."
NAN, INF = float("nan"), float("inf")

# name -> (changes to the metadata of a valid model, a word of the reason)
METADATA = {
    "another architecture": ({"general.architecture": ("string", "llama")}, "architecture"),
    "no layer count": ({P + "block_count": None}, "block_count is missing"),
    "layer count as i32": ({P + "block_count": ("i32", 4)}, "block_count has type i32"),
    "layer count 0": ({P + "block_count": ("u32", 0)}, "block_count is 0"),
    "layer count 2^32-1": ({P + "block_count": ("u32", U32_MAX)}, "block_count|entries"),
    "more layers than tensors": (
        {
            P + "block_count": ("u32", 9),
            P + "attention.compress_ratios": ("i32[]", [0] * 9),
            P + "swiglu_clamp_exp": ("f32[]", [1.0] * 9),
        },
        "blk.",
    ),
    "ratio 3": ({P + "attention.compress_ratios": ("i32[]", [0, 0, 3, 128])}, "compress_ratios"),
    "negative ratio": ({P + "attention.compress_ratios": ("i32[]", [0, 0, -4, 128])}, "compress_ratios"),
    "too few ratios": ({P + "attention.compress_ratios": ("i32[]", [0, 0])}, "compress_ratios"),
    "ratios as f32": ({P + "attention.compress_ratios": ("f32[]", [0, 0, 4, 128])}, "compress_ratios has type"),
    "NaN epsilon": ({P + "attention.layer_norm_rms_epsilon": ("f32", NAN)}, "epsilon is nan"),
    "infinite theta": ({P + "rope.freq_base": ("f64", INF)}, "freq_base is inf"),
    "zero factor": ({P + "rope.scaling.factor": ("f32", 0.0)}, "factor"),
    "NaN clamp": ({P + "swiglu_clamp_exp": ("f32[]", [NAN] * 4)}, "swiglu_clamp_exp"),
    "more used than experts": ({P + "expert_used_count": ("u32", 6)}, "experts used"),
    "no rotary channels": ({P + "rope.dimension_count": ("u32", 0)}, "dimension_count"),
    "rotary wider than the head": ({P + "rope.dimension_count": ("u32", 256)}, "rope.dimension_count"),
    "odd rotary width": ({P + "rope.dimension_count": ("u32", 63)}, "rope.dimension_count"),
    "zero groups": ({P + "attention.output_group_count": ("u32", 0)}, "output_group_count"),
    "two key-value heads": ({P + "attention.head_count_kv": ("u32", 2)}, "head_count_kv"),
    "value narrower than key": ({P + "attention.value_length": ("u32", 64)}, "value_length"),
    "width 100": ({P + "embedding_length": ("u32", 100)}, "embedding_length"),
    "index width 96": ({P + "attention.indexer.key_length": ("u32", 96)}, "power of two"),
    "vocabulary of 2^31": ({P + "vocab_size": ("u32", 2**31)}, "vocab_size"),
    "more tokens than rows": ({P + "vocab_size": ("u32", 60)}, "67 tokens"),
    "tokens are numbers": ({"tokenizer.ggml.tokens": ("u32[]", [1, 2])}, "tokenizer.ggml.tokens has type"),
    "expert groups": ({P + "expert_group_count": ("u32", 8)}, "expert_group_count"),
    "context length as f32": ({P + "rope.scaling.original_context_length": ("f32", 65536)}, "context_length has type"),
    "streams 0": ({P + "hyper_connection.count": ("u32", 0)}, "hyper_connection.count"),
    "other streams than tensors": ({P + "hyper_connection.count": ("u32", 3)}, "hc_"),
    "other width than tensors": ({P + "embedding_length": ("u32", 512)}, "dims"),
}


SPECS = expected_tensors(SMALL)


def patched(tensor_name: str, **change) -> list[TensorSpec]:
    """The right tensor list with one entry changed."""
    return [replace(spec, **change) if spec.name == tensor_name else spec for spec in SPECS]


# name -> (tensor list, a word of the reason)
TENSORS = {
    "missing output": ([s for s in SPECS if s.name != "output.weight"], "output.weight is missing"),
    "renamed tensor": (patched("blk.2.attn_kv.weight", name="blk.2.attn_kv.weight_bias"), "attn_kv.weight is"),
    "swapped dims": (patched("blk.1.attn_q_a.weight", dims=(64, 256)), "attn_q_a"),
    "one rank more": (patched("blk.0.attn_norm.weight", dims=(256, 1)), "attn_norm"),
    "blocks where numbers belong": (patched("output_hc_fn.weight", fmt="Q8_0"), "output_hc_fn.weight is Q8_0"),
    "integers where F32 belongs": (patched("output_norm.weight", fmt="I32"), "output_norm.weight is I32"),
    "unsupported experts": (patched("blk.3.ffn_down_exps.weight", fmt="IQ3_S"), "ffn_down_exps.weight is IQ3_S"),
    "gate unlike up": (patched("blk.3.ffn_up_exps.weight", fmt="Q2_K"), "but blk.3.ffn_up_exps"),
    "float routing table": (patched("blk.0.ffn_gate_tid2eid.weight", fmt="F32"), "tid2eid.weight is F32"),
    "no compressor": ([s for s in SPECS if "compressor" not in s.name], "and 7 more"),
}


def spoiled(name: str, what: object) -> np.ndarray:
    """The bytes of one tensor with one scale or value, in the last block, replaced."""
    spec = next(s for s in SPECS if s.name == name)
    raw = sane_bytes(spec, np.random.default_rng(1), SMALL)
    if spec.fmt == "I32":
        raw.view("<i4")[-1] = what
    else:
        blocks = raw.view(FORMATS[spec.fmt].layout)
        for field in FORMATS[spec.fmt].scale_fields[-1:]:
            blocks = blocks[field]
        blocks[-1] = what
    return raw


# name -> (tensor, value, a word of the reason)
DATA = {
    "NaN norm": ("blk.1.ffn_norm.weight", NAN, "blk.1.ffn_norm.weight' holds a NaN"),
    "NaN hyper-connection scale": ("blk.2.hc_attn_scale.weight", NAN, "hc_attn_scale"),
    "infinite sink": ("blk.0.attn_sinks.weight", INF, "attn_sinks"),
    "infinite position bias": ("blk.3.attn_compressor_ape.weight", -INF, "attn_compressor_ape"),
    "NaN embedding": ("token_embd.weight", NAN, "token_embd"),
    "NaN Q8_0 scale": ("output.weight", NAN, "output.weight' holds a NaN or infinite scale"),
    "NaN IQ2_XXS scale": ("blk.2.ffn_up_exps.weight", NAN, "ffn_up_exps"),
    "infinite Q2_K minimum": ("blk.3.ffn_down_exps.weight", INF, "ffn_down_exps"),
    "expert id too large": ("blk.0.ffn_gate_tid2eid.weight", 5, "names expert 5"),
    "negative expert id": ("blk.0.ffn_gate_tid2eid.weight", -1, "names expert -1"),
}

CASES = [*CONTAINERS, *METADATA, *TENSORS, *DATA]


def build(case: str, path: Path) -> str:
    """Writes the file; returns what its error must say."""
    if case in CONTAINERS:
        data, reason = CONTAINERS[case]
        path.write_bytes(data)
    elif case in METADATA:
        changes, reason = METADATA[case]
        write_model(path, metadata=with_metadata(META, changes), data=True)
    elif case in TENSORS:
        specs, reason = TENSORS[case]
        write_model(path, specs=specs, data=True)
    else:
        name, what, reason = DATA[case]
        write_model(path, data={name: spoiled(name, what)})
    return reason


def load(path: Path) -> None:
    """All that an engine does before it computes."""
    with GGUFFile.open(path) as file:
        bind(file, ModelShape.from_metadata(file))


def test_there_are_enough_cases_and_the_model_they_spoil_is_fine(tmp_path):
    assert len(CASES) == len(set(CASES)) >= 50
    load(write_model(tmp_path / "m.gguf"))
    load(write_model(tmp_path / "m.gguf", data=True))


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case, tmp_path):
    path = tmp_path / "bad.gguf"
    reason = build(case, path)
    started = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert time.process_time() - started < 1
    assert re.search(reason, caught.value.reason)  # not in the whole message: the path names the case, too
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    assert text.startswith(f"{path}: ") and caught.value.path == str(path)


SCRIPT = """
import sys, time
from ds4ref.errors import ModelFileError
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.weights.gguf import GGUFFile
from ds4ref.archs.deepseek4.weights import bind
for path in sys.stdin.read().splitlines():
    started = time.process_time()
    try:
        with GGUFFile.open(path) as file:
            bind(file, ModelShape.from_metadata(file))
        print("loaded", path)
    except ModelFileError:
        pass
    if time.process_time() - started > 2:
        print("slow", path)
# Not ru_maxrss: that one starts at the size of the process which called us.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: peak memory is unknown")
def test_memory_of_all_cases_together(tmp_path):
    """The highest resident size over all cases bounds each of them."""
    paths = [tmp_path / f"{number}.gguf" for number in range(len(CASES))]
    for case, path in zip(CASES, paths, strict=True):
        build(case, path)
    # Sparse and huge: a directory of zeros or of lies, with all the room in the world behind it.
    for head in (
        container(n_keys=2**16, data=0),
        container(array("a", 8, 2**40), data=0),
        container(array("a", 8, 2**21, b""), data=0),
        container(array("a", 8, 2**21 + 1, b""), data=0),
        container(array("a", 0, 2**36), data=0),
        container(value("a", 8, struct.pack("<Q", 2**24)), data=0),
        container(value("a", 8, struct.pack("<Q", 2**36)), data=0),
        container(n_tensors=2**16, data=0),
    ):
        path = tmp_path / f"sparse {len(paths)}.gguf"
        path.write_bytes(head)
        os.truncate(path, 80 << 30)
        paths.append(path)
    need_mapped(paths[-1])  # the script opens one after the other
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        cwd=root,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    *complaints, peak = run.stdout.split("\n")[:-1]
    assert complaints == []
    assert int(peak) < 200


def test_what_is_just_allowed(tmp_path):
    """The limits themselves, next to what is refused beyond them."""
    path = tmp_path / "m.gguf"

    def opened(data: bytes, size: int = 0) -> GGUFFile:
        path.write_bytes(data)
        os.truncate(path, max(size, len(data)))
        return GGUFFile.open(path)

    def refused(data: bytes, reason: str) -> None:
        with pytest.raises(ModelFileError) as caught:
            opened(data)
        assert re.search(reason, caught.value.reason)

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
    for alignment in (8, 16, 2**20):
        whole = container(kv("general.alignment", "u32", alignment), tensors=(tensor("t"), tensor("u", (2,), 0, 2**20)))
        with opened(whole, 2**22) as file:
            start = file.tensors["t"].offset
            assert start % alignment == 0 and 0 <= start - (24 + 3 * 33) < alignment
            assert file.tensors["u"].offset == start + 2**20 and file.alignment == alignment


def test_truncation_at_every_byte_of_a_directory(tmp_path):
    whole = container(
        ARCH,
        kv("a", "u32", 7),
        kv("b", "string[]", ["x", "yz"]),
        kv("c", "f64[]", [1.0, 2.0]),
        tensors=(tensor("t", (8, 2)), tensor("u", (3,), offset=64)),
        data=64 + 12,
    )
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    GGUFFile.open(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)


def test_a_model_one_byte_short(tmp_path):
    """Padding behind the last tensor may be missing, its last byte may not."""
    path = write_model(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        end = max(info.offset + info.nbytes for info in file.tensors.values())
    os.truncate(path, end)
    load(path)
    os.truncate(path, end - 1)
    with pytest.raises(ModelFileError, match="past the end"):
        load(path)


def test_random_damage(tmp_path):
    """Seeded mutations of the directory: an error or a model that binds, never another exception, never slow."""
    path = write_model(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        directory = min(info.offset for info in file.tensors.values())
    rng = random.Random(20240607)
    extremes = [0, 1, 7, 2**16, 2**31, U32_MAX, 2**32, 2**40, 2**62, 2**63, U64_MAX]
    refused = 0
    started = time.process_time()
    with path.open("r+b", buffering=0) as handle:
        clean = handle.read(directory)
        for _ in range(2000):
            for _ in range(rng.choice((1, 1, 2, 8))):
                handle.seek(rng.randrange(directory))
                kind = rng.randrange(3)
                if kind == 0:
                    handle.write(bytes([rng.randrange(256)]))
                elif kind == 1:
                    handle.write(struct.pack("<Q", rng.choice(extremes)))
                else:
                    handle.write(struct.pack("<I", rng.choice(extremes) & U32_MAX))
            try:
                load(path)
            except ModelFileError as error:
                refused += 1
                assert "\n" not in str(error)
            handle.seek(0)
            handle.write(clean)
    assert time.process_time() - started < 30
    assert refused > 1500
    load(path)


def test_where_posix_calls_are_missing_one_line_names_the_way_out(tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.gguf")
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:  # pytest removes folders with these calls
        for name in ("pread", "O_CLOEXEC", "O_NONBLOCK"):
            patch.delattr(os, name)
        for attempt in (
            lambda: GGUFFile.open(path),
            lambda: GGUFFile.open(tmp_path / "missing.gguf"),
            lambda: Engine.open(path),
            Engine.open,  # makes the embedded model's file first
        ):
            with pytest.raises(BackendError, match="WSL") as caught:
                attempt()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["missing", "folder", "pipe", "device"])
def test_what_is_not_a_file(what, tmp_path):
    paths = {"missing": "none.gguf", "folder": ".", "pipe": "p", "device": "/dev/zero"}
    path = tmp_path / paths[what]
    if what == "pipe":
        os.mkfifo(path)
    with pytest.raises(ModelFileError, match="cannot open|regular"):
        GGUFFile.open(path)


def test_a_path_with_a_zero_byte():
    with pytest.raises(ModelFileError, match="cannot open"):
        GGUFFile.open("a\0b")


def test_shrinking_while_open(tmp_path):
    """A shrunken file is noticed before its map is read, which would be a bus error."""
    path = write_model(tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        shape = ModelShape.from_metadata(file)
        file.raw("output.weight")
        os.truncate(path, 5000)
        with pytest.raises(ModelFileError, match="truncated from"):
            file.raw("output.weight")
        with pytest.raises(ModelFileError, match="truncated from"):
            bind(file, shape)
        os.truncate(path, 100)
        with pytest.raises(ModelFileError, match="truncated while open"):
            file.metadata["tokenizer.ggml.tokens"]


def test_strings_are_counted_over_all_arrays(tmp_path):
    """A directory within its size limit could still hold millions of empty strings; a sparse file costs nothing."""
    path = tmp_path / "bad.gguf"
    for count, reason in ((MAX_STRINGS, "block_count"), (MAX_STRINGS + 1, "strings in metadata arrays")):
        path.write_bytes(container(array("a", 8, count), data=0))
        os.truncate(path, 1 << 30)
        with pytest.raises(ModelFileError, match=reason):
            load(path)
        path.write_bytes(container(kv("b", "string[]", ["x"]), array("a", 8, count - 1), data=0))
        os.truncate(path, 1 << 30)
        with pytest.raises(ModelFileError, match=reason):
            load(path)


@pytest.mark.parametrize("beyond", [1, 7, 8, 9, 40])
def test_a_string_that_ends_just_beyond_the_file(tmp_path, beyond):
    path = tmp_path / "bad.gguf"
    path.write_bytes(container(array("a", 8, 2, struct.pack("<QQ", 0, 30) + b"x" * 30), data=0)[: 24 + 25 + 16 + 30])
    with GGUFFile.open(path) as file:
        assert file.metadata["a"] == ["", "x" * 30]
    for head in (array("a", 8, 2, struct.pack("<QQ", 0, 30 + beyond)), value("a", 8, struct.pack("<Q", 30 + beyond))):
        path.write_bytes(container(head + b"x" * 30, data=0)[: 24 + len(head) + 30])
        with pytest.raises(ModelFileError, match=f" {30 + beyond} bytes .*file ends at byte {path.stat().st_size}"):
            GGUFFile.open(path)


def test_array_contents_are_checked_when_decoded(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(
        container(
            kv("text", "string[]", ["ok", b"\xff"]), array("flags", 7, 3, b"\x01\x00\x02"), kv("good", "bool[]", [1, 0])
        )
    )
    with GGUFFile.open(path) as file:
        with pytest.raises(ModelFileError, match="item 1 of 'text' is not valid UTF-8"):
            file.metadata["text"]
        with pytest.raises(ModelFileError, match="boolean"):
            file.metadata["flags"]
        assert file.metadata["good"] == [True, False]
