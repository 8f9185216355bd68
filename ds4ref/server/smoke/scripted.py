"""Our server over the embedded model, whose tokens are picked by a script wherever an agent has to be led on.

    python -m ds4ref.server.smoke.scripted [options of ds4-server]

The embedded model's weights are random: no agent gets a call out of it that it did not force, and agents force none.
So the words are scripted, and nothing else is: prompts are evaluated, snapshots kept and gone on with, tokens decoded,
read and sent as always. The script is a steering (``generate.Steer``), which is how answers are held to a form, too;
what a request demands of its answer (a schema, a choice of tools) comes first and is steered as in any other server.

The script: read the file that the user names, with whatever tool reads files or runs commands; say the secret word
that the result holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...text.chat import Message
from ...text.dsml import ToolCall, render_calls
from ...text.schemas import Schema, by_name
from .task import FILE, SECRET

if TYPE_CHECKING:
    import numpy as np

    from ...text.tokenizer import Tokenizer
    from ..turn import Turn

THOUGHT = "First I look into the file."
READERS = ("read", "read_file", "readfile", "view", "open_file")
SHELLS = ("exec_command", "shell_command", "shell", "bash", "run_shell_command", "terminal", "execute")
"""Names of tools, in lower case; readers of files are tried first."""
_PATHS, _COMMANDS = ("path", "file_path", "filepath", "absolute_path", "filename"), ("command", "cmd", "script")


def said(turn: Turn) -> str:
    """What the model says to ``turn``, behind its thoughts: text, or a block with one call."""
    results = list(_results(turn.messages))
    if results:
        found = [word for text in results for word in SECRET.findall(text)]
        return f"The secret word is {found[-1]}." if found else f"There is no secret word in {results[-1][:200]!r}."
    paths = [path for m in turn.messages if m.role == "user" for path in FILE.findall(m.content)]
    call = None if not paths else call_of(list(by_name(turn.tools).values()), paths[-1])
    if call is None or turn.choice.kind == "none":
        return "Hello."
    return "I read it." + "".join(part.text for part in render_calls([call]))


def _results(messages: Sequence[Message]) -> Iterator[str]:
    """The texts of the results since the model last said something."""
    last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=len(messages))
    return (m.content for m in messages[last + 1 :] if m.role in ("tool", "function") or m.result_ids)


def call_of(tools: Sequence[Schema], path: str) -> ToolCall | None:
    """A call that shows the file ``path``; None if no tool would."""
    functions = {tool.bare.lower(): tool for tool in tools if tool.kind == "function"}
    for name in (*READERS, *SHELLS):
        if name in functions:
            arguments = arguments_for(json.loads(functions[name].parameters), path)
            if arguments is not None:
                return ToolCall(functions[name].name, json.dumps(arguments, ensure_ascii=False))
    return None


def arguments_for(schema: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """Arguments that fit ``schema`` and mean ``path``; None if there is no place for it."""
    known: Mapping[str, Any] = schema.get("properties") or {}
    made: dict[str, Any] = {}
    for name, of in known.items():
        lower = name.lower()
        if not made and lower in _PATHS:
            made[name] = path
        elif not made and lower in _COMMANDS:
            words = ["cat", path]
            made[name] = words if of.get("type") == "array" else " ".join(words)
    if not made:
        return None
    for name in schema.get("required") or ():
        made.setdefault(name, _some(known.get(name) or {}))
    return made


def _some(of: Mapping[str, Any]) -> Any:
    """A value of a property that has to be there."""
    if of.get("enum"):
        return of["enum"][0]
    kind = of.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    least = of.get("minimum", 1)
    return {"boolean": False, "integer": least, "number": least, "array": [], "object": {}, "null": None}.get(
        str(kind), "to read a file"
    )


class Script:
    """The steering of one answer: ``text``, token by token, then the end."""

    cut = False  # it never ends an answer early

    def __init__(self, text: str, tokenizer: Tokenizer):
        self.text, self.tokenizer = text, tokenizer
        self.ids: list[int] | None = None

    def __call__(self, generation: Any, logits: np.ndarray) -> int:
        """The next token. Where the prompt ends in thinking, a thought comes first."""
        if self.ids is None:
            thought = f"{THOUGHT}</think>" if generation.thinking else ""
            self.ids = [*self.tokenizer.encode_rendered(thought + self.text), self.tokenizer.eos]
        at = len(generation.tokens)
        return self.ids[min(at, len(self.ids) - 1)]


def steering(turn: Turn, tokenizer: Tokenizer) -> Any:
    """What is demanded of the answer, or else the script. Plain prompts are the model's own. Strict tools demand
    nothing as long as none is called, and what the script calls fits."""
    from .. import constrain

    if turn.text is not None or turn.ids is not None or turn.format or turn.choice.kind in ("required", "named"):
        return constrain.steering(turn, tokenizer)
    return Script(said(turn), tokenizer)


def main() -> int:
    """A server that runs until a signal comes."""
    from ...cli.common import run
    from ...cli.server import PROG, body

    return run(PROG, lambda argv: body(argv, steering))


if __name__ == "__main__":
    sys.exit(main())
