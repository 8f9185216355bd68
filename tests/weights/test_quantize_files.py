"""Model files made by the quantizer: plans, bytes, splicing, who else reads the result."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.quantize import main
from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.kernels.cpu.quantize import quantize
from ds4ref.weights import open_source
from ds4ref.weights.quantize.families import FAMILIES, family_of
from ds4ref.weights.quantize.imatrix import Imatrix, TensorImportance, read_imatrix, write_imatrix
from ds4ref.weights.quantize.plan import Choices, entries, make_plan
from ds4ref.weights.writer import TensorSpec, write_gguf

from .checkpointfile import write_small
from .quantized import DIM, EXPERTS, FF, METADATA, SPECS, tensor, values

# --- families and plans


@pytest.mark.parametrize(
    ("name", "rank", "family"),
    [
        ("blk.3.ffn_gate_exps.weight", 3, "gate"),
        ("blk.42.ffn_down_exps.weight", 3, "down"),
        ("blk.3.ffn_gate_exps.weight_bias", 3, "dense"),
        ("xblk.3.ffn_gate_exps.weight", 3, "dense"),
        ("blk.3.ffn_up_shexp.weight", 2, "shared"),
        ("blk.0.attn_output_a.weight", 2, "attention-proj"),
        ("blk.0.attn_k.weight", 2, "attention-proj"),
        ("blk.0.attn_compressor_kv.weight", 2, "attention"),
        ("blk.0.indexer.attn_q_b.weight", 2, "attention"),
        ("blk.0.hc_attn_fn.weight", 2, "dense"),
        ("blk.0.ffn_down.weight", 2, "ffn"),
        ("blk.0.ffn_gate_inp.weight", 2, "dense"),
        ("output.weight", 2, "output"),
        ("output_hc_fn.weight", 2, "dense"),
        ("blk.0.attn_norm.weight", 1, "vector"),
    ],
)
def test_families(name, rank, family):
    assert family_of(name, rank) == family and family in FAMILIES


def formats(path: Path, choices: Choices) -> dict[str, str]:
    with open_source(path) as source:
        return {item.spec.name: item.spec.fmt for item in make_plan(source, choices).items}


def test_orders_come_before_families_before_recipes(unquantized):
    choices = Choices("q2", {"gate": "Q4_K", "down": "copy"}, [("blk.1.ffn_gate", "Q2_K"), ("blk.1.ffn_up", "Q8_0")])
    found = formats(unquantized, choices)
    assert found["blk.0.ffn_gate_exps.weight"] == "Q4_K" and found["blk.1.ffn_gate_exps.weight"] == "Q2_K"
    assert found["blk.0.ffn_down_exps.weight"] == "F32" and found["blk.0.ffn_up_exps.weight"] == "IQ2_XXS"
    assert found["blk.1.ffn_up_exps.weight"] == "Q8_0" and found["blk.1.ffn_gate_tid2eid.weight"] == "I32"


def tied(tmp_path: Path, cols: int, head: bool) -> Path:
    names = ["token_embd.weight", "blk.0.ffn_up.weight", *["output.weight"] * head]
    specs = [TensorSpec(name, "F32", (cols, 8)) for name in names]
    with write_gguf(tmp_path / "tied.gguf", [("general.architecture", "string", "llama")], specs) as out:
        for spec in specs:
            out.write(spec.name, np.zeros(spec.nbytes, np.uint8))
    return tmp_path / "tied.gguf"


@pytest.mark.parametrize(
    ("head", "families", "wanted"),
    [
        (True, {}, "F16"), (False, {}, "Q8_0"), (False, {"output": "Q4_K"}, "Q4_K"),
        (True, {"output": "Q4_K"}, "F16"), (False, {"output": "Q4_K", "embedding": "BF16"}, "BF16"),
    ],
)  # fmt: skip
def test_an_embedding_that_is_the_head_is_stored_as_a_head(tmp_path, head, families, wanted):
    assert formats(tied(tmp_path, 256, head), Choices("q4", families))["token_embd.weight"] == wanted


def test_rows_of_an_odd_length_take_a_wider_format(tmp_path):
    for cols, wanted in ((256, "Q4_K"), (288, "Q8_0"), (80, "F16")):
        assert formats(tied(tmp_path, cols, True), Choices("q4"))["blk.0.ffn_up.weight"] == wanted
    with open_source(tied(tmp_path, 288, True)) as source, pytest.raises(UsageError, match="needs a multiple of 256"):
        make_plan(source, Choices(None, {"ffn": "Q4_K"}))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (Choices("q7"), "unknown recipe 'q7': choose from q2"),
        (Choices(None, {"nose": "F16"}), "unknown family 'nose'"),
        (Choices(None, {}, [("blk.9", "F16")]), "no tensor name starts with this"),
        (Choices(None, {}, [("output.weight", "Q5_1")]), "Q5_1 cannot be written"),
        (Choices(None, {"table": "F16"}), "holds integers"),
    ],
)
def test_orders_that_cannot_be_kept(unquantized, choices, says):
    with open_source(unquantized) as source, pytest.raises(UsageError, match=says):
        make_plan(source, choices)


# --- what is written


@pytest.mark.parametrize(("threads", "memory"), [("1", "0.01"), ("3", "0.02")])
def test_bytes_depend_neither_on_threads_nor_on_memory(unquantized, quantized, tmp_path, threads, memory):
    out = tmp_path / "q.gguf"
    assert main([str(unquantized), "-o", str(out), "--recipe", "q2", "--threads", threads, "--memory", memory]) == 0
    assert out.read_bytes() == quantized.read_bytes()


def test_importance_reaches_its_expert(unquantized, tmp_path):
    name = "blk.0.ffn_gate_exps.weight"
    rng = np.random.default_rng(3)
    means = np.exp(rng.standard_normal((EXPERTS, DIM))).astype(np.float32)
    write_imatrix(tmp_path / "i.gguf", Imatrix({name: TensorImportance(means, np.full(EXPERTS, 1e9))}, ["text"], 12))
    table = read_imatrix(tmp_path / "i.gguf")
    out = tmp_path / "q.gguf"
    assert main([str(unquantized), "-o", str(out), "--recipe", "q2", "--imatrix", str(tmp_path / "i.gguf")]) == 0
    x = values(unquantized, name, DIM).reshape(EXPERTS, FF, DIM)
    made = [quantize("IQ2_XXS", x[e], table.importance(name, DIM, EXPERTS, e)) for e in range(EXPERTS)]
    np.testing.assert_array_equal(tensor(out, name)[1].reshape(EXPERTS, FF, -1), made)
    with open_source(out) as source:
        meta = source.metadata
        assert (meta["quantize.imatrix.file"], meta["quantize.imatrix.entries_count"]) == ("i.gguf", 1)
        assert (meta["quantize.imatrix.dataset"], meta["quantize.imatrix.chunks_count"]) == ("text", 12)
        assert meta["general.list"] == [1, 2]


def test_strict_importance_asks_only_for_what_uses_it(unquantized, tmp_path, capsys):
    cols = {"gate": DIM, "up": DIM, "down": FF}
    names = {f"blk.{layer}.ffn_{part}_exps.weight": n for layer in range(2) for part, n in cols.items()}
    entries = {name: TensorImportance(np.ones((EXPERTS, n), np.float32), np.ones(EXPERTS)) for name, n in names.items()}
    command = [str(unquantized), "--recipe", "q2", "--dry-run", "--imatrix-strict", "--imatrix"]
    write_imatrix(tmp_path / "all.gguf", Imatrix(dict(entries)))
    assert main([*command, str(tmp_path / "all.gguf")]) == 0
    del entries["blk.1.ffn_up_exps.weight"]
    write_imatrix(tmp_path / "less.gguf", Imatrix(entries))
    assert main([*command, str(tmp_path / "less.gguf")]) == 1
    assert "no importance for blk.1.ffn_up_exps.weight" in capsys.readouterr().err
    entries["blk.1.ffn_up_exps.weight"] = TensorImportance(np.ones((EXPERTS, DIM), np.float32), np.zeros(EXPERTS))
    write_imatrix(tmp_path / "unmet.gguf", Imatrix(entries))  # it is there, but nothing was measured
    assert main([*command, str(tmp_path / "unmet.gguf")]) == 1
    assert "no importance for blk.1.ffn_up_exps.weight" in capsys.readouterr().err
    assert main([*command[:4], "--imatrix", str(tmp_path / "unmet.gguf")]) == 0


def test_templates_give_names_order_metadata_and_formats(unquantized, quantized, tmp_path):
    out = tmp_path / "t.gguf"
    assert main([str(unquantized), "-o", str(out), "--template", str(quantized), "--output-matrix", "q4_k"]) == 0
    with open_source(out) as source, open_source(quantized) as wanted:
        kinds = {name: info.fmt.name for name, info in source.tensors.items()}
        assert kinds == {n: i.fmt.name for n, i in wanted.tensors.items()} | {"output.weight": "Q4_K"}
        for name in ("blk.0.ffn_gate_exps.weight", "blk.1.attn_q_a.weight"):
            np.testing.assert_array_equal(source.raw(name), wanted.raw(name))


def test_weights_that_cannot_be_stored_are_named(fragment, tmp_path, capsys):
    for value, fmt, says in ((np.nan, "Q4_K", "row 3 holds a weight that is not finite"), (1e38, "Q8_0", "too large"),
                             (1e6, "F16", "too large for F16")):  # fmt: skip
        x = np.ones((8, 256), np.float32)
        x[3, 7] = value
        with write_gguf(tmp_path / "bad.gguf", METADATA, [TensorSpec("output.weight", "F32", (256, 8))]) as out:
            out.write("output.weight", x)
        assert main([str(tmp_path / "bad.gguf"), "-o", str(tmp_path / "o.gguf"), "--output-matrix", fmt]) == 1
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
        assert not (tmp_path / "o.gguf").exists()
        for left in tmp_path.glob("o.gguf.part*"):
            left.unlink()


def test_numbers_of_a_published_config_become_float32(tmp_path):
    """llama.cpp refuses a file whose rope.freq_base is a double; what a GGUF had as one stays one."""
    with open_source(write_small(tmp_path / "folder")) as source:
        kinds = {key: kind for key, kind, _ in entries(source.metadata)}
    assert kinds["deepseek4.rope.freq_base"] == "f32" and kinds["deepseek4.swiglu_clamp_exp"] == "f32[]"
    assert not [key for key, kind in kinds.items() if "f64" in kind]
    with write_gguf(tmp_path / "d.gguf", [*METADATA, ("own.number", "f64", 0.1)], SPECS[1:2]) as out:
        out.write(SPECS[1].name, np.ones(DIM, np.float32))
    with open_source(tmp_path / "d.gguf") as source:
        assert ("own.number", "f64", 0.1) in entries(source.metadata)


# --- splicing


def test_splice_takes_the_layers_and_nothing_else(unquantized, quantized, tmp_path):
    donor, out = tmp_path / "q4.gguf", tmp_path / "mixed.gguf"
    assert main([str(unquantized), "-o", str(donor), "--recipe", "q4"]) == 0
    assert main([str(quantized), "--donor", str(donor), "--layers", "1", "-o", str(out)]) == 0
    with open_source(quantized) as base, open_source(donor) as other, open_source(out) as made:
        assert list(made.tensors) == list(base.tensors)
        for name, info in made.tensors.items():
            taken = name.startswith("blk.1.") and "_exps" in name
            given = other if taken else base
            assert info.fmt is given.tensors[name].fmt
            np.testing.assert_array_equal(made.raw(name), given.raw(name))
        assert made.metadata["ds4ref.splice.layers"] == "1" and made.metadata["ds4ref.splice.donor"] == "q4.gguf"
        kept = {key: made.metadata[key] for key in made.metadata if not key.startswith("ds4ref.")}
        assert kept == {key: base.metadata[key] for key in base.metadata}


@pytest.mark.parametrize(
    ("layers", "says", "code"),
    [("2", "layer 2 has no routed experts", 1), ("1-0", "range 1-0", 2), ("a", "expected an integer", 2)],
)
def test_splice_refuses_layers_that_are_not_there(quantized, tmp_path, capsys, layers, says, code):
    command = [str(quantized), "--donor", str(quantized), "--layers", layers]
    assert main([*command, "-o", str(tmp_path / "o.gguf")]) == code
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())
    plain = str(tied(tmp_path, 256, True))
    assert main([plain, "--donor", plain, "--layers", "0", "-o", str(tmp_path / "o.gguf")]) == 1
    assert "tied.gguf: has no routed experts" in capsys.readouterr().err
    os.unlink(plain)
    for more in (["--layers", "1"], ["--donor", str(quantized)], [*command[1:-1], "1", "--recipe", "q4"]):
        assert main([str(quantized), *more, "-o", str(tmp_path / "o.gguf")]) == 2 and not list(tmp_path.iterdir())


# --- whole models


@pytest.mark.peers
@pytest.mark.parametrize("published", [False, True])
def test_llama_cpp_runs_it_and_logits_agree(nano_path, tmp_path, published):
    from ds4ref.nano.checkpoint import write_checkpoint

    cpp = pytest.importorskip("llama_cpp")
    out, source = tmp_path / "q4.gguf", nano_path
    if published:
        source = str(tmp_path / "published")
        with open_source(nano_path) as model:
            write_checkpoint(model, source)
    assert main([source, "-o", str(out), "--recipe", "q4"]) == 0
    ids = list(range(20, 120))
    with Engine.open(out, numerics="exact") as engine:
        ours = engine.logits(ids)
    model = cpp.Llama(str(out), n_ctx=256, n_batch=256, logits_all=True, verbose=False, n_threads=1, seed=1)
    model.eval(ids)
    theirs = np.array(model.scores[: len(ids)])
    model.close()
    apart = np.sqrt(np.mean((ours - theirs) ** 2, axis=1)) / ours.std(axis=1)
    assert np.median(apart) < 0.08


def test_the_plan_says_sizes_by_kind_and_that_nothing_is_gained(fragment, tmp_path, capsys):
    """Requantizing what is small already; tensors that are treated alike take one line, also in notes."""
    specs = [TensorSpec(f"blk.{i}.ffn_up.weight", "Q4_1", (96, 4096)) for i in range(7)]
    with write_gguf(tmp_path / "s.gguf", METADATA, specs) as out:
        for spec in specs:
            out.write(spec.name, np.zeros(spec.nbytes, np.uint8))
    assert main([str(tmp_path / "s.gguf"), "--dry-run", "--ffn", "q8_0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["kind", "format", "tensors", "source", "result"],
        ["ffn", "Q4_1", "->", "Q8_0", "7", "1.6", "MiB", "2.8", "MiB"],
        ["total", "7", "1.6", "MiB", "2.8", "MiB", "(170.0%)"],
    ]
    assert lines[3] == "warning: nothing is gained: 2.8 MiB of tensors, 1.6 MiB in the source"
    assert lines[4].startswith("note: 7 tensors are requantized from Q4_1")
    assert main([str(tmp_path / "s.gguf"), "--dry-run", "--recipe", "q4"]) == 0
    said = capsys.readouterr().out
    assert "note: blk.0.ffn_up.weight and 6 more: Q8_0 instead of Q4_K: rows of 96 weights" in said
    assert main([str(tmp_path / "s.gguf"), "--dry-run"]) == 0
    assert "nothing is gained" not in capsys.readouterr().out  # a copy is meant to be as large
