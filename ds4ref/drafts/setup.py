"""Which drafts the sessions of an engine try, from the options of ``Engine.open`` and of the commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..engine_options import DRAFTS, Drafting
from ..errors import UsageError
from .estimates import PassTimes
from .lookup import Lookup
from .session import DraftingSession
from .speculation import Counts, Speculation

if TYPE_CHECKING:
    from ..archs import Model
    from . import Draft


class Drafts:
    """Makes the sessions of an engine that draft, and keeps the drafter's file open.

    counts, times: counts of drafts, and times of passes, of all sessions.
    """

    def __init__(self, model: Model, wanted: Drafting):
        """Open the drafter's file if it is wanted; ``wanted.kind`` must not be "off". Raise UsageError for impossible
        settings, ModelFileError or ShapeError if the file is no drafter of ``model``."""
        if wanted.kind not in DRAFTS:
            raise UsageError(f"unknown drafts {wanted.kind!r}: choose from {', '.join(DRAFTS)}")
        if wanted.kind in ("mtp", "dspark") and wanted.mtp is None:
            raise UsageError(f"--draft {wanted.kind} needs the drafter's file: --mtp FILE")
        self.model, self.wanted, self.drafter = model, wanted, None
        self.counts, self.times = Counts(), PassTimes()
        if getattr(model.ops, "recorded_rows", 1) < 2:
            raise UsageError(f"backend {model.ops.name} evaluates one token a pass: drafts gain nothing")
        if wanted.mtp is not None and wanted.kind != "lookup":
            from ..archs.deepseek4.dspark import Drafter, open_drafter

            self.drafter = open_drafter(wanted.mtp, model)
            kind = "dspark" if isinstance(self.drafter, Drafter) else "mtp"
            if wanted.kind not in ("auto", kind):
                self.drafter.close()
                raise UsageError(f"{os.fspath(wanted.mtp)} is for --draft {kind}, not {wanted.kind}")
            if isinstance(self.drafter, Drafter):
                model.tapped = self.drafter.settings.targets  # type: ignore[attr-defined]

    def session(self, ctx: int) -> DraftingSession:
        """Return a new, empty session that drafts, with a context of ``ctx`` tokens."""
        drafts: list[Draft] = []
        if self.drafter is not None:
            drafts.append(self._source())
        if self.wanted.kind in ("auto", "lookup"):
            drafts.append(Lookup())
        wanted = self.wanted
        speculation = Speculation(drafts, wanted.depth, wanted.most, counts=self.counts, times=self.times)
        return DraftingSession(self.model, ctx, speculation)

    def _source(self) -> Draft:
        from ..archs.deepseek4.dspark import Drafter

        if isinstance(self.drafter, Drafter):
            from .dspark import DSpark

            return DSpark(self.drafter, self.wanted.confidence)
        from .mtp import Mtp

        assert self.drafter is not None
        return Mtp(self.drafter, self.wanted.most, self.wanted.margin)

    def facts(self) -> dict[str, Any]:
        """Return, for reports, the tokens drafted and accepted in all sessions, and the tokens gained per pass."""
        return {
            "kind": self.wanted.kind,
            "drafted": self.counts.of("drafted"),
            "accepted": self.counts.of("accepted"),
            "tokens_per_pass": self.counts.tokens_a_pass,
        }

    def close(self) -> None:
        """Close the drafter's file, if one is open."""
        if self.drafter is not None:
            self.drafter.close()
