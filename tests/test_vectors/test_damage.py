"""ds4-vectors damage: real quantization passes, a wrong conversion and a wrong kernel are named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.trace.ops import OPS
from ds4ref.variants import rowwise
from ds4ref.variants.forced import model_of
from ds4ref.variants.quantized import compare, distance, divergence
from ds4ref.variants.rowwise import compared
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


class _Wrong:
    """Ops of which one is off for one format: the kernel of a format that has a mistake."""

    def __init__(self, ops, fmt: str):
        self._ops, self._fmt = ops, fmt

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def expert_sum(self, x, ids, w, act):
        y = self._ops.expert_sum(x, ids, w, act)
        return y * np.float32(1.4) if w.fmt == self._fmt else y


def test_a_wrong_kernel_is_named(files):
    with Engine.open(files["published"], numerics="exact") as a, Engine.open(files["q4"], numerics="exact") as b:
        model = model_of(b)
        model.ops = _Wrong(model.ops, "Q4_K")
        found = list(compare(a, b, IDS, POINTS, lambda layer: None))
    assert {op.point for op in found if op.verdict == "engine"} == {"ffn_moe_out"}
    assert not [op for op in found if op.verdict == "weights"]


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


def test_quantization_of_experts(tmp_path, capsys):
    """Both models choose the first one's experts; each matrix of them errs as its format does."""
    shape = dense.draw_shape(3, dense.WITH_EXPERTS["qwen3moe"], block=256, sharing=2)
    shape = dataclasses.replace(shape, n_layers=2, dim=256, n_experts=5, n_used=2, expert_ff=256)
    dense.write(tmp_path / "bf16.gguf", shape, dense.draw_tensors(shape, 3, tied=False), "BF16")
    assert quantize([str(tmp_path / "bf16.gguf"), "-o", str(tmp_path / "q4.gguf"), "--recipe", "q4"]) == 0
    (tmp_path / "ids.json").write_text(json.dumps([id % shape.vocab for id in IDS]))
    files = {"ids": tmp_path / "ids.json"}
    capsys.readouterr()
    code, found = damage(files, tmp_path / "bf16.gguf", tmp_path / "q4.gguf", capsys)
    assert (code, found["verdict"]) == (0, "quantization"), found["ops"]
    families = {op["point"]: op["family"] for op in found["ops"] if op["verdict"] == "quantization"}
    assert {"ffn_moe_gate": "gate", "ffn_moe_up": "up", "ffn_out": "down"}.items() <= families.items()
    assert {op["verdict"] for op in found["ops"] if op["point"] in ("ffn_moe_weights", "ffn_moe_weighted_swiglu")} == {
        "same"
    }


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


def matrix(values: np.ndarray) -> Matrix:
    raw = np.ascontiguousarray(values, "<f4").view(np.uint8)
    return Matrix("F32", raw, values.shape[-2], values.shape[-1])


def test_rows_are_compared_one_by_one(monkeypatch):
    x = np.random.default_rng(1).standard_normal((512, 64)).astype(np.float32)
    assert compared(matrix(x), matrix(x)) == (0, 0, 0)
    for row in (0, 300, 511):
        y = x.copy()
        y[row] = -y[row]
        got = compared(matrix(x), matrix(y))
        assert got.row == row and got.worst == pytest.approx(2) and 0.05 < got.error < 0.15
    monkeypatch.setattr(rowwise, "STEP", 64 * 100)  # in pieces
    assert compared(matrix(x), matrix(y)) == got
    faint = x.copy()
    faint[7] *= 1e-6
    y = faint.copy()
    y[7] = 0
    assert compared(matrix(faint), matrix(y)).worst < 0.002
    y[3, 3] = np.nan
    assert compared(matrix(faint), matrix(y))[1:] == (np.inf, 3)
    stack = compared(matrix(x.reshape(4, 128, 64)), matrix(np.where(np.arange(512)[:, None] == 200, 0, x)))
    assert (stack.row, stack.worst) == (200, 1)
    monkeypatch.setattr(rowwise, "MOST_WEIGHTS", 64 * 10)
    y = x.copy()
    y[-1] = 0
    assert compared(matrix(x), matrix(y))[1:] == (1, 511)  # spread from the first row to the last


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_wrong_dequantizer_is_the_engine(decoder, monkeypatch, backend, capsys):
    """The dequantizer alone (the compiled kernels are right), or, in the reference, all that reads the format: without
    the minima."""
    monkeypatch.setitem(FORMATS, "Q4_K", dataclasses.replace(FORMATS["Q4_K"], minima=None))
    code, found = damage(decoder, decoder["bf16"], decoder["q4"], capsys, "--backend", backend)
    assert (code, found["verdict"]) == (1, "engine")
    for op in found["ops"]:
        assert (op["verdict"] == "engine") == ("Q4_K" in op["formats"]), op
        assert op["misread"] == (op["tensors"] if "Q4_K" in op["formats"] else [])
    command = ["damage", str(decoder["bf16"]), str(decoder["q4"]), "--token-ids", str(decoder["ids"])]
    assert main([*command, "--backend", backend]) == 1
    assert "verdict: blk.0.ffn_gate.weight is misread: kernel, dequ" in capsys.readouterr().out


def test_models_of_different_families_are_refused(decoder, files, capsys):
    assert main(["damage", str(decoder["q4"]), str(files["q4"])]) == 1
    assert "different families" in capsys.readouterr().err


def test_the_table(files, capsys):
    command = ["damage", str(files["published"]), str(files["q2"]), "--token-ids", str(files["ids"])]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("gate", "IQ2_XXS", "shared", "attention-proj", "logits: KL", "verdict: quant"))
    assert main([*command, "--all"]) == 0
    assert "ffn_moe_weighted_swiglu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [(["a"], 2, "two models"), (["x.gguf", "y.gguf"], 1, "x.gguf"), (["a", "b", "--tokens", "1"], 2, "--tokens")],
)
def test_wrong_usage(argv, code, says, capsys):
    assert main(["damage", *argv]) == code
    assert says in capsys.readouterr().err


def test_distance_and_divergence():
    assert distance(np.zeros(3), np.zeros(3)) == (0.0, 1.0)
    assert distance(np.ones(3), np.zeros(3)) == (float("inf"), 0.0)
    assert distance(np.array([3.0, 0]), np.array([3.0, 4.0])) == pytest.approx((0.8, 0.6))
    a = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    b = np.log(np.array([[0.25, 0.75], [0.25, 0.75]]))
    found = divergence(a + 3, b - 1)
    assert found["kl_max"] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert found["kl_mean"] == pytest.approx(found["kl_max"] / 2) and found["same_top1"] == 0.5
