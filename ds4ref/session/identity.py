"""Which engine a checkpoint belongs to: model, rounding, steering, tokenizer and chat template.

A saved session does not record which weights computed its arrays: an engine with other weights of the same shape,
another rounding or another tokenizer would continue from it silently and wrongly. So all settings that affect the
computed values are saved beside it, and it is loaded only if they are equal. Backend and thread count are left out:
they change values by float noise only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..archs.deepseek4.checkpoint import release_of
from ..files import file_digest
from ..text.chat import Message
from ..text.dsml import ToolCall
from ..text.prompts import prompt_of
from ..version import __version__
from ..weights.source import files_of

if TYPE_CHECKING:
    from ..text.official import Profile
    from ..text.tokenizer import Tokenizer

ROUTED = "blk.0.ffn_gate_exps.weight"
"""The tensor whose format ds4 records as the format of the whole file."""


@dataclass(frozen=True)
class Identity:
    """The engine settings that a checkpoint was computed with.

    facts   settings that change the computed values, name -> value; a checkpoint can be loaded only if all are equal
    quant   bits of the routed experts, as in the checkpoint's header
    about   further information for people, not compared
    """

    facts: Mapping[str, str]
    quant: int
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Any) -> Identity:
        """Return the identity of an engine. This reads the model file to digest it, or only both ends of a large
        file."""
        routed = engine.source.tensors.get(ROUTED)
        modes = engine.model.numerics._asdict()
        facts = {
            "model": file_digest(*files_of(engine.source)),
            "numerics": " ".join(f"{name}={value}" for name, value in modes.items()),
            "tokenizer": tokenizer_digest(engine.tokenizer),
            "template": template_digest(engine.tokenizer.profile),
            "engine": f"ds4ref {__version__}",
        }
        if engine.model.steering is not None:
            facts["steering"] = engine.model.steering.identity
        fmt = routed.fmt if routed is not None else None
        about = {"name": engine.model.shape.name, "experts": fmt.name if fmt else "none", "backend": engine.backend,
                 **release_of(engine.source)}  # fmt: skip
        return cls(facts, 32 if fmt is None else max(1, min(255, 8 * fmt.block_bytes // fmt.block_elems)), about)

    def differs(self, other: Mapping[str, str]) -> str:
        """Return the names of the settings in ``other`` that differ from ``facts``, joined by ", ", or "" if none do.

        An empty ``other`` (from ds4's own files, which record no settings) matches everything.
        """
        names = sorted(self.facts.keys() | other.keys()) if other else ()
        return ", ".join(name for name in names if self.facts.get(name) != other.get(name))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Return the pre-tokenizer's name and a digest of all token strings."""
    strings = (tokenizer.token_string(i).encode("utf-8", "surrogatepass") for i in range(len(tokenizer)))
    digest = hashlib.sha256(b"\0".join(strings)).hexdigest()
    return f"{tokenizer.split} sha256:{digest}"


def template_digest(profile: Profile | None = None) -> str:
    """Return a digest of the chat template: the digest of a conversation with every kind of turn, rendered in all
    modes."""
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
    for mode in ("none", "high", "max"):
        for part, schemas in ((talk, ['{"name":"look"}']), (talk, []), (talk[:4], [])):
            sha.update(prompt_of(profile, part, schemas, mode).text.encode() + b"\0")
    return f"sha256:{sha.hexdigest()}"
