"""Renders chat templates of model files in a separate process: one JSON line in, one out, until stdin ends.

    {"template": "...", "variables": {...}, "limit": N}   ->   {"text": "..."} or {"error": "..."}

A template comes with a model and may do anything, such as loop forever. Jinja's sandbox keeps it from files and
attributes; this process limits its own memory and the length of the output, and the parent process limits the time
(``template``). Run as a script: nothing of ds4ref is imported, nothing but Jinja and the standard library.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 30


class _Generation(Extension):
    """``{% generation %}``, which marks the assistant's text for training; rendered as its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


def _json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment that chat templates of Hugging Face models expect."""
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    jinja.filters["tojson"] = _json
    jinja.globals["raise_exception"] = _refuse
    jinja.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])
    return jinja


def render(template: str, variables: dict[str, Any], limit: int) -> dict[str, str]:
    """Render a template to {"text": ...}, or {"error": ...} with the reason."""
    try:
        pieces, size = [], 0
        for piece in environment().from_string(template).generate(**variables):
            size += len(piece)
            if size > limit:
                return {"error": f"it renders more than {limit} characters"}
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it recurses too deeply"}
    except Exception as error:  # whatever a template does wrong is its own fault
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Render one template for each line of JSON on standard input, within the limits of this process."""
    with contextlib.suppress(ValueError, OSError):  # macOS reserves more address space than this for every process
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        answer = render(asked["template"], asked["variables"], asked["limit"])
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
