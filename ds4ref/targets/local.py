"""The local engine as a target, with every ability."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import Engine
from ..errors import Cancelled, TargetError, UsageError
from ..files import file_digest
from ..generate import Generation, Timing, prefill
from ..sampling import Sampler, log_sum_exp, sampler_of, token_logprob, top_logprobs
from ..text.chat import MODES, ends_in_thinking
from ..text.official_parser import OfficialParser
from ..text.prompts import prompt_of
from ..text.protocol import EOS
from ..weights.source import files_of
from .answer import Delta, Finish, Step, Token, Usage
from .base import Ability, Prompt, Request, Target
from .reader import AnswerReader

if TYPE_CHECKING:
    from ..session.session import Session
    from ..text.tokenizer import Tokenizer

DEFAULT_CTX = 32768
SCORE_ROWS = 128
EOS_SPELLINGS = (EOS, "<\uff5c\uff5cend\u2581of\u2581sentence\uff5c\uff5c>")
"""Spellings of the EOS token: the model's own, and the one that DeepSeek's API returns."""


class LocalTarget(Target):
    """An engine in this process as a target.

    It keeps the ``sessions`` most recently used sessions (each with its KV cache), so that a prompt which begins with
    the tokens of one of them needs prefill only for the rest.
    """

    kind = "local"
    abilities = frozenset(Ability)

    def __init__(self, engine: Engine, ctx: int = DEFAULT_CTX, sessions: int = 1):
        if sessions < 1:
            raise UsageError(f"a local target keeps at least 1 session, not {sessions}")
        self.engine, self.ctx, self.sessions = engine, ctx, sessions
        self.name = f"{engine.path}"
        self.max_top_logprobs = engine.shape.vocab
        self._idle: list[Session] = []  # in order of use, the most recent last
        self._turn = threading.RLock()
        self._index: dict[bytes, int] = {}
        self._digest = ""

    @classmethod
    def open(cls, path: str | None = None, *, ctx: int = DEFAULT_CTX, sessions: int = 1, **options: Any) -> LocalTarget:
        """Open a model; ``options`` are those of Engine.open (backend, numerics, threads, strict)."""
        return cls(Engine.open(path, **options), ctx, sessions)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer; raise TextError if the file has none."""
        return self.engine.tokenizer

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, a conversation rendered with the chat template.

        Raise UsageError for an unknown thinking mode.
        """
        if prompt.ids is not None:
            return list(prompt.ids)
        if prompt.text is not None:
            return self.tokenizer.encode(prompt.text)
        if prompt.thinking not in MODES:
            raise UsageError(f"unknown thinking mode {prompt.thinking!r}: choose from {', '.join(MODES)}")
        ids = prompt_of(self.tokenizer.profile, prompt.messages, prompt.tools, prompt.thinking).encode(self.tokenizer)
        return ids + self.tokenizer.encode(prompt.answer)

    def stream(self, request: Request) -> Iterator[Delta]:
        """Generate the answer to ``request``, yielding deltas; EOS, if reached, is a last step without text.

        Several streams may be open at the same time, in one thread or in several: each has a session of its own, and
        the engine computes one token at a time for one of them.
        """
        start = time.perf_counter()
        ids, sampler = self.encode(request.prompt), _sampler(self.engine, request)
        inside, asked = ends_in_thinking(ids, self.tokenizer), request.prompt
        chat = self.tokenizer.profile is not None and asked.ids is None and asked.text is None
        official = OfficialParser(inside, bool(asked.tools), bool(asked.answer)) if chat else None
        reader, timing = AnswerReader(bool(asked.tools), request.stop, official=official), Timing()
        session = self._take(ids, request.ctx or self.ctx)
        generated, finish, thinking = 0, "", False
        try:
            with self._turn:
                prefill(session, ids, timing, cancel=request.cancel)
            generation = Generation(
                session, self.tokenizer, sampler, limit=request.max_tokens, thinking=inside, cancel=request.cancel,
                timing=timing, guide=request.guide, last=False,
            )  # fmt: skip
            pieces = iter(generation)
            while not reader.done:
                with self._turn:
                    piece = next(pieces, None)
                    end = generation.end
                    token = end if piece is None else piece.token
                    step = (
                        None if token is None else step_of(self.tokenizer, session.logits, token, request.top_logprobs)
                    )
                now = time.perf_counter() - start
                steps = () if step is None else (replace(step, time=now),)
                generated += len(steps)
                if piece is not None or steps:
                    yield replace(Delta() if piece is None else reader.feed(piece), steps=steps, time=now)
                if piece is None:
                    break
            finish, thinking = generation.finish, generation.thinking
        except Cancelled:
            finish = Finish.CANCELLED
        finally:
            self._give_back(session)
        rest = reader.finish("" if reader.done else finish, thinking)
        usage = Usage(len(ids), generated, timing.reused_tokens, reader.reasoning_tokens)
        yield replace(
            rest, time=time.perf_counter() - start, finish=reader.reason(finish), usage=usage, model=self.name,
            error=reader.generated.error or "", markup=reader.generated.raw_block,
        )  # fmt: skip

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """Score a continuation with one prefill over prompt and continuation (``Target.score``).

        Raise TargetError if an entry of ``continuation`` is not the bytes of a single token.
        """
        return self.score_after(self.encode(prompt), [self._token_id(raw) for raw in continuation], top_logprobs)

    def score_after(self, ids: Sequence[int], forced: Sequence[int], top_logprobs: int = 0) -> list[Step]:
        """Score the given continuation ``forced`` of the prompt ``ids``, both token ids, with one prefill."""
        if not ids:
            raise TargetError("an empty prompt has no distribution for its first token")
        return [step for piece in self._pieces(list(ids), list(forced), top_logprobs) for step in piece]

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """Score every token of a text.

        As in ds4's perplexity tool, no BOS is added and no control token is recognized (docs/reference/ds4.md).
        """
        return self.score_ids(self.tokenizer.encode(text), top_logprobs)

    def score_ids(self, ids: Sequence[int], top_logprobs: int = 0) -> list[Step]:
        """Score every token of ``ids`` given the tokens before it; the first step has no logprob."""
        return [step for piece in self.score_pieces(ids, top_logprobs) for step in piece]

    def score_pieces(self, ids: Sequence[int], top_logprobs: int = 0) -> Iterator[list[Step]]:
        """Yield the steps of ``score_ids`` in batches as they are computed, so that callers can stop early."""
        if ids:
            yield [Step(Token(self.tokenizer.token_bytes(ids[0]), None, int(ids[0])))]
            yield from self._pieces(list(ids[:1]), list(ids[1:]), top_logprobs)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits after each token, (T, vocab) float32, computed in an empty session."""
        return self.engine.logits(ids)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Return the token ids of a text; ``control``: recognize control tokens in it, such as "<think>"."""
        return self.tokenizer.encode_rendered(text) if control else self.tokenizer.encode(text)

    def identity(self) -> dict[str, Any]:
        """Return engine, model, backend, numerics, the size and digest of the model file, and all that changes results.

        The latter are the settings in ``Engine.also``.
        """
        from ..archs.deepseek4.checkpoint import release_of
        from ..version import __version__

        if not self._digest:
            self._digest = file_digest(*files_of(self.engine.source))
        return {
            "kind": self.kind,
            "name": self.engine.source.metadata.get("general.name") or self.engine.path,
            "engine": f"ds4ref {__version__}",
            "backend": self.engine.backend,
            "numerics": self.engine.model.numerics.name,
            "bytes": self.engine.source.size,
            "digest": self._digest,
            **release_of(self.engine.source),
            **self.engine.also,
        }

    def close(self) -> None:
        """Close the engine, which unmaps the model."""
        self._idle.clear()
        self.engine.close()

    def _take(self, ids: Sequence[int], ctx: int) -> Session:
        """Take a session with room for ``ctx`` tokens out of the pool, until ``_give_back`` returns it.

        It is the session that already holds the longest prefix of ``ids``; if none does, a new one as long as fewer
        than ``sessions`` are idle, else the least recently used.
        """
        with self._turn:
            known = [s for s in self._idle if s.ctx >= ctx and s.valid and s.common_prefix(ids) == s.pos]
            session = max(known, key=lambda s: s.pos, default=None)
            if session is None and len(self._idle) >= self.sessions:
                session = self._idle[0]
            if session is not None:
                self._idle.remove(session)
            return session if session is not None and session.ctx >= ctx else self.engine.session(ctx)

    def _give_back(self, session: Session) -> None:
        with self._turn:
            self._idle.append(session)
            del self._idle[: -self.sessions]

    def _pieces(self, before: list[int], forced: list[int], top: int) -> Iterator[list[Step]]:
        """Yield the steps of the tokens ``forced`` after the tokens ``before``, with ``top`` alternatives each.

        They come in batches of ``SCORE_ROWS``, to limit the memory that logits take.
        """
        if not forced:
            return
        session = self.engine.session(len(before) + len(forced) + 1)
        if len(before) > 1:
            session.sync(before[:-1])
        fed = [before[-1], *forced[:-1]]
        for start, rows in session.passes(fed, rows=SCORE_ROWS):
            wanted = forced[start : start + len(rows)]
            yield [step_of(self.tokenizer, row, token, top) for row, token in zip(rows, wanted, strict=True)]

    def _token_id(self, raw: bytes) -> int:
        if raw.decode(errors="replace") in EOS_SPELLINGS:
            return self.tokenizer.eos
        for ids in (self.tokenizer.encode(raw), self.tokenizer.encode_rendered(raw)):
            if len(ids) == 1:
                return ids[0]
        token = self._by_bytes().get(raw)
        if token is None:
            raise TargetError(f"{raw!r} is not a token of {self.name}")
        return token

    def _by_bytes(self) -> dict[bytes, int]:
        if not self._index:
            from ..text.vocabulary import ids_by_bytes

            self._index = ids_by_bytes(self.tokenizer)
        return self._index


def step_of(tokenizer: Tokenizer, logits: np.ndarray, token: int, top: int, at: float | None = None) -> Step:
    """Return the step of ``token``, with its log probability under ``logits`` (vocab,) and ``top`` alternatives.

    ``at`` is its arrival time in seconds, None if unknown.
    """
    raw = tokenizer.token_bytes
    total = log_sum_exp(logits)
    best = top_logprobs(logits, top, total) if top else []
    alternatives = tuple(Token(raw(i), lp, i, logit) for i, logit, lp in best if i >= 0)
    return Step(Token(raw(token), token_logprob(logits, token, total), token, float(logits[token])), alternatives, at)


def _sampler(engine: Engine, request: Request) -> Sampler:
    return sampler_of(engine.source, request.temperature, top_p=request.top_p, min_p=request.min_p, seed=request.seed)
