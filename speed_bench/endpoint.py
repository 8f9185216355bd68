"""The sweep on an OpenAI-compatible endpoint: what a client sees of it.

Every request is a prompt of its own, prefilled from nothing: it begins with a nonce, so that no prefix cache can answer
for the engine, and the server's count of cached tokens is checked where it tells one. Windows are those of the client:

    ttft     request sent to first text: prefill, the first token, queue and network
    itl      from one piece of text to the next (``steps_s``); servers may put several tokens into one piece
    e2e      request sent to the end of the stream

With several streams all begin at once, each with a nonce of its own; ``fairness`` is Jain's index of their rates: 1 if
all were served alike, 1/n if one got everything. How many characters make a depth is learnt from the server's own
count of prompt tokens, so that depths are met within a per cent or two; ``prompt_tokens`` says how many they were.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ds4ref.errors import Cancelled, DataError, TargetError
from ds4ref.targets import Ability, Completion, Delta, Prompt, Request, Target, collect

from .columns import Sample

CALIBRATION = 2000
"""Characters of the longer of the two requests that tell how long a token is."""
CACHED_SLACK, CACHED_SHARE = 64, 0.05
"""Cached prompt tokens that a nonce cannot prevent: a template before it, and blocks that are counted whole."""


@dataclass(frozen=True)
class Answer:
    """One finished stream, when it began (seconds of the process clock), and how many tokens its prompt had."""

    begin: float
    done: Completion
    prompt: int

    @property
    def tokens(self) -> int:
        """Generated tokens; pieces of text where the server does not count."""
        count = self.done.usage.completion
        return len(self.done.arrivals) if count is None else count

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.done.arrivals[0]

    @property
    def decode_tps(self) -> float:
        """Tokens per second after the first piece of text; 0 if there was only one."""
        seconds = self.done.arrivals[-1] - self.done.arrivals[0]
        return (self.tokens - 1) / seconds if seconds > 0 else 0.0


class Endpoint:
    """A target and the text that is walked. ``chat``: the text is one user turn under ``system``."""

    def __init__(self, target: Target, text: str, *, chat: bool = False, system: str = ""):
        target.require(Ability.CHAT if chat else Ability.TEXT, Ability.STREAM, what="the sweep")
        self.target, self.text, self.chat, self.system = target, text, chat, system
        self._points: dict[int, int] = {}  # characters of a prompt and its tokens

    def calibrate(self) -> None:
        """Two short requests without streaming, in whose answers every server counts tokens: they warm it up and tell
        how many characters make one. TargetError if it does not count."""
        longest = min(len(self.text), CALIBRATION)
        for characters in (longest // 5, longest):
            usage = self.target.complete(self._request(characters, 1)).usage
            if not usage.prompt:
                raise TargetError(f"{self.target.name} does not say how many prompt tokens it took (usage)")
            self._points[characters] = usage.prompt

    def ask(self, depth: int, tokens: int, streams: int, cancel: Callable[[], bool]) -> list[Answer]:
        """``streams`` prompts of about ``depth`` tokens at once. TargetError if one fails or came from a cache."""
        characters = self._characters(depth)
        barrier = threading.Barrier(streams)

        def one(_: int) -> Answer:
            barrier.wait()
            return self._ask(characters, depth, tokens, cancel)

        with ThreadPoolExecutor(streams, thread_name_prefix="stream") as pool:
            answers = list(pool.map(one, range(streams)))
        counted = answers[0].done.usage.prompt
        if counted:
            self._points[characters] = counted
        for answer in answers:
            self._check_fresh(answer)
        return answers

    def request(self, depth: int, tokens: int, cancel: Callable[[], bool]) -> Answer:
        """One prompt of about ``depth`` tokens. TargetError if it fails or came from a cache."""
        answer = self._ask(self._characters(depth), depth, tokens, cancel)
        self._check_fresh(answer)
        return answer

    def _check_fresh(self, answer: Answer) -> None:
        cached = answer.done.usage.cached or 0
        if cached > CACHED_SLACK + CACHED_SHARE * answer.prompt:
            raise TargetError(
                f"{self.target.name} took {cached} of {answer.prompt} prompt tokens from a cache although every "
                "prompt is new: its prefill cannot be measured this way"
            )

    def _request(self, characters: int, tokens: int) -> Request:
        text = f"{secrets.token_hex(8)}\n{self.text[:characters]}"
        return Request(Prompt.chat(text, self.system) if self.chat else Prompt.plain(text), tokens)

    def _ask(self, characters: int, depth: int, tokens: int, cancel: Callable[[], bool]) -> Answer:
        request = self._request(characters, tokens)
        begin = time.perf_counter()
        done = collect(_watched(self.target.stream(request), cancel))
        if not done.arrivals:
            raise TargetError(f"{self.target.name} answered nothing")
        # Some servers do not count in streams; then the depth is what was aimed at.
        return Answer(begin, done, done.usage.prompt or depth)

    def _characters(self, depth: int) -> int:
        """Characters of a prompt of ``depth`` tokens: the line through the two nearest known prompts."""
        (c0, t0), (c1, t1) = sorted(sorted(self._points.items(), key=lambda point: abs(point[1] - depth))[:2])
        if t1 <= t0:
            raise TargetError(f"{self.target.name} counts {t0} and {t1} tokens for {c0} and {c1} characters")
        characters = max(1, round(c0 + (depth - t0) * (c1 - c0) / (t1 - t0)))
        if characters > len(self.text):
            raise DataError(f"prompt has {len(self.text)} characters, need about {characters} for {depth} tokens")
        return characters


def walk(
    endpoint: Endpoint,
    depths: Sequence[int],
    gen_tokens: int,
    streams: int,
    *,
    rep: int = 0,
    start: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Sample]:
    """One sample a depth. ``start`` is the process clock at the beginning of the run."""
    for done, depth in enumerate(depths):
        if progress is not None:
            progress(done, len(depths))
        yield {"rep": rep, **sample(endpoint.ask(depth, gen_tokens, streams, cancel), depth, start)}


def sample(answers: Sequence[Answer], depth: int, start: float = 0.0) -> Sample:
    """Medians over streams of what each one saw, and what all together got."""
    rates = [answer.tokens / answer.done.seconds for answer in answers]
    begin = min(answer.begin for answer in answers)
    end = max(answer.begin + answer.done.seconds for answer in answers)
    cached = [answer.done.usage.cached for answer in answers]
    gaps = [gap for answer in answers for gap in answer.done.gaps]

    def middle(values: Sequence[float]) -> float:
        return float(statistics.median(values))

    return {
        "at": round(begin - start, 6),
        "ctx_tokens": depth,
        "prefill_tokens": depth,
        "prefill_tps": middle([(a.prompt - (a.done.usage.cached or 0)) / a.ttft for a in answers]),
        "gen_tokens": round(middle([a.tokens for a in answers])),
        "gen_tps": middle([a.decode_tps for a in answers]),
        "kvcache_bytes": None,
        "gen_first_ms": 1e3 * middle([a.done.gaps[0] for a in answers if a.done.gaps] or [0.0]),
        "steps_s": [round(gap, 9) for gap in gaps],
        "ttft_ms": 1e3 * middle([a.ttft for a in answers]),
        "e2e_ms": 1e3 * middle([a.done.seconds for a in answers]),
        "prompt_tokens": middle([a.prompt for a in answers]),
        "cached_tokens": None if None in cached else middle([count or 0 for count in cached]),
        "streams": len(answers),
        "total_tps": sum(a.tokens for a in answers) / (end - begin),
        "fairness": jain(rates),
    }


def jain(rates: Sequence[float]) -> float:
    """Jain's fairness index of ``rates``: (sum x)^2 / (n sum x^2)."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def _watched(deltas: Iterator[Delta], cancel: Callable[[], bool]) -> Iterator[Delta]:
    for delta in deltas:
        if cancel():
            raise Cancelled("stopped while a stream was running")
        yield delta
