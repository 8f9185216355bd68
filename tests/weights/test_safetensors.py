"""The safetensors reader: what it reads, against the library of that name, and what it refuses and how."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs import arch_of
from ds4ref.errors import Ds4Error, ModelFileError
from ds4ref.weights import open_source
from ds4ref.weights.boundedjson import parse
from ds4ref.weights.safetensors import BITS, INDEX, MAX_HEADER_BYTES, SINGLE, Checkpoint
from ds4ref.weights.safetensors_writer import PlannedTensor, write_file, write_folder

from .checkpointfile import container, edit_json, entry, write_small
from .mutate import mutated

library = pytest.importorskip("safetensors.numpy")


# ---- what is read


def test_a_file_of_the_library(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "a.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(7).astype(np.float16),
        "long": rng.integers(-9, 9, (2, 2, 2)),
        "scalar": np.array(4.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    library.save_file(arrays, tmp_path / SINGLE, {"note": "kept"})
    with Checkpoint.open(tmp_path) as found:
        assert found.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            stored = found.tensors[name]
            assert stored.shape == array.shape and stored.nbytes == array.nbytes
            assert found.raw(name).tobytes() == array.tobytes()
        assert found.size == (tmp_path / SINGLE).stat().st_size
        view = found.raw("a.weight")
    assert not view.flags.writeable
    np.testing.assert_array_equal(view.view(np.float32).reshape(3, 5), arrays["a.weight"])  # outlives its file
    with pytest.raises(ModelFileError, match="closed"):
        found.raw("b")


@pytest.mark.parametrize("shard_bytes", [1, 100, 1 << 20])
def test_what_we_write_the_library_reads_and_so_do_we(tmp_path, shard_bytes):
    arrays = {f"t{i}": np.arange(10 * i + 1, dtype=np.float32) for i in range(6)}
    plans = [PlannedTensor(name, "F32", array.shape, lambda array=array: array) for name, array in arrays.items()]
    write_folder(tmp_path, plans, shard_bytes)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) == 1) == (shard_bytes == 1 << 20) and (tmp_path / INDEX).exists() == (len(files) > 1)
    theirs = {name: array for file in files for name, array in library.load_file(file).items()}
    with Checkpoint.open(tmp_path) as found:
        assert found.tensors.keys() == theirs.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(theirs[name], array)
            np.testing.assert_array_equal(found.raw(name).view(np.float32), array)


def test_the_writer_leaves_nothing_when_a_tensor_does_not_fit(tmp_path):
    with pytest.raises(ValueError, match="not the 8 of its plan"):
        write_file(tmp_path / "x.safetensors", [PlannedTensor("a", "F32", (2,), lambda: np.zeros(3, np.float32))])
    assert not list(tmp_path.iterdir())


def test_empty_tensors_stand_anywhere_and_in_any_order_of_the_header(tmp_path):
    """Their offset is also that of the tensor behind them, or of the end; the header may name the full one first."""
    names = {"full": entry(), "before": entry(shape=(0,)), "behind": entry(shape=(4, 0), start=8)}
    for order in itertools.permutations(names):
        (tmp_path / SINGLE).write_bytes(container({name: names[name] for name in order}))
        with Checkpoint.open(tmp_path) as found:
            assert {name: found.raw(name).size for name in names} == {"full": 8, "before": 0, "behind": 0}
            assert [name for name in found.tensors if name != "before"] == ["full", "behind"], "as the data lies"


def test_every_dtype_has_its_size(tmp_path):
    """The dtypes of the safetensors crate, 0.7, with the bits of an element."""
    sizes = {4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0", 16: "I16 U16 F16 BF16",
             32: "I32 U32 F32", 64: "I64 U64 F64 C64"}  # fmt: skip
    assert {name for names in sizes.values() for name in names.split()} == BITS.keys()
    for bits, names in sizes.items():
        for dtype in names.split():
            (tmp_path / SINGLE).write_bytes(container({"a": entry(dtype, (4, 2))}, data=bits))
            with Checkpoint.open(tmp_path) as found:
                assert found.raw("a").size == bits


@pytest.mark.thorough
def test_touching_reads_every_page(tmp_path):
    write_small(tmp_path / "m", shard_bytes=1 << 18)
    with Checkpoint.open(tmp_path / "m") as found:
        assert len(found.files) > 3
        assert sum(size for size, _ in found.touch()) == sum(t.nbytes for t in found.tensors.values())


def test_a_folder_its_index_and_a_file_are_the_same_model(tmp_path):
    write_small(tmp_path / "m", shard_bytes=1 << 18)
    write_small(tmp_path / "one")
    wanted = open_source(tmp_path / "m").tensors.keys()
    for path in (tmp_path / "m" / INDEX, tmp_path / "one", tmp_path / "one" / SINGLE):
        with open_source(path) as source:
            assert source.tensors.keys() == wanted
    renamed = (tmp_path / "one" / SINGLE).rename(tmp_path / "one" / "weights.bin")
    with open_source(renamed) as source:  # told by what it is
        assert source.tensors.keys() == wanted


# ---- what is refused

OK = entry("F32", (2,))
HEADERS = {
    "empty file": (b"", "too short"),
    "seven bytes": (bytes(7), "too short"),
    "length alone": (struct.pack("<Q", 2), "too short"),
    "length of 2^64 - 1": (container({"a": OK}, length=2**64 - 1), "header of 18446744073709551615 bytes"),
    "length of 2^63": (container({"a": OK}, length=2**63), "at most"),
    "length over the limit": (container({"a": OK}, length=MAX_HEADER_BYTES + 1), "at most"),
    "length past the end": (container({"a": OK}, length=10_000), "truncated: the header"),
    "length cuts the header": (container({"a": OK}, length=20), "not JSON"),
    "length of nothing": (container({"a": OK}, length=0), "starts with"),
    "a list": (container([1, 2]), "starts with"),
    "a GGUF": (b"GGUF" + bytes(60), "at most"),
    "text": (b"hello, this is no model at all\n", "at most"),
    "space before the header": (container(b' {"a":1}'), "starts with"),
    "not UTF-8": (container(b'{"\xff":1}'), "not UTF-8"),
    "broken JSON": (container(b'{"a":{"dtype":"F32",,}}'), "not JSON"),
    "two values": (container(b"{}{}"), "not JSON"),
    "unended string": (container(b'{"a'), "not JSON"),
    "depth 5": (container({"a": {"dtype": [[[[1]]]], "shape": [], "data_offsets": []}}), "nested more than 4 deep"),
    "depth 100,000": (container(b'{"a":' + b"[" * 100_000), "nested more than 4 deep"),
    "a name twice": (
        container(b'{"a":%s,"a":%s}' % ((json.dumps(OK).encode(),) * 2)), "'a' appears twice"),
    "a field twice": (container(b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}'), "twice"),
    "metadata of numbers": (container({"__metadata__": {"a": 1}, "a": OK}), "object of strings"),
    "metadata a list": (container({"__metadata__": [], "a": OK}), "object of strings"),
    "tensor a number": (container({"a": 1}), "other fields"),
    "a field too few": (container({"a": {"dtype": "F32", "shape": [2]}}), "other fields"),
    "a field too many": (container({"a": {**OK, "strides": [1]}}), "other fields"),
    "unknown dtype": (container({"a": {**OK, "dtype": "F31"}}), "unknown dtype 'F31'"),
    "dtype a list": (container({"a": {**OK, "dtype": ["F32"]}}), "unknown dtype"),
    "shape a number": (container({"a": {**OK, "shape": 2}}), "a shape is a list"),
    "rank 9": (container({"a": {**OK, "shape": [1] * 8 + [2]}}), "at most 8 sizes"),
    "negative size": (container({"a": {**OK, "shape": [-2]}}), "a shape is"),
    "fractional size": (container({"a": {**OK, "shape": [2.0]}}), "a shape is"),
    "boolean size": (container({"a": {**OK, "shape": [True, 2]}}), "a shape is"),
    "size of a string": (container({"a": {**OK, "shape": ["2"]}}), "a shape is"),
    "size over 2^63": (container({"a": {**OK, "shape": [2**63]}}), "a shape is"),
    "product over 2^63": (container({"a": {**OK, "shape": [2**62, 8]}}), r"more than 2\^63 elements"),
    "product wraps to 2": (container({"a": {**OK, "shape": [2**32, 2**32, 2]}}), r"more than 2\^63 elements"),
    "bytes wrap": (container({"a": {**OK, "shape": [2**62 + 2]}}), "do not fit"),
    "a number of 5,000 digits": (container(b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}' % (b"9" * 5000)),
                                 "too many digits"),
    "NaN": (container(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'), "NaN"),
    "Infinity": (container(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-Infinity]}}'), "Infinity"),
    "offsets a number": (container({"a": {**OK, "data_offsets": 8}}), "data_offsets"),
    "three offsets": (container({"a": {**OK, "data_offsets": [0, 4, 8]}}), "data_offsets"),
    "offsets backwards": (container({"a": {**OK, "data_offsets": [8, 0]}}), "data_offsets"),
    "negative offset": (container({"a": {**OK, "data_offsets": [-8, 0]}}), "data_offsets"),
    "offsets too near": (container({"a": {**OK, "data_offsets": [0, 7]}}), "do not fit into 7 bytes"),
    "offsets too far": (container({"a": {**OK, "data_offsets": [0, 9]}}, data=9), "do not fit into 9 bytes"),
    "half a byte": (container({"a": entry("F4", (3,), 0, 1)}, data=1), "do not fit"),
    "past the end": (container({"a": OK}, data=7), "reach past the end"),
    "far past the end": (container({"a": entry("F32", (2,), 2**60)}), "leaves a hole"),
    "a hole before": (container({"a": entry("F32", (2,), 4)}, data=12), "'a' leaves a hole before it"),
    "a hole between": (container({"a": OK, "b": entry("F32", (2,), 12)}, data=20), "'b' leaves a hole"),
    "the same place twice": (container({"a": OK, "b": OK}), "overlaps"),
    "one inside another": (container({"a": entry("F32", (4,)), "b": entry("F32", (2,), 4)}, data=16), "overlaps"),
    "bytes behind the last": (container({"a": OK}, data=9), "do not fill"),
    "no tensors but bytes": (container({}, data=8), "do not fill"),
    "an empty name": (container({"": OK}), "unusable name"),
    "a name with a line break": (container({"a\nb": OK}), "unusable name"),
    "a name with an escape": (container({"\x1b[31m": OK}), "unusable name"),
    "half a surrogate": (container(b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "unusable name"),
    "a name of 2,000 bytes": (container({"n" * 2000: OK}), "unusable name"),
}  # fmt: skip


def one_line(path: Path, match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        Checkpoint.open(path).close()
    text = str(caught.value)
    assert "\n" not in text and text.isprintable() and len(text) < 500


@pytest.mark.parametrize("case", HEADERS)
def test_a_malformed_header_is_one_line(tmp_path, case):
    data, match = HEADERS[case]
    (tmp_path / SINGLE).write_bytes(data)
    one_line(tmp_path, match)


INDEXES = {
    "no map": ({}, "weight_map"),
    "a list": ({"weight_map": ["a"]}, "weight_map"),
    "an empty map": ({"weight_map": {}}, "weight_map"),
    "a number for a file": ({"weight_map": {"a": 1}}, "weight_map"),
    "a file above": ({"weight_map": {"a": "../x.safetensors"}}, "not the name"),
    "a file from the root": ({"weight_map": {"a": "/etc/x.safetensors"}}, "not the name"),
    "a file of another kind": ({"weight_map": {"a": "passwd"}}, "not the name"),
    "a file with a zero": ({"weight_map": {"a": "x\0.safetensors"}}, "not the name"),
    "a hidden file": ({"weight_map": {"a": ".x.safetensors"}}, "not the name"),
    "a file with a line break": ({"weight_map": {"a": "x.safetensors\n"}}, "not the name"),
    "no such file": ({"weight_map": {"a": "x.safetensors"}}, "cannot open"),
    "a tensor that is not there": ({"weight_map": {"a": "one.safetensors", "c": "one.safetensors"}}, "'c' is not in"),
    "a tensor too many": ({"weight_map": {"c": "one.safetensors"}}, "does not list 'a' in"),
    "a tensor in the wrong file": (
        {"weight_map": {"a": "two.safetensors", "b": "two.safetensors"}}, "'a' is not in two"),
    "a tensor in both": (
        {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "x": "twin.safetensors"}}, "also in|not say"),
    "2,000 files": ({"weight_map": {f"t{i}": f"f{i}.safetensors" for i in range(2000)}}, "the maximum is 1024"),
    "deep": ({"weight_map": {"a": [[[[[[1]]]]]]}}, "nested"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_a_malformed_index_is_one_line(tmp_path, case):
    index, match = INDEXES[case]
    (tmp_path / "one.safetensors").write_bytes(container({"a": OK}))
    (tmp_path / "two.safetensors").write_bytes(container({"b": OK}))
    (tmp_path / "twin.safetensors").write_bytes(container({"a": OK}))
    (tmp_path / INDEX).write_text(json.dumps(index))
    one_line(tmp_path, match)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b'"x"', b"\xef\xbb\xbf{}", b'{"weight_map":', b"[" * 10**6])
def test_an_index_that_is_no_object(tmp_path, text):
    (tmp_path / INDEX).write_bytes(text)
    one_line(tmp_path, "JSON")


CONFIGS = {
    "no family": ({"model_type": None}, "model_type is missing"),
    "another family": ({"model_type": "gpt2"}, "model_type is 'gpt2', not one of"),
    "a family with a line break": ({"model_type": "a\nb" * 100}, "not one of"),
    "a family of numbers": ({"model_type": 4}, "wanted a text"),
    "no layers": ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    "layers of text": ({"num_hidden_layers": "4"}, "wanted a whole number"),
    "no layer": ({"num_hidden_layers": 0}, "from 1 to"),
    "2^31 layers": ({"num_hidden_layers": 2**31}, "from 1 to 1024"),
    "2^70 layers": ({"num_hidden_layers": 2**70}, "from 1 to 1024"),
    "half a layer": ({"num_hidden_layers": 2.5}, "whole number"),
    "true layers": ({"num_hidden_layers": True}, "whole number"),
    "2^31 experts": ({"n_routed_experts": 2**31}, "n_routed_experts is"),
    "more experts than there are": ({"n_routed_experts": 9}, "'layers.0.ffn.experts.5.w1.weight' is missing"),
    "more of everything than there is": (
        {"num_hidden_layers": 1024, "n_routed_experts": 1 << 14, "compress_ratios": [0] * 1024}, "experts.5.w1"),
    "negative width": ({"hidden_size": -256}, "hidden_size is -256"),
    "no ratios": ({"compress_ratios": None}, "layer_types is missing"),
    "ratios of text": ({"compress_ratios": ["0"]}, "whole numbers"),
    "too few ratios": ({"compress_ratios": [0]}, "has 1 entries for 4 layers"),
    "a million ratios": ({"compress_ratios": [0] * 10**5}, "at most"),
    "unknown layer types": ({"compress_ratios": None, "layer_types": ["mamba"] * 4}, "'mamba', not one of"),
    "an epsilon of text": ({"rms_norm_eps": "tiny"}, "wanted a number"),
    "an epsilon of 10^400": ({"rms_norm_eps": 10**400}, "wanted a number"),
    "a limit list": ({"swiglu_limit": [10.0]}, "wanted a number"),
    "another score": ({"scoring_func": "softmax"}, "scoring_func"),
    "rope of text": ({"rope_scaling": "yarn"}, "wanted an object"),
    "another rope": ({"rope_scaling": {"type": "linear", "factor": 2}}, "wanted yarn"),
    "rope without factor": ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing"),
    "a nested base missing": (
        {"rope_scaling": None, "rope_parameters": {"main": {}, "compress": {"rope_theta": 1e4}}},
        r" rope_parameters\.main\.rope_theta is missing",
    ),
    "a rotary share of 2": ({"qk_rope_head_dim": None, "partial_rotary_factor": 2}, "share of the head"),
    "hash layers in between": (
        {"num_hash_layers": None, "mlp_layer_types": ["moe", "hash_moe", "moe", "moe"]}, "mlp_layer_types"),
    "name of a number": ({"_name_or_path": 3}, "wanted a text"),
    "a ratio of 5": ({"compress_ratios": [5] * 4}, "compress_ratios holds 5"),
    "an odd rope": ({"qk_rope_head_dim": 63}, "odd"),
    "another width": ({"hidden_size": 512}, "token_embd.weight has dims"),
    "two layers more": ({"num_hidden_layers": 5, "compress_ratios": [0] * 5}, "blk.4.* is missing"),
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    return write_small(tmp_path_factory.mktemp("published") / "m", shard_bytes=1 << 19)


def bind(path: Path) -> None:
    """Everything that opening an engine does before it computes."""
    with open_source(path) as source:
        arch = arch_of(source)
        arch.bind(source, arch.read_shape(source))


def copy_of(published: Path, folder: Path) -> Path:
    """Links to a model's files, its config.json as a copy."""
    folder.mkdir()
    for file in published.iterdir():
        os.link(file, folder / file.name)
    for name in ("config.json", INDEX):
        text = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(text)
    return folder


@pytest.mark.parametrize("case", CONFIGS)
def test_a_malformed_config_is_one_line(published, tmp_path, case):
    changes, match = CONFIGS[case]
    folder = copy_of(published, tmp_path / "m")
    edit_json(folder / "config.json", changes)
    with pytest.raises(ModelFileError, match=match) as caught:
        bind(folder)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable() and len(text) < 800


@pytest.mark.parametrize("what", ["missing", "empty", "a folder", "2 MB", "a pipe"])
def test_a_config_that_is_none(published, tmp_path, what):
    folder = copy_of(published, tmp_path / "m")
    path = folder / "config.json"
    path.unlink()
    match what:
        case "empty":
            path.write_bytes(b"")
        case "a folder":
            path.mkdir()
        case "2 MB":
            path.write_bytes(b" " * (2 << 20))
        case "a pipe":
            os.mkfifo(path)
    with pytest.raises(ModelFileError, match="config.json"):
        bind(folder)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_folder_that_is_no_model(tmp_path, what):
    path = tmp_path / "m"
    if what == "empty":
        path.mkdir()
    with pytest.raises(ModelFileError):
        open_source(path)


def test_a_shard_that_shrinks_while_it_is_open(published, tmp_path):
    folder = copy_of(published, tmp_path / "m")
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data)
    with open_source(folder) as source:
        os.truncate(shard, 100)
        with pytest.raises(ModelFileError, match="truncated from"):
            for name in source.tensors:
                source.raw(name)


# ---- bounds


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' + b"[],[" * (3 << 20),
        b'{"a":[' + b"0," * (6 << 20),
        b'{"' + b'\\"' * (4 << 20),
        b'{"a":"' + b"x" * (16 << 20),
        b"{" + b'"":0,' * (1 << 20),
        b'{"a":' + b"{" * (1 << 20),
    ],
    ids=["lists", "zeros", "quotes", "long string", "same key", "deep"],
)
def test_megabytes_of_json_cost_little(text):
    """Time and memory stay in proportion to the text; without the count, lists would take sixty times its size."""
    tracemalloc.start()
    before = time.process_time()
    try:
        with pytest.raises(ModelFileError) as caught:
            parse("x.json", text)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text) + (64 << 20)
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert time.process_time() - before < 30


TEXTS = [
    r'{"a":[1,2,{"b":"]}[{,"}]}',
    r'{"a\"[":"\\","b":["\\\"]","\\\\"]}',
    r'["\u0022[","\\\\\"",[[]],"",{}]',
    r'{"":{"":{"":[",\",",",\\",[",\\\","]]}}}',
    '["' + "\\\\" * 9 + '",["' + '\\"' * 9 + '"]]',
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
def test_strings_are_told_from_structure(monkeypatch, text, block):
    """Brackets in strings do not count, whatever is escaped in them and wherever a block of the scan ends."""
    monkeypatch.setattr("ds4ref.weights.boundedjson._BLOCK", block)
    value = json.loads(text)
    bare = json.dumps(value)
    plain = [c for c in re.sub(r'"(?:[^"\\]|\\.)*"', "", bare) if c in "[]{},"]
    assert parse("x.json", text.encode(), values=len(plain)) == value
    with pytest.raises(ModelFileError, match="values"):
        parse("x.json", text.encode(), values=len(plain) - 1)
    depth = max(itertools.accumulate({"[": 1, "{": 1, "]": -1, "}": -1, ",": 0}[c] for c in plain))
    assert parse("x.json", text.encode(), depth=depth) == value
    with pytest.raises(ModelFileError, match="nested"):
        parse("x.json", text.encode(), depth=depth - 1)


@pytest.mark.thorough
@pytest.mark.parametrize("total", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutations(published, tmp_path, total):
    """Seeded mutations of header, index and config: one error line or a model that binds, and no other exception,
    never slow."""
    folder = copy_of(published, tmp_path / "m")
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    shard.unlink()  # not the file that others link to
    shard.write_bytes(data)
    texts = {"config.json": (folder / "config.json").read_bytes(), INDEX: (folder / INDEX).read_bytes()}
    rng = random.Random(20261122)
    refused = 0
    for _ in range(total):
        kind = rng.choice(["header", "header", "config.json", INDEX])
        clean = data[:header] if kind == "header" else texts[kind]
        spoiled = mutated(rng, clean)
        target = shard if kind == "header" else folder / kind
        if kind == "header":
            with open(shard, "r+b") as file:
                file.write(spoiled[:header].ljust(header, b" "))
        else:
            target.write_bytes(spoiled)
        started = time.process_time()
        try:
            with open_source(folder) as source:
                arch_of(source).read_shape(source)
        except Ds4Error as error:
            refused += 1
            assert "\n" not in str(error) and str(error).isprintable()
        assert time.process_time() - started < 10
        if kind == "header":
            with open(shard, "r+b") as file:
                file.write(clean)
        else:
            target.write_bytes(clean)
    assert total > refused > total // 3
    bind(folder)
