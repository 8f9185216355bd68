"""Execution of the agent's tool calls.

An error of a call is its result, a text that starts with ``Tool error:`` and says what to do instead; it never ends the
session. Names, parameters and texts are those of ds4's agent where it has them (agent.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..cancellation import Cancellation
from ..text.dsml import ToolCall
from .edit import DIFF_LINES, DIFF_WIDTH, Change, Text, by_anchor, by_lines
from .memory import LineMemory
from .parameters import PARAMETERS, Bash, Edit, List, Read, Search, Write, checked, members, schema
from .permit import Permit
from .search import Block, listing, read_text, search
from .shell import Shell
from .workspace import File, ToolError, Workspace, shown_name

READ_BYTES, READ_WIDTH = 64 << 10, 2000
BEFORE, AFTER, AROUND = 5, 8, 50
"""Lines shown before and after an edit, and the maximum number of lines shown in all."""
_RANGE = re.compile(r"\s*(\d{1,9})\s*[:-]\s*(\d{1,9})\s*")
_STOPPED = {"timeout": "stopped: it took longer than timeout_sec={}", "interrupt": "stopped by the user",
            "output": "stopped: it printed too much"}  # fmt: skip


class Result(NamedTuple):
    """The result of a tool call.

    text     for the model
    note     for the user, in one line
    detail   for the user: output, a diff or a listing
    failed   whether the call failed
    """

    text: str
    note: str
    detail: str = ""
    failed: bool = False

    @classmethod
    def error(cls, why: str) -> Result:
        """Return the result of a call that failed for the reason ``why``."""
        return cls(f"Tool error: {why}", why, failed=True)


class Toolbox:
    """The tools of one session, with the memory of lines shown to its model."""

    def __init__(self, workspace: Workspace, permit: Permit, shell: Shell):
        self.workspace, self.permit, self.shell, self.memory = workspace, permit, shell, LineMemory()
        self.schemas = tuple(map(schema, PARAMETERS))

    def title(self, call: ToolCall) -> str:
        """Return a readable title of a call: the tool, and its path or query."""
        try:
            values = members(call)
        except ToolError:
            return call.name
        if "command" in values:
            return f"{call.name} {values['command']}"
        about = values.get("path", values.get("query"))
        return call.name if about is None else f"{call.name} {shown_name(str(about))}"

    def run(self, call: ToolCall, cancel: Cancellation) -> Result:
        """Run a call and return its result; every exception becomes a failed result."""
        try:
            if call.name not in PARAMETERS:
                raise ToolError(f"unknown tool: {shown_name(call.name[:80])}; there are {', '.join(PARAMETERS)}")
            self.permit.check(call.name)
            args = checked(call, PARAMETERS[call.name])
            tool: Callable[[Any, Cancellation], Result] = getattr(self, f"_{call.name}")
            return tool(args, cancel)
        except (ToolError, ValueError) as error:
            return Result.error(str(error))
        except OSError as error:
            path = shown_name(getattr(args, "path", call.name))
            return Result.error(f"{path}: {error.strerror or error}")
        except Exception as error:  # a mistake of ours must not cost the session
            return Result.error(f"internal error in {call.name}: {type(error).__name__}: {error}")

    def _place(self, path: str) -> tuple[str, str]:
        """Return the real path, and the one that is shown."""
        real = self.workspace.resolve(path)
        return real, self.workspace.shown(real)

    # --- looking

    def _read(self, args: Read, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        self.permit("read", f"read {name}")
        text = read_text(self.workspace, real)
        total, first = len(text.lines), args.start_line
        if first > max(1, total):
            raise ToolError(f"{name} has {total} lines: there is no line {first}")
        block = Block(text, READ_BYTES, READ_WIDTH)
        block.add(range(first, total + 1 if args.whole else min(total + 1, first + args.max_lines)))
        last = first + len(block.lines) - 1
        where = f"{name}: lines {first}-{last} of {total}" if total else f"{name}: empty"
        rest = f"; continue_offset={last + 1}; read with start_line={last + 1} shows the next lines" * (last < total)
        if args.raw:
            lines = [line.partition(" ")[2] for line in block.lines]
            return Result("\n".join([*lines, f"[{where}{rest}]"]), where)
        self.memory.show(real, text, block.whole)
        return Result("\n".join([where + rest, *block.lines]), where)

    def _list(self, args: List, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        self.permit("list", f"list {name}")
        text = listing(self.workspace, real)
        return Result(text, text.partition("\n")[0], text.partition("\n")[2])

    def _search(self, args: Search, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        self.permit("search", f"search {name}")
        text, blocks = search(self.workspace, real, args, cancel)
        for file, block in blocks.items():
            self.memory.show(file, block.text, block.whole)
        return Result(text, text.partition("\n")[0])

    # --- changing

    def _edit(self, args: Edit, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        whole = not args.old and args.range.strip() == "all"
        file = self.workspace.find(real) if whole else self.workspace.read(real)
        self.workspace.check_writable(real, file)
        text = Text.parse(file.data if file else b"")
        if file and (b"\0" in file.data or text.encode("".join(text.lines)) != file.data):
            raise ToolError(f"{name} is not UTF-8 text; use bash to change it")
        self.memory.check_version(real, name, text)
        if args.old:
            done, content = f"Edited {name} using old/new replacement", by_anchor(text, args.old, args.new)
        elif whole:
            done, content = f"Edited {name} range=all", text.fitted(args.new)
        else:
            first, last = _lines_of(args)
            content = by_lines(text, first, last, args.new)
            self.memory.check_lines(real, name, first, last)
            done = f"Edited {name} lines {first}-{last}"
        change, after = self._replace("edit", real, file, text.encode(content))
        self.memory.edited(real, after, None if whole else change)
        shift = f"Line shift: {change.shift:+d} for all lines behind old line {change.start + len(change.removed)}"
        diff = change.diff(DIFF_LINES, DIFF_WIDTH)
        start, end = max(1, change.start + 1 - BEFORE), change.start + len(change.added) + AFTER
        block = Block(after, READ_BYTES, READ_WIDTH)
        block.add(range(start, min(end, len(after.lines), start + AROUND - 1) + 1))
        self.memory.show(real, after, block.whole)
        around = f"Current file around edit: {name} lines {start}-{start + len(block.lines) - 1} of {len(after.lines)}"
        return Result("\n".join([done, *[shift][: abs(change.shift)], diff, around, *block.lines]), done, diff)

    def _write(self, args: Write, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        file = self.workspace.find(real)
        self.workspace.check_writable(real, file)
        if file:
            self.memory.check_version(real, name, Text.parse(file.data))
        data = args.content.encode()
        _, after = self._replace("write", real, file, data)
        self.memory.edited(real, after, None)
        done = f"Wrote {len(data)} bytes to {name}"
        return Result(done, done)

    def _replace(self, tool: str, real: str, file: File | None, data: bytes) -> tuple[Change, Text]:
        """Replace ``file`` by ``data`` after a question; return the change and the new text."""
        if file and file.data == data:
            raise ToolError(f"this {tool} changes nothing: the new text is what is there")
        after = Text.parse(data)
        change = Change.between(Text.parse(file.data).lines if file else [], after.lines)
        self.permit(tool, f"{tool if file else 'make'} {self.workspace.shown(real)}", change.diff())
        self.workspace.replace(real, data, file)
        return change, after

    # --- running

    def _bash(self, args: Bash, cancel: Cancellation) -> Result:
        self.permit("bash", "run", args.command)
        ended = self.shell.run(args.command, args.timeout_sec, cancel)
        why = [_STOPPED[ended.why].format(args.timeout_sec)] if ended.why else []
        head = f"bash status=done elapsed_sec={ended.seconds:.1f} timed_out={int(ended.why == 'timeout')}"
        output = ended.output + "\n" * (ended.output[-1:] not in ("", "\n"))
        text = "\n".join([f"{head} exit_status={ended.status}", *why, f"<output>\n{output}</output>"])
        return Result(text, "; ".join([f"exit status {ended.status}", *why]), ended.output, ended.status != 0)


def _lines_of(args: Edit) -> tuple[int, int]:
    """Return first and last line of an edit by lines."""
    if args.range:
        match = _RANGE.fullmatch(args.range)
        return (int(match[1]), int(match[2])) if match else (0, 0)
    if not args.line and not args.start_line:
        raise ToolError("edit requires old, or line, start_line or range, besides new")
    return (args.line, args.line) if args.line else (args.start_line, args.end_line or args.start_line)
