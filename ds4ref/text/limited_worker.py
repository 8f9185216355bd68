"""Runs chat templates and tokenizers of model files within limits: one JSON line in, one out, until stdin ends.

    {"do": "template", "template": "...", "limit": N}   ->   {}
    {"do": "render", "variables": {...}}                ->   {"text": "..."}
    {"do": "tokenizers", "tables": ["...", ...]}        ->   {"vocab": {...}}
    {"do": "encode", "texts": [[table, "..."], ...]}    ->   {"ids": [[...], ...]}

Every request names its ``seconds`` of processor time and the ``memory`` that the process may have; whatever fails is
{"error": "..."}. What a model file defines may do anything, such as loop for ever: Jinja's sandbox keeps templates from
files and attributes, the kernel ends a process that exceeds its limits, and the parent (``limited``) says so. Run as a
script: nothing of ds4ref is imported, nothing but Jinja, `tokenizers` and the standard library.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

_template: Any = None
_limit = 0
_tokenizers: list[Any] = []


def set_template(asked: dict[str, Any]) -> dict[str, Any]:
    """Compile a template, for later requests to render."""
    global _template, _limit
    _template, _limit = environment().from_string(asked["template"]), asked["limit"]
    return {}


def environment() -> Any:
    """Return the Jinja environment that chat templates of Hugging Face models expect."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}``, which marks the assistant's text for training; rendered as its body."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: object) -> None:
        raise TemplateError(str(message))

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    jinja.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    jinja.globals["raise_exception"] = refuse
    jinja.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])
    return jinja


def render(asked: dict[str, Any]) -> dict[str, Any]:
    """Render the template; an error if the text is longer than the limit."""
    pieces, size = [], 0
    for piece in _template.generate(**asked["variables"]):
        size += len(piece)
        if size > _limit:
            return {"error": f"it renders more than {_limit} characters"}
        pieces.append(piece)
    return {"text": "".join(pieces)}


def set_tokenizers(asked: dict[str, Any]) -> dict[str, Any]:
    """Load variants of a tokenizer, for later requests to encode; answer the vocabulary that they share."""
    from tokenizers import Tokenizer

    _tokenizers[:] = [Tokenizer.from_str(table) for table in asked["tables"]]
    return {"vocab": _tokenizers[0].get_vocab(with_added_tokens=False)}


def encode(asked: dict[str, Any]) -> dict[str, Any]:
    """Encode texts, each by the variant that it names: 0 is the first, -1 the last."""
    return {"ids": [_tokenizers[which].encode(text, add_special_tokens=False).ids for which, text in asked["texts"]]}


REQUESTS = {"template": set_template, "render": render, "tokenizers": set_tokenizers, "encode": encode}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request, {"error": reason} for whatever went wrong."""
    try:
        return REQUESTS[asked["do"]](asked)
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it recurses too deeply"}
    except BaseException as error:  # whatever a definition does wrong is its own fault; Rust's panics are no Exception
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


@contextlib.contextmanager
def _limits(seconds: float, memory: int) -> Iterator[None]:
    """Hold the process to its limits, but not where it reads and writes, which is its parent's."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))
    with contextlib.suppress(ValueError, OSError):  # macOS reserves more address space than this for every process
        _set_limit(resource.RLIMIT_AS, memory)
    try:
        yield
    finally:
        for which in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
            _set_limit(which, resource.getrlimit(which)[1])


def _set_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def main() -> None:
    """Answer each line of JSON on standard input, within its limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        with _limits(asked["seconds"], asked["memory"]):
            reply = answer(asked)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
