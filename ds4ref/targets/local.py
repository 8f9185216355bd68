"""The local engine as a target: everything, including full logits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine import Engine
from ..errors import TargetError
from ..files import file_digest
from ..generate import decode
from ..sampling import Sampler, token_logprob, top_logprobs
from ..text.protocol import EOS
from .base import Ability, Delta, Prompt, Request, Step, Target, Token, Usage

if TYPE_CHECKING:
    from ..session.session import Session
    from ..text.tokenizer import Tokenizer

DEFAULT_CTX = 32768
SCORE_ROWS = 128
EOS_SPELLINGS = (EOS, "<\uff5c\uff5cend\u2581of\u2581sentence\uff5c\uff5c>")
"""Ours, and the one of the hosted API."""


class LocalTarget(Target):
    """An Engine in this process. It keeps one session, so prompts that extend each other share their prefill."""

    kind = "local"
    abilities = frozenset(Ability)

    def __init__(self, engine: Engine, ctx: int = DEFAULT_CTX):
        self.engine, self.ctx = engine, ctx
        self.name = f"{engine.path}"
        self.max_top_logprobs = engine.shape.vocab
        self._session: Session | None = None
        self._index: dict[bytes, int] = {}
        self._digest = ""

    @classmethod
    def open(cls, path: str | None = None, *, ctx: int = DEFAULT_CTX, **options: Any) -> LocalTarget:
        """``options`` are those of Engine.open (backend, numerics, threads, strict)."""
        return cls(Engine.open(path, **options), ctx)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; TextError if the file has none."""
        return self.engine.tokenizer

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        if prompt.ids is not None:
            return list(prompt.ids)
        if prompt.text is not None:
            return self.tokenizer.encode(prompt.text)
        ids = self.engine.prompt(prompt.user or "", prompt.system, prompt.thinking)
        return ids + self.tokenizer.encode(prompt.answer)

    def stream(self, request: Request) -> Iterator[Delta]:
        """Decode on this process's clock; EOS is reported as a last step without text, as dumps do."""
        from ..text.stream import StopHolder, StreamDecoder

        start = time.perf_counter()
        ids, session = self.encode(request.prompt), self._ready(request.ctx)
        reused = session.common_prefix(ids) if session.valid else 0
        reused = reused if reused == session.pos else 0
        session.sync(ids)
        sampler = Sampler(request.temperature, top_p=request.top_p, min_p=request.min_p, seed=request.seed)
        decoder, holder = StreamDecoder(self.tokenizer), StopHolder(request.stop)
        limit = min(request.max_tokens, session.ctx - session.pos)
        finish, made, eos = "length", 0, self.tokenizer.eos
        for token in decode(session, lambda s: sampler.pick(s.logits), limit, eos, last=False):
            step = self._step(session.logits, token, request.top_logprobs, time.perf_counter() - start)
            made += 1
            if token == eos:
                finish = "stop"
                yield Delta("", (step,), time.perf_counter() - start)
                break
            text = holder.feed(decoder.feed(token))
            yield Delta(text, (step,), time.perf_counter() - start)
            if holder.stopped:
                finish = "stop"
                break
        tail = "" if holder.stopped else holder.feed(decoder.finish()) + holder.finish()
        usage = Usage(len(ids), made, reused)
        yield Delta(tail, (), time.perf_counter() - start, finish, usage, self.name)

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """One prefill over prompt and continuation. Bytes that are no single token are tokenized as text."""
        ids, forced = self.encode(prompt), [self._token_id(raw) for raw in continuation]
        if not ids:
            raise TargetError("nothing precedes the first token: an empty prompt gives no distribution")
        return self._scored(ids, forced, top_logprobs)

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """The text is tokenized plainly, without BOS, as ds4's perplexity does (docs/ds4.md)."""
        return self.score_ids(self.tokenizer.encode(text), top_logprobs)

    def score_ids(self, ids: Sequence[int], top_logprobs: int = 0) -> list[Step]:
        """Every token of ``ids`` given those before it; the first has no logprob."""
        if not ids:
            return []
        first = Step(Token(self.tokenizer.token_bytes(ids[0]), None, int(ids[0])))
        return [first, *self._scored(list(ids[:1]), list(ids[1:]), top_logprobs)]

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """(T, vocab) float32 from an empty session."""
        return self.engine.logits(ids)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Token ids of a text."""
        return self.tokenizer.encode_rendered(text) if control else self.tokenizer.encode(text)

    def identity(self) -> dict[str, Any]:
        """Kind, model and how it was computed."""
        from .. import __version__

        if not self._digest:
            self._digest = file_digest(self.engine.path)
        return {
            "kind": self.kind,
            "name": self.engine.gguf.metadata.get("general.name") or self.engine.path,
            "engine": f"ds4ref {__version__}",
            "backend": self.engine.backend,
            "numerics": self.engine.model.numerics.name,
            "bytes": self.engine.gguf.size,
            "digest": self._digest,
        }

    def close(self) -> None:
        """Unmap the model."""
        self._session = None
        self.engine.close()

    def _ready(self, ctx: int | None) -> Session:
        size = ctx or self.ctx
        if self._session is None or self._session.ctx < size:
            self._session = self.engine.session(size)
        return self._session

    def _scored(self, before: list[int], forced: list[int], top: int) -> list[Step]:
        """Steps of ``forced`` after ``before``, a few rows of logits at a time: a long text's logits fill no memory."""
        if not forced:
            return []
        session = self.engine.session(len(before) + len(forced) + 1)
        if len(before) > 1:
            session.sync(before[:-1])
        steps: list[Step] = []
        fed = [before[-1], *forced[:-1]]
        for start in range(0, len(fed), SCORE_ROWS):
            rows = session.extend(fed[start : start + SCORE_ROWS])
            wanted = forced[start : start + SCORE_ROWS]
            steps += [self._step(row, token, top, None) for row, token in zip(rows, wanted, strict=True)]
        return steps

    def _token_id(self, raw: bytes) -> int:
        if raw.decode(errors="replace") in EOS_SPELLINGS:
            return self.tokenizer.eos
        for ids in (self.tokenizer.encode(raw), self.tokenizer.encode_rendered(raw)):
            if len(ids) == 1:
                return ids[0]
        found = self._by_bytes().get(raw)
        if found is None:
            raise TargetError(f"{raw!r} is not a token of {self.name}")
        return found

    def _by_bytes(self) -> dict[bytes, int]:
        if not self._index:
            tok = self.tokenizer
            self._index = {tok.token_bytes(i): i for i in reversed(range(len(tok)))}
        return self._index

    def _step(self, logits: np.ndarray, token: int, top: int, at: float | None) -> Step:
        raw = self.tokenizer.token_bytes
        best = top_logprobs(logits, top) if top else []
        return Step(
            Token(raw(token), token_logprob(logits, token), token, float(logits[token])),
            tuple(Token(raw(i), lp, i, logit) for i, logit, lp in best if i >= 0),
            at,
        )
