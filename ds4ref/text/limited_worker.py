"""Runs templates and tokenizers of model files, and grammars of requests, within limits: a JSON line in, one out, until
stdin ends.

    {"do": "template", "template": "...", "limit": N}   ->   {}
    {"do": "render", "variables": {...}}                ->   {"text": "..."}
    {"do": "tokenizers", "tables": ["...", ...]}        ->   {"vocab": {...}}
    {"do": "encode", "texts": [[table, "..."], ...]}    ->   {"ids": [[...], ...]}
    {"do": "grammar", "grammar": "...", "tokens": {}}   ->   {"refused": "..."}

Every request names its ``seconds`` of processor time and the ``memory`` that the process may have; whatever fails is
{"error": "..."}. What a model file defines may do anything, such as loop for ever: Jinja's sandbox keeps templates from
files and attributes, the kernel ends a process that exceeds its limits, and the parent (``limited``) says so. Run as a
script: nothing of ds4ref is imported, nothing but Jinja, `tokenizers`, llguidance and the standard library.
"""

from __future__ import annotations

import contextlib
import functools
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


def nothing(asked: dict[str, Any]) -> dict[str, Any]:
    """Begin without a definition: every grammar comes with all it needs."""
    return {}


def try_grammar(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer why llguidance rejects a grammar, "" if it does not.

    With ``tokens`` (size, control tokens, limits) it is compiled and its first mask computed; otherwise its syntax and
    keywords are validated.
    """
    from llguidance import LLMatcher, LLParserLimits

    tokens = asked.get("tokens")
    if tokens is None:
        return {"refused": LLMatcher.validate_grammar(asked["grammar"])}
    library = _byte_tokens(tokens["size"], tuple(tokens["control"].items()))
    matcher = LLMatcher(library, asked["grammar"], log_level=0, limits=LLParserLimits(**tokens["limits"]))
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"refused": matcher.get_error() if matcher.is_error() else ""}


@functools.lru_cache(maxsize=4)
def _byte_tokens(size: int, control: tuple[tuple[str, str], ...]) -> Any:
    """Return a tokenizer of at least ``size`` tokens: ``control`` tokens at their ids, all text as single bytes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    names = {int(i): name.encode("latin-1") for i, name in control}
    single = map(bytes, zip(range(256)))

    class Bytes:
        tokens = [names[i] if i in names else next(single, b"") for i in range(max(size, 256 + len(names)))]
        bos_token_id, eos_token_id, special_token_ids = None, min(names), sorted(names)

        def __call__(self, text: str | bytes) -> list[int]:
            return [ids[byte] for byte in (text.encode() if isinstance(text, str) else text)]

    ids = {token[0]: i for i, token in enumerate(Bytes.tokens) if token and i not in names}
    return LLTokenizer(TokenizerWrapper(Bytes()))


REQUESTS = {
    "template": set_template, "render": render, "tokenizers": set_tokenizers, "encode": encode, "nothing": nothing,
    "grammar": try_grammar,
}  # fmt: skip


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
