"""Single tests in llama-bench's notation: ``pp512`` is the prefill of 512 tokens, ``tg128 @ d8192`` the decode of 128
tokens after 8192.

``sweep.run_probes`` runs each test on its own session. The depth (``d``) is prefilled untimed, so ``pp512`` is a
prefill from nothing and ``pp512 @ d8192`` an increment. Decode needs one token to start from, so ``tg128`` follows one
prompt token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ds4ref.console.options import INT_MAX
from ds4ref.errors import UsageError


@dataclass(frozen=True)
class Probe:
    """A single test: ``prefill`` tokens or ``decode`` steps (the other is 0) after ``depth`` tokens."""

    prefill: int
    decode: int
    depth: int

    @property
    def name(self) -> str:
        """The test in llama-bench's notation, as ``pp512 @ d8192``."""
        work = f"pp{self.prefill}" if self.prefill else f"tg{self.decode}"
        return f"{work} @ d{self.depth}" if self.depth else work

    @property
    def needed(self) -> int:
        """Number of prompt tokens that the test needs."""
        return self.depth + self.prefill if self.prefill else max(1, self.depth)


def parse_probes(text: str) -> list[Probe]:
    """Parse a comma-separated list of tests in llama-bench's notation; raises UsageError if it is malformed."""
    probes = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(pp|tg)([0-9]{1,9})(?:\s*@\s*d([0-9]{1,9}))?\s*", part)
        if match is None or not int(match[2]):
            raise UsageError(f"invalid --test {part.strip()!r}: ppN, tgN, ppN @ dDEPTH or tgN @ dDEPTH")
        count, depth = int(match[2]), int(match[3] or 0)
        if count + depth > INT_MAX:
            raise UsageError(f"invalid --test {part.strip()!r}: too deep")
        probes.append(Probe(count, 0, depth) if match[1] == "pp" else Probe(0, count, depth))
    return probes


def grid(prefills: Sequence[int], decodes: Sequence[int], depths: Sequence[int]) -> list[Probe]:
    """Return tests for all prefill and decode lengths at all depths, in llama-bench's order."""
    probes = []
    for depth in depths:
        probes += [Probe(count, 0, depth) for count in prefills if count]
        probes += [Probe(0, count, depth) for count in decodes if count]
    return probes
