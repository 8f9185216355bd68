"""Converts the user's prompt to token ids (docs/explanation/text.md 3).

The command line builds prompts piece by piece: special tokens by id, all text by plain tokenization, so that text in a
message cannot become a control token. The one exception is a prompt that starts with the BOS string: it is taken as an
already rendered chat.
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..console.common import read_text, say
from ..console.options import printable
from ..errors import TokenError, UsageError
from ..text.chat import THINK_MAX_MIN_CTX, ends_in_thinking, mode_for_context
from ..text.prompts import encode_chat_prompt
from ..text.protocol import BOS, DEFAULT_SYSTEM

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PromptSource:
    """The user's prompt, either as ``text`` or as token ``ids``, validated as far as possible without a model.

    ``where``: the flag it comes from, for error messages.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    where: str = ""


def read_source(args: Namespace) -> PromptSource:
    """Return the prompt that the flags name; UsageError for a file that cannot be read or parsed."""
    if args.token_ids is not None:
        return PromptSource(ids=read_ids(args.token_ids), where=args.token_ids)
    return PromptSource(args.prompt if args.prompt is not None else read_text(args.prompt_file, "prompt file"))


def read_ids(path: str) -> tuple[int, ...]:
    """Read a JSON list of token ids; UsageError names the first item that is not an integer >= 0."""
    try:
        ids = json.loads(read_text(path, "token ids"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read token ids {path}: not JSON: {error}") from None
    if not isinstance(ids, list) or not ids:
        raise UsageError(f"cannot read token ids {path}: expected a non-empty JSON list of integers")
    for at, value in enumerate(ids):
        if type(value) is not int or value < 0:
            value_text = printable(json.dumps(value), 40)
            raise UsageError(f"cannot read token ids {path}: item {at} is {value_text}, not an integer >= 0")
    return tuple(ids)


def check_ids(ids: tuple[int, ...], vocab: int, where: str) -> list[int]:
    """Return ``ids`` as a list; raise TokenError for the first one not below ``vocab``. ``where``: the flag they come
    from."""
    for at, value in enumerate(ids):
        if value >= vocab:
            raise TokenError(f"{where}: item {at} is {value}, but the vocabulary has {vocab} tokens (0..{vocab - 1})")
    return list(ids)


def think_mode(prog: str, args: Namespace, tok: Tokenizer) -> str:
    """Return the thinking mode of the flags. With ds4's prompt format "max" becomes "high" in a small context, with a
    warning."""
    if tok.profile is not None:
        return str(args.think)
    if args.think == "max" and mode_for_context("max", args.ctx) != "max":
        say(
            prog,
            f"warning: --think-max needs --ctx >= {THINK_MAX_MIN_CTX}; ctx={args.ctx} uses normal thinking instead",
        )
    return mode_for_context(args.think, args.ctx)


def warn_of_system(tok: Tokenizer, system: str) -> None:
    """Print a warning if the user gave a system text but the model has no chat template to put it into."""
    if not tok.chats and system not in ("", DEFAULT_SYSTEM):
        say("ds4", "warning: the model has no chat template: system prompt ignored")


def encode(source: PromptSource, tok: Tokenizer, vocab: int, system: str, mode: str) -> tuple[list[int], bool]:
    """Return (token ids of a one-shot prompt, whether the answer starts inside ``<think>``). ``mode``: thinking mode.

    An empty prompt is allowed for models without a chat template that start every text with BOS; raise UsageError for
    others.
    """
    if source.ids is None and not source.text and (tok.chats or not tok.adds_bos):
        raise UsageError("the prompt is empty")
    if source.ids is not None:
        ids = check_ids(source.ids, vocab, source.where)
    elif source.text.startswith(BOS):
        ids = tok.encode_rendered(source.text)
    else:
        warn_of_system(tok, system)
        ids = encode_chat_prompt(tok, system, source.text, mode)
    return ids, ends_in_thinking(ids, tok)
