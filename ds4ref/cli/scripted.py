"""``ds4-server`` on the embedded model with scripted answers, for ``ds4-server smoke``.

    python -m ds4ref.cli.scripted [options of ds4-server]

The tiny embedded model does not reliably call tools, and agents do not force a call. So a script chooses the tokens of
every answer that the request does not constrain (by a schema or a choice of tools). Everything else is real: the server
evaluates prompts, keeps and resumes snapshots, and decodes, parses and sends tokens.

The script: call any tool that reads files or runs commands, to read the file that the user names, then repeat the
secret word in the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..conformance.task import FILE, SECRET
from ..text.chat import Message
from ..text.dsml import ToolCall, render_calls
from ..text.schemas import Schema, by_name

if TYPE_CHECKING:
    import numpy as np

    from ..server.turn import Turn
    from ..text.tokenizer import Tokenizer

THOUGHT = "First I look into the file."
READERS = ("read", "read_file", "readfile", "view", "open_file")
SHELLS = ("exec_command", "shell_command", "shell", "bash", "run_shell_command", "terminal", "execute")
"""Names, in lower case, of tools that run shell commands; tools that read files are preferred."""
_PATHS, _COMMANDS = ("path", "file_path", "filepath", "absolute_path", "filename"), ("command", "cmd", "script")


def answer(turn: Turn) -> str:
    """Return the scripted answer to ``turn`` after its reasoning: text, or the markup of one tool call."""
    results = list(_results(turn.messages))
    if results:
        words = [word for text in results for word in SECRET.findall(text)]
        return f"The secret word is {words[-1]}." if words else f"There is no secret word in {results[-1][:200]!r}."
    paths = [path for m in turn.messages if m.role == "user" for path in FILE.findall(m.content)]
    call = None if not paths else call_of(list(by_name(turn.tools).values()), paths[-1])
    if call is None or turn.choice.kind == "none":
        return "Hello."
    return "I read it." + "".join(part.text for part in render_calls([call]))


def _results(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the tool results since the last message of the assistant."""
    last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=len(messages))
    return (m.content for m in messages[last + 1 :] if m.role in ("tool", "function") or m.result_ids)


def call_of(tools: Sequence[Schema], path: str) -> ToolCall | None:
    """Return a call of one of ``tools`` that shows the file ``path``; None if no tool can do that."""
    functions = {tool.bare.lower(): tool for tool in tools if tool.kind == "function"}
    for name in (*READERS, *SHELLS):
        if name in functions:
            arguments = arguments_for(json.loads(functions[name].parameters), path)
            if arguments is not None:
                return ToolCall(functions[name].name, json.dumps(arguments, ensure_ascii=False))
    return None


def arguments_for(schema: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """Return tool arguments that fit ``schema`` and name ``path``; None if no parameter takes a path."""
    known: Mapping[str, Any] = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for name, of in known.items():
        lower = name.lower()
        if not arguments and lower in _PATHS:
            arguments[name] = path
        elif not arguments and lower in _COMMANDS:
            words = ["cat", path]
            arguments[name] = words if of.get("type") == "array" else " ".join(words)
    if not arguments:
        return None
    for name in schema.get("required") or ():
        arguments.setdefault(name, _some(known.get(name) or {}))
    return arguments


def _some(of: Mapping[str, Any]) -> Any:
    """Return some valid value for a required property, given its JSON schema ``of``."""
    if of.get("enum"):
        return of["enum"][0]
    kind = of.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    least = of.get("minimum", 1)
    return {"boolean": False, "integer": least, "number": least, "array": [], "object": {}, "null": None}.get(
        str(kind), "to read a file"
    )


class Script:
    """A hook (``generate.Guide``) that forces an answer: the tokens of ``text``, then end of sequence."""

    def __init__(self, text: str, tokenizer: Tokenizer):
        self.text, self.tokenizer = text, tokenizer
        self.ids: list[int] | None = None

    def fresh(self) -> Script:
        """Return a new script with the same text, for another answer."""
        return Script(self.text, self.tokenizer)

    def __call__(self, generation: Any, logits: np.ndarray) -> int:
        """Return the script's next token; if the prompt ends inside ``<think>``, a scripted thought comes first."""
        if self.ids is None:
            thought = f"{THOUGHT}</think>" if generation.thinking else ""
            self.ids = [*self.tokenizer.encode_rendered(thought + self.text), self.tokenizer.eos]
        at = len(generation.tokens)
        return self.ids[min(at, len(self.ids) - 1)]


def guide_of(turn: Turn, tokenizer: Tokenizer) -> Any:
    """Return the hook for the answer to ``turn``: the constraint that the request demands (None for a plain prompt,
    left to the model), or else the script.

    Strict tools are not constrained, since the script's calls fit their schemas.
    """
    from ..server import constrain

    if turn.text is not None or turn.ids is not None or turn.format or turn.choice.kind in ("required", "named"):
        return constrain.guide_of(turn, tokenizer)
    return Script(answer(turn), tokenizer)


def main() -> int:
    """Serve until SIGINT or SIGTERM; return the exit code."""
    from ..console.common import run
    from .server import PROG, body

    return run(PROG, lambda argv: body(argv, guide_of))


if __name__ == "__main__":
    sys.exit(main())
