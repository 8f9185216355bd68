"""Importance: sums are those of the intermediates themselves, collecting changes nothing, files come out whole."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.cli.ds4 import main
from ds4ref.engine import Engine
from ds4ref.importance import collect, prompts
from ds4ref.residency.hotlist import read_hot_list
from ds4ref.weights.quantize.imatrix import read_imatrix

IDS = np.random.default_rng(4).integers(0, 2048, 24).tolist()


@pytest.fixture(scope="module")
def engine(nano_path):
    with Engine.open(nano_path, backend="reference", numerics="exact") as engine:
        yield engine


@pytest.fixture(scope="module")
def seen(engine) -> Recorder:
    recorder = Recorder("attn_norm", "kqv_back", "ffn_norm", "ffn_moe_topk", "ffn_moe_weighted_swiglu", "ffn_shexp_mid")
    session = engine.session(64)
    session.hooks = recorder
    session.sync(IDS)
    return recorder


def mean_squares(rows: np.ndarray) -> np.ndarray:
    return np.square(rows.astype(np.float64)).mean(axis=0)


def test_dense_matrices(engine, seen):
    found = collect(engine, [IDS])
    for point, name in (("attn_norm", "blk.3.attn_q_a.weight"), ("attn_norm", "blk.2.indexer.proj.weight"),
                        ("attn_norm", "blk.5.attn_compressor_gate.weight"),
                        ("ffn_shexp_mid", "blk.0.ffn_down_shexp.weight"),
                        ("ffn_norm", "blk.4.ffn_gate_inp.weight")):  # fmt: skip
        layer = int(name.split(".")[1])
        np.testing.assert_allclose(found.entries[name].means[0], mean_squares(seen[point, layer]), rtol=1e-5)
        assert found.entries[name].counts.tolist() == [len(IDS)]
    assert "blk.0.indexer.proj.weight" not in found.entries, "a layer without an indexer"


def test_experts_are_measured_on_the_tokens_that_were_sent_to_them(engine, seen):
    found = collect(engine, [IDS])
    ids = seen["ffn_moe_topk", 3]
    gate, up, down = (found.entries[f"blk.3.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
    for expert in range(engine.shape.n_experts):
        tokens, slots = np.nonzero(ids == expert)
        assert gate.counts[expert] == up.counts[expert] == down.counts[expert] == len(tokens)
        if len(tokens):
            entering, inner = seen["ffn_norm", 3][tokens], seen["ffn_moe_weighted_swiglu", 3][tokens, slots]
            np.testing.assert_allclose(gate.means[expert], mean_squares(entering), rtol=1e-5)
            np.testing.assert_allclose(down.means[expert], mean_squares(inner), rtol=1e-5)
        else:
            assert not gate.means[expert].any()
    assert gate.counts.sum() == len(IDS) * engine.shape.n_used


def test_prompts_add_up_and_every_one_starts_anew(engine):
    both, first, second = (collect(engine, pieces) for pieces in ([IDS[:9], IDS[9:]], [IDS[:9]], [IDS[9:]]))
    name = "blk.2.ffn_up_exps.weight"
    sums = [entry.means.astype(np.float64) * entry.counts[:, None] for entry in
            (found.entries[name] for found in (both, first, second))]  # fmt: skip
    np.testing.assert_allclose(sums[0], sums[1] + sums[2], rtol=1e-4, atol=1e-7)
    assert both.chunks == len(IDS)


def test_what_was_measured_until_a_stop_is_kept(engine):
    turns = iter([False, False, True])
    found = collect(engine, [IDS[:4], IDS[4:8], IDS[8:]], cancel=lambda: next(turns))
    assert found.chunks == 8 and found.entries["blk.0.attn_kv.weight"].counts.tolist() == [8]


@pytest.mark.parametrize("kind", ["gguf", "dat"])
def test_the_command(nano_path, tmp_path, capsys, kind):
    (tmp_path / "p.txt").write_text("The mill stood by the river, and the miller was proud of it. " * 4)
    out = tmp_path / f"i.{kind}"
    command = ["imatrix", str(tmp_path / "p.txt"), "-m", nano_path, "-o", str(out), "--max-tokens", "20", "--ctx", "16"]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "20 tokens" in said and "never used" in said
    found = read_imatrix(out)
    assert found.datasets == ["p.txt"] and found.chunks == 20
    assert found.importance("blk.0.ffn_down_exps.weight", 256, 16, 5).shape == (256,)


def test_the_hot_list_is_what_the_pass_chose(nano_path, tmp_path, capsys):
    text = "===== DS4_IMATRIX_PROMPT\nThe mill stood.\n===== DS4_IMATRIX_PROMPT\nThe miller was proud of it. "
    (tmp_path / "p.txt").write_text(text)
    command = ["imatrix", str(tmp_path / "p.txt"), "-m", nano_path, "--backend", "reference"]
    assert main([*command, "--hot-list", str(tmp_path / "h.json")]) == 0
    assert "experts, the most used first" in capsys.readouterr().err
    counts = np.zeros((6, 16), int)
    with Engine.open(nano_path, backend="reference") as engine:
        for ids in prompts(engine, text, 2048, None, None):
            session = engine.session(64)
            session.hooks = recorder = Recorder("ffn_moe_topk")
            session.sync(ids)
            for layer in range(6):
                np.add.at(counts[layer], recorder["ffn_moe_topk", layer].ravel(), 1)
    used = [counts[pair] for pair in read_hot_list(tmp_path / "h.json", 6, 16)]
    assert used == sorted(counts[counts > 0].tolist(), reverse=True)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ([], 2, "one file of prompts"),
        (["p.txt"], 2, "--output"),
        (["none.txt", "-o", "{tmp}/i.dat"], 2, "cannot read"),
        (["{tmp}/p.txt", "-o", "{tmp}/no/i.dat"], 1, "no folder"),
        (["{tmp}/p.txt", "-o", "{tmp}/i.dat", "-m", "{tmp}/none"], 1, "cannot open"),
    ],
)
def test_wrong_usage(argv, code, says, tmp_path, capsys):
    (tmp_path / "p.txt").write_text("x")
    assert main(["imatrix", *(arg.format(tmp=tmp_path) for arg in argv)]) == code
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and not (tmp_path / "i.dat").exists()
