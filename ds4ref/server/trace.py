"""A trace file with every turn from request to answer (server.md 12.2), for debugging clients.

It holds whole prompts, including secrets: only its owner can read it, and the server warns at start. Records are
not interleaved: a turn that begins before the previous record is complete is buffered.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DataError
from ..targets.answer import CallDelta, Delta
from .turn import Answered, Event, Failed, Prefill

if TYPE_CHECKING:
    from .exchange import Exchange


class Trace:
    """Watcher that writes every turn to the file ``path``, emptied first; raises DataError if it cannot be written."""

    def __init__(self, path: str):
        self.path = path
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(fd, 0o600)  # one that was there already, too
                os.ftruncate(fd, 0)
            except OSError:
                pass  # a pipe or a terminal
            self._file: BinaryIO = open(fd, "wb", buffering=0)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from None
        self._records: dict[Exchange, _Record] = {}
        self._line: deque[Exchange] = deque()
        """Started exchanges in order; the first one's record is being written."""

    def began(self, x: Exchange) -> None:
        """Start the record of a submitted turn."""
        self._records[x] = _Record()

    def event(self, x: Exchange, event: Event) -> None:
        """Append an event to the turn's record; write it to the file unless another turn's record is being written."""
        record = self._records[x]
        record.event(x, event)
        if record.begun and x not in self._line:
            self._line.append(x)
        self._write()

    def ended(self, x: Exchange) -> None:
        """Finish the turn's record and write the next ones."""
        record = self._records[x]
        if not record.begun:
            del self._records[x]  # it never started
            return
        record.end(x)
        self._write()

    def close(self) -> None:
        """Close the trace file."""
        self._file.close()

    def _write(self) -> None:
        while self._line:
            record = self._records[self._line[0]]
            data = "".join(record.text).encode("utf-8", "surrogateescape")
            record.text.clear()
            try:
                self._file.write(data)
            except (OSError, ValueError):
                pass  # a full disk is no reason not to answer
            if not record.over:
                return
            del self._records[self._line.popleft()]


class _Record:
    """The text of one turn, as far as it is not written yet."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.begun = self.over = False
        self._block = False
        self._generated = 0
        self._calls: dict[int, list[str]] = {}
        self._said: list[str] = []
        self._thought: list[str] = []

    def event(self, x: Exchange, event: Event) -> None:
        """Append an event to the text."""
        if isinstance(event, Answered):
            event = event.delta
        match event:
            case Prefill() if not self.begun:
                self._head(x, event)
            case Delta():
                self._delta(event)
            case Failed(code, message):
                if not self.begun:
                    self._head(x, None)
                phase = "decode" if self._generated else "prefill"
                self.text.append(f"\n--- trace: {phase} failed: {code}: {message} ---\n")

    def _head(self, x: Exchange, prefill: Prefill | None) -> None:
        self.begun = True
        turn, job = x.turn, x.job
        assert turn is not None and job is not None
        drawn = turn.sampling
        keys = {
            "id": x.id, "client": x.client, "kind": x.api, "model": turn.model, "stream": int(x.stream),
            "tools": len(turn.offered), "tool_choice": turn.choice.kind, "think_mode": turn.thinking,
            "prompt_tokens": len(job.ids), "effective_prompt_tokens": x.prompt, "cached_tokens": x.cached,
            "max_tokens": turn.max_tokens, "temperature": drawn.temperature, "top_k": drawn.top_k, "top_p": drawn.top_p,
            "min_p": drawn.min_p, "seed": drawn.seed, "queue_sec": f"{x.queued:.3f}",
        }  # fmt: skip
        out = [f"===== request {job.number} {time.strftime('%Y-%m-%d %H:%M:%S')} =====\n"]
        out += [f"{key}: {'' if value is None else value}\n" for key, value in keys.items()]
        source = "none" if prefill is None else prefill.source
        out.append(f"--- cache decision ---\ncache_source: {source}\ncached_tokens: {x.cached}\n")
        out.append(f"--- raw request json ---\n{x.body.decode('utf-8', 'surrogateescape')}\n")
        out.append(f"--- rendered prompt ---\n{job.prompt.text or list(job.ids)}\n--- generated text ---\n")
        self.text += out

    def _delta(self, delta: Delta) -> None:
        block = self._block
        for step in delta.steps:
            self._generated += 1
            self.text.append(step.token.raw.decode("utf-8", "surrogateescape"))
        self._said.append(delta.text)
        self._thought.append(delta.reasoning)
        if delta.void:
            self._calls.clear()
            self.text.append(f"\n--- trace: the calls do not count after {self._generated} generated tokens ---\n")
        for call in delta.calls:
            self._call(call)
        if self._calls and not block:
            self._block = True
            self.text.append(f"\n--- trace: entered tool-call block after {self._generated} generated tokens ---\n")

    def _call(self, call: CallDelta) -> None:
        parts = self._calls.setdefault(call.index, ["", ""])
        parts[0] += call.name
        parts[1] += call.arguments

    def end(self, x: Exchange) -> None:
        """Append the parsed answer, the finish reason and the status to the trace, which ends here."""
        self.over = True
        assert x.job is not None
        out = ["\n--- parsed message ---\n", f"finish: {x.finish or 'none'}\n", f"status: {x.status}\n"]
        out += [f"error: {x.error}\n"] if x.error else []
        out += [f"generated_tokens: {self._generated}\n", f"elapsed_sec: {x.lasted:.3f}\n"]
        out += [f"prefill_sec: {x.prefilling:.3f}\n", f"decode_sec: {x.decoding:.3f}\n"]
        out += [f"reasoning:\n{''.join(self._thought)}\n", f"content:\n{''.join(self._said)}\n"]
        for index, (name, arguments) in sorted(self._calls.items()):
            out.append(f"tool_call[{index}]:\nname: {name}\narguments: {arguments}\n")
        out.append(f"===== end request {x.job.number} =====\n")
        self.text += out
