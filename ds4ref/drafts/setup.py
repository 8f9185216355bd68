"""Which drafts the sessions of an engine try, from the options of ``Engine.open`` and of the commands."""

from __future__ import annotations

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
    """Makes the sessions of an engine that draft, and keeps the file of the MTP block open.

    counts, times: counts of drafts, and times of passes, of all sessions.
    """

    def __init__(self, model: Model, wanted: Drafting):
        """Open the MTP block's file if it is wanted; ``wanted.kind`` must not be "off". Raise UsageError for impossible
        settings, ModelFileError or ShapeError if the file is not the MTP block of ``model``."""
        if wanted.kind not in DRAFTS:
            raise UsageError(f"unknown drafts {wanted.kind!r}: choose from {', '.join(DRAFTS)}")
        if wanted.kind == "mtp" and wanted.mtp is None:
            raise UsageError("drafts of the block for multi-token prediction need its file: --mtp FILE")
        self.model, self.wanted, self.block = model, wanted, None
        self.counts, self.times = Counts(), PassTimes()
        if getattr(model.ops, "recorded_rows", 1) < 2:
            raise UsageError(f"backend {model.ops.name} evaluates one token a pass: drafts gain nothing")
        if wanted.mtp is not None and wanted.kind != "lookup":
            from ..archs.deepseek4.mtp import Block

            self.block = Block.open(wanted.mtp, model)

    def session(self, ctx: int) -> DraftingSession:
        """Return a new, empty session that drafts, with a context of ``ctx`` tokens."""
        drafts: list[Draft] = []
        if self.block is not None:
            from .mtp import Mtp

            drafts.append(Mtp(self.block, self.wanted.most, self.wanted.margin))
        if self.wanted.kind != "mtp":
            drafts.append(Lookup())
        wanted = self.wanted
        speculation = Speculation(drafts, wanted.depth, wanted.most, counts=self.counts, times=self.times)
        return DraftingSession(self.model, ctx, speculation)

    def facts(self) -> dict[str, Any]:
        """Return, for reports, the tokens drafted and accepted in all sessions, and the tokens gained per pass."""
        return {
            "kind": self.wanted.kind,
            "drafted": self.counts.of("drafted"),
            "accepted": self.counts.of("accepted"),
            "tokens_per_pass": self.counts.tokens_a_pass,
        }

    def close(self) -> None:
        """Close the file of the MTP block, if one is open."""
        if self.block is not None:
            self.block.close()
