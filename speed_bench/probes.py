"""Single tests in llama-bench's words: ``pp512`` is the prefill of 512 tokens, ``tg128 @ d8192`` the decode of 128
behind 8192.

``sweep.run_probes`` runs each on a session of its own. What lies before (``d``) is prefilled outside the window, so
``pp512`` is a prefill from nothing and ``pp512 @ d8192`` a step. Decode needs one token to begin with: ``tg128``
stands behind one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ds4ref.cli.options import INT_MAX
from ds4ref.errors import UsageError


@dataclass(frozen=True)
class Probe:
    """``prefill`` tokens or ``decode`` steps (the other is 0) behind ``depth`` tokens."""

    prefill: int
    decode: int
    depth: int

    @property
    def name(self) -> str:
        """As llama-bench writes it."""
        work = f"pp{self.prefill}" if self.prefill else f"tg{self.decode}"
        return f"{work} @ d{self.depth}" if self.depth else work

    @property
    def needed(self) -> int:
        """Prompt tokens it takes."""
        return self.depth + self.prefill if self.prefill else max(1, self.depth)


def parse_probes(text: str) -> list[Probe]:
    """A comma list of names; UsageError for anything else."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(pp|tg)([0-9]{1,9})(?:\s*@\s*d([0-9]{1,9}))?\s*", part)
        if match is None or not int(match[2]):
            raise UsageError(f"invalid --test {part.strip()!r}: ppN, tgN, ppN @ dDEPTH or tgN @ dDEPTH")
        count, depth = int(match[2]), int(match[3] or 0)
        if count + depth > INT_MAX:
            raise UsageError(f"invalid --test {part.strip()!r}: too deep")
        found.append(Probe(count, 0, depth) if match[1] == "pp" else Probe(0, count, depth))
    return found


def grid(prefills: Sequence[int], decodes: Sequence[int], depths: Sequence[int]) -> list[Probe]:
    """Every length at every depth, in llama-bench's order."""
    found = []
    for depth in depths:
        found += [Probe(count, 0, depth) for count in prefills if count]
        found += [Probe(0, count, depth) for count in decodes if count]
    return found
