"""A model without weights: a byte tokenizer, and sessions that say what a script tells them to.

Only the engine is faked; tokenizer, sampler and everything in the command line are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from ds4ref import sampling
from ds4ref.errors import Cancelled, ContextError, SessionError
from ds4ref.text import protocol
from ds4ref.text.byte_level import ALPHABET
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.weights.source import Metadata

VOCAB = 300
"""Wider than the tokenizer, as real models are."""


def byte_tokenizer() -> Tokenizer:
    """256 bytes as ids 0..255, then the seven control tokens."""
    return Tokenizer([*ALPHABET, *protocol.SPECIALS], [])


class FakeSession:
    """After a sync, the logits point at the tokens of ``answer`` one by one, then at EOS.

    ``before_eval`` is called with the number of tokens generated so far; ``chunk`` cuts the prefill.
    """

    def __init__(self, ctx: int, eos: int, answer: Sequence[int]):
        self.ctx, self.eos, self.answer = ctx, eos, list(answer)
        self.tokens: list[int] = []
        self.valid = False
        self.prompt_len = 0
        self.before_eval: Callable[[int], None] = lambda n: None
        self.on_chunk: Callable[[int], None] = lambda done: None
        self.evaluated = 0

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def logits(self) -> np.ndarray:
        logits = np.linspace(0, 1, VOCAB, dtype=np.float32)
        at = self.pos - self.prompt_len
        logits[self.answer[at] if at < len(self.answer) else self.eos] = 50.0
        return logits

    def invalidate(self) -> None:
        self.tokens, self.valid = [], False

    def common_prefix(self, tokens: Sequence[int]) -> int:
        if not self.valid:
            return 0
        n = 0
        while n < min(self.pos, len(tokens)) and self.tokens[n] == tokens[n]:
            n += 1
        return n

    def rewind(self, pos: int) -> None:
        """As far back as it was prefilled: tokens of the answer can be dropped, and nothing before them."""
        if not self.prompt_len <= pos <= self.pos:
            raise SessionError("out of reach")
        del self.tokens[pos:]
        self.rewound = [*getattr(self, "rewound", []), pos]

    def sync(self, tokens, progress=None, cancel=None, chunk=None) -> None:
        if len(tokens) >= self.ctx:
            raise ContextError("too long")
        if self.common_prefix(tokens) < self.pos:
            self.invalidate()
        for start in range(self.pos, len(tokens), chunk or 8):
            self.on_chunk(start)
            if cancel and cancel():
                raise Cancelled("stopped")
            part = list(tokens[start : start + (chunk or 8)])
            self.tokens += part
            self.evaluated += len(part)
            self.valid = True
            if progress:
                progress(self.pos, len(tokens))
        self.prompt_len = self.pos

    def append(self, token: int) -> None:
        self.before_eval(self.pos - self.prompt_len + 1)
        if self.pos >= self.ctx:
            raise ContextError("full")
        self.tokens.append(int(token))
        self.evaluated += 1

    def passes(self, tokens, chunk=None, rows=1):
        self.calls = [*getattr(self, "calls", []), (len(tokens), chunk, rows)]
        for start in range(0, len(tokens), rows):
            part = tokens[start : start + rows]
            logits = np.stack([row_logits(self.pos + i, t) for i, t in enumerate(part)])
            self.tokens += list(part)
            self.valid = True
            yield start, logits

    def ranked(self, k: int) -> None:
        return None

    def logit(self, token: int) -> float:
        return float(self.logits[token])

    def argmax(self, exclude=None) -> int:
        return sampling.argmax(self.logits, exclude)

    def top_logprobs(self, k: int):
        return sampling.top_logprobs(self.logits, k)


def row_logits(position: int, token: int) -> np.ndarray:
    """Logits of ``extend``, a fixed function of position and token."""
    return np.random.default_rng(1000 * position + token).standard_normal(VOCAB).astype(np.float32)


class FakeEngine:
    """What ``Engine.open`` gives, as far as the command line looks at it."""

    def __init__(self, path: str, answer: bytes | Sequence[int] = b"Hello.", **options):
        self.path, self.answer, self.options = path, list(answer), options
        self.tokenizer = byte_tokenizer()
        self.eos = self.tokenizer.eos
        self.shape = SimpleNamespace(vocab=VOCAB)
        self.backend = options.get("backend", "cpu")
        self.model = SimpleNamespace(numerics=SimpleNamespace(name=options.get("numerics", "qat")))
        tensors = {"w": SimpleNamespace(nbytes=12288, offset=4, part=0)}
        keys = Metadata([("general.architecture", "string", "fake"), ("general.name", "string", "fake")])
        self.source = SimpleNamespace(metadata=keys, size=4, tensors=tensors, path=path)
        self.source.touch = lambda: iter([(8192, 16), (4096, 3)])
        self.sessions: list[FakeSession] = []
        self.drafts = self.steering = None
        self.cluster = None
        self.also: dict[str, object] = {}
        self.hooks: dict[str, object] = {}  # attributes of every session

    def together(self) -> SimpleNamespace:
        return SimpleNamespace(most=1, forget=lambda session: None)

    def expert_use(self) -> None:
        """No experts, no counts."""

    def session(self, ctx: int) -> FakeSession:
        self.sessions.append(FakeSession(ctx, self.eos, self.answer))
        vars(self.sessions[-1]).update(self.hooks)
        return self.sessions[-1]

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        pass
