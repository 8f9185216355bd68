"""ds4-vectors damage: correct quantization passes; a wrong conversion and a wrong kernel are found and named."""

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
from ds4ref.weights import open_source
from tests.archs import dense
from tests.badfiles import Draft
from tests.marking import sampled

IDS = np.random.default_rng(3).integers(0, 2048, 40).tolist()


def quantized(folder: Path, whole: Path, ids: list[int], recipes: tuple[str, ...]) -> dict[str, Path]:
    """Write the model ``whole`` quantized by each recipe, and token ids; return their paths by name."""
    files = {"whole": whole, "ids": folder / "ids.json"}
    for recipe in recipes:
        files[recipe] = folder / f"{recipe}.gguf"
        assert quantize([str(whole), "-o", str(files[recipe]), "--recipe", recipe]) == 0
    files["ids"].write_text(json.dumps(ids))
    return files


@pytest.fixture(scope="module")
def files(nano_path, tmp_path_factory) -> dict[str, Path]:
    """The embedded model in the form of a published one, and quantized from that."""
    folder = tmp_path_factory.mktemp("damage")
    with open_source(nano_path) as source:
        write_checkpoint(source, folder / "published")
    return quantized(folder, folder / "published", IDS, ("q2", "q4", "q8", "bf16"))


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def decoder(request, tmp_path_factory) -> dict[str, Path]:
    """A dense model in BF16, and quantized from that."""
    folder = tmp_path_factory.mktemp(request.param)
    shape = dense.draw_shape(3, dense.FAMILIES[request.param], block=256, sharing=2)
    dense.write(folder / "bf16.gguf", shape, dense.draw_tensors(shape, 3, tied=request.param == "qwen3"), "BF16")
    return quantized(folder, folder / "bf16.gguf", [id % shape.vocab for id in IDS], ("q2", "q4", "q8"))


def damage(files, b: str | Path, capsys, *more: str, a: str = "whole") -> tuple[int, dict, list[dict]]:
    """Return the command's exit code, its JSON, and the ops whose error is a bug."""
    code = main(["damage", str(files[a]), str(b), "--token-ids", str(files["ids"]), "--json", *more])
    result = json.loads(capsys.readouterr().out)
    return code, result, [op for op in result["ops"] if op["verdict"] not in ("same", "quantization")]


def errs_as_its_weights(op: dict) -> bool:
    return 0.3 * op["weights"] < op["error"] < 2 * op["weights"]


@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8", "bf16"], 4))
def test_quantization_is_called_that(files, recipe, capsys):
    code, result, wrong = damage(files, files[recipe], capsys)
    assert (code, result["verdict"], wrong) == (0, "quantization", []) and result["logits"]["kl_mean"] > 0
    routed = [op for op in result["ops"] if op["family"] == "down"]
    verdict = "same" if recipe == "bf16" else "quantization"  # FP4 with a power of two as scale fits into BF16
    assert len(routed) == 6 and {op["verdict"] for op in routed} == {verdict}
    assert all(errs_as_its_weights(op) for op in result["ops"] if op["weights"] > 0.01)


def test_a_model_against_itself(files, capsys):
    code, result, _ = damage(files, files["q4"], capsys, a="q4")
    assert code == 0 and {op["verdict"] for op in result["ops"]} == {"same"}
    assert max(op["error"] for op in result["ops"]) == 0 and result["logits"]["kl_max"] == 0
    assert result["logits"]["same_top1"] == 1


def test_a_wrong_conversion_is_named(files, tmp_path, capsys):
    draft = Draft(files["q4"])
    rows = draft.tensors["blk.3.attn_kv.weight"].rows
    rows[:] = np.roll(rows, len(rows) // 2, axis=0)
    draft.write(tmp_path / "bad.gguf")
    code, result, wrong = damage(files, tmp_path / "bad.gguf", capsys)
    assert code == 1 and result["verdict"] == "weights"
    assert [(op["point"], op["tensors"]) for op in wrong] == [("KVraw", ["blk.3.attn_kv.weight"])]
    assert main(["damage", str(files["whole"]), str(tmp_path / "bad.gguf"), "--token-ids", str(files["ids"])]) == 1
    assert "blk.3.attn_kv.weight differ by more than the format's rounding" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8"], 3))
def test_quantization_of_a_dense_model(decoder, recipe, backend, capsys):
    code, result, _ = damage(decoder, decoder[recipe], capsys, "--backend", backend)
    assert (code, result["verdict"]) == (0, "quantization"), result["ops"]
    layers = 1 + max(op["layer"] for op in result["ops"])
    points = {"Qraw", "Kraw", "Vcur", "attn_out", "ffn_gate", "ffn_up", "ffn_out"}
    products = [op for op in result["ops"] if op["point"] in points]
    assert len(products) == layers * len(points)
    assert {op["family"] for op in products} == {"attention-proj", "ffn"}
    assert all(op["verdict"] == "quantization" and errs_as_its_weights(op) for op in products)
    others = [op for op in result["ops"] if op["point"] not in (*points, "result_output", "l_in")]
    assert {op["verdict"] for op in others} == {"same"}, others  # everything works on the first model's values
    assert [op["layer"] for op in result["ops"] if op["point"] == "l_in"] == [0]


@pytest.mark.parametrize("recipe", sampled(["q2", "q4", "q8"], ["q4"]))
@pytest.mark.parametrize(("name", "number"), [("blk.0.ffn_up.weight", 0), ("blk.1.ffn_down.weight", 101)])
def test_one_row_of_zeros_is_found(decoder, tmp_path, recipe, name, number, capsys):
    draft = Draft(decoder[recipe])
    draft.tensors[name].rows[number] = 0
    draft.write(tmp_path / "bad.gguf")
    code, result, (wrong,) = damage(decoder, tmp_path / "bad.gguf", capsys)
    assert (code, result["verdict"], wrong["row"], wrong["tensors"]) == (1, "weights", [name, number], [name])
    assert wrong["worst"] == pytest.approx(1)
    assert (wrong["weights"] < wrong["loss"]) == (recipe != "q8")  # the mean tells where little may be lost
    main(["damage", str(decoder["whole"]), str(tmp_path / "bad.gguf"), "--token-ids", str(decoder["ids"])])
    out = capsys.readouterr().out
    assert f"row {number} of {name}" in out and "the format's rounding" in out


def test_a_wrong_kernel_is_the_engine(decoder, monkeypatch, capsys):
    """A Q4_K matrix product that ignores the blocks' minima, while the dequantizer is correct."""
    whole = Matrix.dequantize
    kept = dataclasses.replace(FORMATS["Q4_K"], minima=None)

    def linear(self, x, w, mode):
        rows = kept.dequantize(w.data).reshape(w.rows, w.cols) if w.fmt == "Q4_K" else whole(w)
        return x @ rows.T

    monkeypatch.setattr(Reference, "linear", linear)
    code, result, wrong = damage(decoder, decoder["q4"], capsys, "--backend", "reference")
    assert (code, result["verdict"]) == (1, "engine") and wrong
    assert all(op["verdict"] == "engine" and "Q4_K" in op["formats"] for op in wrong)


def test_models_of_different_families_are_refused(decoder, files, capsys):
    assert main(["damage", str(decoder["q4"]), str(files["q4"])]) == 1
    assert "different families" in capsys.readouterr().err


def test_the_table(files, capsys):
    command = ["damage", str(files["whole"]), str(files["q2"]), "--token-ids", str(files["ids"])]
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
