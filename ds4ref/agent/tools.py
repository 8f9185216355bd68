"""The tools: what the model is told of them, and what a call does.

Whatever goes wrong in a call is its result, a text that starts with ``Tool error:`` and says what to do instead; a call
never ends the session. Names, parameters and texts are those of ds4's agent where it has them (agent.md).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..cancellation import Cancellation
from ..errors import Ds4Error
from ..text.dsml import ToolCall
from . import edit
from .arguments import Arguments
from .edit import Change, Document
from .memory import LineMemory
from .permit import Permit, Question
from .search import Query, listing, numbered, search
from .shell import Shell
from .workspace import File, FileError, Place, ToolError, Workspace, check_text, check_writable, shown_name

READ_LINES, READ_BYTES, READ_WIDTH = 500, 64 << 10, 2000
MAX_RESULT = 128 << 10
"""Bytes of the longest result."""
BEFORE, AFTER, EDITED, CONTEXT_BYTES = 5, 8, 36, 16 << 10
TIMEOUT, MAX_TIMEOUT = 120, 3600
_RANGE = re.compile(r"\s*(\d{1,9})\s*[:-]\s*(\d{1,9})\s*")


@dataclass(frozen=True)
class Result:
    """What a call gives: ``text`` to the model; ``note`` (one line) and ``detail`` to the user."""

    text: str
    note: str = ""
    detail: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Tool:
    """One tool. ``parameters`` are JSON schemas by name, the first ``required`` of them required."""

    name: str
    about: str
    parameters: dict[str, dict[str, str]]
    required: int
    run: Callable[[Arguments, Cancellation], Result]

    @property
    def schema(self) -> str:
        """As a model is told of it."""
        names = list(self.parameters)[: self.required]
        parameters = {"type": "object", "properties": self.parameters, "required": names}
        return json.dumps({"name": self.name, "description": self.about, "parameters": parameters})


def _text(about: str) -> dict[str, str]:
    return {"type": "string", "description": about}


def _number(about: str) -> dict[str, str]:
    return {"type": "integer", "description": about}


def _flag(about: str) -> dict[str, str]:
    return {"type": "boolean", "description": about}


_PATH = _text("path inside the workspace")


class Toolbox:
    """The tools of one session, and what its model has seen."""

    def __init__(self, workspace: Workspace, permit: Permit, shell: Shell):
        self.workspace, self.permit, self.shell = workspace, permit, shell
        self.memory = LineMemory()
        made = (
            Tool("read", "Read a text file, numbered line by line. Lines must have been read to be edited by number.",
                 {"path": _PATH, "start_line": _number("first line (1)"),
                  "max_lines": _number(f"at most so many lines ({READ_LINES})"),
                  "whole": _flag("all lines, as far as they fit (false)"),
                  "raw": _flag("without numbers; such lines cannot be edited by number (false)")}, 1, self._read),
            Tool("list", "List a folder: kind (d, l, -), size and name of each entry.",
                 {"path": _text("folder inside the workspace (.)")}, 0, self._list),
            Tool("search", "Find lines in the files of a folder, or in one file. Shown lines may be edited by number.",
                 {"query": _text("text, looked for line by line"), "path": _text("file or folder (.)"),
                  "mode": _text("literal or regex (literal)"), "glob": _text("only files of such names, as *.py"),
                  "context": _number("lines around each match, 0 to 5 (0)"),
                  "max_results": _number("at most so many matches (50)"),
                  "case_sensitive": _flag("(true)")}, 1, self._search),
            Tool("edit", "Change a file: new in place of old, which must be there exactly once; or new in place of the "
                 "lines that line, start_line and end_line, or range name, which must have been read before. The line "
                 "ending behind replaced lines stays. It is refused if the file changed since it was read.",
                 {"path": _PATH, "old": _text("exact text, white space included"),
                  "new": _text('text to put there; "" deletes'), "line": _number("the line to replace"),
                  "start_line": _number("first line to replace"), "end_line": _number("last line (start_line)"),
                  "range": _text("lines as 10:20, or all for the whole file")}, 1, self._edit),
            Tool("write", "Make a file, or replace all of it.",
                 {"path": _PATH, "content": _text("the whole content")}, 2, self._write),
            Tool("bash", "Run a shell command in the workspace, without input. It and all that it started end with it.",
                 {"command": _text("what to run"), "timeout_sec": _number(f"seconds, 1 to {MAX_TIMEOUT} ({TIMEOUT})")},
                 1, self._bash),
        )  # fmt: skip
        self.tools = {tool.name: tool for tool in made}

    @property
    def schemas(self) -> tuple[str, ...]:
        """All tools, as a model is told of them."""
        return tuple(tool.schema for tool in self.tools.values())

    def settle(self) -> None:
        """The model has read all results so far."""
        self.memory.settle()

    def forget(self) -> None:
        """The model has read nothing: its conversation begins anew."""
        self.memory.forget()

    def title(self, call: ToolCall) -> str:
        """A call for people, in a line or, for a command, more."""
        for name in ("command", "path", "query"):
            with suppress(ToolError):
                args = Arguments(call, ())
                if args.has(name):
                    return f"{call.name} {args.text(name) if name == 'command' else shown_name(args.text(name))}"
        return call.name

    def run(self, call: ToolCall, cancel: Cancellation) -> Result:
        """What the call gives, whatever happens."""
        try:
            tool = self.tools.get(call.name)
            if tool is None:
                raise ToolError(f"unknown tool: {shown_name(call.name[:80])}; there are {', '.join(self.tools)}")
            self.permit.check(tool.name)
            args = Arguments(call, tuple(tool.parameters))
            try:
                result = tool.run(args, cancel)
            except ToolError as error:
                raise ToolError(f"{error}{args.surplus if args.surplus not in str(error) else ''}") from None
        except (ToolError, Ds4Error, OSError, MemoryError) as error:
            text = str(error) or "not enough memory"
            result = Result(f"Tool error: {text}", text, failed=True)
        except Exception as error:  # a mistake of ours must not cost the session
            text = f"internal error in {call.name}: {type(error).__name__}: {error}"
            result = Result(f"Tool error: {text}", text, failed=True)
        return result if len(result.text) * 4 <= MAX_RESULT else _cut(result)

    # --- looking

    def _read(self, args: Arguments, cancel: Cancellation) -> Result:
        with self.workspace.place(args.text("path")) as place:
            self.permit(Question("read", f"read {place.shown}"))
            text = _document(self.workspace.read(place), place)
        total = len(text.lines)
        if not total:
            self.memory.show(place, text, ())
            return Result(f"{place.shown}: empty", "empty")
        start = args.number("start_line", 1, 1)
        if start > total:
            raise ToolError(f"{place.shown} has {total} lines: there is no line {start}")
        most = total if args.flag("whole") else args.number("max_lines", READ_LINES, 1)
        numbers = range(start, min(total, start + most - 1) + 1)
        lines, whole, last = numbered(text, numbers, READ_WIDTH, READ_BYTES)
        where = f"{place.shown}: lines {start}-{last} of {total}"
        rest = f"continue_offset={last + 1}; read with start_line={last + 1} shows the next lines"
        if args.flag("raw"):
            shown = "\n".join(line.partition(" ")[2] for line in lines)
            return Result(shown + (f"\n[{where}; {rest}]" if last < total else ""), where)
        self.memory.show(place, text, whole)
        return Result("\n".join([where + (f"; {rest}" if last < total else ""), *lines]), where)

    def _list(self, args: Arguments, cancel: Cancellation) -> Result:
        with self.workspace.place(args.text("path", ".") or ".") as place:
            self.permit(Question("list", f"list {place.shown}"))
            text = listing(self.workspace, place)
        count = text.count("\n")
        return Result(text, f"{count} entr{'y' if count == 1 else 'ies'}")

    def _search(self, args: Arguments, cancel: Cancellation) -> Result:
        mode = args.text("mode", "literal")
        if mode not in ("literal", "regex"):
            raise ToolError(f"mode is literal or regex, not {mode[:40]!r}")
        query = Query(
            args.text("query"), mode == "regex", args.text("glob", ""), args.number("context", 0, 0, 5),
            args.number("max_results", 50, 1, 500), args.flag("case_sensitive", True),
        )  # fmt: skip
        query.compiled()
        with self.workspace.place(args.text("path", ".") or ".") as place:
            self.permit(Question("search", f"search {place.shown}"))
            text, found = search(self.workspace, place, query, cancel)
        for file in found:
            self.memory.show(file.place, file.text, file.whole)
        return Result(text, text.partition("\n")[0])

    # --- changing

    def _edit(self, args: Arguments, cancel: Cancellation) -> Result:
        with self.workspace.place(args.text("path")) as place:
            everything = not args.has("old") and args.text("range", "").strip() == "all"
            file = self.workspace.find(place) if everything else self.workspace.read(place)
            check_writable(place, file)
            text = Document(()) if file is None else _document(file, place)
            _check_new(args.text("new", ""))
            change, done = self._change(args, place, text, everything)
            made = f"edit {place.shown}" if file is not None else f"make {place.shown}"
            self.permit(Question("edit", made, change.diff(None, sys.maxsize)))
            after = change.apply(text)
            self.workspace.replace(place, after.encode(), file)
        if everything:
            self.memory.wrote(place, after)
        else:
            self.memory.edited(place, change, after)
        lines = [done]
        if change.shift and not everything:
            behind = change.start + len(change.removed)
            why = "read them again before editing them by number"
            lines.append(f"Line shift: {change.shift:+d} for all lines behind old line {behind}; {why}")
        diff = change.diff()
        return Result("\n".join([*lines, diff, *self._around(place, change, after)]), done.partition("\n")[0], diff)

    def _change(self, args: Arguments, place: Place, text: Document, everything: bool) -> tuple[Change, str]:
        """The change that the arguments describe, checked against what the model has seen; and what it is called."""
        if args.has("old") or everything:
            self.memory.check_version(place, text)
        if args.has("old"):
            change = edit.by_anchor(text, args.text("old"), args.text("new", ""))
            return change, f"Edited {place.shown} using old/new replacement\nTouched old lines {_touched(change)}"
        if not args.has("new"):
            raise ToolError(f'line/range edit requires explicit new text; use new="" only when deleting{args.surplus}')
        if everything:
            return edit.whole(text, args.text("new")), f"Edited {place.shown} range=all"
        first, last = _lines_of(args)
        edit.check_range(text, first, last)
        self.memory.check_lines(place, text, first, last)
        return edit.by_lines(text, first, last, args.text("new")), f"Edited {place.shown} lines {first}-{last}"

    def _around(self, place: Place, change: Change, after: Document) -> list[str]:
        """The lines around an edit, which the model then knows; of a long one its two ends."""
        total, first, last = len(after.lines), change.start + 1, change.start + len(change.added)
        if not total:
            return [f"{place.shown} is empty now"]
        begin, end = max(1, first - BEFORE), min(total, last + AFTER)
        numbers = list(range(begin, end + 1))
        hidden = len(change.added) - EDITED
        half = EDITED // 2
        parts = [numbers] if hidden <= 0 else [range(begin, first + half), range(last - half + 1, end + 1)]
        lines, room = [f"Current file around edit: {place.shown} lines {begin}-{end} of {total}"], CONTEXT_BYTES
        for at, part in enumerate(parts):
            if at:
                lines.append(f"... {hidden} edited lines omitted ...")
            found, whole, _ = numbered(after, part, READ_WIDTH, room // len(parts))
            lines += found
            self.memory.show(place, after, whole)
        return lines

    def _write(self, args: Arguments, cancel: Cancellation) -> Result:
        content = args.text("content")
        _check_new(content)
        data = content.encode("utf-8", "replace")
        try:
            with self.workspace.place(args.text("path")) as place:
                file = self.workspace.find(place)
                check_writable(place, file)
                old = Document(()) if file is None else Document.parse(file.data)
                if file is not None:
                    self.memory.check_version(place, old)
                new = Document.parse(data)
                change = Change(0, old.lines, new.lines)
                how = "make" if file is None else f"replace all {len(file.data)} bytes of"
                self.permit(Question("write", f"{how} {place.shown}", change.diff(None, sys.maxsize)))
                self.workspace.replace(place, data, file)
        except FileError as error:
            raise ToolError(f"open for write failed: {error}; write makes no folders") from None
        self.memory.wrote(place, new)
        said = f"Wrote {len(data)} bytes to {place.shown}"
        return Result(said, said)

    # --- running

    def _bash(self, args: Arguments, cancel: Cancellation) -> Result:
        command, timeout = args.text("command"), args.number("timeout_sec", TIMEOUT, 1, MAX_TIMEOUT)
        if not command.strip():
            raise ToolError("bash requires command")
        if "\0" in command:
            raise ToolError("a command has no NUL")
        self.permit(Question("bash", "run", command))
        done = self.shell.run(command, timeout, cancel)
        notes = {"timeout": f"stopped: it took longer than timeout_sec={timeout}", "interrupt": "stopped by the user",
                 "output": "stopped: it said too much"}  # fmt: skip
        why = notes.get(done.why, "")
        timed_out = int(done.why == "timeout")
        head = f"bash status=done elapsed_sec={done.seconds:.1f} timed_out={timed_out} exit_status={done.status}"
        end = "" if not done.output or done.output.endswith("\n") else "\n"
        text = f"{head}\n{why + chr(10) if why else ''}<output>\n{done.output}{end}</output>"
        return Result(text, f"exit status {done.status}{'; ' + why if why else ''}", done.output, done.status != 0)


def _document(file: File, place: Place) -> Document:
    check_text(file.data, place)
    return Document.parse(file.data)


def _check_new(text: str) -> None:
    if "\0" in text:
        raise ToolError("new text with a NUL would make it a binary file")


def _lines_of(args: Arguments) -> tuple[int, int]:
    """First and last line of a line edit."""
    if args.has("range"):
        match = _RANGE.fullmatch(args.text("range"))
        if match is None:
            raise ToolError("invalid range; use START:END, for example 10:20")
        return int(match[1]), int(match[2])
    name = "line" if args.has("line") else "start_line"
    if not args.has(name):
        raise ToolError(f"edit requires old, or line, start_line or range, besides new{args.surplus}")
    first = args.number(name, 0)
    return first, first if name == "line" else args.number("end_line", first)


def _touched(change: Change) -> str:
    first, last = change.start + 1, change.start + len(change.removed)
    return f"{first}-{last}" if change.removed else f"none, put behind line {change.start}"


def _cut(result: Result) -> Result:
    """A result that is too long, marked as cut."""
    data = result.text.encode("utf-8", "replace")
    if len(data) <= MAX_RESULT:
        return result
    text = f"{data[:MAX_RESULT].decode('utf-8', 'ignore')}\n[... cut: {len(data)} bytes ...]"
    return Result(text, result.note, result.detail, result.failed)
