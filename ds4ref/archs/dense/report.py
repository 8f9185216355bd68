"""Report on a dense decoder's file and the cost of running it, from the file's header alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...files import size_text
from .. import arch_of
from ..report import Accounts, account_lines, accounts_of, by_type, line, used_line
from .shape import metadata_account
from .weights import account, check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import DenseShape

CONTEXTS = (4096, 32768, 131072)


def accounts(source: TensorSource) -> Accounts:
    """Return what becomes of every key and tensor, refused ones too; raise ModelFileError for known ones that do not
    fit."""
    shape, metadata = metadata_account(source, arch_of(source).family)  # type: ignore[attr-defined]
    return accounts_of(source, metadata, account(source, shape))


def inspect_json(source: TensorSource) -> str:
    """Return what ``inspect_text`` says as one line of JSON; raise ModelFileError or ShapeError."""
    arch = arch_of(source)
    shape = arch.read_shape(source)
    used = [info for _, info in check_tensors(source, shape)]
    scaling = {k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in shape.scaling._asdict().items()}
    facts = {
        "path": os.fspath(source.path),
        "file_bytes": source.size,
        "name": shape.name,
        "family": shape.family.name,
        "shape": {k: v for k, v in vars(shape).items() if k not in ("name", "family")} | {"scaling": scaling},
        "tensors": by_type(used),
        "computed_with": used_line(source, (info.nbytes for info in used)),
        "accounts": {part: vars(account) for part, account in accounts(source).items()},
        "weight_bytes_per_token": arch.costs(source, shape, True).weight_bytes(),
        "kv_bytes_per_token": {"f32": shape.kv_bytes(1), "f16": shape.kv_bytes(1, 2)},
        "kv": [{"context": n, "f32": shape.kv_bytes(n), "f16": shape.kv_bytes(n, 2)} for n in CONTEXTS],
    }
    return json.dumps(facts, ensure_ascii=False)


def inspect_text(source: TensorSource) -> str:
    """Return shape, tensors by format, bytes per token and cache sizes as text; raise ModelFileError or ShapeError."""
    arch = arch_of(source)
    shape = arch.read_shape(source)
    used = check_tensors(source, shape)
    costs = arch.costs(source, shape, True)
    lines = [
        f"file        {source.path}",
        f"            {source.size:,} bytes ({size_text(source.size)})",
        f"model       {line(shape.name) or '(unnamed)'}: {shape.family.name}",
        "",
        "shape",
        *(f"  {name:<12}{text}" for name, text in _shape_rows(shape)),
        "",
        f"{'tensors':<16}{'count':>6}{'parameters':>18}{'bytes':>18}{'size':>12}",
        *_tensor_rows((info.fmt.name, info.nbytes // info.fmt.block_bytes * info.fmt.block_elems, info.nbytes)
                      for _, info in used),
        used_line(source, (info.nbytes for _, info in used)),
        "",
        *account_lines(accounts(source)),
        "",
        f"weights read per decoded token: {costs.weight_bytes():,} bytes",
        f"KV cache per token: {shape.kv_bytes(1):,} bytes in f32, {shape.kv_bytes(1, 2):,} in f16",
        *(f"  {n:>9} tokens: {size_text(shape.kv_bytes(n))} in f32, {size_text(shape.kv_bytes(n, 2))} in f16"
          for n in CONTEXTS),
    ]  # fmt: skip
    return "\n".join(lines)


def _shape_rows(s: DenseShape) -> list[tuple[str, str]]:
    stretched = "" if s.scaling.kind == "none" else f", {s.scaling.kind} x{s.scaling.factor:g}"
    windowed = f"; in window layers theta {s.window_theta:g}" if s.window_theta else ""
    pairs = "halves" if s.family.halves else "adjacent channels"
    return [
        ("layers", str(s.n_layers)),
        ("width", f"{s.dim}" + ("" if s.n_experts else f", feed-forward {s.ff}")),
        *([("experts", f"{s.n_experts} of width {s.expert_ff}, {s.n_used} per token")] if s.n_experts else []),
        ("heads", f"{s.n_heads} x {s.head_dim} with {s.n_kv_heads} KV heads"
                  + (", QK norm" if s.family.qk_norm else "")),
        *([("window", _window(s))] if s.window else []),
        ("rope", f"theta {s.rope_theta:g}, {pairs}{stretched}{windowed}"),
        ("epsilon", f"{s.rms_eps:g}"),
        ("context", f"{s.trained_ctx:,} tokens in training"),
        ("vocabulary", f"{s.vocab:,} rows"),
    ]  # fmt: skip


def _window(s: DenseShape) -> str:
    layers = sum(bool(s.window_of(layer)) for layer in range(s.n_layers))
    return f"{s.window:,} tokens, in {'all' if layers == s.n_layers else layers} of {s.n_layers} layers"


def _tensor_rows(tensors: Iterable[tuple[str, int, int]]) -> list[str]:
    groups: dict[str, tuple[int, int, int]] = {}
    for fmt, elements, nbytes in tensors:
        for name in (fmt, "total"):
            count, some, size = groups.get(name, (0, 0, 0))
            groups[name] = count + 1, some + elements, size + nbytes
    groups["total"] = groups.pop("total")
    return [
        f"  {name:<14}{n:>6}{some:>18,}{size:>18,}{size_text(size):>12}" for name, (n, some, size) in groups.items()
    ]
