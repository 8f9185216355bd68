"""ds4ref: a reference engine for DeepSeek V4, and the harness that measures other engines against it.

    import ds4ref
    model = ds4ref.open("model.gguf")
    print(model.ask("Why is the sky blue?"))

docs/reference/api.md shows the rest. Importing the package does no heavy work, so that command line help and file
inspection start in a fraction of a second: the names below are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _CHECKING

from .version import __version__

__all__ = ["Ds4Error", "Engine", "Progress", "Recorder", "Session", "Steering", "__version__", "open"]

if _CHECKING:
    from .archs.deepseek4.hooks import Recorder
    from .console.common import Progress
    from .engine import Engine
    from .engine_options import Steering
    from .errors import Ds4Error
    from .session.session import Session

    open = Engine.open

_HOMES = {
    "Ds4Error": "errors", "Engine": "engine", "Progress": "console.common",
    "Recorder": "archs.deepseek4.hooks", "Session": "session.session", "Steering": "engine_options", "open": "engine",
}  # fmt: skip
"""Module of each name."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_HOMES[name]}", __name__)
    return module.Engine.open if name == "open" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
