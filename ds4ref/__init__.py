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

__all__ = ["Ds4Error", "Engine", "Recorder", "Session", "Steering", "__version__", "open"]

_HOMES = {
    "Ds4Error": "errors",
    "Engine": "engine",
    "Recorder": "archs.deepseek4.hooks",
    "Session": "session.session",
    "Steering": "archs.steering",
}

if TYPE_CHECKING:
    from .archs.deepseek4.hooks import Recorder
    from .archs.steering import Steering
    from .engine import Engine
    from .errors import Ds4Error
    from .session.session import Session

    open = Engine.open


def __getattr__(name: str) -> Any:
    if name == "open":
        return __getattr__("Engine").open
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
