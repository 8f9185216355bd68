"""Files of the published sizes, up to 838 GiB, made of holes: they must load in a moment and occupy nothing."""

from __future__ import annotations

import sys

import pytest

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH, PRO, check_published
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.archs.deepseek4.weights import bind
from ds4ref.archs.report import describe, inspect_text
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.gguf import GGUFFile
from tests.marking import sampled
from tests.system import need_mapped, peak_memory

from .modelfile import write_model

TOTALS = {"q2": 86_714_775_900, "q4": 164_628_167_004, "mixed": 97_586_411_868}
GIB = {"q2": "80.76", "q4": "153.32", "mixed": "90.88"}

VOCABULARY = [
    ("tokenizer.ggml.tokens", "string[]", [f"token {i}" for i in range(FLASH.vocab)]),
    ("tokenizer.ggml.merges", "string[]", [f"to ken{i}" for i in range(127_000)]),
]


@pytest.fixture(params=sampled(TOTALS, 3))
def full_size(request, tmp_path):
    path = tmp_path / f"{request.param}.gguf"
    try:
        with path.open("wb") as file:
            file.truncate(TOTALS[request.param] + (1 << 26))
    except OSError as error:
        pytest.skip(f"this file system takes no sparse file of {GIB[request.param]} GiB: {error}")
    need_mapped(path)
    yield (
        request.param,
        write_model(path, FLASH, recipe=request.param, metadata=FLASH.metadata() + VOCABULARY, data=True),
    )
    path.unlink(missing_ok=True)


def test_a_full_size_file_loads_without_allocating(full_size):
    recipe, path = full_size
    blocks = path.stat().st_blocks
    assert blocks * 512 < 16 << 20  # the directory, mostly vocabulary
    with GGUFFile.open(path) as file:
        assert check_published(file) == FLASH
        assert sum(info.nbytes for info in file.tensors.values()) == TOTALS[recipe]
        assert f"{sum(info.nbytes for info in file.tensors.values()) / 2**30:.2f}" == GIB[recipe]
        weights = bind(file, FLASH)
        experts = weights.layers[42].ffn_down_exps
        assert experts.fmt == ("Q2_K" if recipe == "q2" else "Q4_K")
        assert (experts.experts, experts.rows, experts.cols) == (256, 4096, 2048)
        assert not experts.expert(255).data[-1].any()
        assert weights.output.data.shape == (129280, 4352)
        assert weights.layers[0].ffn_gate_tid2eid.shape == (129280, 6)
    assert path.stat().st_blocks == blocks


OPENED = """
from ds4ref.weights import open_source
with open_source(sys.argv[1]) as source:
    assert len(source.tensors) == 1328 and not source.raw("blk.42.ffn_down_exps.weight")[-1]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("gib", "experts"), [(80.8, None), (281.4, "Q8_0")])
def test_five_parts_of_full_size_open(tmp_path, gib, experts):
    """As the published sets: 200 MB."""
    specs = expected_tensors(FLASH, "q2")
    if experts is not None:
        specs = [TensorSpec(s.name, s.fmt if s.fmt in ("F32", "I32") else experts, s.dims) for s in specs]
    assert round(sum(spec.nbytes for spec in specs) / 2**30, 1) == gib
    size = -(-len(specs) // 5)
    for number in range(5):
        split = [("split.no", "u16", number), ("split.count", "u16", 5), ("split.tensors.count", "i32", len(specs))]
        own = FLASH.metadata() + VOCABULARY if number == 0 else []
        path = tmp_path / f"m-{number + 1:05}-of-00005.gguf"
        write_model(path, metadata=own + split, specs=specs[number * size : (number + 1) * size], data=True)
    assert peak_memory(OPENED, path) < 200e6


PRO_GIB = {"q2": 432.7, "q4": 838.0}
"""ds4 calls its files of Pro 430 GB (IQ2) and 426 + 412 = 838 GB (Q4, in two halves); GB of Flash's are GiB, too."""


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", sampled(PRO_GIB, ["q4"]))
def test_pro_is_sized_and_bound(tmp_path, recipe):
    path = tmp_path / "pro.gguf"
    try:
        with path.open("wb") as file:
            file.truncate(910 << 30)
    except OSError as error:
        pytest.skip(f"this file system takes no sparse file of 910 GiB: {error}")
    need_mapped(path)
    write_model(path, PRO, recipe=recipe, metadata=PRO.metadata() + VOCABULARY, data=True)
    blocks = path.stat().st_blocks
    facts = describe(path)
    stored = sum(row["bytes"] for row in facts["tensors"])
    assert round(stored / 2**30, 1) == PRO_GIB[recipe] and facts["file_bytes"] - stored < 16 << 20
    assert facts["published"] == PRO.name and facts["differs"] is None and facts["constants"] == {}
    assert sum(facts["decode_read"].values()) == Costs.of_recipe(PRO, recipe).weight_bytes()
    assert "exactly DeepSeek V4 Pro" in inspect_text(path)
    with GGUFFile.open(path) as opened:
        weights = bind(opened, check_published(opened))
        experts = weights.layers[60].ffn_down_exps
        assert (experts.experts, experts.rows, experts.cols) == (384, 7168, 3072)
        assert not experts.expert(383).data[-1].any()  # its last byte lies past 800 GiB of q4
    assert path.stat().st_blocks == blocks < (16 << 20) // 512
    path.unlink()
