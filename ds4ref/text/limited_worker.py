"""Worker process that runs chat templates and tokenizers of model files, and grammars of requests, within limits. For
each line of JSON on standard input it writes one to standard output:

    {"do": "template", "template": "...", "limit": N}   ->   {}
    {"do": "render", "variables": {...}}                ->   {"text": "..."}
    {"do": "tokenizers", "tables": ["...", ...]}        ->   {"vocab": {...}}
    {"do": "encode", "texts": [[table, "..."], ...]}    ->   {"ids": [[...], ...]}
    {"do": "grammar", "grammar": "...", "tokens": {}}   ->   {"refused": "..."}

Every request also has its limits: ``seconds`` of processor time and bytes of ``memory`` for the process. A request that
fails is answered by {"error": "..."}. A template may try anything: Jinja's sandbox denies it files and Python's
internals, the kernel kills a process that exceeds its limits, and the parent process (``limited``) reports that. This
file is run as a script and imports only Jinja, `tokenizers`, llguidance and the standard library.
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
    """Compile a chat template, for later "render" requests."""
    global _template, _limit
    _template, _limit = environment().from_string(asked["template"]), asked["limit"]
    return {}


def environment() -> Any:
    """Return a Jinja environment with the filters and functions that chat templates of Hugging Face models expect."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag ``{% generation %}``, which marks the assistant's text for training; it renders just its body."""

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
    """Render the template; answer an error if the text is longer than the template's limit of characters."""
    pieces, size = [], 0
    for piece in _template.generate(**asked["variables"]):
        size += len(piece)
        if size > _limit:
            return {"error": f"it renders more than {_limit} characters"}
        pieces.append(piece)
    return {"text": "".join(pieces)}


def set_tokenizers(asked: dict[str, Any]) -> dict[str, Any]:
    """Load variants of a tokenizer, for later "encode" requests; answer their common vocabulary."""
    from tokenizers import Tokenizer

    _tokenizers[:] = [Tokenizer.from_str(table) for table in asked["tables"]]
    return {"vocab": _tokenizers[0].get_vocab(with_added_tokens=False)}


def encode(asked: dict[str, Any]) -> dict[str, Any]:
    """Encode texts, each with the tokenizer variant whose index it gives: 0 is the first, -1 the last."""
    return {"ids": [_tokenizers[which].encode(text, add_special_tokens=False).ids for which, text in asked["texts"]]}


def nothing(asked: dict[str, Any]) -> dict[str, Any]:
    """Do nothing: the opening request of a process for grammars, which need no preparation."""
    return {}


def try_grammar(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer why llguidance rejects a grammar; "" if it accepts it.

    If the request has ``tokens`` (size, control tokens, limits), the grammar is compiled and its first token mask
    computed; otherwise only its syntax and keywords are checked.
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
    """Return an llguidance tokenizer with at least ``size`` tokens, which encodes text byte by byte.

    control: (id, name) of control tokens, which keep their ids; the 256 bytes take the lowest others.
    """
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
    """Return the answer to one request; {"error": reason} if anything goes wrong."""
    try:
        return REQUESTS[asked["do"]](asked)
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it recurses too deeply"}
    except BaseException as error:  # any mistake of a definition is reported; Rust's panics are not Exceptions
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


@contextlib.contextmanager
def _limits(seconds: float, memory: int) -> Iterator[None]:
    """Apply the limits of a request while it is being processed, but not while lines are read or written."""
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
