"""DeepSeek V4.1 as it is published, at true size: every tensor known, opened in a moment, and what a token costs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from ds4ref.archs.deepseek41.costs import Costs
from ds4ref.archs.deepseek41.hashing import Lookup, primes
from ds4ref.archs.deepseek41.shape import FLASH, PREFIX, ModelShape
from ds4ref.archs.deepseek41.tensors import expected_tensors
from ds4ref.archs.deepseek41.weights import bind
from ds4ref.cli.ds4 import main
from ds4ref.errors import DataError, ShapeError, UsageError
from ds4ref.kernels.formats.f8_e4m3 import E4M3, E8M0
from ds4ref.weights import open_source
from ds4ref.weights.published import PublishedSource
from tests.system import peak_memory
from tests.weights.modelfile import write_model

from .release41 import metadata, tensors_of, write_published

GB = {
    "embed head": 2.648, "attn.w": 5.070, "compressor indexer": 0.082, "hc_": 0.157, "ffn.gate": 0.157,
    "ffn.experts": 288.778, "shared": 1.417, "norm sink": 0.001, "engram.wkv engram.q_ engram.k_": 0.315,
    "engram.embed": 202.76, "mtp.": 7.93, "vision. aligner. image_": 0.971,
}  # fmt: skip
"""Parts of the folder, by pieces of names of their tensors, and their size as the specification tells it."""


def part_of(name: str) -> str:
    first = [key for key in ("mtp.", "vision. aligner. image_") if any(name.startswith(word) for word in key.split())]
    deep = [key for key in GB if any(word in name for word in key.split())]
    order = ("engram.embed", "engram.wkv engram.q_ engram.k_", "compressor indexer", "ffn.experts", "shared",
             "ffn.gate", "hc_", "norm sink", "attn.w", "embed head")  # fmt: skip
    return [*first, *sorted(deep, key=lambda key: order.index(key) if key in order else 99)][0]


def test_the_inventory_is_the_published_one():
    """To the tensor, and to the byte of a folder whose experts were turned into FP8."""
    tensors = tensors_of()
    assert len(tensors) == len({tensor.name for tensor in tensors}) == 96_085
    assert sum(tensor.name.startswith("mtp.") for tensor in tensors) == 2401
    sizes = dict.fromkeys(GB, 0)
    for tensor in tensors:
        sizes[part_of(tensor.name)] += tensor.nbytes
    for part, size in sizes.items():
        assert abs(size / 1e9 - GB[part]) < max(0.0006, 1e-5 * GB[part]) + 0.005 * (part in ("engram.embed", "mtp."))
    assert round(sum(sizes.values()) / 1e9, 2) == 510.29
    wider = [tensor for tensor in tensors if tensor.dtype == "I8"]
    more = sum(prod(t.shape) for t in wider)  # twice the codes; scales of 32 x 32 instead of 1 x 32
    fewer = sum(prod(t.shape) // 16 - -(-t.shape[0] // 32) * (t.shape[1] // 16) for t in wider)
    assert sum(sizes.values()) + more - fewer == 772_004_202_840


OPENED = """
import numpy as np
from ds4ref.archs import arch_of
from ds4ref.archs.deepseek41.hashing import Lookup
from ds4ref.weights import open_source
with open_source(sys.argv[1]) as source:
    shape = arch_of(source).read_shape(source, strict=True)
    weights = arch_of(source).bind(source, shape)
    assert not Lookup(weights.hashing, 1, weights.layers[14].engram_embd).rows(np.array([384016681])).any()
"""


linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@linux
def test_the_folder_of_510_gb_opens_and_is_named(tmp_path, capsys):
    """Every tensor is known, and no weight is converted: 1 GB."""
    folder = tmp_path / "DeepSeek-V4.1-Flash"
    try:
        tensors = write_published(folder)
    except DataError as error:
        pytest.skip(f"this file system takes no sparse files of many GiB: {error}")
    assert peak_memory(OPENED, folder) < 1e9
    with open_source(folder) as source:
        assert isinstance(source, PublishedSource) and source.made_bytes == 0
        account = source.tensor_account()
        assert not account.refused and len(account.computed) + len(account.inert) == len(tensors)
        assert len(account.inert) == 2401 + 266 + 40
        source.in_place = False  # as for a backend that cannot read codes and scales apart
        assert source.apart("blk.1.engram_embd.weight") is not None, "a table of 100 GB is never converted"
        assert source.apart("blk.1.engram_kv.weight") is None and 5e9 < source.made_bytes < 300e9
        ours = Costs.of_file(source, ModelShape.from_metadata(source), False)
    assert ours.weight_bytes() == Costs.of_recipe(FLASH, "published").weight_bytes()
    assert main(["--inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "checkpoint  DeepSeek V4.1 Flash (September 2026) (told by model_type); prompts of v4.1" in shown
    for text in ("DSpark, beside", "exactly DeepSeek V4.1 Flash", "(images are not read)", "890 bytes a token",
                 "(the drafter is a model of its own)"):  # fmt: skip
        assert text in shown
    assert "refused, " not in shown


@linux
def test_ds4s_file_of_341_gib_opens(tmp_path):
    path = tmp_path / "v41.gguf"
    try:
        with path.open("wb") as file:
            file.truncate(341 << 30)
    except OSError as error:
        pytest.skip(f"this file system takes no sparse file of 341 GiB: {error}")
    specs = expected_tensors(FLASH)
    assert round(sum(spec.nbytes for spec in specs) / 2**30) == 341
    write_model(path, metadata=metadata(), specs=specs, data=True)
    blocks = path.stat().st_blocks
    assert peak_memory(OPENED, path) < 1e9
    assert path.stat().st_blocks == blocks < (16 << 20) // 512


@pytest.mark.parametrize(
    ("tokens", "gops", "megabytes", "floats", "stored", "read"),
    [(2048, 3.33, 9, 22.5, 4.3, 57), (32768, 4.43, 18, 210, 30.4, 126), (131072, 6.44, 35, 810, 113.8, 252),
     (1048576, 25.2, 191, 6410, 892.6, 1426)],
)  # fmt: skip
def test_costs_are_those_of_the_specification(tokens, gops, megabytes, floats, stored, read):
    costs = Costs.of_recipe(FLASH, "published", False)
    assert round(costs.weight_bytes() / 1e6) == 13_035
    assert round(costs._matrix_ops(tokens, 1.0)[1] / 1e9, 1) == 32.3
    assert round(FLASH.attention_ops(tokens) / 1e9, 2 if gops < 10 else 1) == gops
    assert round(FLASH.kv_bytes(tokens) / 2**20, 1 if floats < 100 else None) == floats
    assert round(FLASH.published_kv_bytes(tokens) / 2**20, 1) == stored
    assert round(FLASH.kv_read_bytes(tokens) / 1e6) == read


def test_bench_model_knows_it(capsys):
    from speed_bench.model import model_command

    arguments = ["--gbs", "4800", "--shape", "flash41", "--recipe", "published", "--float", "--depths", "32768"]
    assert model_command([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert round(row["decode_bytes"] / 1e6) == 13_035 + 126
    with pytest.raises(UsageError, match="unknown recipe 'published': choose from q2, q4, mixed"):
        model_command(["--gbs", "1", "--shape", "flash", "--recipe", "published"])


ENGRAM = ModelShape(**{
    **vars(FLASH), "n_layers": 3, "dim": 64, "vocab": 120, "n_heads": 4, "head_dim": 64, "rope_dim": 16, "q_rank": 32,
    "o_rank": 16, "o_groups": 2, "n_experts": 4, "n_used": 2, "expert_ff": 32, "index_heads": 2, "index_dim": 32,
    "index_topk": 8, "window": 8, "ratios": (0, 0, 2), "kv_sources": (2,), "index_sources": (2,),
    "candidate_source": None, "swiglu_limit": (10.0,) * 3, "engram_layers": (1,), "engram_rows": (0,),
    "engram_heads": 2, "engram_vocab": 97,
})  # fmt: skip


def small_file(path, **changes):
    """A file of ds4's kind with tables of a few rows; ``changes``: metadata entries."""
    shape = replace(ENGRAM, engram_rows=(int(primes(50, 1, 3, 2).sum()),))
    entries = {key: (key, kind, value) for key, kind, value in metadata(shape, 50)}
    entries |= {PREFIX + "engram." + key: (PREFIX + "engram." + key, *value) for key, value in changes.items()}
    specs = [spec if spec.fmt == "I8" else replace(spec, fmt="F32") for spec in expected_tensors(shape)]
    return shape, write_model(path, metadata=list(entries.values()), specs=specs, data=True)


def test_a_row_of_264_bytes_is_256_codes_and_8_scales(tmp_path):
    shape, path = small_file(tmp_path / "m.gguf")
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 127, (shape.engram_rows[0], 264), np.uint8)
    rows[:, 256:] = rng.integers(120, 132, (len(rows), 8))
    with open_source(path) as source:
        start = source.tensors["blk.1.engram_embd.weight"].offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(rows.tobytes())
    with open_source(path) as source:
        assert ModelShape.from_metadata(source) == shape, "what ds4's file does not state follows from its arrays"
        weights = bind(source, shape)
        got = Lookup(weights.hashing, 0, weights.layers[1].engram_embd).rows(np.array([7, 0, 7]))
    want = [[float(E4M3.table[row[i]] * E8M0.table[row[256 + i // 32]]) for i in range(256)] for row in rows[[7, 0, 7]]]
    assert got.tolist() == want


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoding": ("string", "lloyd4_e5m3_32_r136")},
         "engram.encoding is 'lloyd4_e5m3_32_r136': only e4m3_e8m0_32_row264 is read"),
        ({"encoding": ("u32", 1)}, "engram.encoding has type u32, wanted string"),
        ({"head_bucket_sizes": ("u64[]", [1])}, "engram.head_bucket_sizes is an array: unknown here"),
    ],
)  # fmt: skip
def test_other_kinds_of_tables_are_refused_by_name(tmp_path, changes, says):
    _, path = small_file(tmp_path / "m.gguf", **changes)
    with open_source(path) as source, pytest.raises(ShapeError) as caught:
        ModelShape.from_metadata(source)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_drafters_are_refused_in_one_line(capsys):
    """V4.1's DSpark is not computed here."""
    from ds4ref.nano.diagnostic41 import diagnostic41_path

    path = diagnostic41_path()
    assert main(["-m", path, "--draft", "dspark", "--mtp", path, "-p", "hi", "-n", "1"]) != 0
    says = "a drafter goes with a DeepSeek V4 model, this one is ds4ref diagnostic"
    assert [says in line for line in capsys.readouterr().err.splitlines()].count(True) == 1


def test_parts_for_several_machines_have_the_rows_that_they_read():
    """Of Flash; each part has the tables and sources of its own layers, and of one earlier source if it needs it."""
    assert FLASH.starts == [*range(25), 28, 32, 36]
    parts = [FLASH.part(range(a, b)) for a, b in ((0, 8), (8, 16), (16, 28), (28, 40))]
    assert [part.n_layers for part in parts] == [8, 8, 13, 13] and FLASH.cached(range(28, 40)) == [20, *range(28, 40)]
    assert [part.engram_layers for part in parts] == [(1,), (6,), (), ()]
    assert sum((part.engram_rows for part in parts), ()) == FLASH.engram_rows
    assert [part.kv_source for part in parts[2:]] == [(0,) * 5 + (5,) * 8, (0,) * 13]
    assert [part.index_source for part in parts[2:]] == [
        (0,) * 5 + (5,) * 4 + (9,) * 4,
        (0,) + (1,) * 4 + (5,) * 4 + (9,) * 4,
    ]
    assert [part.candidate_source for part in parts] == [None, None, 5, 0]
