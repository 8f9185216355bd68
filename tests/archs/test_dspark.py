"""The DSpark drafter against golden blocks of a tiny one, and in both names of files; its window.

The golden file was made by NumPy code that agrees with transformers' layers and SGLang's head (tests/data/README.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.dspark import _DFLASH, Drafter, drafter_slots
from ds4ref.archs.deepseek4.forward import Model
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.archs.deepseek4.weights import Weights
from ds4ref.backends import load_backend
from ds4ref.errors import ModelFileError, ShapeError
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.numerics import numerics
from ds4ref.weights.writer import TensorSpec, write_gguf

GOLDEN = dict(np.load(Path(__file__).parents[1] / "data/dspark/golden.npz"))
C = {name.removeprefix("config."): value.item() for name, value in GOLDEN.items() if name.startswith("config.")}
W = {name.removeprefix("weights."): value for name, value in GOLDEN.items() if name.startswith("weights.")}
SHAPE = ModelShape(
    n_layers=3, dim=C["dim"], vocab=C["vocab"], n_heads=C["heads"], head_dim=C["head_dim"], rope_dim=C["rope"],
    q_rank=C["q_rank"], o_rank=C["o_rank"], o_groups=C["groups"], n_experts=C["experts"], n_used=C["used"],
    expert_ff=C["inter"], n_shared=1, n_hash_layers=0, window=C["window"], index_heads=1, index_dim=32, index_topk=1,
    hc=C["hc"], sinkhorn_iters=C["iters"], ratios=(0, 0, 0), swiglu_limit=(C["limit"],) * 3, rope_theta=C["base"],
    compress_theta=C["base"], yarn_factor=1.0, yarn_beta_fast=32.0, yarn_beta_slow=1.0, yarn_orig_ctx=4096,
    route_scale=C["scale"], rms_eps=C["eps"], hc_eps=C["hc_eps"], norm_weights=True,
)  # fmt: skip
NAMES = {
    "attn_norm": "attn_norm.weight", "ffn_norm": "ffn_norm.weight", "attn_q_a": "attn.wq_a.weight",
    "attn_q_a_norm": "attn.q_norm.weight", "attn_q_b": "attn.wq_b.weight", "attn_kv": "attn.wkv.weight",
    "attn_kv_a_norm": "attn.kv_norm.weight", "attn_sinks": "attn.attn_sink", "attn_output_a": "attn.wo_a.weight",
    "attn_output_b": "attn.wo_b.weight", "ffn_gate_inp": "ffn.gate.weight", "exp_probs_b": "ffn.gate.bias",
    "ffn_gate_shexp": "ffn.shared_experts.w1.weight", "ffn_up_shexp": "ffn.shared_experts.w3.weight",
    "ffn_down_shexp": "ffn.shared_experts.w2.weight",
}  # fmt: skip
EXPERTS = {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}
OWN = {
    "main_proj": "mtp.0.main_proj.weight", "main_norm": "mtp.0.main_norm.weight", "norm": "mtp.2.norm.weight",
    "markov_w1": "mtp.2.markov_head.markov_w1.weight", "markov_w2": "mtp.2.markov_head.markov_w2.weight",
    "confidence": "mtp.2.confidence_head.proj.weight",
}  # fmt: skip


def weight(attr: str, stage: int | None) -> np.ndarray:
    """A golden weight by the attribute that holds it."""
    if stage is None:
        return W[OWN.get(attr, f"mtp.2.{attr}")]
    p = f"mtp.{stage}."
    if attr in EXPERTS:
        return np.stack([W[f"{p}ffn.experts.{e}.{EXPERTS[attr]}.weight"] for e in range(C["experts"])])
    return W[p + NAMES.get(attr, attr)]


def write(path: Path, dflash: bool = False, without: str = "", **changed: Any) -> Path:
    """The golden drafter as a file, ds4's or llama.cpp's."""
    keys = {"block_size": C["block"], "noise_token_id": C["noise"], "target_layers": [0, 1, 2]} | changed
    prefix = "dflash." if dflash else "deepseek4.dspark."
    if dflash:
        keys["mask_token_id"] = keys.pop("noise_token_id")
    metadata = [("general.architecture", "string", "dflash" if dflash else "deepseek4-dspark")]
    metadata += [(prefix + key, "u32[]" if isinstance(value, list) else "u32", value) for key, value in keys.items()]
    slots = [
        slot for slot in drafter_slots(SHAPE, C["stages"], C["targets"], C["rank"], dflash) if slot.attr != without
    ]
    with write_gguf(path, metadata, [TensorSpec(slot.name, "F32", slot.dims) for slot in slots]) as out:
        for slot in slots:
            out.write(slot.name, np.ascontiguousarray(weight(slot.attr, slot.layer), np.float32))
    return path


def matrix(values: np.ndarray) -> Matrix:
    return Matrix(FORMATS["F32"].name, np.ascontiguousarray(values).view(np.uint8), *values.shape)


@pytest.fixture(scope="module")
def model() -> Model:
    unused: Any = None
    weights = Weights(
        token_embd=matrix(W["embed"]), output=matrix(W["head"]), output_norm=unused, output_hc_fn=unused,
        output_hc_base=unused, output_hc_scale=unused, layers=[],
    )  # fmt: skip
    return Model(SHAPE, weights, load_backend("reference", None), numerics("exact"))


@pytest.fixture(scope="module", params=["ds4", "llama.cpp"])
def drafter(request: pytest.FixtureRequest, model: Model, tmp_path_factory: Any) -> Iterator[Drafter]:
    path = write(tmp_path_factory.mktemp("dspark") / "d.gguf", request.param == "llama.cpp")
    opened = Drafter.open(path, model)
    yield opened
    opened.close()


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_golden_blocks(drafter: Drafter, case: int, size: int) -> None:
    """With less than a window of rows, one, and more, injected in passes of any size; to 1e-4 of the scale."""
    wanted = {name.partition(".")[2]: value for name, value in GOLDEN.items() if name.startswith(f"case{case}.")}
    rows = drafter.rows()
    for start in range(0, len(wanted["taps"]), size):
        drafter.inject(wanted["taps"][start : start + size], rows)
    for _ in range(2):  # a block leaves no trace
        guess = drafter.guess(int(wanted["anchor"]), rows)
        assert guess.tokens == wanted["tokens"].tolist()
        assert np.abs(guess.logits - wanted["logits"]).max() < 1e-4 * np.abs(wanted["logits"]).max()
        assert np.abs(guess.confidence - wanted["confidence"]).max() < 1e-4


def test_rows_from_a_later_start_make_a_shorter_window(drafter: Drafter) -> None:
    """As after a snapshot without them: the block sees what is there, at its true positions."""
    taps = GOLDEN["case2.taps"]
    whole, late = drafter.rows(), drafter.rows()
    drafter.inject(taps, whole)
    start = len(taps) - C["window"]
    late.restart(start)
    drafter.inject(taps[start:], late)
    assert drafter.guess(2, late).tokens == drafter.guess(2, whole).tokens
    late.restart(start + 1)
    drafter.inject(taps[start + 1 :], late)
    assert not np.allclose(drafter.guess(2, late).logits, drafter.guess(2, whole).logits)


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"without": "main_norm"}, ShapeError, "main_norm"),
        ({"block_size": 0}, ModelFileError, "block of 0"),
        ({"block_size": C["window"] + 1}, ModelFileError, "block of 9"),
        ({"noise_token_id": C["vocab"]}, ModelFileError, "noise token 40"),
        ({"target_layers": [1, 2, 3]}, ModelFileError, "3"),
        ({"target_layers": [1, 2]}, ShapeError, "main_proj"),
    ],
)
def test_files_that_do_not_fit(model: Model, tmp_path: Path, changed: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Drafter.open(write(tmp_path / "d.gguf", **changed), model)


def test_a_file_of_something_else_is_named(model: Model, nano_path: str) -> None:
    with pytest.raises(ModelFileError, match="no DSpark drafter"):
        Drafter.open(nano_path, model)
    assert set(_DFLASH) == {slot.attr for slot in drafter_slots(SHAPE, 3, 3, 6) if slot.layer is None}
