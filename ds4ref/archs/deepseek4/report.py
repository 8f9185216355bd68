"""Report on a model file and the cost of running it, from the file's header alone.

No tensor byte is read, so an 81 GiB file takes as long as a small one. The accounting follows model.md 13: bytes
of weights that decoding one token reads, by component, and bytes of cache.

    print(inspect_text("model.source"))
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from ...errors import ShapeError
from ...files import size_text
from ...weights import open_source
from ...weights.accounting import Account
from ...weights.source import TensorInfo, TensorSource
from ..report import Accounts, account_lines, accounts_of, by_type, line, used_line
from .shape import CSA, MERGES_KEY, TOKENS_KEY, ModelShape, check_published, metadata_account, nearest, unlike_published
from .tensors import PARTS, Slot
from .weights import account, check_tensors

CONTEXTS = (4096, 32768, 131072, 1048576)


def accounts(source: TensorSource) -> Accounts:
    """Return what becomes of every key and tensor, refused ones too; raise ModelFileError for known ones that do not
    fit."""
    shape, metadata = metadata_account(source)
    return accounts_of(source, metadata, account(source, shape))


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return all figures as a JSON-ready dict; raise ModelFileError or ShapeError if this engine cannot run the
    file."""
    with open_source(path) as source:
        shape = ModelShape.from_metadata(source)
        used = check_tensors(source, shape)
        return {
            "path": os.fspath(source.path),
            "file_bytes": source.size,
            "alignment": getattr(source, "alignment", None),
            "metadata_keys": len(source.metadata),
            "tokens": _count(source, TOKENS_KEY),
            "merges": _count(source, MERGES_KEY),
            "name": shape.name,
            "published": nearest(shape).name,
            "differs": _differs(source),
            "constants": {
                key: {"value": got, "published": want} for key, (got, want) in unlike_published(shape).items()
            },
            "shape": {
                field: list(value) if isinstance(value, tuple) else value
                for field, value in vars(shape).items()
                if field != "name"
            },
            "tensors": by_type([info for _, info in used]),
            "computed_with": used_line(source, (info.nbytes for _, info in used)),
            "accounts": {part: vars(account) for part, account in accounts(source).items()},
            "experts": _expert_formats(source, shape),
            "decode_read": _decode_read(used, shape),
            "indexer_from_tokens": CSA * (shape.index_topk + 1) if CSA in shape.ratios else None,
            "kv_bytes_per_token": {"f32": shape.kv_values_per_token() * 4, "f16": shape.kv_values_per_token() * 2},
            "kv": [
                {
                    "context": n,
                    "f32": shape.kv_bytes(n),
                    "f16": shape.kv_bytes(n, 2),
                    "read_f32": shape.kv_read_bytes(n),
                    "read_f16": shape.kv_read_bytes(n, 2),
                }
                for n in CONTEXTS
            ],
        }


def inspect_json(path: str | os.PathLike[str]) -> str:
    """Return the figures of ``describe`` as one line of JSON."""
    return json.dumps(describe(path), ensure_ascii=False)


def inspect_text(path: str | os.PathLike[str]) -> str:
    """Return the figures of ``describe`` as text."""
    facts = describe(path)
    shape = facts["shape"]
    vocabulary = "none" if facts["tokens"] is None else f"{facts['tokens']:,} tokens, {facts['merges'] or 0:,} merges"
    lines = [
        f"file        {facts['path']}",
        f"            {_bytes(facts['file_bytes'])}, {_container(facts['alignment'])}",
        f"model       {line(facts['name']) or '(unnamed)'}",
        f"            {'exactly ' + facts['published'] if facts['differs'] is None else line(facts['differs'])}",
        f"vocabulary  {vocabulary}",
        *_constant_lines(facts["constants"], facts["published"]),
        "",
        "shape",
        *_shape_lines(shape),
        "",
        *_tensor_lines(facts),
        facts["computed_with"],
        "",
        *account_lines({part: Account(**values) for part, values in facts["accounts"].items()}),
        "",
        *_decode_lines(facts),
        "",
        *_cache_lines(facts),
    ]
    return "\n".join(lines)


def _constant_lines(constants: dict[str, dict[str, str]], model: str) -> list[str]:
    says = [f"{key} {entry['value']}, where {model} has {entry['published']}" for key, entry in constants.items()]
    heads = ["constants", *[""] * len(says)]
    return [f"{head:<12}{text}" for head, text in zip(heads, says or [f"same as {model}"], strict=False)]


def _shape_lines(s: dict[str, Any]) -> list[str]:
    kinds = Counter(s["ratios"])
    schedule = ", ".join(f"{kinds[ratio]} of ratio {ratio}" for ratio in sorted(kinds))
    limits = sorted({f"{limit:g}" for limit in (min(s["swiglu_limit"]), max(s["swiglu_limit"]))}, key=float)
    rows = [
        ("layers", f"{s['n_layers']}: {schedule}; the first {s['n_hash_layers']} route by token id (hash routing)"),
        ("width", f"{s['dim']} in {s['hc']} streams, {s['sinkhorn_iters']} Sinkhorn iterations"),
        ("heads", f"{s['n_heads']} x {s['head_dim']}, one shared key-value row; {s['rope_dim']} rotary channels"),
        ("low rank", f"query {s['q_rank']}, output {s['o_groups']} groups x {s['o_rank']}"),
        ("window", f"{s['window']} tokens"),
        ("indexer", f"{s['index_heads']} x {s['index_dim']}, best {s['index_topk']} rows"),
        ("experts", f"{s['n_used']} of {s['n_experts']} x {s['expert_ff']}, {s['n_shared']} shared"),
        ("routing", f"scale {s['route_scale']:g}, SwiGLU limit {' to '.join(limits)}"),
        ("rope", f"theta {s['rope_theta']:g}; compressed {s['compress_theta']:g}, YaRN x{s['yarn_factor']:g} "
                 f"over {s['yarn_orig_ctx']}, beta {s['yarn_beta_fast']:g} to {s['yarn_beta_slow']:g}"),
        ("epsilon", f"norm {s['rms_eps']:g}, hyper-connection {s['hc_eps']:g}"),
        ("vocabulary", f"{s['vocab']:,} rows"),
    ]  # fmt: skip
    return [f"  {name:<12}{text}" for name, text in rows]


def _tensor_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{'tensors':<16}{'count':>6}{'parameters':>18}{'bytes':>18}{'size':>12}"]
    total = {"count": 0, "parameters": 0, "bytes": 0}
    for row in facts["tensors"]:
        lines.append(_tensor_line(row["type"], row))
        for field in total:
            total[field] += row[field]
    lines.append(_tensor_line("total", total))
    return [*lines, "", "routed experts  " + "; ".join(facts["experts"])]


def _tensor_line(name: str, row: dict[str, Any]) -> str:
    return f"  {name:<14}{row['count']:>6}{row['parameters']:>18,}{row['bytes']:>18,}{size_text(row['bytes']):>12}"


def _decode_lines(facts: dict[str, Any]) -> list[str]:
    read = facts["decode_read"]
    total = sum(read.values())
    lines = [f"{'weights read per decoded token':<40}{'bytes':>18}{'share':>9}"]
    for part, nbytes in sorted(read.items(), key=lambda item: -item[1]):
        lines.append(f"  {PARTS[part]:<38}{nbytes:>18,}{nbytes / total:>9.1%}")
    lines.append(f"  {'total':<38}{total:>18,}{size_text(total):>12}")
    if read.get("indexer"):
        start = facts["indexer_from_tokens"]
        lines.append(f"  {f'total below {start} tokens (no indexer)':<38}{total - read['indexer']:>18,}")
    return lines


def _cache_lines(facts: dict[str, Any]) -> list[str]:
    per_token = facts["kv_bytes_per_token"]
    lines = [
        f"KV cache per token: {per_token['f32']:,.10g} bytes in f32, {per_token['f16']:,.10g} in f16",
        f"  {'context':>9}{'f32 bytes':>18}{'f16 bytes':>18}{'read/token, f32':>20}{'f16':>16}",
    ]
    for row in facts["kv"]:
        sizes = f"{row['f32']:>18,}{row['f16']:>18,}{row['read_f32']:>20,}{row['read_f16']:>16,}"
        lines.append(f"  {row['context']:>9}{sizes}")
    return lines


def _expert_formats(source: TensorSource, shape: ModelShape) -> list[str]:
    """Return runs of layers with the same expert formats."""
    runs: list[tuple[str, int, int]] = []
    for layer in range(shape.n_layers):
        gate, down = (source.tensors[f"blk.{layer}.ffn_{name}_exps.weight"].fmt.name for name in ("gate", "down"))
        text = f"gate and up {gate}, down {down}"
        first = runs.pop()[1] if runs and runs[-1][0] == text else layer
        runs.append((text, first, layer))
    return [f"layers {first} to {last}: {text}" for text, first, last in runs]


def _decode_read(used: list[tuple[Slot, TensorInfo]], shape: ModelShape) -> dict[str, int]:
    read = dict.fromkeys(PARTS, 0)
    for slot, info in used:
        read[slot.part] += slot.bytes_per_token(info.nbytes, shape)
    return {part: nbytes for part, nbytes in read.items() if nbytes}


def _differs(source: TensorSource) -> str | None:
    """Return None if this is exactly a published model, else how it differs from the nearest."""
    try:
        check_published(source)
    except ShapeError as error:
        return error.reason
    return None


def _count(source: TensorSource, key: str) -> int | None:
    return source.metadata.count(key) if source.metadata.type_of(key) == "string[]" else None


def _container(alignment: int | None) -> str:
    return "safetensors" if alignment is None else f"GGUF v3, alignment {alignment}"


def _bytes(count: int) -> str:
    return f"{count:,} bytes ({size_text(count)})"
