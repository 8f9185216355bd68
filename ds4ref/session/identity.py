"""What a checkpoint was computed with, and may be gone on with by.

A payload says how large its arrays are and nothing about what filled them: other weights of the same shape, another
rounding, another cut of text into tokens would go on from it without a word, and answer wrongly. Everything that a
token's numbers depend on is therefore written beside it, and only where all of it is the same is it loaded. Backend
and number of threads are not among it: what differs between those is float noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import __version__
from ..files import file_digest
from ..text.chat import MODES, Message, render
from ..text.dsml import ToolCall

if TYPE_CHECKING:
    from ..engine import Engine
    from ..text.tokenizer import Tokenizer

ROUTED = "blk.0.ffn_gate_exps.weight"
"""Whose format ds4 calls that of a file."""


@dataclass(frozen=True)
class Identity:
    """facts   compared as a whole; quant   the header's bits; about   for people."""

    facts: Mapping[str, str]
    quant: int
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Engine) -> Identity:
        """Of an engine. Reads its model file, or the ends of a large one."""
        routed = engine.source.tensors.get(ROUTED)
        modes = engine.model.numerics._asdict()
        facts = {
            "model": file_digest(engine.path),
            "numerics": " ".join(f"{name}={value}" for name, value in modes.items()),
            "tokenizer": tokenizer_digest(engine.tokenizer),
            "template": template_digest(),
            "engine": f"ds4ref {__version__}",
        }
        fmt = routed.fmt if routed is not None else None
        about = {"name": engine.shape.name, "experts": fmt.name if fmt else "none", "backend": engine.backend}
        return cls(facts, 32 if fmt is None else max(1, min(255, 8 * fmt.block_bytes // fmt.block_elems)), about)

    def differs(self, other: Mapping[str, str]) -> str:
        """What is not the same in another one, "" if nothing. An empty one says nothing and differs in nothing."""
        names = sorted(self.facts.keys() | other.keys()) if other else ()
        return ", ".join(name for name in names if self.facts.get(name) != other.get(name))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """How text is cut: the rule before merging, and every token's string."""
    strings = (tokenizer.token_string(i).encode("utf-8", "surrogatepass") for i in range(len(tokenizer)))
    found = hashlib.sha256(b"\0".join(strings)).hexdigest()
    return f"{tokenizer.split} sha256:{found}"


def template_digest() -> str:
    """How conversations are rendered: the digest of one that has everything, in all modes."""
    call = ToolCall("look", '{"at":"</｜DSML｜parameter>","n":[1,null]}', "call_1")
    talk = [
        Message("system", "S"),
        Message("user", "U"),
        Message("assistant", "A", "R"),
        Message("user", "V"),
        Message("assistant", "B", "T", (call,)),
        Message("tool", "out</tool_result>"),
        Message("assistant", "C", "W"),
        Message("user", "X"),
    ]
    sha = hashlib.sha256()
    for mode in MODES:
        for part, schemas in ((talk, ['{"name":"look"}']), (talk, []), (talk[:4], [])):
            sha.update(render(part, schemas, mode).text.encode() + b"\0")
    return f"sha256:{sha.hexdigest()}"
