"""The log on stderr: readable lines (docs/reference/server.md), or JSON with one object per line.

1122 13:44:05 ds4-server: chat ctx=1204..1329:125 TOOLS THINKING prompt start
{"time":"2026-11-22T13:44:05.112+00:00","level":"info","message":"chat ctx=...","request":"req_...","cached":1204}
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import one_line
from ..targets.answer import Delta, Finish
from .exchange import Watcher
from .turn import Event, Prefill, Queued

if TYPE_CHECKING:
    from .exchange import Exchange

log = logging.getLogger("ds4-server")

COLOURS = {"prefill": "36", "generation": "32", "kvcache": "33", "tool": "90", "warning": "38;5;208", "error": "31"}

EVERY_TOKENS = 50
EVERY_SECONDS = 1.0


class Plain(logging.Formatter):
    """Formatter of readable lines: ``MMDD HH:MM:SS ds4-server: text``, coloured by kind of message."""

    def __init__(self, colour: bool):
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, followed by its traceback if it has one."""
        text = one_line(record.getMessage())
        when = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        line = f"{when} ds4-server: {text}"
        if self.colour and (code := COLOURS.get(kind(record))):
            line = f"\x1b[{code}m{line}\x1b[0m"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class Json(logging.Formatter):
    """Formatter of JSON lines: an object with time, level, message, and the record's further fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line of JSON."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)


def kind(record: logging.LogRecord) -> str:
    """Return the kind of a record, a key of COLOURS, "" for none."""
    if record.levelno >= logging.ERROR:
        return "error"
    if record.levelno >= logging.WARNING:
        return "warning"
    return getattr(record, "kind", "kvcache" if record.name == "ds4-kv" else "")


def listen(stream: TextIO, form: str, colour: bool) -> logging.Handler:
    """Send the logs of the server and its libraries to ``stream``; return the handler.

    form     "text" or "json"
    colour   whether text lines are coloured
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Json() if form == "json" else Plain(colour))
    for own in (log, logging.getLogger("ds4-kv")):
        own.addHandler(handler)
        own.setLevel(logging.INFO)
        own.propagate = False
    web = logging.getLogger("uvicorn")
    web.addHandler(handler)
    web.setLevel(logging.ERROR)  # this server logs bad requests itself, with more detail
    web.propagate = False
    return handler


@dataclass
class _State:
    """What was logged about a turn so far; times in seconds of ``time.monotonic``.

    ahead            number of turns ahead of it in the queue
    prefill, decode  when each began, 0 before
    spoke, done      when the last speed was logged, and how many tokens were done by then
    names            the tools that it has called
    """

    ahead: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    spoke: float = 0.0
    done: int = 0
    names: list[str] = field(default_factory=list)

    def speed(self, now: float, done: int, since: float, first: int) -> str:
        """Return a text with the speed since the last call, and since the time ``since``, when ``first`` tokens were
        done; ``now``: the time, ``done``: the tokens done."""
        chunk, mean = (done - self.done) / (now - self.spoke), (done - first) / (now - since)
        self.spoke, self.done = now, done
        return f"chunk={chunk:.2f} t/s avg={mean:.2f} t/s {now - since:.3f}s"


class Lines(Watcher):
    """Watcher that logs the progress of turns, at most once per second each."""

    def __init__(self) -> None:
        self._states: dict[Exchange, _State] = {}

    def event(self, x: Exchange, event: Event) -> None:
        """Log queue position, prefill and decode progress."""
        state = self._states.setdefault(x, _State())
        match event:
            case Queued(ahead) if ahead and ahead != state.ahead:
                state.ahead = ahead
                say(x, f"{x.api} {x.id} waits, {ahead} ahead", "prefill", ahead=ahead)
            case Prefill():
                self._prefill(x, event, state)
            case Delta():
                self._delta(x, event, state)

    def ended(self, x: Exchange) -> None:
        """Log the end of a turn with its counts and times."""
        self._states.pop(x, None)
        text = f"{x.api} ctx={span(x)} gen={x.tokens}{flags(x)} finish={x.finish or 'none'}"
        text += f' error="{x.error}"' if x.error else ""
        split = " ".join(f"{name} {seconds:.3f}" for name, seconds in x.times.items())
        say(
            x, f"{text} {x.lasted:.3f}s ({split})", "generation", x.status >= 500, status=x.status, finish=x.finish,
            prompt=x.prompt, cached=x.cached, source=x.source, generated=x.tokens, client=x.client, error=x.error,
            **{f"{name}_s": round(seconds, 6) for name, seconds in {**x.times, "total": x.lasted}.items()},
        )  # fmt: skip

    def _prefill(self, x: Exchange, event: Prefill, state: _State) -> None:
        now = time.monotonic()
        head = f"{x.api} ctx={span(x)}{flags(x)}"
        if not state.prefill:
            state.prefill, state.spoke, state.done = now, now, event.done
            say(x, f"{head} prompt start", "prefill", cached=event.cached, prompt=event.total, source=event.source)
        elif event.done < event.total and now - state.spoke >= EVERY_SECONDS:
            done = f"{event.done}/{event.total} ({100 * event.done / event.total:.1f}%)"
            speed = state.speed(now, event.done, state.prefill, event.cached)
            say(x, f"{head} prefill chunk {done} {speed}", "prefill", done=event.done)

    def _delta(self, x: Exchange, event: Delta, state: _State) -> None:
        now = time.monotonic()
        if not state.decode:
            state.decode, state.spoke, state.done = now, now, 0
            say(x, f"{x.api} ctx={span(x)}{flags(x)} prompt done {x.prefilling:.3f}s", "prefill")
        if x.tokens - state.done >= EVERY_TOKENS and now - state.spoke >= EVERY_SECONDS:
            where = f"{x.prompt}..{x.prompt + x.tokens}:{x.tokens} gen={x.tokens}{flags(x)}"
            speed = state.speed(now, x.tokens, state.decode, 0)
            say(x, f"{x.api} ctx={where} decoding {speed}", "generation", generated=x.tokens)
        state.names += [call.name for call in event.calls if call.name]
        if event.finish == Finish.TOOL_CALLS:
            names = ",".join(state.names)
            say(x, f"tool calls ctx={span(x)} n={len(state.names)} raw_dsml={len(event.markup)} names=[{names}]",
                "tool", calls=state.names)  # fmt: skip


def say(x: Exchange, text: str, colour: str, bad: bool = False, **fields: Any) -> None:
    """Log one line about the turn of ``x``.

    colour: kind of message, a key of COLOURS; bad: log it as an error; fields: further members of a JSON line.
    """
    extra = {"kind": colour, "fields": {"request": x.id, "api": x.api, **fields}}
    log.log(logging.ERROR if bad else logging.INFO, "%s", text, extra=extra)


def span(x: Exchange) -> str:
    """Return the text "A..B:N": A cached prompt tokens, B prompt tokens, N = B - A tokens to prefill."""
    return f"{x.cached}..{x.prompt}:{x.prompt - x.cached}"


def flags(x: Exchange) -> str:
    """Return the flags of a turn's log line (RESPPROTO, TOOLS, THINKING), each after a space."""
    if x.turn is None:
        return ""
    known = [("RESPPROTO", x.api == "responses"), ("TOOLS", bool(x.turn.offered)), ("THINKING", x.thinking)]
    return "".join(f" {name}" for name, on in known if on)
