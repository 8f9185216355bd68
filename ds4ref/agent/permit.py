"""Permissions: which tools an agent may use without asking the user, and how the user is asked about others.

If there is no user to ask, a tool that is not allowed is denied, and the result of its call says so: the model can
still describe what it would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import UsageError
from .workspace import ToolError

GROUPS = {"read": ("read", "list", "search"), "edit": ("edit", "write"), "bash": ("bash",)}
"""Groups of tools that are allowed together."""
TOOLS = tuple(tool for group in GROUPS.values() for tool in group)
Ask = Callable[[str, str, str], str]
"""Type of a function that asks the user: (tool, action in one line, full detail such as a diff or command).

It returns "y" (yes), "n" (no) or "a" (always).
"""


def group_of(tool: str) -> str:
    """Return the name of the group that contains ``tool``."""
    return next(group for group, tools in GROUPS.items() if tool in tools)


def tools_of(text: str) -> set[str]:
    """Return the tools named by a comma list of tools and groups; raises UsageError for an unknown name."""
    tools: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in (*GROUPS, *TOOLS):
            raise UsageError(f"no tool {name[:40]!r}: choose from {', '.join(TOOLS)}")
        tools.update(GROUPS.get(name, (name,)))
    return tools


class Permit:
    """Decides whether a tool call may run.

    allowed   tools that run without asking
    ask       function that asks the user, None if there is no user to ask
    """

    def __init__(self, allowed: Iterable[str] = (), ask: Ask | None = None):
        self.allowed, self.ask = set(allowed), ask

    def check(self, tool: str) -> None:
        """Raise ToolError if ``tool`` is not allowed and there is no user to ask; called before anything is read."""
        if tool not in self.allowed and self.ask is None:
            raise ToolError(
                f"permission denied: {tool} was not allowed beforehand, and nobody is there to be asked. Do not try it "
                f"again: go on without it, or tell the user what you would do; --allow {group_of(tool)} allows it"
            )

    def __call__(self, tool: str, what: str, detail: str = "") -> None:
        """Raise ToolError unless ``tool`` is allowed or the user agrees; ``what``, ``detail``: as for ``Ask``."""
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
