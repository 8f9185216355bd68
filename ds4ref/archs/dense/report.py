"""The parts of the report on a model file (``archs.report``) that only dense decoders have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import arch_of
from ..report import Accounts, accounts_of
from .shape import metadata_account
from .weights import account
from .weights import check_tensors as check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import DenseShape

PARTS = {"weights": "all that a token takes"}


def accounts(source: TensorSource) -> Accounts:
    """Return which keys and tensors are used, have no effect or are refused (``archs.report.accounts``)."""
    shape, metadata = metadata_account(source, arch_of(source).family)  # type: ignore[attr-defined]
    return accounts_of(source, metadata, account(source, shape))


def facts(source: TensorSource, shape: DenseShape, used: Any) -> dict[str, Any]:
    """Return the entries of the report that only these families have."""
    costs = arch_of(source).costs(source, shape, True)
    return {"family": shape.family.name, "decode_read": {"weights": costs.weight_bytes()}}


def about(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return label and text of the report's lines after the model's name; ``facts``: the whole report as a dict."""
    return [("family", facts["family"])]


def shape_rows(s: DenseShape) -> list[tuple[str, str]]:
    """Return label and text of each of the report's lines about the model's dimensions."""
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
