"""The decode loop: takes a session, a sampler and stop conditions; yields tokens with their text.

Used by the command line, local targets, server and evaluation. Chat rendering and tool-call markup are left out on
purpose: they work on the text that this loop yields.

    timing = Timing()
    prefill(session, tokens, timing)
    for piece in Generation(session, tokenizer, sampler, limit=100, timing=timing):
        print(piece.text, end="")
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .costs import PREFILL_CHUNK
from .errors import ContextError, SessionError, TokenError

if TYPE_CHECKING:
    import numpy as np

    from .sampling import Sampler
    from .sampling.adjust import Adjustment
    from .session.session import Session
    from .text.stream import StreamDecoder
    from .text.tokenizer import Tokenizer

Cancel = Callable[[], bool]
Progress = Callable[[int, int], None]
Guide = Callable[["Generation", "np.ndarray"], "int | np.ndarray | None"]
"""Callback that guides decoding: to limit thinking, to enforce a grammar, to decode a passage greedily.

It is called before every token with the generation so far (``tokens``, ``thinking``) and the logits (V,) float32,
read-only. It returns a token id to take, logits to sample from instead (-inf forbids a token), or None to leave the
choice to the sampler.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token and the text it completed.

    ``text`` is "" for think tags and for a token that ends inside a UTF-8 character; it may include the bytes of
    earlier tokens that had waited for the rest of a character. ``token`` is None for a last piece that flushes such
    bytes.
    """

    token: int | None
    text: str
    thinking: bool


@dataclass
class Timing:
    """Seconds of engine work, excluding time that the consumer spends printing or sending.

    reused_tokens    prompt tokens that were already in the session
    prefill_tokens   prompt tokens that were evaluated
    prefill_s        seconds of prefill
    tokens           generated tokens
    decode_s         seconds of decode
    first_token_s    seconds from the start of prefill to the first token with text: not a tag, not half a character
    """

    reused_tokens: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    tokens: int = 0
    decode_s: float = 0.0
    first_token_s: float | None = None

    @property
    def prefill_tps(self) -> float:
        """Return the prefill throughput in tokens per second, 0.0 if nothing was measured."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tps(self) -> float:
        """Return the decode throughput in tokens per second, 0.0 if nothing was measured."""
        return self.tokens / self.decode_s if self.decode_s > 0 else 0.0


def check_fits(n_tokens: int, ctx: int, room: int = 1) -> None:
    """Raise ContextError unless a prompt of ``n_tokens`` leaves ``room`` free slots in a context of ``ctx`` tokens.

    One free slot is always needed (docs/explanation/text.md 6); two if an answer is to follow.
    """
    if n_tokens + room > ctx:
        raise ContextError(f"the prompt has {n_tokens} tokens, a context of {ctx} takes at most {max(ctx - room, 0)}")


def check_finite(session: Any, token: int) -> None:
    """Raise SessionError if the logit of the picked token is NaN or infinite, which makes the pick meaningless."""
    if not math.isfinite(session.logit(token)):
        raise SessionError(f"the logits at position {session.pos} are not finite: damaged weights or a broken backend")


def prefill(
    session: Session,
    tokens: Sequence[int],
    timing: Timing,
    *,
    progress: Progress | None = None,
    cancel: Cancel | None = None,
    chunk: int | None = None,
) -> None:
    """Evaluate a prompt: bring ``session`` to exactly ``tokens``, and record the work in ``timing``.

    ``progress`` is called with (tokens done, tokens in all); ``chunk``: tokens per chunk (None: the session's). Raise
    Cancelled once ``cancel()`` returns true (checked between layers; the session then stays at the last finished
    chunk), ContextError if the tokens do not fit.
    """
    check_fits(len(tokens), session.ctx)
    common = session.common_prefix(tokens)
    timing.reused_tokens = common if common == session.pos else 0  # a diverging prefix is never reused
    start = time.perf_counter()
    try:
        session.sync(tokens, progress=progress, cancel=cancel, chunk=chunk)
    finally:
        timing.prefill_s = time.perf_counter() - start
        done = session.pos if session.valid else timing.reused_tokens
        timing.prefill_tokens = max(0, done - timing.reused_tokens)


def prefill_steps(
    session: Session, tokens: Sequence[int], timing: Timing, *, progress: Progress, cancel: Cancel
) -> Iterator[None]:
    """Evaluate a prompt as ``prefill`` does, but yield after every chunk except the last, so that other sessions may
    compute in between.

    Chunks and logits are the same as those of ``prefill``. The work is added to ``timing``; ``progress`` is called once
    for each position, with the number of tokens of the whole prompt as its total.
    """
    total, told = len(tokens), -1
    check_fits(total, session.ctx)

    def tell(done: int, _: int) -> None:
        nonlocal told
        if done != told:
            told = done
            progress(done, total)

    common = session.common_prefix(tokens)
    at = common if common == session.pos else 0
    while True:
        end = min(total, (at // PREFILL_CHUNK + 1) * PREFILL_CHUNK)
        part = Timing()
        try:
            prefill(session, tokens[:end], part, progress=tell, cancel=cancel)
        finally:
            timing.prefill_s += part.prefill_s
            timing.prefill_tokens += part.prefill_tokens
        if end == total:
            return
        at = end
        yield


def decode(
    session: Any,
    pick: Callable[[Any], int],
    limit: int,
    stop: Collection[int] = (),
    *,
    last: bool = True,
) -> Iterator[int]:
    """Yield up to ``limit`` generated tokens, each as soon as ``pick(session)`` has chosen it.

    A token is evaluated when the next one is requested. A token of ``stop`` ends the loop and is never evaluated.
    Otherwise the session advances by all tokens, or without ``last`` by all but the last. Raise SessionError if a
    picked logit is NaN or infinite.
    """
    for count in range(1, limit + 1):
        token = pick(session)
        check_finite(session, token)
        yield token
        if token in stop:
            return
        if count < limit or last:
            session.append(token)


class _Cancelled(Exception):
    """The caller has cancelled the generation."""


class Generation:
    """The answer to a prompt, decoded while this is iterated over; ``tokens``, ``finish`` and ``timing`` hold the
    result.

    Every picked token except EOS is yielded first and evaluated when the consumer asks for the next one, so text
    reaches the user one decode step earlier. After exhaustion the session holds exactly prompt + ``tokens``; if the
    consumer stopped early it may lag by the last token, which the next ``sync`` supplies.

    ``finish``: "stop" (an end-of-text token was picked, which ``end`` holds; it is neither evaluated nor part of the
    text, text.md 6), "length", "cancelled", or "" while running. ``limit`` is clipped so that one context slot stays
    free (text.md 6). Without ``last`` the last token of a full answer is not evaluated, and may take that slot.
    ``stop`` are texts at which the visible answer ends, without them; ``finish`` is then "stop", and ``stopped`` the
    text. ``thinking`` says whether the prompt ended inside ``<think>``; the state then follows the two think-tag ids,
    never text that looks like them. ``adjust`` changes the logits that tokens are chosen from, also those that
    ``guide`` returns; a token that ``guide`` returns is taken as it is. With ``past_end`` decoding goes on after an
    end-of-text token, which has no text.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        sampler: Sampler,
        *,
        limit: int,
        thinking: bool = False,
        cancel: Cancel | None = None,
        timing: Timing | None = None,
        guide: Guide | None = None,
        last: bool = True,
        adjust: Adjustment | None = None,
        past_end: bool = False,
        stop: Sequence[str] = (),
    ):
        self.session, self.tokenizer, self.sampler, self.adjust = session, tokenizer, sampler, adjust
        self.limit = max(0, min(limit, session.ctx - session.pos - last))
        self.guide, self.last, self.past_end, self.stop = guide, last, past_end, stop
        self.stopped: str | None = None
        self.thinking = thinking
        self.cancel = cancel or (lambda: False)
        self.timing = timing or Timing()
        self.tokens: list[int] = []
        self.finish = ""
        self.end: int | None = None
        self.pending: int | None = None
        """The token that the next step will evaluate first, for code that evaluates such tokens of several sessions in
        one pass."""

    def __iter__(self) -> Iterator[Piece]:
        from .text.stream import StopHolder, StreamDecoder

        decoder, holder = StreamDecoder(self.tokenizer), StopHolder(self.stop)
        try:
            for piece in self._decode(decoder):
                yield replace(piece, text=holder.feed(piece.text)) if self.stop and not piece.thinking else piece
                if holder.stopped is not None:
                    break
        except GeneratorExit:
            self.finish = "cancelled"
            raise
        tail, was = decoder.finish(), self.thinking
        rest = ("" if was else holder.feed(tail)) + holder.finish()
        if holder.stopped is not None:
            self.finish, self.stopped = "stop", holder.stopped
        if (tail if was else rest) and self.timing.first_token_s is None:
            self.timing.first_token_s = self.timing.prefill_s + self.timing.decode_s
        if was and tail:
            yield Piece(None, tail, True)
        if rest:
            yield Piece(None, rest, False)

    def _decode(self, decoder: StreamDecoder) -> Iterator[Piece]:
        """Yield a ``Piece`` for each generated token, and note the times; stop texts are not searched for here."""
        import numpy as np

        timing, tok = self.timing, self.tokenizer

        def pick(session: Session) -> int:
            if self.cancel():
                raise _Cancelled
            if self.guide is None and self.adjust is None:
                return self.sampler.choose(session)
            logits = session.logits
            wanted = None if self.guide is None else self.guide(self, logits)
            if isinstance(wanted, (int, np.integer)):
                if not 0 <= wanted < len(logits):
                    raise TokenError(f"guided to token {wanted}, outside the vocabulary (0..{len(logits) - 1})")
                return int(wanted)
            if self.adjust is not None:
                return self.sampler.pick(self.adjust(logits if wanted is None else wanted, self.tokens))
            return self.sampler.choose(session) if wanted is None else self.sampler.pick(wanted)

        steps = decode(self.session, pick, self.limit, () if self.past_end else tok.ends, last=self.last)
        while True:
            start = time.perf_counter()
            try:
                token = next(steps, None)
            except _Cancelled:
                self.finish = "cancelled"
                return
            finally:
                timing.decode_s += time.perf_counter() - start
            if token is None:
                self.finish = "cancelled" if self.cancel() else "length"
                return
            if token in tok.ends and not self.past_end:
                self.finish, self.end = "stop", token
                return
            start = time.perf_counter()
            self.tokens.append(token)
            timing.tokens = len(self.tokens)
            if token in (tok.think_open, tok.think_close):
                # A tag ends an incomplete character, whose bytes belong to the state before the tag.
                text, was = decoder.finish(), self.thinking
                self.thinking = token == tok.think_open
                piece = Piece(token, text, was)
            elif token in tok.ends:
                piece = Piece(token, decoder.finish(), self.thinking)
            else:
                piece = Piece(token, decoder.feed(token), self.thinking)
            timing.decode_s += time.perf_counter() - start
            if timing.first_token_s is None and piece.text:
                timing.first_token_s = timing.prefill_s + timing.decode_s
            self.pending = token if self.last or len(self.tokens) < self.limit else None
            yield piece
            self.pending = None
