"""Make the pack for the embedded model: held-out questions of its skills, with honest keys.

Every question is one that the model was trained to answer, drawn with a seed that training never uses
(``ds4ref.nano.skills.held_out``); its key is computed. Facts are those that it learned by heart, asked once more. The
random model (``ds4 nano random``) answers none but by chance.

    python -m tests.eval.nano_pack eval/questions/nano.jsonl      makes the same file every time, in seconds
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from ds4ref.eval import packs
from ds4ref.eval.calls import call_text
from ds4ref.eval.packs import Header, Kind, Pack, Question
from ds4ref.nano.skills import Item, held_out
from ds4ref.text.tokenizer import Tokenizer

SEED = 24
SETTINGS: dict[str, int | float | str] = {
    "think": "none", "tokens": 96, "soft_limit": 0, "hard_limit": 0, "temperature": 0.0
}  # fmt: skip
"""Every right answer fits. Thinking that does not end by itself is not closed."""
CANARY = "ds4ref-eval nano canary 5f0c8d34-7a8e-4b1c-9c35-0f6a1be0d7b2: not for training data"
COUNTS = {
    "lists/copy": 8, "lists/reverse": 8, "lists/sort": 8, "facts": 16,
    "sums2": 8, "sums3": 8, "think/sums2": 8, "think/sums3": 8, "choice": 12, "think/choice": 12,
    "tools/fixed": 12, "tools/open": 12, "tools/result": 10, "topic": 10,
}  # fmt: skip
"""Number of questions of each skill but recall."""
RECALL = {
    32: ("recall/window", 8), 64: ("recall/window", 8),
    128: ("recall/near", 8), 256: ("recall/near", 8), 512: ("recall/near", 8),
    1024: ("recall/far", 8), 2048: ("recall/far", 6),
}  # fmt: skip
"""Skill and number of questions by depth in tokens."""


def tokens_back(item: Item, tokenizer: Tokenizer) -> int:
    """Return the number of tokens from the value of the asked fact to the answer; 1 would be adjacent."""
    prompt = item.prompt().text
    (end,) = (match.end() for match in re.finditer(rf" {item.reply.content}\b", prompt))
    return len(tokenizer.encode_rendered(prompt)) - len(tokenizer.encode_rendered(prompt[:end])) + 1


def items() -> list[tuple[Item, int]]:
    """Return all items with their depths (0: not of recall); every skill is spread over the whole list."""
    groups = [(0, held_out(skill, count, SEED)) for skill, count in COUNTS.items()]
    for depth, (skill, count) in RECALL.items():
        groups.append((depth, held_out(skill, count, SEED + depth, distance=depth)))
    placed = [(i / len(group), item, depth) for depth, group in groups for i, item in enumerate(group)]
    return [(item, depth) for _, item, depth in sorted(placed, key=lambda entry: entry[0])]


def question(item: Item, depth: int = 0) -> Question:
    """Return an item as a question of a pack."""
    asked = next(message.content for message in item.messages if message.role == "user")
    kind: Kind = "exact"
    choices: tuple[str, ...] = ()
    answer = item.reply.content
    if item.messages[0].role == "system":
        asked, _, rest = asked.partition("\n\nChoices:\n")
        choices = tuple(line.partition(". ")[2] for line in rest.partition("\n\n")[0].split("\n"))
        kind, answer = "choice", answer[-1]
    elif item.reply.calls:
        kind, answer = "call", call_text(item.reply.calls[0])
    called = [call_text(call) for message in item.messages for call in message.calls]
    plain = Question(
        "-", item.skill, item.skill.partition("/")[0], "generated", kind, asked, choices, answer, licence="MIT",
        think=item.mode if item.mode != "none" else "", tools=item.schemas, called="".join(called),
        result=item.messages[-1].content if called else "", guess=item.guess, depth=depth,
    )  # fmt: skip
    return msgspec.structs.replace(plain, id=f"{item.skill.replace('/', '-')}-{plain.digest[:8]}")


def make() -> Pack:
    """Return the pack."""
    about = "held-out questions of the skills that the embedded model was trained on"
    return Pack(Header(packs.NANO, 2, CANARY, "MIT", about, SETTINGS), tuple(question(*entry) for entry in items()))


if __name__ == "__main__":
    packs.write(make(), Path(sys.argv[1]))
