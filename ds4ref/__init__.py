"""ds4ref: a reference engine for DeepSeek V4, and the harness that measures other engines against it.

    import ds4ref
    model = ds4ref.open("model.gguf")
    print(model.ask("Why is the sky blue?"))

docs/reference/api.md shows the rest. Importing the package does no heavy work, so that command line help and file
inspection start in a fraction of a second: the names below are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

__all__ = ["Ds4Error", "Engine", "Session", "__version__", "open"]

if TYPE_CHECKING:
    from .engine import Engine
    from .errors import Ds4Error
    from .session.session import Session

    open = Engine.open


def __getattr__(name: str) -> Any:
    if name in ("Engine", "open"):
        from .engine import Engine

        return Engine if name == "Engine" else Engine.open
    if name == "Session":
        from .session.session import Session

        return Session
    if name == "Ds4Error":
        from .errors import Ds4Error

        return Ds4Error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
