"""ds4-bench: measures throughput against context depth, and under load.

    from ds4ref.speed_bench import Plan, run

plan          what to measure: targets, depths, tests, load, repetitions
runner        measures a plan, taking turns between its targets, and stores every row
sources       opens targets for measuring: the local engine, endpoints, ds4-bench binaries (binary)
sweep         times prefill and decode in the local engine
endpoint      sends requests to an endpoint, times them, and checks that the figures are plausible
load          measures endpoints with concurrent requests
waiting       detects that a busy machine disturbs a measurement
prompt        the text that is prefilled
output        writes files, tables and final messages, with formats, table and plot
model, peaks  the highest speeds that a machine's hardware allows
options, cli  the command line
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
