"""Execution of the agent's tool calls.

An error in a call becomes the call's result, a text that starts with ``Tool error:`` and says what to do instead; it
never ends the session. Names, parameters and texts are those of ds4's agent where it has them (agent.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..cancellation import Cancellation
from ..text.dsml import ToolCall
from .edit import DIFF_LINES, DIFF_WIDTH, Change, Text, replaced
from .parameters import PARAMETERS, Bash, Edit, List, Read, Search, Write, checked, members, schema
from .permit import Permit
from .search import listing, read_text, search, shortened
from .shell import Shell
from .workspace import File, ToolError, Workspace, shown_name

READ_BYTES, READ_WIDTH = 64 << 10, 2000
_STOPPED = {"timeout": "stopped: it took longer than timeout_sec={}", "interrupt": "stopped by the user",
            "output": "stopped: it printed too much"}  # fmt: skip


class Result(NamedTuple):
    """The result of a tool call.

    text     the result as the model sees it
    note     a line about it for the user
    detail   more for the user: output, a diff or a listing
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
    """The tools of one session. ``seen`` maps paths to the digest of the file as the model last read or wrote it."""

    def __init__(self, workspace: Workspace, permit: Permit, shell: Shell):
        self.workspace, self.permit, self.shell = workspace, permit, shell
        self.seen: dict[str, bytes] = {}
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
        except Exception as error:  # a bug here must not end the session
            return Result.error(f"internal error in {call.name}: {type(error).__name__}: {error}")

    def _place(self, path: str) -> tuple[str, str]:
        """Return the real path of ``path``, and the path to show."""
        real = self.workspace.resolve(path)
        return real, self.workspace.shown(real)

    # --- looking

    def _read(self, args: Read, cancel: Cancellation) -> Result:
        """Return some lines of a file, each after its number, as many as fit into ``READ_BYTES``."""
        real, name = self._place(args.path)
        self.permit("read", f"read {name}")
        text = read_text(self.workspace, real)
        total, first = len(text.lines), args.start_line
        if first > max(1, total):
            raise ToolError(f"{name} has {total} lines: there is no line {first}")
        self.seen[real] = text.version
        lines: list[str] = []
        room = READ_BYTES
        for number, line in enumerate(text.lines[first - 1 : first - 1 + args.max_lines], first):
            line = shortened(line.removesuffix("\n"), READ_WIDTH)
            lines.append(f"{number} {line}")
            room -= len(lines[-1].encode()) + 1
            if room < 0 and len(lines) > 1:
                lines.pop()
                break
        last = first + len(lines) - 1
        where = f"{name}: lines {first}-{last} of {total}" if total else f"{name}: empty"
        rest = f"; continue_offset={last + 1}; read with start_line={last + 1} shows the next lines" * (last < total)
        return Result("\n".join([where + rest, *lines]), where)

    def _list(self, args: List, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        self.permit("list", f"list {name}")
        text = listing(self.workspace, real)
        return Result(text, text.partition("\n")[0], text.partition("\n")[2])

    def _search(self, args: Search, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        self.permit("search", f"search {name}")
        text = search(self.workspace, real, args, cancel)
        return Result(text, text.partition("\n")[0])

    # --- changing

    def _edit(self, args: Edit, cancel: Cancellation) -> Result:
        """Replace a text that occurs once in a file; the result shows the change as a diff."""
        real, name = self._place(args.path)
        file = self.workspace.read(real)
        text = Text.parse(file.data)
        if b"\0" in file.data or text.encode("".join(text.lines)) != file.data:
            raise ToolError(f"{name} is not UTF-8 text; use bash to change it")
        change = self._replace("edit", real, file, lambda: text.encode(replaced(text, args.old, args.new)))
        done, diff = f"Edited {name}", change.diff(DIFF_LINES, DIFF_WIDTH)
        return Result(f"{done}\n{diff}", done, diff)

    def _write(self, args: Write, cancel: Cancellation) -> Result:
        real, name = self._place(args.path)
        data = args.content.encode()
        self._replace("write", real, self.workspace.find(real), lambda: data)
        done = f"Wrote {len(data)} bytes to {name}"
        return Result(done, done)

    def _replace(self, tool: str, real: str, file: File | None, content: Callable[[], bytes]) -> Change:
        """Replace the content of the file at the path ``real``, for "edit" or "write" (``tool``), after asking the
        user; return the change.

        ``file``: its present content, None if it does not exist. Raise ToolError if it has changed since the model saw
        it.
        """
        self.workspace.check_writable(real, file)
        before, name = Text.parse(file.data if file else b""), self.workspace.shown(real)
        if file and self.seen.get(real, before.version) != before.version:
            raise ToolError(f"{name} has changed since it was read; read it again before editing")
        data = content()
        if file and file.data == data:
            raise ToolError(f"this {tool} changes nothing: the new text is what is there")
        after = Text.parse(data)
        change = Change.between(before.lines, after.lines)
        self.permit(tool, f"{tool if file else 'make'} {name}", change.diff())
        self.workspace.replace(real, data, file)
        self.seen[real] = after.version
        return change

    # --- running

    def _bash(self, args: Bash, cancel: Cancellation) -> Result:
        """Run a shell command; the result has its exit status and its output."""
        self.permit("bash", "run", args.command)
        ended = self.shell.run(args.command, args.timeout_sec, cancel)
        why = [_STOPPED[ended.why].format(args.timeout_sec)] if ended.why else []
        head = f"bash status=done elapsed_sec={ended.seconds:.1f} timed_out={int(ended.why == 'timeout')}"
        output = ended.output + "\n" * (ended.output[-1:] not in ("", "\n"))
        text = "\n".join([f"{head} exit_status={ended.status}", *why, f"<output>\n{output}</output>"])
        return Result(text, "; ".join([f"exit status {ended.status}", *why]), ended.output, ended.status != 0)
