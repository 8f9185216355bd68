"""``ds4 --devices``: what a backend would find on this machine, and why something cannot be used."""

from __future__ import annotations

from ..environment import machine


def devices() -> int:
    """Print one line a device; exit code 0, whatever is there."""
    about = machine()
    print(f"cpu: {about['cpu'] or 'unknown processor'}, {about['cores']} cores")
    try:
        from kernels.cuda.devices import report

        lines = report()
    except (ImportError, OSError, RuntimeError) as error:
        lines = [f"numba.cuda cannot be loaded: {' '.join(str(error).split())}"]
    for line in lines:
        print(f"cuda: {line}")
    return 0
