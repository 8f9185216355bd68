"""The sweep on an OpenAI-compatible endpoint: what a client sees of it.

Every request is a prompt of its own, prefilled from nothing: it begins with a nonce, so that no prefix cache can answer
for the engine, and the server's count of cached tokens is checked where it tells one. Windows are those of the client:

    ttft     request sent to the first piece of the answer: prefill, the first token, queue and network
    itl      from one piece to the next (``steps_s``); servers may put several tokens into one piece
    e2e      request sent to the end of the stream

A piece is text, reasoning or a part of a tool call, whatever the server calls them. Rates go by the server's own count
of tokens. A count that its own pieces contradict, because some tokens were never streamed, is refused: with those left
out neither the time to the first token nor the rate would be what it says.

With several streams all begin at once, each with a nonce of its own; ``fairness`` is Jain's index of their rates: 1 if
all were served alike, 1/n if one got everything. How many characters make a depth is learnt from the server's own
count of prompt tokens, so that depths are met within a per cent or two; ``prompt_tokens`` says how many they were.
"""

from __future__ import annotations

import queue
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ds4ref.errors import Cancelled, DataError, TargetError
from ds4ref.runs.spread import quantile
from ds4ref.targets import Ability, Cancellation, Completion, Finish, Prompt, Request, Target, collect

from .columns import Sample

CALIBRATION = 2000
"""Characters of the longer of the two requests that tell how long a token is."""
FEW, MANY = 3, 1.5
"""Gaps from which on a rate is held against them, and how many tokens a quick piece may seem to hold."""
CACHED_SLACK, CACHED_SHARE = 64, 0.05
"""Cached prompt tokens that a nonce cannot prevent: a template before it, and blocks that are counted whole."""


@dataclass(frozen=True)
class Answer:
    """One finished stream, when it began (seconds of the process clock), how many tokens its prompt had, and how many
    were ``asked`` for."""

    begin: float
    done: Completion
    prompt: int
    asked: int = 0

    @property
    def tokens(self) -> int:
        """Generated tokens. Where the server does not count: all that were asked for if that is where it ended, else
        the pieces."""
        count, pieces = self.done.usage.completion, len(self.done.arrivals)
        if count is None:
            count = max(self.asked, pieces) if self.done.finish == Finish.LENGTH else pieces
        return count

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.done.arrivals[0]

    @property
    def first(self) -> float:
        """Tokens of the first piece: where pieces hold several, its share of all by its length."""
        pieces, sizes = len(self.done.arrivals), self.done.sizes
        if self.tokens <= pieces:
            return 1.0
        share = sizes[0] / sum(sizes) if sum(sizes) else 1 / pieces
        return min(max(1.0, self.tokens * share), self.tokens - (pieces - 1))

    @property
    def decode_tps(self) -> float:
        """Tokens per second after the first piece; 0 if there was only one."""
        seconds = self.done.arrivals[-1] - self.done.arrivals[0]
        return (self.tokens - self.first) / seconds if seconds > 0 else 0.0

    def contradiction(self, characters: float) -> str:
        """What is wrong with the server's count of tokens, "" if nothing is seen. A token of the prompt has so many
        ``characters``."""
        done, gaps = self.done, sorted(self.done.gaps)
        thought = done.usage.reasoning or 0
        if thought and not done.reasoning:
            return f"counts {thought} tokens of reasoning that it does not stream"
        if len(gaps) < FEW or not sum(done.sizes):
            return ""
        # Tokens without text make gaps longer, several in a piece make it longer. Where even quick pieces come too
        # seldom for the rate, and are too short for so many tokens (one has a byte at least), some never came.
        times = self.decode_tps * quantile(gaps, 0.1)
        each = sum(done.sizes) / self.tokens
        unseen = self.tokens - len(done.arrivals)
        fits = self.ttft >= 0.75 * unseen * statistics.median(gaps)  # they would have had the time before the first
        if times < MANY or not (each < 1 or (each < characters / 2 and fits)):
            return ""
        return (
            f"counts {self.tokens} tokens, {self.decode_tps:.0f} t/s, but streams a piece of {each * times:.0f} "
            f"bytes every {1e3 * statistics.median(gaps):.1f} ms: most of them it does not show"
        )


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

    def ask(self, depth: int, tokens: int, streams: int, cancel: Cancellation | None = None) -> list[Answer]:
        """``streams`` prompts of about ``depth`` tokens at once. TargetError if one fails or cannot be believed,
        Cancelled as soon as ``cancel`` is pressed."""
        characters = self._characters(depth)
        answers = together(streams, lambda stop: self._ask(characters, depth, tokens, stop), cancel or Cancellation())
        counted = answers[0].done.usage.prompt
        if counted:
            self._points[characters] = counted
        for answer in answers:
            self._check(answer, characters)
        return answers

    def request(self, depth: int, tokens: int, cancel: Cancellation) -> Answer:
        """One prompt of about ``depth`` tokens, as ``ask`` has several."""
        characters = self._characters(depth)
        answer = self._ask(characters, depth, tokens, cancel)
        self._check(answer, characters)
        return answer

    def _check(self, answer: Answer, characters: int) -> None:
        """TargetError for an answer that cannot be believed."""
        cached, wrong = answer.done.usage.cached or 0, answer.contradiction(characters / answer.prompt)
        if cached > CACHED_SLACK + CACHED_SHARE * answer.prompt:
            wrong = f"took {cached} of {answer.prompt} prompt tokens from a cache although every prompt is new"
        if wrong:
            raise TargetError(f"{self.target.name} {wrong}: it cannot be measured this way")

    def _request(self, characters: int, tokens: int, cancel: Cancellation | None = None) -> Request:
        text = f"{secrets.token_hex(8)}\n{self.text[:characters]}"
        prompt = Prompt.chat(text, self.system) if self.chat else Prompt.plain(text)
        return Request(prompt, tokens, cancel=cancel)

    def _ask(self, characters: int, depth: int, tokens: int, cancel: Cancellation) -> Answer:
        request = self._request(characters, tokens, cancel)
        begin = time.perf_counter()
        done = collect(self.target.stream(request))
        if done.finish == Finish.CANCELLED:
            raise Cancelled("stopped while a stream was running")
        if done.finish == Finish.ERROR:
            raise TargetError(f"{self.target.name}: {done.error}")
        if not done.arrivals:
            raise TargetError(f"{self.target.name} answered nothing")
        # Some servers do not count in streams; then the depth is what was aimed at.
        return Answer(begin, done, done.usage.prompt or depth, tokens)

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
    cancel: Cancellation | None = None,
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


def together(count: int, ask: Callable[[Cancellation], Answer], cancel: Cancellation) -> list[Answer]:
    """``ask`` so many times at once. The first failure, and pressing ``cancel``, stop the others; whoever does not
    stop, because it waits for a connection, is not waited for."""
    stop, barrier = Cancellation(), threading.Barrier(count)
    ended: queue.SimpleQueue[tuple[int, Answer | BaseException]] = queue.SimpleQueue()

    def one(number: int) -> None:
        barrier.wait()
        try:
            ended.put((number, ask(stop)))
        except BaseException as error:
            ended.put((number, error))

    answers: dict[int, Answer] = {}
    with cancel.does(stop.press):
        for number in range(count):
            threading.Thread(target=one, args=(number,), name=f"stream {number}", daemon=True).start()
        while len(answers) < count:
            try:
                number, found = ended.get(timeout=0.2)
            except queue.Empty:
                if cancel():
                    raise Cancelled("stopped while streams were running") from None
                continue
            if isinstance(found, BaseException):
                stop.press()
                if isinstance(found, TargetError) and count > 1:
                    raise TargetError(f"{found} (with {count} streams at once)") from found
                raise found
            answers[number] = found
    return [answers[number] for number in range(count)]
