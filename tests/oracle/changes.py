"""Model folders with one thing changed, judged against Hugging Face on the same folder: right, refused, or wrong.

A change is drawn from every attribute of the family's configuration class in transformers, the names that older
configurations use, nested values, and names that nobody knows; or it removes, adds, renames or alters one tensor. What
becomes of it:

    right     our logits are Hugging Face's, within the bars of mode exact
    refused   our engine says in one line what it does not compute
    unread    Hugging Face refuses the folder or fills weights by chance; ours computes what it did before the change
    unjudged  the same, but ours computes something else
    WRONG     both compute, and differ
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ds4ref.archs.deepseek4.published import EXPERT_NAMES, LAYER_NAMES, MODEL_NAMES
from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.nano.checkpoint import config as published_config
from ds4ref.nano.checkpoint import write_checkpoint
from ds4ref.weights import open_source
from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder
from ds4ref.weights.source import TensorSource

from .compare import difference

LENGTH = 150
BAR = 2e-4 / 2.6
"""Largest difference that float noise explains, in standard deviations of the logits (``test_hf_live``)."""
TRIES = 3
"""Token lists: where top-k choices are near ties, two right engines part on one of them, but not on all."""

OLDER = (
    "rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings sliding_window layer_types "
    "use_sliding_window max_window_layers compress_ratios num_hash_layers qk_rope_head_dim compress_rate_csa "
    "compress_rate_hca num_experts_per_tok intermediate_size num_local_experts n_group topk_group topk_method "
    "first_k_dense_replace moe_layer_freq torch_dtype mlp_bias attention_bias head_dim rope_interleaved "
    "attention_multiplier logits_scaling residual_multiplier embedding_multiplier final_logit_softcapping "
    "attn_logit_softcapping query_pre_attn_scalar per_layer_config auto_map quantization_config no_rope_layers "
    "attention_chunk_size use_qk_norm hidden_activation is_decoder num_experts kv_lora_rank v_head_dim "
    "attention_out_bias norm_eps layer_norm_eps clip_qkv attention_xyz qk_layernorm tie_last_hidden_states"
).split()
"""Names in configurations of other versions and families."""
TELLING = (
    "tie_word_embeddings rope_scaling rope_parameters original_max_position_embeddings partial_rotary_factor "
    "rope_theta layer_types mlp_layer_types compress_ratios compress_rates num_hash_layers hidden_act attention_bias "
    "mlp_bias compress_rope_theta max_position_embeddings rms_norm_eps sliding_window use_sliding_window "
    "qk_rope_head_dim"
).split()
"""Names of values that no tensor's shape gives away: drawn four times of ten."""
ROPE = (
    "rope_theta rope_type type factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale "
    "mscale_all_dim truncate low_freq_factor high_freq_factor partial_rotary_factor short_factor long_factor warp"
).split()
WORDS = (
    "gelu silu relu gelu_pytorch_tanh default linear dynamic yarn llama3 longrope proportional full_attention "
    "sliding_attention compressed_sparse_attention heavily_compressed_attention hash_moe moe sqrtsoftplus softmax "
    "sigmoid noaux_tc greedy float16 bfloat16 fp4"
).split()


class Base(NamedTuple):
    """A folder to be changed; ``kind`` is the name of its classes in transformers."""

    name: str
    kind: str
    folder: Path
    vocab: int


@dataclass(frozen=True)
class Change:
    """One change of a folder: what it is, and the function that makes it in a copy."""

    says: str
    make: Callable[[Path], None]


# ---- folders


def bases(folder: Path) -> Iterator[Base]:
    """Write and yield the folders: dense families with every kind of rope, DeepSeek V4 with either form of its
    config.json, and one of FP8 and FP4."""
    from .test_dense import STRETCHED, draw, saved

    for family, kind in (("llama", "Llama"), ("qwen3", "Qwen3")):
        shape = replace(draw(family, 41), head_dim=16, rope_theta=1e4, trained_ctx=256)
        for scaling in (None, *STRETCHED):
            name = f"{family}, {scaling['rope_type'] if scaling else 'tied'}"
            more = {"rope_scaling": {**scaling, "rope_theta": 1e4}} if scaling else {}
            made = saved(folder / name.replace(", ", "-"), family, shape, 41, scaling is None, 8, **more)
            yield Base(name, kind, made.path, shape.vocab)
    yield from _deepseek(folder)


def _deepseek(folder: Path) -> Iterator[Base]:
    from .modelgen import draw_shape, write_model

    shape = replace(
        draw_shape(3), n_layers=4, ratios=(0, 4, 128, 4), swiglu_limit=(7.0,) * 4, n_hash_layers=1, dim=256,
        expert_ff=256, n_experts=6, n_used=2, window=24, index_topk=8, yarn_orig_ctx=256, vocab=300, head_dim=192,
        rope_dim=64, n_heads=4, o_groups=2, q_rank=64, o_rank=32, index_heads=16, yarn_factor=4.0,
    )  # fmt: skip
    write_model(folder / "v4.gguf", shape, seed=3)
    with open_source(folder / "v4.gguf") as source:
        write_checkpoint(source, folder / "v4-fp8")
        plain = folder / "v4-plain"
        plain.mkdir()
        write_folder(plain, list(_plain_tensors(source, shape)), 1 << 30)
    values = {k: v for k, v in published_config(shape).items() if k not in ("quantization_config", "expert_dtype")}
    (plain / "config.json").write_text(json.dumps(values))
    hugging = folder / "v4-hugging"
    shutil.copytree(plain, hugging)
    load("DeepseekV4", plain)[0].config.save_pretrained(hugging)
    yield Base("deepseek_v4, its own config", "DeepseekV4", plain, shape.vocab)
    yield Base("deepseek_v4, transformers' config", "DeepseekV4", hugging, shape.vocab)
    yield Base("deepseek_v4, FP8 and FP4", "DeepseekV4", folder / "v4-fp8", shape.vocab)


def _plain_tensors(source: TensorSource, shape: ModelShape) -> Iterator[PlannedTensor]:
    """The weights of a GGUF file under DeepSeek's names, in F32."""

    def plan(ours: str, name: str, expert: int | None = None) -> PlannedTensor:
        info = source.tensors[ours]
        values = source.raw(ours) if info.fmt.name == "I32" else info.fmt.dequantize(source.raw(ours))
        dtype = "I32" if info.fmt.name == "I32" else "F32"
        values = values.view("<i4" if dtype == "I32" else "<f4").reshape(info.shape)
        values = values if expert is None else values[expert]
        if dtype == "I32":  # as published
            dtype, values = "I64", values.astype("<i8")
        return PlannedTensor(name, dtype, values.shape, lambda: np.ascontiguousarray(values))

    yield from (plan(ours, theirs) for ours, theirs in MODEL_NAMES.items())
    for layer in range(shape.n_layers):
        for ours, theirs in LAYER_NAMES.items():
            if f"blk.{layer}.{ours}" in source.tensors:
                yield plan(f"blk.{layer}.{ours}", f"layers.{layer}.{theirs}")
        for ours, theirs in EXPERT_NAMES.items():
            for expert in range(shape.n_experts):
                yield plan(f"blk.{layer}.{ours}", f"layers.{layer}.ffn.experts.{expert}.{theirs}.weight", expert)


# ---- the two engines


def load(kind: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Hugging Face's model of a folder, in float32, and what it says of the loading."""
    import torch
    import transformers
    from transformers.quantizers import quantizer_finegrained_fp8

    # it asks for a package that dequantizing on the CPU has no use for
    quantizer_finegrained_fp8.is_accelerate_available = lambda *_, **__: True
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    more: dict[str, Any] = {}
    if json.loads((folder / "config.json").read_text()).get("quantization_config"):
        more["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, about = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **more
        )
    model.config._experts_implementation = "eager"
    return model.float().eval().requires_grad_(False), about


def theirs(base: Base, folder: Path, lists: list[list[int]]) -> list[np.ndarray] | str:
    """Hugging Face's logits, or why there are none."""
    import torch

    try:
        model, about = load(base.kind, folder)
        by_chance = [*about["missing_keys"], *about["mismatched_keys"], *about.get("error_msgs", [])]
        if by_chance:
            return f"by chance: {by_chance[0]}"
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = (model(torch.tensor([ids]), use_cache=False, return_dict=True) for ids in lists)
            found = [output.logits[0].numpy().copy() for output in outputs]
    except Exception as error:  # whatever it is that transformers raises
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]
    return found if all(np.isfinite(logits).all() for logits in found) else "not finite"


def ours(folder: Path, lists: list[list[int]]) -> list[np.ndarray] | str:
    """Our logits, or the line that refuses the folder."""
    try:
        with Engine.open(folder, numerics="exact", threads=2) as engine:
            if max(max(ids) for ids in lists) >= engine.shape.vocab:
                return "the vocabulary ends before these tokens"
            return [engine.session(len(ids) + 1).extend(ids) for ids in lists]
    except Ds4Error as error:
        assert "\n" not in str(error), error
        return str(error)


def judge(base: Base, change: Change, lists: list[list[int]], before: list[np.ndarray]) -> tuple[str, str]:
    """The verdict on a change, and a word on how it came about. A further token list is asked where engines part on
    one."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "m"
        shutil.copytree(base.folder, folder)
        change.make(folder)
        for at in range(len(lists)):
            verdict, why = _judge(base, folder, lists[at : at + 1], before[at])
            if verdict != "WRONG":
                break
    return verdict, why.replace(str(folder), "").lstrip(":/ ")


def _judge(base: Base, folder: Path, ids: list[list[int]], before: np.ndarray) -> tuple[str, str]:
    mine = ours(folder, ids)
    if isinstance(mine, str):
        return "refused", mine
    wanted = theirs(base, folder, ids)
    got, same = mine[0], mine[0].shape == before.shape and np.array_equal(mine[0], before)
    if isinstance(wanted, str):
        return ("unread" if same else "unjudged"), wanted
    if got.shape != wanted[0].shape:
        return "WRONG", f"{got.shape} and {wanted[0].shape}"
    apart = difference(got, wanted[0]).max / float(wanted[0].std())
    if apart > BAR:
        return "WRONG", f"{apart:.2g} standard deviations apart"
    return "right", "without effect" if same else "with effect"


# ---- changes


def draw_change(base: Base, rng: np.random.Generator) -> Change:
    """Draw one: two of three are of config.json, but few of folders whose tensors are of interest."""
    if ("FP8" in base.name and rng.random() < 0.8) or rng.random() < 1 / 3:
        return _tensor(base, rng)
    return _key(base, rng)


def _key(base: Base, rng: np.random.Generator) -> Change:
    import transformers

    kind = getattr(transformers, f"{base.kind}Config")
    values = json.loads((base.folder / "config.json").read_text())
    own = {*values, *(field.name for field in fields(kind)), *kind.attribute_map}
    choices = TELLING if rng.random() < 0.4 else sorted(own if rng.random() < 0.7 else {*own, *OLDER})
    path: list[str] = [_one(rng, choices)]
    where = values
    while isinstance(where.get(path[-1]), dict) and where[path[-1]] and rng.random() < 0.9:
        where = where[path[-1]]
        path.append(_one(rng, sorted({*where, *ROPE} if "rope" in path[0] else {*where, "warp"})))
    if path[0] in ("rope_scaling", "rope_parameters") and len(path) == 1 and rng.random() < 0.8:
        new: Any = _rope(rng)
    else:
        new = _value(where.get(path[-1], getattr(kind, path[-1], None)), rng)
    remove = new is None and path[-1] in where

    def make(folder: Path) -> None:
        changed = json.loads((folder / "config.json").read_text())
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        if remove:
            del inner[path[-1]]
        else:
            inner[path[-1]] = new
        (folder / "config.json").write_text(json.dumps(changed))

    old = json.dumps(where[path[-1]])[:40] if path[-1] in where else "absent"
    return Change(f"{'.'.join(path)}: {old} -> {'removed' if remove else json.dumps(new)[:60]}", make)


def _rope(rng: np.random.Generator) -> dict[str, Any]:
    """A rope of some kind, with or without what it needs."""
    rope: dict[str, Any] = {"rope_type": _one(rng, ["default", "linear", "yarn", "llama3", "dynamic"])}
    every = {"factor": 2.0, "rope_theta": 3e4, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "attention_factor": 1.3, "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 1.0,
             "partial_rotary_factor": 0.5}  # fmt: skip
    likely = 0.8
    for name, value in every.items():
        if rng.random() < likely:
            rope[name] = value
        likely = likely if name == "original_max_position_embeddings" else 0.8 if "freq" in name else 0.2
    return rope


def _value(old: Any, rng: np.random.Generator) -> Any:
    """Another value, most often of the same type; None removes the key."""
    if rng.random() < 0.15:
        return None
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return int(_one(rng, [0, 1, 2, old + 1, old * 2, old // 2, old - 1, 4, 16]))
    if isinstance(old, float):
        return float(_one(rng, [0.0, 0.5, 1.0, old * 2, old / 3, old + 0.25, 8.0]))
    if isinstance(old, str):
        return _one(rng, WORDS)
    if isinstance(old, list) and old:
        at = int(rng.integers(len(old)))
        other = _one(rng, WORDS) if isinstance(old[at], str) else _one(rng, [0, 1, 4, 128])
        return _one(rng, [old[::-1], old[:-1], [*old, old[0]], [*old[:at], other, *old[at + 1 :]]])
    return _one(rng, [True, False, 1, 2, 16, 64, 0.5, 2.0, _one(rng, WORDS), [1, 2], {"rope_type": "yarn"}])


def _tensor(base: Base, rng: np.random.Generator) -> Change:
    shard = _one(rng, sorted(path.name for path in base.folder.glob("*.safetensors")))
    names = _tensors_of(base.folder / shard)
    scales = [name for name in names if name.endswith((".scale", "_scale_inv"))]
    name = _one(rng, scales) if scales and rng.random() < 0.5 else _one(rng, names)
    what = _one(rng, list(TENSORS))
    return Change(f"tensor {name}: {what}", lambda folder: _rewrite(folder, shard, name, TENSORS[what]))


def _tensors_of(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return sorted(file.keys())


Tensors = dict[str, Any]
"""Tensors of torch by name: NumPy has no FP8."""


def _rewrite(folder: Path, shard: str, name: str, change: Callable[[Tensors, str], None]) -> None:
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    tensors = load_torch(folder / shard)
    change(tensors, name)
    save_torch({key: value.contiguous() for key, value in tensors.items()}, folder / shard, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        places = json.loads(index.read_text())
        places["weight_map"] = {n: f for n, f in places["weight_map"].items() if f != shard}
        places["weight_map"] |= dict.fromkeys(tensors, shard)
        index.write_text(json.dumps(places))


def _put(name_of: Callable[[str], str], value_of: Callable[[Any], Any], keep: bool = True) -> Any:
    def change(tensors: Tensors, name: str) -> None:
        new = value_of(tensors[name] if keep else tensors.pop(name))
        if new is not None:
            tensors[name_of(name)] = new

    return change


def _noise(shape: Any) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def _foreign(name: str) -> str:
    """The same tensor in a layer that there is not."""
    head, found, rest = name.partition("layers.")
    return f"{head}layers.9.{rest.partition('.')[2]}" if found else f"layers.9.{name}"


TENSORS: dict[str, Callable[[Tensors, str], None]] = {
    "removed": _put(lambda n: "", lambda t: None, keep=False),
    "a bias beside it": _put(lambda n: n.removesuffix(".weight") + ".bias", lambda t: _noise(t.shape[:1])),
    "the same in a foreign layer": _put(_foreign, lambda t: t.clone()),
    "a scale renamed": _put(lambda n: n.replace(".scale", ".weight_scale") + "_", lambda t: t, keep=False),
    "a norm beside it": _put(lambda n: n.rpartition(".")[0].rpartition(".")[0] + ".q_norm.weight",
                             lambda t: 1 + _noise(t.shape[-1:])),
    "another head": _put(lambda n: "lm_head.weight", lambda t: t.float().flip(0)),
    "twice as large": _put(lambda n: n, lambda t: (t.float() * 2).to(t.dtype)),
    "in bfloat16": _put(lambda n: n, lambda t: t.float().bfloat16()),
    "in 5-bit floats": _put(lambda n: n, lambda t: t.float().to(__import__("torch").float8_e5m2)),
    "a row more": _put(lambda n: n, lambda t: __import__("torch").cat([t.float(), t[:1].float()]).to(t.dtype)),
    "transposed": _put(lambda n: n, lambda t: t.mT if t.ndim == 2 else t[None]),
}  # fmt: skip


def _one(rng: np.random.Generator, choices: list[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


# ---- many of them


def verdicts(base: Base, count: int, seed: int) -> Iterator[tuple[Change, str, str]]:
    """Draw, make and judge ``count`` changes of one folder."""
    rng = np.random.default_rng([seed, len(base.name), ord(base.name[-1])])
    choices = base.kind == "DeepseekV4"
    lists = [rng.integers(0, base.vocab, LENGTH).tolist() for _ in range(TRIES if choices else 1)]
    before = ours(base.folder, lists)
    wanted = theirs(base, base.folder, lists)
    assert not isinstance(before, str), before
    assert not isinstance(wanted, str), wanted
    apart = [difference(a, b).max / float(b.std()) for a, b in zip(before, wanted, strict=True)]
    assert min(apart) <= BAR, (base.name, apart)
    for _ in range(count):
        change = draw_change(base, rng)
        yield change, *judge(base, change, lists, before)
