"""From what the user typed to the token ids that the model sees (docs/text.md 3).

The command line builds prompts piece by piece: special tokens by id, all text by plain tokenization, so that a message
cannot smuggle in control tokens. The one exception is a prompt that starts with the BOS string: it is taken as an
already rendered chat.
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import TokenError, UsageError
from ..text.chat import THINK_MAX_MIN_CTX, encode_chat_prompt, ends_in_thinking, mode_for_context
from ..text.protocol import BOS
from .common import read_text, say
from .options import printable

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Source:
    """What the user gave, read and checked as far as that goes without a model: ``text`` or ``ids``."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    where: str = ""


def read_source(args: Namespace) -> Source:
    """The prompt that the flags name. Raises UsageError for a file that cannot be read or is not what it should be."""
    if args.token_ids is not None:
        return Source(ids=read_ids(args.token_ids), where=args.token_ids)
    text = args.prompt if args.prompt is not None else read_text(args.prompt_file, "prompt file")
    if not text:
        raise UsageError("the prompt is empty")
    return Source(text=text)


def read_ids(path: str) -> tuple[int, ...]:
    """A JSON list of token ids; UsageError names the first position that is not an integer >= 0."""
    try:
        ids = json.loads(read_text(path, "token ids"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read token ids {path}: not JSON: {error}") from None
    if not isinstance(ids, list) or not ids:
        raise UsageError(f"cannot read token ids {path}: a non-empty JSON list of integers is needed")
    for at, value in enumerate(ids):
        if type(value) is not int or value < 0:
            shown = printable(json.dumps(value), 40)
            raise UsageError(f"cannot read token ids {path}: item {at} is {shown}, not an integer >= 0")
    return tuple(ids)


def check_ids(ids: tuple[int, ...], vocab: int, where: str) -> list[int]:
    """``ids`` as a list; TokenError for the first one outside the vocabulary."""
    for at, value in enumerate(ids):
        if value >= vocab:
            raise TokenError(f"{where}: item {at} is {value}, but the vocabulary has {vocab} tokens (0..{vocab - 1})")
    return list(ids)


def think_mode(prog: str, args: Namespace) -> str:
    """The thinking mode in force: "max" needs a large context and is "high" below it, with a warning."""
    if args.think == "max" and mode_for_context("max", args.ctx) != "max":
        say(
            prog,
            f"warning: --think-max needs --ctx >= {THINK_MAX_MIN_CTX}; ctx={args.ctx} uses normal thinking instead",
        )
    return mode_for_context(args.think, args.ctx)


def encode(source: Source, tok: Tokenizer, vocab: int, system: str, mode: str) -> tuple[list[int], bool]:
    """Token ids of a one-shot prompt, and whether the answer starts inside ``<think>``."""
    if source.ids is not None:
        ids = check_ids(source.ids, vocab, source.where)
    elif source.text.startswith(BOS):
        ids = tok.encode_rendered(source.text)
    else:
        ids = encode_chat_prompt(tok, system, source.text, mode)
    return ids, ends_in_thinking(ids, tok)
