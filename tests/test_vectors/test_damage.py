"""ds4-vectors damage: real quantization passes, a wrong conversion and a wrong kernel are named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.quantize import main as quantize
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.reference import Reference
from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.trace.ops import OPS
from ds4ref.weights import open_source
from tests.archs import dense
from tests.badfiles import Draft
from tests.marking import sampled

POINTS = {name: op.tensors for name, op in OPS.items()}
IDS = np.random.default_rng(3).integers(0, 2048, 40).tolist()


@pytest.fixture(scope="module")
def files(nano_path, tmp_path_factory) -> dict[str, Path]:
    """The embedded model as a published one, and quantized from there."""
    folder = tmp_path_factory.mktemp("damage")
    with open_source(nano_path) as source:
        write_checkpoint(source, folder / "published")
    found = {"published": folder / "published"}
    for recipe in ("q2", "q4", "q8", "bf16"):
        found[recipe] = folder / f"{recipe}.gguf"
        assert quantize([str(folder / "published"), "-o", str(found[recipe]), "--recipe", recipe]) == 0
    (folder / "ids.json").write_text(json.dumps(IDS))
    found["ids"] = folder / "ids.json"
    return found


def damage(files, a: str | Path, b: str | Path, capsys, *more: str) -> tuple[int, dict]:
    code = main(["damage", str(a), str(b), "--token-ids", str(files["ids"]), "--json", *more])
    out = capsys.readouterr()
    assert out.err == "" or code == 0 or code == 1
    return code, json.loads(out.out)


@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8", "bf16"], 4))
def test_quantization_is_called_that(files, recipe, capsys):
    code, found = damage(files, files["published"], files[recipe], capsys)
    assert (code, found["verdict"]) == (0, "quantization"), [op for op in found["ops"] if op["verdict"] not in
                                                             ("same", "quantization")]  # fmt: skip
    assert found["logits"]["kl_mean"] > 0
    routed = [op for op in found["ops"] if op["family"] == "down"]
    verdict = "same" if recipe == "bf16" else "quantization"  # FP4 with a power of two as scale fits into BF16
    assert len(routed) == 6 and {op["verdict"] for op in routed} == {verdict}
    # an op errs about as much as its weights
    for op in found["ops"]:
        if op["weights"] > 0.01:
            assert 0.3 * op["weights"] < op["error"] < 2 * op["weights"], op


def test_a_model_against_itself(files, capsys):
    code, found = damage(files, files["q4"], files["q4"], capsys)
    assert code == 0 and {op["verdict"] for op in found["ops"]} == {"same"}
    assert max(op["error"] for op in found["ops"]) == 0 and found["logits"]["kl_max"] == 0
    assert found["logits"]["same_top1"] == 1


def test_a_wrong_conversion_is_named(files, tmp_path, capsys):
    draft = Draft(files["q4"])
    rows = draft.tensors["blk.3.attn_kv.weight"].rows
    rows[:] = np.roll(rows, len(rows) // 2, axis=0)
    draft.write(tmp_path / "bad.gguf")
    code, found = damage(files, files["published"], tmp_path / "bad.gguf", capsys)
    wrong = [op for op in found["ops"] if op["verdict"] not in ("same", "quantization")]
    assert code == 1 and found["verdict"] == "weights"
    assert [(op["point"], op["tensors"]) for op in wrong] == [("KVraw", ["blk.3.attn_kv.weight"])]
    assert main(["damage", str(files["published"]), str(tmp_path / "bad.gguf"), "--token-ids", str(files["ids"])]) == 1
    assert "blk.3.attn_kv.weight differ by more than the format's rounding" in capsys.readouterr().out


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def decoder(request, tmp_path_factory) -> dict[str, Path]:
    """A dense decoder in BF16, and quantized from there."""
    folder = tmp_path_factory.mktemp(request.param)
    shape = dense.draw_shape(3, dense.FAMILIES[request.param], block=256, sharing=2)
    found = {"bf16": folder / "bf16.gguf"}
    dense.write(found["bf16"], shape, dense.draw_tensors(shape, 3, tied=request.param == "qwen3"), "BF16")
    for recipe in ("q2", "q4", "q8"):
        found[recipe] = folder / f"{recipe}.gguf"
        assert quantize([str(found["bf16"]), "-o", str(found[recipe]), "--recipe", recipe]) == 0
    (folder / "ids.json").write_text(json.dumps([id % shape.vocab for id in IDS]))
    found["ids"] = folder / "ids.json"
    return found


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8"], 3))
def test_quantization_of_a_dense_model(decoder, recipe, backend, capsys):
    code, found = damage(decoder, decoder["bf16"], decoder[recipe], capsys, "--backend", backend)
    assert (code, found["verdict"]) == (0, "quantization"), found["ops"]
    layers = 1 + max(op["layer"] for op in found["ops"])
    points = {"Qraw", "Kraw", "Vcur", "attn_out", "ffn_gate", "ffn_up", "ffn_out"}
    quantized = [op for op in found["ops"] if op["point"] in points]
    assert len(quantized) == layers * len(points)
    assert {op["family"] for op in quantized} == {"attention-proj", "ffn"}
    for op in quantized:
        assert op["verdict"] == "quantization" and 0.3 * op["weights"] < op["error"] < 2 * op["weights"], op
    others = [op for op in found["ops"] if op["point"] not in (*points, "result_output", "l_in")]
    assert {op["verdict"] for op in others} == {"same"}, others  # everything works on the first model's values
    assert [op["layer"] for op in found["ops"] if op["point"] == "l_in"] == [0]


@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8"], ["q4"]))
@pytest.mark.parametrize(("name", "number"), [("blk.0.ffn_up.weight", 0), ("blk.1.ffn_down.weight", 101)])
def test_one_row_of_zeros_is_found(decoder, tmp_path, recipe, name, number, capsys):
    draft = Draft(decoder[recipe])
    draft.tensors[name].rows[number] = 0
    draft.write(tmp_path / "bad.gguf")
    code, found = damage(decoder, decoder["bf16"], tmp_path / "bad.gguf", capsys)
    (wrong,) = [op for op in found["ops"] if op["verdict"] not in ("same", "quantization")]
    assert (code, found["verdict"], wrong["row"], wrong["tensors"]) == (1, "weights", [name, number], [name])
    assert wrong["worst"] == pytest.approx(1)
    assert (wrong["weights"] < wrong["loss"]) == (recipe != "q8")  # the mean tells where little may be lost
    main(["damage", str(decoder["bf16"]), str(tmp_path / "bad.gguf"), "--token-ids", str(decoder["ids"])])
    out = capsys.readouterr().out
    assert f"row {number} of {name}" in out and "the format's rounding" in out


def test_a_wrong_kernel_is_the_engine(decoder, monkeypatch, capsys):
    """Products of Q4_K that leave the minima out, beside a dequantizer that is right."""
    whole = Matrix.dequantize
    kept = dataclasses.replace(FORMATS["Q4_K"], minima=None)

    def linear(self, x, w, mode):
        rows = kept.dequantize(w.data).reshape(w.rows, w.cols) if w.fmt == "Q4_K" else whole(w)
        return x @ rows.T

    monkeypatch.setattr(Reference, "linear", linear)
    code, found = damage(decoder, decoder["bf16"], decoder["q4"], capsys, "--backend", "reference")
    wrong = [op for op in found["ops"] if op["verdict"] not in ("same", "quantization")]
    assert (code, found["verdict"]) == (1, "engine") and wrong
    assert all(op["verdict"] == "engine" and "Q4_K" in op["formats"] for op in wrong)


def test_models_of_different_families_are_refused(decoder, files, capsys):
    assert main(["damage", str(decoder["q4"]), str(files["q4"])]) == 1
    assert "different families" in capsys.readouterr().err


def test_the_table(files, capsys):
    command = ["damage", str(files["published"]), str(files["q2"]), "--token-ids", str(files["ids"])]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("gate", "IQ2_XXS", "shared", "attention-proj", "logits: KL", "verdict: quant"))


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [(["a"], 2, "two models"), (["x.gguf", "y.gguf"], 1, "x.gguf"), (["a", "b", "--tokens", "1"], 2, "--tokens")],
)
def test_wrong_usage(argv, code, says, capsys):
    assert main(["damage", *argv]) == code
    assert says in capsys.readouterr().err
