"""Prompts whose answers repeat differently much, to measure what drafting is worth.

    prose    a story goes on: next to nothing is repeated
    edit     a module of code, to be written again with a few changes
    json     a tool's result, to be listed as a table: values are copied in another form
    random   a list of random words, sampled at temperature 1: drafts are hardly ever right

All are generated here, equal for equal seeds. Longer prompts (``depth``) begin with prose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ds4ref.nano.prose import Writer, prose

BYTES = 4
"""Bytes of text that are taken for a token."""


@dataclass(frozen=True)
class Scene:
    """A kind of prompt: what is asked, and the temperature of the answer."""

    name: str
    temperature: float = 0.0

    def prompt(self, depth: int, tokens: int, seed: int) -> str:
        """Return a prompt of about ``depth`` tokens, or more if what it asks for, an answer of at least ``tokens``
        tokens, needs more."""
        question = _QUESTIONS[self.name](BYTES * tokens, seed)
        missing = BYTES * depth - len(question)
        return (prose(missing, seed)[:missing] + "\n\n" if missing > 0 else "") + question


def _story(length: int, seed: int) -> str:
    return prose(max(length // 2, 200), seed + 1000) + "\nGo on with this story.\n"


def _code(length: int, seed: int) -> str:
    writer, lines, size = Writer(seed), ["import math", "", ""], 0
    while size < length:
        name, unit = writer.expand("{adj}_{noun}"), writer.expand("{noun}")
        one, two = 2 + writer.below(90), 2 + writer.below(90)
        more = [
            f"def {name}_{len(lines)}({unit}, limit={one}):",
            f'    """{writer.expand("{Adj} {noun} of the {adj} {noun}.")}"""',
            f"    total = {unit} * {two}",
            f"    for step in range(limit - {one % 7}):",
            f"        total += math.sqrt(step + {two})",
            "    return total", "", "",
        ]  # fmt: skip
        lines += more
        size += sum(map(len, more))
    return "\n".join([*lines, "Write the whole module again, with `total` renamed to `amount` in every function."])


def _records(length: int, seed: int) -> str:
    writer, records, size = Writer(seed), [], 0
    while size < length:
        records.append({
            "path": writer.expand("src/{noun}/{adj}_{noun}.py"), "size": 100 + writer.below(90_000),
            "modified": f"2026-{1 + writer.below(12):02d}-{1 + writer.below(28):02d}", "owner": writer.expand("{name}"),
        })  # fmt: skip
        size += 40
    return json.dumps(records, indent=1) + "\nList path, size and owner of every record as a Markdown table.\n"


def _words(length: int, seed: int) -> str:
    return f"Write {length // 6} English words that have nothing to do with each other (list {seed}).\n"


_QUESTIONS = {"prose": _story, "edit": _code, "json": _records, "random": _words}
SCENES = {name: Scene(name, 1.0 if name == "random" else 0.0) for name in _QUESTIONS}
