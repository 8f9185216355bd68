"""Answers without a model: random logits, guided. Whatever may come out of the real one may come out of this."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ds4ref.generate import Piece
from ds4ref.server.constrain import guide_of
from ds4ref.server.turn import Turn
from ds4ref.targets.answer import Finish
from ds4ref.targets.reader import AnswerReader
from ds4ref.text.official_parser import OfficialParser
from ds4ref.text.stream import StreamDecoder
from ds4ref.text.tokenizer import Tokenizer


def walk(
    turn: Turn,
    tokenizer: Tokenizer,
    tokens: int = 200,
    seed: int = 0,
    max_reasoning: int | None = None,
    script: bytes | str | list[int] | None = None,
    closing: float = 2.0,
    ascii_only: bool = True,
) -> SimpleNamespace:
    """One answer: ``text``, ``reasoning``, ``calls``, ``finish``, ``tokens``, ``reader``, ``guide``.

    ``script`` is what the model would like to say, as tokens one by one; where that is not allowed, and behind it, it
    draws. ``closing`` is by how much it likes what ends something, so that answers of a few hundred tokens end.
    """
    rng = np.random.default_rng(seed)
    guide = guide_of(turn, tokenizer, max_reasoning)
    official = None if turn.profile is None else OfficialParser(turn.thinking != "none", bool(turn.callable))
    reader, decoder = AnswerReader(bool(turn.callable), official=official), StreamDecoder(tokenizer)
    wanted = list(tokenizer.encode_rendered(script)) if isinstance(script, (str, bytes)) else list(script or ())
    generation: Any = SimpleNamespace(tokens=[], thinking=turn.thinking != "none", limit=tokens, cancel=lambda: False)
    taste = np.zeros(len(tokenizer), np.float32)
    for i in range(len(tokenizer)):
        data = tokenizer.token_bytes(i)
        plain = data.isascii() or i == tokenizer.dsml
        ends = data[:1] in (b'"', b"}", b"]") or data == b"</" or i in (tokenizer.eos, tokenizer.dsml)
        taste[i] = closing * ends - 6 * (ascii_only and not plain)
    finish, said = "length", 0
    for _ in range(tokens):
        logits = (taste + rng.gumbel(size=len(tokenizer))).astype(np.float32)
        if said < len(wanted):
            logits[wanted[said]] = 50
        picked = None if guide is None else guide(generation, logits)
        token = picked if isinstance(picked, int) else int((logits if picked is None else picked).argmax())
        said += said < len(wanted) and token == wanted[said]
        if token == tokenizer.eos:
            finish = "stop"
            break
        generation.tokens.append(token)
        if token in (tokenizer.think_open, tokenizer.think_close):
            reader.feed(Piece(token, decoder.finish(), generation.thinking))
            generation.thinking = token == tokenizer.think_open
        else:
            reader.feed(Piece(token, decoder.feed(token), generation.thinking))
        if reader.done:
            break
    ended = "" if reader.done else finish
    reader.finish(ended, generation.thinking)
    return SimpleNamespace(
        text=reader.text, reasoning=reader.reasoning, calls=reader.generated.calls, block=reader.generated.raw_block,
        finish=Finish(reader.reason(ended)), tokens=generation.tokens, reader=reader, guide=guide, said=said,
    )  # fmt: skip
