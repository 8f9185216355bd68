"""Keep an examination on disk while it runs, and continue it: doctor.json after every stage.

The same command with the same ``-o`` continues an unfinished examination (killed, or ended by Ctrl-C): pre-flight runs
again, stages that ran to their end are kept, and what they left for later ones is restored. A finished one is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from ds4ref.console.common import atomic_output
from ds4ref.console.page import without

from .case import ExamContext
from .examination import SCHEMA, Examination

FILE = "doctor.json"
SEVERAL = "ds4-doctor-servers-v1"
OWN = ("target", "engine", "quick", "long", "budget", "progress", "spec", "limit", "meter")
"""Fields of ExamContext that the command line sets."""


def context_of(case: ExamContext) -> dict[str, Any]:
    """Return what stages have left in ``case`` for later ones, in types of JSON."""
    import msgspec

    return {f.name: msgspec.to_builtins(getattr(case, f.name), order="deterministic")
            for f in fields(case) if f.name not in OWN}  # fmt: skip


def restore(case: ExamContext, context: dict[str, Any]) -> None:
    """Put into ``case`` what ``context_of`` returned, of the types that ExamContext declares."""
    import msgspec

    for name, form in get_type_hints(ExamContext).items():
        if name in context and name not in OWN:
            setattr(case, name, msgspec.convert(context[name], form))


def save(folder: str, examinations: Sequence[Examination], secret: str = "", **more: Any) -> str:
    """Write doctor.json atomically, without the API key ``secret``; return its path.

    One examination is written as it is, several as a list, "servers", with ``more`` beside it.
    """
    whole: dict[str, Any] = {"schema": SEVERAL, "servers": [e.to_json() for e in examinations], **more}
    if len(examinations) == 1:
        whole = examinations[0].to_json()
    path = str(Path(folder, FILE))
    with atomic_output(path) as out:
        text = json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
        out.write(without(text, secret).encode("utf-8", "replace"))
    return path


def load(folder: str) -> list[Examination]:
    """Return the examinations in a folder's doctor.json; none if there is no such file or it is another's."""
    try:
        whole = json.loads(Path(folder, FILE).read_bytes())
        servers = whole["servers"] if whole["schema"] == SEVERAL else [whole]
        return [Examination.from_json(each) for each in servers if each["schema"] == SCHEMA]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def to_continue(earlier: Sequence[Examination], form: dict[str, Any]) -> tuple[Examination | None, str]:
    """Return (the one of ``earlier`` to continue or keep, a line that says what becomes of the report).

    earlier  the examinations of the folder's report, when the command began
    form     of the examination that is asked for

    An unfinished one of the same form is continued. A finished one is returned only from a report of several servers
    that as a whole is unfinished.
    """
    match = next((e for e in earlier if e.form == form), None)
    if not earlier:
        return None, ""
    date = dict(earlier[0].facts).get("date", "")
    if match is None:
        return (
            None,
            f"replacing the report of {earlier[0].target}{date and ', ' + date}: other target or options",
        )
    if match.finished and all(e.finished for e in earlier):
        return None, f"the report of {date} is finished: examining {match.target} again"
    if match.finished:
        return match, f"{match.target} has been examined"
    done = sum(stage.done for stage in match.stages if stage.name in match.evidence)
    return match, f"continuing {match.target}: {done} stages are done (remove {FILE} to start anew)"
