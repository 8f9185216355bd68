"""The parts of the report on a model file (``archs.report``) that only DeepSeek V4 has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import ShapeError, one_line
from ..binding import Slot
from ..report import Accounts, accounts_of
from .checkpoint import checkpoint_of
from .shape import CSA, ModelShape, check_published, nearest, unlike_published
from .tensors import PARTS as PARTS
from .weights import account
from .weights import check_tensors as check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorInfo, TensorSource

DRAFTERS = {
    "mtp": "a block for multi-token prediction, beside the layers (--mtp)",
    "dspark": "DSpark, beside the layers; not computed yet",
}


def accounts(source: TensorSource) -> Accounts:
    """Return which keys and tensors are used, have no effect or are refused (``archs.report.accounts``)."""
    shape, metadata = ModelShape.account(source)
    return accounts_of(source, metadata, account(source, shape))


def facts(source: TensorSource, shape: ModelShape, used: list[tuple[Slot, TensorInfo]]) -> dict[str, Any]:
    """Return the entries of the report that only this family has; ``used``: the tensors that the model uses, with their
    slots."""
    constants = unlike_published(shape).items()
    return {
        "checkpoint": checkpoint_of(source).facts(),
        "published": nearest(shape).name,
        "differs": _differs(source),
        "constants": {key: {"value": got, "published": want} for key, (got, want) in constants},
        "experts": expert_formats(source, shape),
        "decode_read": decode_read(used, shape, PARTS),
        "indexer_from_tokens": CSA * (shape.index_topk + 1) if CSA in shape.ratios else None,
    }


def about(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of the report's lines after the model's name; ``facts``: the whole report as a dict."""
    model, checkpoint = facts["published"], facts["checkpoint"]
    signs = f"told by {' and '.join(checkpoint['how'])}" if checkpoint["how"] else "nothing in it tells which"
    yield "checkpoint", f"{checkpoint['name']} ({signs}); prompts of {checkpoint['profile']}"
    if checkpoint["drafter"]:
        yield "drafter", DRAFTERS[checkpoint["drafter"]]
    yield "", f"exactly {model}" if facts["differs"] is None else one_line(facts["differs"])
    says = [f"{key} {entry['value']}, where {model} has {entry['published']}"
            for key, entry in facts["constants"].items()]  # fmt: skip
    for number, text in enumerate(says or [f"same as {model}"]):
        yield "" if number else "constants", text
    yield "experts", "; ".join(facts["experts"])


def shape_rows(s: ModelShape) -> list[tuple[str, str]]:
    """Return label and text of each of the report's lines about the model's dimensions."""
    kinds = Counter(s.ratios)
    schedule = ", ".join(f"{kinds[ratio]} of ratio {ratio}" for ratio in sorted(kinds))
    limits = sorted({f"{limit:g}" for limit in (min(s.swiglu_limit), max(s.swiglu_limit))}, key=float)
    return [
        ("layers", f"{s.n_layers}: {schedule}; the first {s.n_hash_layers} route by token id (hash routing)"),
        ("width", f"{s.dim} in {s.hc} streams, {s.sinkhorn_iters} Sinkhorn iterations"),
        ("heads", f"{s.n_heads} x {s.head_dim}, one shared key-value row; {s.rope_dim} rotary channels"),
        ("low rank", f"query {s.q_rank}, output {s.o_groups} groups x {s.o_rank}"),
        ("window", f"{s.window} tokens"),
        ("indexer", f"{s.index_heads} x {s.index_dim}, best {s.index_topk} rows"),
        ("experts", f"{s.n_used} of {s.n_experts} x {s.expert_ff}, {s.n_shared} shared"),
        ("routing", f"scale {s.route_scale:g}, SwiGLU limit {' to '.join(limits)}"),
        ("rope", f"theta {s.rope_theta:g}; compressed {s.compress_theta:g}, YaRN x{s.yarn_factor:g} "
                 f"over {s.yarn_orig_ctx}, beta {s.yarn_beta_fast:g} to {s.yarn_beta_slow:g}"),
        ("epsilon", f"norm {s.rms_eps:g}, hyper-connection {s.hc_eps:g}"),
        ("vocabulary", f"{s.vocab:,} rows"),
    ]  # fmt: skip


def expert_formats(source: TensorSource, shape: Any) -> list[str]:
    """Return lines such as "layers 0 to 36: gate and up IQ2_XXS, down Q2_K", one for each run of layers whose experts
    have the same storage formats."""
    runs: list[tuple[str, int, int]] = []
    for layer in range(shape.n_layers):
        gate, down = (source.tensors[f"blk.{layer}.ffn_{name}_exps.weight"].fmt.name for name in ("gate", "down"))
        text = f"gate and up {gate}, down {down}"
        first = runs.pop()[1] if runs and runs[-1][0] == text else layer
        runs.append((text, first, layer))
    return [f"layers {first} to {last}: {text}" for text, first, last in runs]


def decode_read(used: list[tuple[Slot, TensorInfo]], shape: Any, parts: Iterable[str]) -> dict[str, int]:
    """Return the bytes of weights that decoding one token reads, by component, those of ``parts``."""
    read = dict.fromkeys(parts, 0)
    for slot, info in used:
        read[slot.part] += slot.bytes_per_token(info.nbytes, shape)
    return {part: nbytes for part, nbytes in read.items() if nbytes}


def _differs(source: TensorSource) -> str | None:
    """Return None if the dimensions are exactly those of a published model, else how they differ from the nearest
    one."""
    try:
        check_published(source)
    except ShapeError as error:
        return error.reason
    return None
