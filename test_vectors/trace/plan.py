"""What to do after an unknown: which dump would decide, the lines of code that make it, the command that reads it.

    plan = planned(engine.shape, ids, first=23)
    print(plan.text("command:./ds4 -m model.gguf", "ids.json", "-m model.gguf"))

A mistake of an engine's code is made in every layer of a kind, so one layer of each kind is dumped, with its input;
where the first wrong position is one at which compressed rows of one kind begin to matter, a layer of that kind alone.
The head is dumped with its input, the last layer's output, so that no other layer has to be run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ds4ref.archs.deepseek4.shape import CSA, ModelShape

from ..diagnosis.onsets import LATE, compressed
from . import snippets
from .names import load

HALF = (
    "hc_attn_in", "attn_norm", "q_lora_norm", "Qcur", "KVcur", "KVcompress", "indexer_topk", "kqv_out", "kqv_back",
    "attn_out", "hc_attn_post", "ffn_norm", "ffn_moe_topk", "ffn_moe_weights_scaled", "ffn_shexp", "ffn_moe_out",
    "hc_ffn_post",
)  # fmt: skip
"""Points of a layer to dump first; gaps between them are named by ``blame``, and dumped next."""
HEAD = ("result_norm", "result_output")
ROUTED = ("ffn_moe_probs", "ffn_moe_gate", "ffn_moe_up")
"""What llama.cpp has no tensor between and ``ffn_moe_out``."""
LLAMA_CPP = "llama.cpp"
ELSEWHERE = "/* llama.cpp: docs/reference/trace.md 4; Hugging Face: 5 */"
MOST = 512e6
"""Bytes of a dump from which on the prompt is cut behind the first wrong position."""
BEHIND = 8
"""Positions kept behind the first wrong one, where the prompt is cut."""

_WIDTHS: dict[str, Callable[[ModelShape], int]] = {
    **dict.fromkeys(("hc_attn_in", "hc_attn_post", "hc_ffn_post"), lambda s: s.hc * s.dim),
    **dict.fromkeys(("attn_norm", "attn_out", "ffn_norm", "ffn_shexp", "ffn_moe_out", "result_norm"), lambda s: s.dim),
    **dict.fromkeys(("Qcur", "kqv_out", "kqv_back"), lambda s: s.n_heads * s.head_dim),
    **dict.fromkeys(("KVcur", "KVcompress"), lambda s: s.head_dim),
    **dict.fromkeys(("ffn_moe_topk", "ffn_moe_weights_scaled"), lambda s: s.n_used),
    "q_lora_norm": lambda s: s.q_rank,
    "indexer_topk": lambda s: s.index_topk,
    "result_output": lambda s: s.vocab,
}


@dataclass(frozen=True)
class DumpPlan:
    """Which intermediates of the other engine would tell where it is wrong.

    shape    the model
    tokens   number of tokens of the prompt to run, from the first on
    whole    number of tokens of the prompt
    layers   layers to dump
    first    first position at which the engine is wrong
    """

    shape: ModelShape
    tokens: int
    whole: int
    layers: tuple[int, ...]
    first: int

    @property
    def columns(self) -> dict[int, dict[str, int]]:
        """Return the points to dump by layer (-1: the head), with the number of values of a row."""
        points = {layer: self._points(self.shape.ratios[layer]) for layer in self.layers}
        points.setdefault(self.shape.n_layers - 1, ("hc_ffn_post",))
        points[-1] = HEAD
        return {layer: {name: _WIDTHS[name](self.shape) for name in names} for layer, names in points.items()}

    @staticmethod
    def _points(ratio: int) -> tuple[str, ...]:
        left_out = {"KVcompress"} if not ratio else set()
        left_out |= {"indexer_topk"} if ratio != CSA else set()
        return tuple(name for name in HALF if name not in left_out)

    @property
    def megabytes(self) -> float:
        """Return the size of the dump; values of 4 bytes, and a row for each window in KVcompress."""
        total = 0
        for layer, wide in self.columns.items():
            rows = self.tokens // max(1, self.shape.ratios[layer])
            total += sum(n * (rows if name == "KVcompress" else self.tokens) for name, n in wide.items())
        return total * 4 / 1e6

    def to_json(self) -> dict[str, Any]:
        """Return the plan in JSON types."""
        points = {("head" if layer < 0 else str(layer)): list(wide) for layer, wide in self.columns.items()}
        return {"layers": list(self.layers), "points": points, "positions": [0, self.tokens - 1],
                "megabytes": float(f"{self.megabytes:.3g}")}  # fmt: skip

    def summary(self) -> str:
        """Return the plan in one line."""
        listed = ", ".join(map(str, self.layers))
        return (f"a dump of layer{'s' if len(self.layers) > 1 else ''} {listed} and the head at positions 0 to "
                f"{self.tokens - 1} ({self.megabytes:.3g} MB) would tell which op is wrong")  # fmt: skip

    def text(self, target: str, ids: str, model: str) -> str:
        """Return the plan with code and command.

        target  the engine: "llama.cpp", a target's spec ("command:./ds4 -m FILE"), "" if it is not known
        ids     file of the prompt's token ids, .json or .npz; "" if there is none
        model   options that name the model
        """
        last = self.shape.n_layers - 1
        widths = {name: n for wide in self.columns.values() for name, n in wide.items()}
        more = "" if last in self.layers else f"; of layer {last} hc_ffn_post alone"
        kinds = f"{', '.join(map(str, self.layers))}: one of each kind that can be wrong, and the head{more}"
        lines = [f"next step    {self.summary()}", f"layers       {kinds}",
                 "ops, values  " + ", ".join(f"{name} {n}" for name, n in widths.items())]  # fmt: skip
        source = f"json.load(open({ids!r}))"
        if not ids:
            lines.append("token ids    ds4-vectors model --write-prompts prompts")
            ids = "prompts/mixed.ids.json"
            source = f"json.load(open({ids!r}))"
        elif ids.endswith(".npz"):
            source = f"numpy.load({ids!r})['ids'].tolist()"
        if ids.endswith(".npz") or self.tokens < self.whole:
            cut = f"import json, numpy; json.dump({source}[:{self.tokens}], open('ids.json', 'w'))"
            lines.append(f"token ids    python -c {shlex.quote(cut)}")
            ids = "ids.json"
        lines += ["", *self._code(target, ids, model).splitlines(), ""]
        layers = ",".join([*map(str, self.layers), "head"])
        dump = "dump.npz" if target == LLAMA_CPP else "dump"
        lines.append(f"ds4-vectors trace blame {dump} {model} --token-ids {ids} --layers {layers}".replace("  ", " "))
        return "\n".join(lines)

    def _code(self, target: str, ids: str, model: str) -> str:
        kind, _, command = target.partition(":")
        if kind == "command":
            text = snippets.DS4.replace("NAMES", ",".join((*HALF, *HEAD))).replace("MODEL", command)
            return text.replace("LAYERS", " ".join(str(layer) for layer in self.columns if layer >= 0))
        if kind == LLAMA_CPP:
            layered, others = self._llama_names()
            text = snippets.LLAMA.replace("NAMES", layered).replace("OTHERS", others).replace("IDS", ids)
            text = text.replace("LAYERS", repr(self.layers)).replace("COUNT", str(self.tokens))
            return text.replace("MODEL", model.removeprefix("-m ") or "MODEL.gguf")
        layers = " || ".join(f"layer == {n}" for n in (*self.layers, -1))
        text = snippets.C.replace("LAYERS", layers).replace("COUNT", str(self.tokens))
        return text.replace("WIDTH", str(self.shape.dim)) + "\n" + ELSEWHERE

    def _llama_names(self) -> tuple[str, str]:
        """Return the names of llama.cpp's graph for the points, and for what those of routing are made of.

        Those that end in the number of one of ``layers``, and others, each list separated by spaces.
        """
        rules = load(LLAMA_CPP).points
        wanted = {(name, -2) for layer in self.layers for name in (*self.columns[layer], *ROUTED)}
        wanted |= {(name, layer) for layer, wide in self.columns.items() if layer not in self.layers for name in wide}
        wanted |= {("hc_ffn_post", layer - 1) for layer in self.layers if layer}  # it has no name for a layer's input
        found: tuple[set[str], set[str]] = set(), set()
        for name, layer in wanted:
            for rule in rules.get(name, ()):
                base = rule.name.partition("#")[0]
                inside = layer == -2 and base.endswith("-{layer}")
                found[not inside].add(base.removesuffix("-{layer}") if inside else base.replace("{layer}", str(layer)))
        return " ".join(sorted(found[0])), " ".join(sorted(found[1]))


def planned(shape: Any, ids: Sequence[int], first: int | None, exactly: bool = True) -> DumpPlan | None:
    """Return the dump that would decide what is wrong with an engine that deviates first at position ``first``.

    None for an architecture that trace does not know: all but DeepSeek V4.

    ``exactly``: whether positions before are right to float precision; below a rounding's noise anything may have begun
    earlier.
    """
    if not isinstance(shape, ModelShape):
        return None
    first = first or 0
    near = [ratio for ratio in sorted(set(shape.ratios) - {0})
            if exactly and any(at <= first <= at + LATE for at, _ in compressed(shape, ratio))]  # fmt: skip
    kinds = near if near else sorted(set(shape.ratios))
    layers = tuple(sorted(shape.ratios.index(ratio) for ratio in kinds))
    if not near and max(layers) < shape.n_hash_layers < shape.n_layers:
        layers = (*layers, shape.n_hash_layers)
    whole = DumpPlan(shape, len(ids), len(ids), layers, first)
    if whole.megabytes * 1e6 <= MOST:
        return whole
    return DumpPlan(shape, min(len(ids), first + 1 + BEHIND), len(ids), layers, first)
