"""What an agent may do without being asked, and who is asked for the rest.

Without anybody to ask, what is not allowed is denied, and the model is told so: it can say what it would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import UsageError
from .workspace import ToolError

GROUPS = {"read": ("read", "list", "search"), "edit": ("edit", "write"), "bash": ("bash",)}
"""What is allowed together: looking, changing files, running commands."""
TOOLS = tuple(tool for group in GROUPS.values() for tool in group)
Ask = Callable[[str, str, str], str]
"""Asks about a tool: its name, one line, and everything that will happen (a diff, a command); returns y, n or a."""


def group_of(tool: str) -> str:
    """Return the group of a tool."""
    return next(group for group, tools in GROUPS.items() if tool in tools)


def tools_of(text: str) -> set[str]:
    """Return the tools that a comma list of tools and groups names. UsageError for a name that is neither."""
    tools: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in (*GROUPS, *TOOLS):
            raise UsageError(f"no tool {name[:40]!r}: choose from {', '.join(TOOLS)}")
        tools.update(GROUPS.get(name, (name,)))
    return tools


class Permit:
    """``allowed`` are the tools that run without a question; ``ask`` is None if there is nobody to ask."""

    def __init__(self, allowed: Iterable[str] = (), ask: Ask | None = None):
        self.allowed, self.ask = set(allowed), ask

    def check(self, tool: str) -> None:
        """Raise ToolError for a tool that is denied whatever it is to do, before anything is looked at."""
        if tool not in self.allowed and self.ask is None:
            raise ToolError(
                f"permission denied: {tool} was not allowed beforehand, and nobody is there to be asked. Do not try it "
                f"again: go on without it, or tell the user what you would do; --allow {group_of(tool)} allows it"
            )

    def __call__(self, tool: str, what: str, detail: str = "") -> None:
        """Raise ToolError unless this may be done."""
        if tool in self.allowed or self.ask is None:
            return self.check(tool)
        answer = self.ask(tool, what, detail)
        if answer == "n":
            raise ToolError(
                f"permission denied: the user said no to this {tool} call. Do not try it again: go on without it, or "
                "ask what to do instead"
            )
        if answer == "a":
            self.allowed.update(GROUPS[group_of(tool)])
