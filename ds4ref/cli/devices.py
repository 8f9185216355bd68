"""``ds4 --devices``: lists the devices that each backend can use on this machine, or why it can use none."""

from __future__ import annotations

from ..environment import machine


def devices() -> int:
    """Print one line per device, or the reason why none can be used; return exit code 0."""
    about = machine()
    print(f"cpu: {about['cpu'] or 'unknown processor'}, {about['cores']} cores")
    try:
        from ds4ref.kernels.cuda.driver.devices import report

        lines = report()
    except (ImportError, OSError, RuntimeError) as error:
        lines = [f"numba.cuda cannot be loaded: {' '.join(str(error).split())}"]
    for line in lines:
        print(f"cuda: {line}")
    return 0
