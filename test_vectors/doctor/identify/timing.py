"""Tell from the arrival of streamed tokens whether a server drafts tokens (speculative decoding).

A pass that verifies drafts yields several tokens at once, as many as were right. So tokens arrive in bursts of varying
length, and a repeated greedy request has its bursts at the same tokens. A network or a busy machine also joins tokens,
but at other places each time; a server that sends every N tokens has bursts of one length.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ds4ref.targets import Delta

FEWEST = 24
"""Number of events of a stream from which its timing is judged."""
PACKED, ALIKE, LONGEST = 1.15, 0.8, 16
"""Tokens per piece above which pieces hold several; the share of pieces of one length that drafts do not reach; most
words of a pass of drafts."""
BURST = 0.2
"""A gap shorter than this part of the mean gap joins a token to the one before it."""


@dataclass(frozen=True)
class Stream:
    """What is kept of a streamed answer: a text per event, the arrival of each in seconds, and the number of tokens
    that the server reports (None: it does not)."""

    texts: tuple[str, ...]
    times: tuple[float, ...]
    tokens: int | None

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Stream:
        """Return the events with output; the last one, which ends the answer, is left out."""
        shown = [delta for delta in deltas[:-1] if delta.shows]
        usage = deltas[-1].usage if deltas else None
        return cls(tuple(d.reasoning + d.text for d in shown), tuple(d.time for d in shown),
                   usage.completion if usage else None)  # fmt: skip

    @property
    def text(self) -> str:
        """Return the whole answer."""
        return "".join(self.texts)

    def joined(self) -> list[bool]:
        """Return for each event but the first whether it arrived in a burst with the one before it."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return [gap < BURST * statistics.mean(gaps) for gap in gaps]


def words(text: str) -> int:
    """Return the number of words and marks in a text, about its tokens."""
    return len(re.findall(r"\w+|[^\w\s]+", text))


def drafts(streams: Sequence[Stream]) -> tuple[dict[str, float], str]:
    """Return the probabilities of "on" and "off" from two streams of the same greedy request, and the evidence."""
    prior = {"on": 0.4, "off": 0.6}
    if len(streams) < 2 or min(len(stream.times) for stream in streams) < FEWEST:
        return prior, f"fewer than {FEWEST} streamed pieces"
    same = 0
    for a, b in zip(streams[0].texts, streams[1].texts, strict=False):
        if a != b:
            break
        same += 1
    if same < FEWEST:
        return prior, "two equal greedy requests have different answers, or pieces"
    pieces = [words(text) for text in streams[0].texts[:same]]
    mean = max([statistics.mean(pieces), *(stream.tokens / len(stream.times) for stream in streams if stream.tokens)])
    if mean > PACKED:
        alike = Counter(pieces).most_common(1)[0][1] / len(pieces)
        says = (f"{mean:.1f} tokens per piece, {100 * alike:.0f} % of pieces with the same number of words, equal in "
                "two equal requests")  # fmt: skip
        # else sent in groups of a fixed number, by whole words, or by sentences
        odds = 40.0 if alike <= ALIKE and statistics.mean(pieces) > PACKED and max(pieces) <= LONGEST else 1.0
    else:
        odds, says = _bursts_odds(streams, same)
        if odds < 1 and not repeats(streams[0].text):
            odds, says = 0.25, f"{says}; the answer repeats nothing, which drafts by look-up need"
    weight = prior["on"] * odds
    return {"on": weight / (weight + prior["off"]), "off": prior["off"] / (weight + prior["off"])}, says


def _bursts_odds(streams: Sequence[Stream], same: int) -> tuple[float, str]:
    """Return the odds that the arrival of pieces gives for drafts, and the evidence; ``same``: number of equal pieces
    in both streams."""
    first, second = (stream.joined()[: same - 1] for stream in streams[:2])
    share = (sum(first) + sum(second)) / (2 * len(first))
    agree = _correlation(first, second)
    sizes = Counter(_bursts([a and b for a, b in zip(first, second, strict=True)]))
    varied = len([size for size, n in sizes.items() if n >= 0.05 * sizes.total()]) > 1
    says = (f"{100 * share:.0f} % of {len(first)} pieces arrive together with the one before; the correlation of these "
            f"places in two equal requests is {agree:.2f}")  # fmt: skip
    if share > 0.05 and agree > 0.6 and varied:
        return 60.0 if agree > 0.75 else 25.0, says
    # more joined pieces: joined on the way, held back by the server, or drafts that are drawn at random
    return 1 / 20 if share <= 0.1 and agree < 0.3 else 1.0, says


def repeats(text: str) -> bool:
    """Return whether a fifth of a text's words, or more, were seen after the same two words before."""
    words = text.split()
    seen = Counter(zip(words, words[1:], words[2:], strict=False))
    again = sum(count - 1 for count in seen.values())
    return again >= 0.2 * max(1, len(words) - 2)


def _bursts(joined: Sequence[bool]) -> list[int]:
    """Return the number of pieces in each burst."""
    sizes = [1]
    for each in joined:
        if each:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def _correlation(a: Sequence[bool], b: Sequence[bool]) -> float:
    """Return the correlation of two sequences; 0 if one of them is constant."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return statistics.correlation([float(x) for x in a], [float(x) for x in b])
