"""The trace file, for debugging clients: two JSON lines per turn, one when its prefill begins and one when it ends.

It holds whole prompts, including any secrets in them, so only the file's owner can read it, and the server warns at
start.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DataError
from ..targets.answer import Delta, added_up
from .exchange import Watcher
from .turn import Answered, Event, Failed, Prefill

if TYPE_CHECKING:
    from .exchange import Exchange


class Trace(Watcher):
    """Observer that writes every turn to the file ``path``, emptied first; raises DataError if it cannot be opened."""

    def __init__(self, path: str):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(fd, 0o600)  # for a file that existed already
                os.ftruncate(fd, 0)
            except OSError:
                pass  # a pipe or a terminal
            self._file = open(fd, "wb", buffering=0)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from None
        self._answers: dict[Exchange, list[Delta]] = {}

    def event(self, x: Exchange, event: Event) -> None:
        """Write the turn's request and prompt when its prefill begins, or when it fails before; collect its answer."""
        answer = self._answers.get(x)
        if answer is None and isinstance(event, (Prefill, Failed)):
            turn, job = x.turn, x.job
            assert turn is not None and job is not None
            answer = self._answers[x] = []
            self._write(
                "begin", x, client=x.client, model=turn.model, tools=len(turn.offered),
                tool_choice=turn.choice.kind, thinking=turn.thinking, max_tokens=turn.max_tokens,
                sampling=asdict(turn.sampling), cached=x.cached, source=x.source, queue_s=x.queued,
                prompt_tokens=x.prompt, prompt=job.parts[0].prompt.text or list(job.ids),
                request=x.body.decode("utf-8", "replace"),
            )  # fmt: skip
        delta = event.delta if isinstance(event, Answered) else event
        if answer is not None and isinstance(delta, Delta):
            answer.append(delta)

    def ended(self, x: Exchange) -> None:
        """Write the turn's answer, as generated and as parsed, and how it ended; nothing if it never began."""
        deltas = self._answers.pop(x, None)
        if deltas is not None:
            answer = added_up(deltas)
            generated = b"".join(step.token.raw for step in answer.steps).decode("utf-8", "replace")
            calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
            self._write(
                "end", x, status=x.status, finish=x.finish, error=x.error, tokens=x.tokens, prefill_s=x.prefilling,
                decode_s=x.decoding, total_s=x.lasted, generated=generated, reasoning=answer.reasoning,
                content=answer.text, tool_calls=calls, calls_void=any(delta.void for delta in deltas),
            )  # fmt: skip

    def close(self) -> None:
        """Close the trace file."""
        self._file.close()

    def _write(self, what: str, x: Exchange, **members: Any) -> None:
        line = {"event": what, "time": time.time(), "id": x.id, "api": x.api, **members}
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
        except (OSError, ValueError):
            pass  # a full disk is no reason not to answer
