"""Spread a run over the workers of a Dask cluster; only the main process writes the log.

A unit of work is one sample. A worker opens the target once and reuses it. Samples that are already in the log are not
repeated.
"""

from __future__ import annotations

import tempfile
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ds4ref.cancellation import Cancellation
from ds4ref.engine_options import FLAG_NAMES
from ds4ref.errors import TargetError

from .log import Sample, Writer
from .options import Job
from .packs import Question
from .plan import Key, Settings

if TYPE_CHECKING:
    from ds4ref.targets import Target

    from .runner import Event

OPTIONS = (
    *FLAG_NAMES, "ctx", "model_name", "accept_model", "prefill", "id_prompts", "dialect", "key_env", "per_minute",
    "attempts", "timeout",
)  # fmt: skip
"""Command-line options that a worker needs to open the target."""

_open: dict[str, Target] = {}


def work(unit: Mapping[str, Any]) -> dict[str, Any]:
    """Ask one sample, in a worker process."""
    from ds4ref.console.tool import target_of

    from .runner import ask

    settings, question = Settings(**unit["settings"]), msgspec.convert(unit["question"], Question)
    name = repr((unit["spec"], sorted(unit["options"].items(), key=str)))
    if name not in _open:
        _open[name] = target_of(Namespace(**unit["options"]), unit["spec"])
    sample = ask(_open[name], question, unit["epoch"], settings, ctx=unit["ctx"])
    return {"sample": msgspec.to_builtins(sample)}


def fan(
    job: Job,
    args: Namespace,
    log: Writer,
    todo: Sequence[Key],
    listen: Callable[[Event], Any],
    tell: Callable[[str], None],
    cancel: Cancellation,
    ctx: int | None,
) -> None:
    """Ask all samples ``todo`` on the cluster and log them; TargetError if a worker itself fails."""
    from ds4ref.runs.fanout import fan_out
    from ds4ref.runs.store import Store

    from .runner import Finished

    questions = {q.id: q for q in job.pack.questions}
    same = {"spec": job.spec, "options": {name: getattr(args, name, None) for name in OPTIONS}, "ctx": ctx,
            "settings": asdict(job.settings)}  # fmt: skip
    units = {
        f"{key.question} epoch {key.epoch}": {
            **same, "question": msgspec.to_builtins(questions[key.question]), "epoch": key.epoch
        }
        for key in todo
    }  # fmt: skip

    def receive(name: str, result: dict[str, Any]) -> dict[str, Any]:
        sample = msgspec.convert(result["sample"], Sample)
        log.add(sample)
        listen(Finished(sample))
        return {"status": sample.status}

    with (
        tempfile.TemporaryDirectory(prefix="ds4-eval-") as place,
        Store.open(str(Path(place, "units.sqlite"))) as store,
    ):
        outcome = fan_out(
            uuid.uuid4().hex, units, work, store, scheduler=args.scheduler, workers=args.workers or 1,
            receive=receive, tell=tell, cancel=cancel,
        )  # fmt: skip
    if outcome.failed:
        name, why = next(iter(outcome.failed.items()))
        raise TargetError(f"{len(outcome.failed)} samples failed in a worker; {name}: {why}")
