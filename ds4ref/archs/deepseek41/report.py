"""The parts of the report on a model file (``archs.report``) that only DeepSeek V4.1 has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..deepseek4.checkpoint import checkpoint_of
from ..deepseek4.report import about as about
from ..deepseek4.report import decode_read, expert_formats
from ..report import Accounts, accounts_of
from .shape import CONSTANTS, FLASH, ModelShape, unlike_published
from .tensors import PARTS as PARTS
from .weights import account
from .weights import check_tensors as check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorInfo, TensorSource
    from ..binding import Slot


def accounts(source: TensorSource) -> Accounts:
    """Return which keys and tensors are used, have no effect or are refused (``archs.report.accounts``)."""
    shape, metadata = ModelShape.account(source)
    return accounts_of(source, metadata, account(source, shape))


def facts(source: TensorSource, shape: ModelShape, used: list[tuple[Slot, TensorInfo]]) -> dict[str, Any]:
    """Return the entries of the report that only this family has; ``used``: the tensors that the model uses, with their
    slots."""
    differing, constants = unlike_published(shape), unlike_published(shape, CONSTANTS).items()
    ratios = [shape.ratios[layer] for layer in shape.index_sources]
    return {
        "checkpoint": checkpoint_of(source).facts(),
        "published": FLASH.name,
        "differs": f"{len(differing)} keys differ from {FLASH.name}" if differing else None,
        "constants": {key: {"value": got, "published": want} for key, (got, want) in constants},
        "experts": expert_formats(source, shape),
        "decode_read": decode_read(used, shape, PARTS),
        "indexer_from_tokens": min(ratios) * (shape.index_topk + 1) if ratios else None,
    }


def shape_rows(s: ModelShape) -> list[tuple[str, str]]:
    """Return label and text of each of the report's lines about the model's dimensions."""
    kinds = Counter(s.ratios)
    schedule = ", ".join(f"{kinds[ratio]} of ratio {ratio}" for ratio in sorted(kinds))
    sources, selecting = (", ".join(map(str, layers)) for layers in (s.kv_sources, s.index_sources))
    token = (s.published_kv_bytes(2 * s.window + 2) - s.published_kv_bytes(2 * s.window)) / 2
    candidates, engram = "no candidate blocks", "none"
    if s.candidate_source is not None:
        candidates = f"candidates from layer {s.candidate_source}: {s.candidate_blocks} blocks of {s.candidate_size}"
    if s.engram_layers:
        where = ", ".join(f"layer {layer}: {n:,}" for layer, n in zip(s.engram_layers, s.engram_rows, strict=True))
        engram = f"rows of {s.engram_dim} in {where}; {s.engram_columns} read a token, n-grams up to {s.engram_grams}"
    return [
        ("layers", f"{s.n_layers}: {schedule}"),
        ("width", f"{s.dim} in {s.hc} streams, {s.sinkhorn_iters} Sinkhorn iterations"),
        ("heads", f"{s.n_heads} x {s.head_dim}, one shared key-value row; {s.rope_dim} rotary channels"),
        ("low rank", f"query {s.q_rank}, output {s.o_groups} groups x {s.o_rank}"),
        ("window", f"{s.window} tokens"),
        ("rows", f"compressed in layers {sources}, read by all after them"),
        ("indexer", f"{s.index_heads} x {s.index_dim}, best {s.index_topk} rows, in layers {selecting}; {candidates}"),
        ("engram", engram),
        ("cache", f"{token:,.0f} bytes a token in DeepSeek's formats (E4M3, E2M1), beside windows"),
        ("experts", f"{s.n_used} of {s.n_experts} x {s.expert_ff}, {s.n_shared} shared"),
        ("routing", f"scale {s.route_scale:g}, temperature {s.gate_temp:g}, SwiGLU limit {max(s.swiglu_limit):g}"),
        ("rope", f"theta {s.rope_theta:g}; compressed {s.compress_theta:g}, YaRN x{s.yarn_factor:g} "
                 f"over {s.yarn_orig_ctx}, beta {s.yarn_beta_fast:g} to {s.yarn_beta_slow:g}"),
        ("epsilon", f"norm {s.rms_eps:g}, hyper-connection {s.hc_eps:g}"),
        ("vocabulary", f"{s.vocab:,} rows"),
    ]  # fmt: skip
