"""Which drafts the sessions of an engine try, as ``Engine.open`` and the commands are told."""

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
    """The drafts of an engine: makes each session's speculation, and keeps the file of the block open.

    counts, times: of all sessions.
    """

    def __init__(self, model: Model, wanted: Drafting):
        """Bind what drafts; ``wanted.kind`` must not be "off". Raise UsageError for settings that cannot be met,
        ModelFileError or ShapeError for another file."""
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
        """Return a new, empty session for ``ctx`` tokens that drafts."""
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
        """Return what the drafts of all sessions did, for reports."""
        return {
            "kind": self.wanted.kind,
            "drafted": self.counts.of("drafted"),
            "accepted": self.counts.of("accepted"),
            "tokens_per_pass": self.counts.tokens_a_pass,
        }

    def close(self) -> None:
        """Close the file of the block."""
        if self.block is not None:
            self.block.close()
