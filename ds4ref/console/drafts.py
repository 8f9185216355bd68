"""Options of speculative decoding, the same in every command that generates."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from ..errors import UsageError
from .flags import Group, add

if TYPE_CHECKING:
    from ..drafts.setup import Drafting


def add_drafts(group: Group) -> None:
    """Add the options that choose what drafts tokens."""
    for name in ("--draft", "--mtp", "--mtp-draft", "--mtp-margin"):
        add(group, name)


def drafting(args: Namespace, embedded: bool = False) -> Drafting | None:
    """Return what drafts tokens by the options of ``add_drafts``, None if nothing does; ``embedded``: the model is the
    embedded one, which has a block of its own.

    As in ds4, ``--mtp FILE`` alone drafts nothing, and ``--mtp-draft N`` of 2 or more turns drafts on. Raise UsageError
    for options that contradict each other.
    """
    kind, most = args.draft, args.mtp_draft
    if kind is None:
        kind = "auto" if most is not None and most > 1 else "off"
    elif most == 1 and kind != "off":
        raise UsageError(
            f"--mtp-draft 1 turns drafting off and conflicts with --draft {kind}: use 2 to 16, or drop one"
        )
    if kind == "off":
        return None
    from ..drafts.setup import MARGIN, Drafting

    mtp = args.mtp
    if mtp is None and embedded and kind in ("auto", "mtp"):
        from ..nano.trained import mtp_path

        mtp = mtp_path()
    margin = MARGIN if args.mtp_margin is None else args.mtp_margin
    wanted = Drafting(kind, mtp, margin=margin)
    return wanted if most is None else wanted._replace(most=most)
