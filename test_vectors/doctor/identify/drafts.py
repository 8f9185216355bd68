"""Tell whether a server drafts tokens (speculative decoding): by counters of drafted tokens, and by pieces of streams.

A pass that verifies drafts yields several tokens at once, as many as were right. Servers that send them together send
pieces of varying length, cut at the same tokens when a greedy request is repeated; a server that sends every N tokens
has pieces of one length. Times of arrival are not used: a network joins and separates pieces.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ds4ref.cancellation import Cancellation
from ds4ref.errors import Ds4Error
from ds4ref.targets import Delta, Target

FEWEST = 24
"""Number of pieces from which a stream is judged."""
PACKED, ALIKE, LONGEST = 1.15, 0.8, 16
"""Tokens per piece above which pieces hold several; the share of pieces of one length that drafts do not reach; most
words of a pass of drafts."""
METRIC = re.compile(r"^([^\s#{]*draft[^\s{]*tokens[^\s{]*)(?:\{[^}]*\})?\s+(\d\S*)", re.MULTILINE)
"""A counter of drafted tokens in the format of Prometheus, as of vLLM and ds4-server."""


@dataclass(frozen=True)
class Stream:
    """What is kept of a streamed answer: the texts of its pieces, and the numbers of generated and of drafted tokens
    that the server reports (None: it does not)."""

    texts: tuple[str, ...]
    tokens: int | None = None
    drafted: int | None = None

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Stream:
        """Return the pieces with output; the last one, which ends the answer, is left out."""
        texts = tuple(delta.reasoning + delta.text for delta in deltas[:-1] if delta.shows)
        usage = deltas[-1].usage if deltas else None
        return cls(texts, usage.completion, usage.drafted) if usage else cls(texts)


def counter(target: Target, cancel: Cancellation) -> float | None:
    """Return how many tokens a server has drafted so far, as its ``/metrics`` counts; None if it does not."""
    from ds4ref.targets.openai import HttpTarget

    if isinstance(target, HttpTarget):
        with suppress(Ds4Error):
            url = f"{target.transport.base.removesuffix('/v1')}/metrics"
            with target.transport.opened("GET", url, None, cancel) as reply:
                values = [float(value) for _, value in METRIC.findall(reply.read().decode("utf-8", "replace"))]
            return sum(values) if values else None
    return None


def words(text: str) -> int:
    """Return the number of words and marks in a text, about its tokens."""
    return len(re.findall(r"\w+|[^\w\s]+", text))


def drafts(streams: Sequence[Stream], rise: float | None = None) -> tuple[dict[str, float], str]:
    """Return the probabilities of "on" and "off", and the evidence.

    streams  two streams of the same greedy request
    rise     rise of the server's counter of drafted tokens meanwhile; None: it has none
    """
    prior = {"on": 0.4, "off": 0.6}
    if drafted := rise or sum(stream.drafted or 0 for stream in streams):
        return {"on": 0.99, "off": 0.01}, f"{drafted:g} tokens of two answers were drafted, as the server counts"
    if rise == 0 and streams and repeats("".join(streams[0].texts)):  # which drafts by look-up need
        return {"on": 0.03, "off": 0.97}, "the server counts drafted tokens, and none in an answer that repeats itself"
    if len(streams) < 2 or min(len(stream.texts) for stream in streams) < FEWEST:
        return prior, f"fewer than {FEWEST} streamed pieces"
    pairs = list(zip(streams[0].texts, streams[1].texts, strict=False))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if same < FEWEST:
        return prior, "two equal greedy requests have different answers, or pieces"
    pieces = [words(text) for text in streams[0].texts[:same]]
    mean = max([statistics.mean(pieces), *(stream.tokens / len(stream.texts) for stream in streams if stream.tokens)])
    alike = Counter(pieces).most_common(1)[0][1] / len(pieces)
    says = (f"{mean:.1f} tokens per piece, {100 * alike:.0f} % of pieces with the same number of words, equal in two "
            "equal requests")  # fmt: skip
    if statistics.mean(pieces) <= PACKED or alike > ALIKE or max(pieces) > LONGEST:
        return prior, says  # sent by token, in groups of a fixed number, by whole words, or by sentences
    return {"on": 0.964, "off": 0.036}, says


def repeats(text: str) -> bool:
    """Return whether a fifth of a text's words, or more, were seen after the same two words before."""
    words = text.split()
    seen = Counter(zip(words, words[1:], words[2:], strict=False))
    again = sum(count - 1 for count in seen.values())
    return again >= 0.2 * max(1, len(words) - 2)
