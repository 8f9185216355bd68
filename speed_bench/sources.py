"""Opens each lane of a plan, with ``ds4ref.targets.open_target``, as a source of samples.

local       an engine in this process (``local``)
http        an OpenAI-compatible endpoint, timed by the client (``endpoint``, ``load``)
command     a ds4-bench binary, which sweeps by itself (``binary``)
"""

from __future__ import annotations

from .plan import Lane, kind_of
from .source import Opening, Source


def open_source(opening: Opening, lane: Lane) -> Source:
    """Open the source of one lane."""
    kind = kind_of(lane.target)
    if kind == "local":
        from .local import LocalSource

        return LocalSource.open(opening, lane)
    if kind == "http":
        from .remote import EndpointSource

        return EndpointSource.open(opening, lane)
    from .binary import BinarySource

    return BinarySource.open(opening, lane)
