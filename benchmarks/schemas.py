"""Random JSON schemas and tools, seeded: for constrained decoding to be tried on.

Every schema can be satisfied and uses only what docs/server.md lists as supported. Nothing in here knows how it is
enforced.
"""

from __future__ import annotations

import json
import random
from typing import Any

Schema = Any

_WORDS = (
    "name", "path", "n", "items", "kind", "a b", "ünï", "x-y", "0", "line_end", "nested", "$id", "quote\"d", "<tag>",
)  # fmt: skip
_PATTERNS = (
    r"^[a-z]{2,5}$", r"^\d{3}-\d{2}$", r"^(foo|bar|baz)+$", r"[0-9]$", r"^https?://[^\s/]+", r"^\w+@\w+\.\w{2,3}$",
    r"^#[0-9a-fA-F]{6}$", r"^(?:[A-Z][a-z]*){1,3}$", r"^$|^x", r"^[^\d]{1,4}$", r"^\s*\S\s*$", r"^v\d+(\.\d+){0,2}$",
)  # fmt: skip
_FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "json-pointer")


class Maker:
    """Draws schemas from a generator of random numbers."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.defs: dict[str, Schema] = {}

    def schema(self, depth: int = 3, root: str = "any") -> Schema:
        """A document's schema; ``root`` "object" for one of a tool's arguments."""
        self.defs = {}
        if self.rng.random() < 0.4:
            for i in range(self.rng.randint(1, 2)):
                self.defs[f"def{i}"] = self._node(1)
            if self.rng.random() < 0.4:
                self.defs["tree"] = {
                    "type": "object",
                    "properties": {
                        "value": self._node(0),
                        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                    },
                    "required": ["value"],
                    "additionalProperties": False,
                }
        made = self._object(depth) if root == "object" else self._node(depth)
        if self.defs and isinstance(made, dict):
            made = {**made, "$defs": self.defs}
        if isinstance(made, dict) and self.rng.random() < 0.3:
            made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", **made}
        return made

    def tool(self, number: int) -> dict[str, Any]:
        """A function as a request declares it."""
        return {
            "type": "function",
            "function": {
                "name": f"{self.rng.choice(('read', 'write', 'run', 'ask'))}_{number}",
                "description": "does something",
                "parameters": self.schema(2, "object"),
            },
        }

    def tools(self) -> list[dict[str, Any]]:
        """One to four of them."""
        return [self.tool(i) for i in range(self.rng.randint(1, 4))]

    # --- inside

    def _node(self, depth: int) -> Schema:
        kinds = ["string", "string", "number", "integer", "boolean", "null", "enum", "const", "types"]
        if depth > 0:
            kinds += ["object", "object", "object", "array", "array", "anyOf", "allOf", "any"]
        if self.defs:
            kinds += ["ref"]
        kind = self.rng.choice(kinds)
        made = getattr(self, f"_{kind}")(depth)
        if isinstance(made, dict) and self.rng.random() < 0.2:
            made = {"description": "what it is", **made, "default": None}
        return made

    def _string(self, depth: int) -> Schema:
        made: dict[str, Any] = {"type": "string"}
        choice = self.rng.random()
        if choice < 0.25:
            low = self.rng.randint(0, 6)
            made |= {"minLength": low, "maxLength": low + self.rng.randint(0, 9)}
        elif choice < 0.35:
            made |= {"minLength": self.rng.randint(1, 12)}
        elif choice < 0.45:
            made |= {"maxLength": self.rng.randint(0, 12)}
        elif choice < 0.65:
            made |= {"pattern": self.rng.choice(_PATTERNS)}
        elif choice < 0.8:
            made |= {"format": self.rng.choice(_FORMATS)}
        return made

    def _integer(self, depth: int) -> Schema:
        made: dict[str, Any] = {"type": "integer"}
        numbers = (0, 1, -1, 7, 10, 99, 100, 1234, -50, self.rng.randint(-9999, 9999))
        self._bounds(made, lambda: self.rng.choice(numbers))
        if self.rng.random() < 0.15:
            made = {"type": "integer", "multipleOf": self.rng.choice((1, 2, 3, 5, 10))}
        return made

    def _number(self, depth: int) -> Schema:
        made: dict[str, Any] = {"type": "number"}
        numbers = (0, 1, -1, 0.5, 2.25, 100, -3.75, round(self.rng.uniform(-99, 99), 3))
        self._bounds(made, lambda: self.rng.choice(numbers))
        if self.rng.random() < 0.1:
            made = {"type": "number", "multipleOf": self.rng.choice((0.5, 0.25, 2))}
        return made

    def _bounds(self, made: dict[str, Any], draw: Any) -> None:
        low, high = sorted((draw(), draw()))
        if self.rng.random() < 0.5:
            made["minimum" if self.rng.random() < 0.7 else "exclusiveMinimum"] = low
        if self.rng.random() < 0.5:
            made["maximum" if self.rng.random() < 0.7 else "exclusiveMaximum"] = high + 2

    def _boolean(self, depth: int) -> Schema:
        return {"type": "boolean"}

    def _null(self, depth: int) -> Schema:
        return {"type": "null"}

    def _any(self, depth: int) -> Schema:
        return self.rng.choice(({}, True, {"type": "object"}, {"type": "array"}))

    def _value(self) -> Any:
        words = ("red", "a b", "", "ü", 'q"', "</x>")
        return self.rng.choice((*words, 0, 1, -7, 2.5, 1e9, 0.001, True, False, None, [], [1, "a"], {}, {"k": [None]}))

    def _enum(self, depth: int) -> Schema:
        if self.rng.random() < 0.6:
            return {"type": "string", "enum": self.rng.sample(("red", "green", "blue", "a b", "x\ny", "é"), 3)}
        values = [self._value() for _ in range(self.rng.randint(1, 5))]
        return {"enum": [v for i, v in enumerate(values) if v not in values[:i]]}

    def _const(self, depth: int) -> Schema:
        return {"const": self._value()}

    def _types(self, depth: int) -> Schema:
        kinds = self.rng.sample(("string", "number", "integer", "boolean", "null"), self.rng.randint(1, 3))
        made: dict[str, Any] = {"type": kinds}
        if self.rng.random() < 0.4:
            made |= {"minLength": 2, "maximum": 10}
        return made

    def _anyOf(self, depth: int) -> Schema:
        return {"anyOf": [self._node(depth - 1) for _ in range(self.rng.randint(2, 3))]}

    def _allOf(self, depth: int) -> Schema:
        """Objects whose members are told in two places, or one string seen twice."""
        if self.rng.random() < 0.4:
            return {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 8}]}
        one, two = self._object(depth - 1, closed=False), self._object(depth - 1, closed=False)
        for name in set(one["properties"]) & set(two["properties"]):
            del two["properties"][name]
        two["required"] = [name for name in two["required"] if name in two["properties"]]
        return {"allOf": [one, two]}

    def _ref(self, depth: int) -> Schema:
        made: dict[str, Any] = {"$ref": f"#/$defs/{self.rng.choice(list(self.defs))}"}
        return {"description": "see there", **made} if self.rng.random() < 0.3 else made

    def _array(self, depth: int) -> Schema:
        made: dict[str, Any] = {"type": "array"}
        if self.rng.random() < 0.9:
            made["items"] = self._node(depth - 1)
        if self.rng.random() < 0.25:
            made["prefixItems"] = [self._node(depth - 1) for _ in range(self.rng.randint(1, 2))]
        low = self.rng.choice((0, 0, 0, 1, 2))
        if low:
            made["minItems"] = low
        if self.rng.random() < 0.4:
            made["maxItems"] = low + self.rng.randint(0, 3)
        return made

    def _object(self, depth: int, closed: bool | None = None) -> Schema:
        names = self.rng.sample(_WORDS, self.rng.randint(0, 5))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._node(depth - 1) for name in names},
            "required": [name for name in names if self.rng.random() < 0.6],
        }
        if self.rng.random() < 0.3:
            self.rng.shuffle(made["required"])
        open_ = self.rng.random()
        if closed is None and open_ < 0.6:
            made["additionalProperties"] = False
        elif closed is None and open_ < 0.75:
            made["additionalProperties"] = self._node(0)
        elif closed is None and open_ < 0.85:
            made |= {"patternProperties": {"^p_[a-z]{1,3}$": self._node(0)}, "additionalProperties": False}
        if not names and self.rng.random() < 0.5 and made.get("additionalProperties") is not False:
            made["minProperties"] = 1
        return made


def schemas(count: int, seed: int = 0) -> list[str]:
    """JSON texts of ``count`` schemas."""
    return [json.dumps(Maker(seed * 1_000_003 + i).schema(), ensure_ascii=False) for i in range(count)]


def toolsets(count: int, seed: int = 0) -> list[str]:
    """JSON texts of ``count`` tool lists."""
    return [json.dumps(Maker(seed * 1_000_003 + i).tools(), ensure_ascii=False) for i in range(count)]
