"""Sends requests to an OpenAI-compatible endpoint, times them, and checks that the figures are plausible.

Every prompt begins with a new random number, so that the server cannot take its prefill from a cache; the server's
count of cached tokens is checked if it reports one. Times are measured by the client:

    ttft     from sending the request to the first event of the answer: prefill, first token, queueing, network
    itl      from one event to the next (``steps_s``); servers may put several tokens into one event
    e2e      from sending the request to the end of the stream

Only events with text, reasoning or a part of a tool call are counted. The server is asked for answers of exact length
(``Request.exact``). Rates use the server's own count of tokens. If some tokens were not streamed at all, that is an
error, because the time to first token and the rate would both be wrong. A count that contradicts the requested length,
the finish reason or the events gives the row a warning (``ds4ref.runs.warnings``), as do impossible times.

How many characters of text make a prompt of a certain depth is calibrated with the server's count of prompt tokens;
the depth is then met within a per cent or two, and the column ``prompt_tokens`` has the actual number.
"""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass, field, replace

from ds4ref.errors import Cancelled, DataError, TargetError
from ds4ref.runs.spread import quantile
from ds4ref.runs.warnings import Warnings, of_counts, of_first
from ds4ref.targets import Ability, Cancellation, Completion, Finish, Prompt, Request, Target, collect

CALIBRATION = 2000
"""Length in characters of the longer of the two calibration requests."""
ODD, ODD_TOKENS = 1.5, 64
"""Factor, plus a number of tokens, by which a server's count of prompt tokens may differ from the expected one."""
LEAST_BYTES, MOST_BYTES = 0.9, 20
"""Range of plausible bytes of text per prompt token."""
FEW, MANY = 3, 1.5
"""Minimum number of gaps between events for checking a token count; suspicious number of tokens per quick event."""
NONCE = 64
"""Difference in characters that outweighs a few tokens' difference between the random numbers of two prompts."""
TAGS = 4
"""Number of reasoning tokens without text that is normal: the think tags of a model that does not think."""
UNSEEN, LASTS, SINGLE = 0.1, 0.5, 1.5
"""Share of tokens without an event from which some may be hidden; share of their time that must pass before the first
or after the last event; mean length of an event, in mean lengths of prompt tokens, up to which it is one token."""
CACHED_SLACK, CACHED_SHARE = 64, 0.05
"""Tolerated number of cached prompt tokens: a constant, for the chat template that comes first, and a share of all."""


@dataclass(frozen=True)
class StreamedAnswer:
    """A finished answer of an endpoint, and figures computed from its times.

    begin       time at which the request was sent, in seconds (``time.perf_counter``)
    completion  the answer with its times
    prompt      number of prompt tokens
    requested   number of tokens requested
    warnings    reasons not to rely on its figures
    """

    begin: float
    completion: Completion
    prompt: int
    requested: int = 0
    warnings: Warnings = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Number of generated tokens, as the server counts them.

        If it does not count, or counts fewer tokens than events: the requested number if the answer stopped at that
        limit, else the number of events.
        """
        count, events = self.completion.usage.completion, len(self.completion.arrivals)
        if count is None or count < events:
            return self.requested if self.completion.finish == Finish.LENGTH and self.requested else events
        return count

    @property
    def miscount(self) -> Warnings:
        """Warnings if the server's token counts contradict the requested length, the finish reason or the events."""
        usage, limit = self.completion.usage, self.completion.finish == Finish.LENGTH
        return of_counts(usage.completion, len(self.completion.arrivals), self.requested, limit, usage.reasoning)

    @property
    def cached(self) -> int | None:
        """Number of prompt tokens taken from a cache, None if the server does not report it."""
        return None if self.completion.usage.cached is None else max(0, self.completion.usage.cached)

    @property
    def prefill_tps(self) -> float:
        """Prefill speed in tokens/s: prompt tokens that were not cached, divided by the time to the first event."""
        return max(0, self.prompt - (self.cached or 0)) / self.ttft if self.ttft > 0 else 0.0

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first event."""
        return self.completion.arrivals[0]

    @property
    def first(self) -> float:
        """Number of tokens in the first event; estimated from its length if events hold several tokens."""
        pieces, sizes = len(self.completion.arrivals), self.completion.sizes
        if self.tokens <= pieces:
            return 1.0
        share = sizes[0] / sum(sizes) if sum(sizes) else 1 / pieces
        return min(max(1.0, self.tokens * share), self.tokens - (pieces - 1))

    @property
    def decode_tps(self) -> float:
        """Tokens per second after the first event; 0 if there was only one event."""
        seconds = self.completion.arrivals[-1] - self.completion.arrivals[0]
        return (self.tokens - self.first) / seconds if seconds > 0 else 0.0

    def hidden(self, characters: float) -> tuple[str, bool]:
        """Return why some tokens that the server counts seem not to be streamed, and whether that is certain.

        The reason is "" if all seem to be streamed. ``characters`` is the average number of characters per token of the
        prompt.
        """
        completion, gaps = self.completion, sorted(self.completion.gaps)
        reasoning_tokens = completion.usage.reasoning or 0
        if reasoning_tokens > TAGS and not completion.reasoning:
            return f"counts {reasoning_tokens} tokens of reasoning that it does not stream", True
        if len(gaps) < FEW or not sum(completion.sizes):
            return "", False
        # Tokens without text make gaps longer; several tokens in an event make its text longer. If even the quickest
        # events come too rarely for the rate, and are too short for several tokens (each has at least a byte), some
        # tokens were never streamed.
        times = self.decode_tps * quantile(gaps, 0.1)
        size = sum(completion.sizes) / self.tokens
        hidden = self.tokens - len(completion.arrivals)
        fits = self.ttft >= 0.75 * hidden * statistics.median(gaps)  # there was time for them before the first event
        plain = (completion.text + completion.reasoning).isascii()  # other characters may be spelled byte by byte
        if times < MANY or not (size < 1 or (size < characters / 2 and plain)):
            return "", False
        return (
            f"counts {self.tokens} tokens, {self.decode_tps:.0f} t/s, but streams an event of {size * times:.0f} "
            f"bytes every {1e3 * statistics.median(gaps):.1f} ms: some are not streamed"
        ), size < 1 or fits

    def waits(self, characters: float, expected: float) -> str:
        """Return why some tokens seem to be generated before the first event or after the last, "" if none do.

        characters   average number of characters per token of the prompt
        expected     expected seconds to the first event, judging by shorter prompts
        """
        completion, events = self.completion, len(self.completion.arrivals)
        unseen, gaps = self.tokens - events, completion.gaps
        text = completion.text + completion.reasoning
        if len(gaps) < FEW or unseen < max(2, UNSEEN * self.tokens) or not text.isascii():
            return ""
        idle = max(0.0, self.ttft - expected) + completion.seconds - completion.arrivals[-1]
        if sum(completion.sizes) > SINGLE * characters * events or idle < LASTS * unseen * statistics.median(gaps):
            return ""
        return f"counts {self.tokens} tokens in {events} events of a token each, and streams nothing for {idle:.2g} s"


class Endpoint:
    """An endpoint to be measured, and the text from which its prompts are made.

    target   the endpoint
    text     each prompt is a random number and the beginning of this text
    chat     send a prompt as a user message, after the system message ``system`` if that is not empty
    """

    def __init__(self, target: Target, text: str, *, chat: bool = False, system: str = ""):
        target.require(Ability.CHAT if chat else Ability.TEXT, Ability.STREAM, needed_for="the sweep")
        self.target, self.text, self.chat, self.system = target, text, chat, system
        self.warnings: Warnings = {}
        self._short: list[tuple[int, float]] = []  # of the calibration prompts: tokens, seconds to the first token
        self._points: dict[int, int] = {}  # length of a prompt: in characters -> in tokens

    def calibrate(self) -> None:
        """Measure the characters per token with two short requests, which also warm the server up.

        The requests are not streamed, because servers then report token counts; raises TargetError if this one does
        not. Their times show how soon a first token can come. Implausible counts give a warning on every row.
        """
        longest = min(len(self.text), CALIBRATION)
        for characters in (longest // 5, longest):
            done = self.target.complete(self._request(characters, 1))
            if (done.usage.prompt or 0) < 1:
                raise TargetError(f"{self.target.name} does not report prompt tokens (usage)")
            self._points[characters] = done.usage.prompt or 0
            self._short.append((self._points[characters], done.seconds))
            count = done.usage.completion
            if count is not None and not 0 <= count <= 1:
                self.warnings.setdefault("count", f"counts {count} tokens where 1 was asked for")
        (short, few), (longer, many) = sorted(self._points.items())
        size = len(self.text[short:longer].encode("utf-8", "surrogatepass")) / max(1, many - few)
        if many > few and not LEAST_BYTES <= size <= MOST_BYTES:
            self.warnings["prompt"] = f"counts a prompt token for every {size:.2g} bytes of text"

    def request(self, depth: int, tokens: int, cancel: Cancellation, learn: bool = False) -> StreamedAnswer:
        """Send one prompt of about ``depth`` tokens; return the answer of ``tokens`` tokens.

        With ``learn``, the server's token count of this prompt improves the lengths of the next ones. Raises
        TargetError if the request fails or some tokens are not streamed, Cancelled as soon as ``cancel`` is triggered.
        """
        characters = self._characters(depth)
        answer = self._judged(self._ask(characters, depth, tokens, cancel), characters, depth)
        if learn and (counted := answer.completion.usage.prompt) is not None and counted > 0:
            self._points[characters] = counted
        return answer

    def _judged(self, answer: StreamedAnswer, characters: int, depth: int) -> StreamedAnswer:
        """Check an answer to a prompt of ``characters``, about ``depth`` tokens; return it with its warnings.

        Raises TargetError if the prompt was in a cache or some tokens were not streamed.
        """
        usage, cached, size = answer.completion.usage, answer.cached or 0, characters / answer.prompt
        hidden, sure = answer.hidden(size)
        wrong = hidden if sure else ""
        if cached > CACHED_SLACK + CACHED_SHARE * answer.prompt:
            wrong = f"took {cached} of {answer.prompt} prompt tokens from a cache although every prompt is new"
        if wrong:
            raise TargetError(f"{self.target.name} {wrong}: its speed cannot be measured")
        warnings = answer.miscount
        if reason := hidden or answer.waits(size, self._expected(answer.prompt)):
            warnings.setdefault("count", reason)
        if early := of_first(answer.completion.arrivals, answer.prompt, self._short):
            warnings["prefill"] = early
        if usage.prompt is not None and not depth / ODD - ODD_TOKENS <= usage.prompt <= ODD * depth + ODD_TOKENS:
            warnings["prompt"] = f"counts {usage.prompt} prompt tokens where about {depth} were sent"
        elif usage.cached is not None and usage.cached < 0:
            warnings["prompt"] = f"counts {usage.cached} prompt tokens in a cache"
        elif cached > answer.prompt:
            warnings["prompt"] = f"counts {cached} cached tokens of a prompt of {answer.prompt}"
        return replace(answer, warnings=self.warnings | warnings)

    def _request(self, characters: int, tokens: int, cancel: Cancellation | None = None) -> Request:
        text = f"{secrets.token_hex(8)}\n{self.text[:characters]}"
        prompt = Prompt.chat(text, self.system) if self.chat else Prompt.plain(text)
        return Request(prompt, tokens, cancel=cancel, exact=True)

    def _expected(self, prompt: int) -> float:
        """Return the expected seconds to the first token after ``prompt`` tokens, judging by the calibration."""
        (few, soon), (many, late) = sorted(self._short)
        if late <= soon or many <= few:  # the first request was slow because the server was not warm
            return late
        return soon + (late - soon) * max(0, prompt - few) / (many - few)

    def _ask(self, characters: int, depth: int, tokens: int, cancel: Cancellation) -> StreamedAnswer:
        request = self._request(characters, tokens, cancel)
        begin = time.perf_counter()
        done = collect(self.target.stream(request))
        if done.finish == Finish.CANCELLED:
            raise Cancelled("stopped while a stream was running")
        if done.finish == Finish.ERROR:
            raise TargetError(f"{self.target.name}: {done.error}")
        if not done.arrivals:
            raise TargetError(f"{self.target.name} streamed no text, reasoning or tool call")
        # some servers do not report token counts in streams: then use the intended depth
        prompt = done.usage.prompt or 0
        return StreamedAnswer(begin, done, prompt if prompt > 0 else depth, tokens)

    def _characters(self, depth: int) -> int:
        """Return the number of characters that make a prompt of ``depth`` tokens.

        It lies on the line through two prompts whose token counts are known: the nearest in length, and the nearest
        that differs from it by more than ``NONCE`` characters. Raises DataError if the text is too short.
        """
        by_distance = sorted(self._points.items(), key=lambda point: abs(point[1] - depth))
        first, *others = by_distance
        apart = [point for point in others if abs(point[0] - first[0]) > NONCE]
        (c0, t0), (c1, t1) = sorted((first, (apart or others)[0]))
        if t1 <= t0:
            raise TargetError(f"{self.target.name} counts {t0} and {t1} tokens for {c0} and {c1} characters")
        characters = max(1, round(c0 + (depth - t0) * (c1 - c0) / (t1 - t0)))
        if characters > len(self.text):
            raise DataError(f"prompt has {len(self.text)} characters, need about {characters} for {depth} tokens")
        return characters
