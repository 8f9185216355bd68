"""ds4-bench: measures throughput against context depth, and under load.

    from ds4ref.speed_bench import Plan, run

plan          what to measure: targets, depths, tests, load, repetitions
runner        one run over all targets in turn, stored row by row
sources       targets opened as sources of rows: the local engine and endpoints
sweep         the timed windows of a session
endpoint      requests timed by the client, and whether their figures can be true; load: rows made of them
waiting       what a busy machine does to a measurement
prompt        the text that is prefilled
output        files, tables, final messages; formats, table, plot
model, peaks  best speeds that a machine allows
options, cli  the command
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import BenchTarget, Load, Plan, Probe, RequestShape
    from .runner import Measurement, run

__all__ = ["BenchTarget", "Load", "Measurement", "Plan", "Probe", "RequestShape", "run"]


def __getattr__(name: str) -> Any:
    """Import an exported name on first use, so that a command that only prints its help loads no other module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(".runner" if name in ("Measurement", "run") else ".plan", __name__), name)
