"""The share of the suite that runs under emulation: what computes, and what reads and writes files."""

from __future__ import annotations

FILES: tuple[str, ...] = ("tests/arm/test_logits.py",)

LEFT_OUT: dict[str, str] = {}
"""Tests of those files that an emulator cannot do or takes too long for, and why."""


def arguments() -> list[str]:
    """Return what pytest is asked for."""
    return [*FILES, *(f"--deselect={name}" for name in LEFT_OUT)]
