"""The APIs that are served, one module each.

A module of this package is one or a few endpoints; those it names in ``ENDPOINTS`` are served.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..api import Api, Question


def apis() -> list[Api | Question]:
    """One of each."""
    found: list[Api | Question] = []
    for module in pkgutil.iter_modules(__path__):
        found += [make() for make in getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENDPOINTS", ())]
    return found
