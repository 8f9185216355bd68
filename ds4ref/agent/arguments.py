"""A call's arguments, read as leniently as a model writes them: numbers as text, booleans as words, surplus names."""

from __future__ import annotations

import math

from ..text import rawjson
from ..text.dsml import ToolCall
from .workspace import ToolError

_LEAST, _MOST = -(2**53), 2**53


class Arguments:
    """The arguments of ``call``, whose tool knows the names ``known``. ToolError if they are no JSON object.

    Of a name that comes twice the first one counts; null is as good as absent.
    """

    def __init__(self, call: ToolCall, known: tuple[str, ...]):
        self.tool = call.name
        self._found: dict[str, str] = {}
        try:
            text = call.arguments.strip() or "{}"
            end = rawjson.value_end(text)
            if text[end:].strip():
                raise ValueError(f"something follows the object at character {end}")
            members = rawjson.members(text)
        except ValueError as error:
            raise ToolError(f"the arguments of {call.name} are no JSON object: {error}") from None
        for name, raw in members:
            if raw != "null":
                self._found.setdefault(name, raw)
        self._surplus = [name for name in self._found if name not in known]

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return name in self._found

    def text(self, name: str, default: str | None = None) -> str:
        """A text; what is no JSON string counts as it is written. ToolError if it is missing and has no default."""
        raw = self._found.get(name)
        if raw is None:
            if default is None:
                raise ToolError(f"{self.tool} requires {name}{self.surplus}")
            return default
        return rawjson.string(raw) if rawjson.is_string(raw) else raw

    def number(self, name: str, default: int, lo: int = _LEAST, hi: int = _MOST) -> int:
        """A whole number, brought into lo..hi; ``default`` for what is none."""
        try:
            value = float(self.text(name, "").strip())
        except ValueError:
            return default
        if math.isnan(value):
            return default
        return int(min(max(value, lo), hi))

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false; ``default`` for anything else."""
        return {"true": True, "false": False}.get(self.text(name, "").strip().lower(), default)

    @property
    def surplus(self) -> str:
        """Names that the tool does not know, as the end of a sentence."""
        return f" (unknown here: {', '.join(self._surplus)[:200]})" if self._surplus else ""
