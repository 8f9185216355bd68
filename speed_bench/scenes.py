"""Texts whose repetitions differ, to measure drafts on: a prompt and the answer that is to follow it.

    prose    a story goes on; next to nothing is repeated
    edit     a module of code, written again with every eighth line changed
    json     a tool's result, and a table of its records: values are copied, in another form
    random   token ids by chance, the worst case of every draft

All are generated here, the same for the same seed. The answers are what a model might write, for measuring a drafter
alone or with a model that is made to follow them; what a model itself answers is another text.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4ref.errors import UsageError
from ds4ref.nano.prose import Writer, prose

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

SCENES = ("prose", "edit", "json", "random")
CHANGED = 8
"""One line in so many is changed by an edit."""


@dataclass(frozen=True)
class Scene:
    """Token ids of a prompt, and of the answer that follows it."""

    name: str
    prompt: list[int]
    answer: list[int]


def scene(name: str, tokenizer: Tokenizer, tokens: int = 1024, seed: int = 1) -> Scene:
    """Return a scene by name, its answer of at least ``tokens`` tokens, cut to them; raise UsageError for another name.

    The prompt of "edit" and "json" is about as long as the answer, that of the others exactly so.
    """
    if name not in SCENES:
        raise UsageError(f"unknown scene {name!r}: choose from {', '.join(SCENES)}")
    if name == "random":
        chance = random.Random(seed)
        ids = [int(chance.random() * len(tokenizer)) for _ in range(2 * tokens)]
        return Scene(name, ids[:tokens], ids[tokens:])
    length = 4 * tokens
    while True:  # texts of more characters begin like those of fewer, but for their last lines
        if name == "prose":
            ids = tokenizer.encode(prose(2 * length, seed))
            prompt, answer = ids[:tokens], ids[tokens:]
        else:
            first, second = (edit if name == "edit" else records)(length, seed)
            prompt, answer = tokenizer.encode(first), tokenizer.encode(second)
        if len(answer) > tokens:
            return Scene(name, prompt, answer[:tokens])
        length *= 2


def edit(length: int, seed: int) -> tuple[str, str]:
    """Return a module of ``length`` characters or more with a request to change it, and the changed module."""
    writer, lines = Writer(seed), ["import math", "", ""]
    while sum(map(len, lines)) < length:
        name, unit = writer.expand("{adj}_{noun}"), writer.expand("{noun}")
        one, two = 2 + writer.below(90), 2 + writer.below(90)
        lines += [
            f"def {name}_{len(lines)}({unit}, limit={one}):",
            f'    """{writer.expand("{Adj} {noun} of the {adj} {noun}.")}"""',
            f"    total = {unit} * {two}",
            f"    for step in range(limit - {one % 7}):",
            f"        total += math.sqrt(step + {two})",
            f"    if total > {one * two}:",
            f"        return total - {unit}",
            "    return total",
            "",
            "",
        ]
    changed = [
        line.replace("total", "amount").replace("limit", "bound") if at % CHANGED == seed % CHANGED else line
        for at, line in enumerate(lines)
    ]
    return "\n".join([*lines, "", "Change the module as discussed, and write all of it.", ""]), "\n".join(changed)


def records(length: int, seed: int) -> tuple[str, str]:
    """Return a tool's result, JSON of ``length`` characters or more, and a table of its records."""
    writer, rows, size = Writer(seed), [], 0
    while size < length:
        row = {
            "path": writer.expand("src/{noun}/{adj}_{noun}.py"),
            "size": 100 + writer.below(90_000),
            "modified": f"2026-{1 + writer.below(12):02d}-{1 + writer.below(28):02d}",
            "owner": writer.expand("{name}"),
        }
        rows.append(row)
        size += len(f"| {row['path']} | {row['size']} | {row['owner']} |\n")
    table = "".join(f"| {row['path']} | {row['size']} | {row['owner']} |\n" for row in rows)
    head = "| path | size | owner |\n|---|---|---|\n"
    return json.dumps(rows, indent=1) + "\nList path, size and owner.\n", head + table
