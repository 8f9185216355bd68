"""All single faults (injected bugs without a parameter) of DeepSeek V4, by name."""

from __future__ import annotations

from ..numerics import Numerics
from . import faults_cache, faults_parts, faults_storage, faults_v41
from .faults import FAULTS, Fault

LIBRARY: dict[str, Fault] = {
    fault.name: fault for fault in (*FAULTS.values(), *faults_cache.LIST, *faults_parts.LIST, *faults_storage.LIST)
}
V41: dict[str, Fault] = {name: LIBRARY[name] for name in faults_v41.SHARED} | {
    fault.name: fault for fault in faults_v41.LIST
}
"""All known faults of DeepSeek V4.1, by name."""
EVERY = LIBRARY | V41


def applicable(numerics: Numerics, formats: set[str], tokens: int, library: dict[str, Fault] = LIBRARY) -> list[Fault]:
    """Return the faults of ``library`` that have an effect in a numerics mode, for a model with tensors of these
    storage formats and a prompt of this many tokens."""
    return [
        fault
        for fault in library.values()
        if (not fault.needs or getattr(numerics, fault.needs))
        and (not fault.fmt or fault.fmt in formats)
        and tokens > fault.tokens
    ]
