"""An external ``ds4`` binary as a target: run once per prompt, it dumps its tokens to a file (docs/reference/ds4.md).

    ds4 --dump-logprobs OUT -n N --logprobs-top-k K --temp 0 -c CTX (-p TEXT | --prompt-file F) [--nothink] -sys TEXT
    ds4 --dump-tokens --prompt-file F

The prompt is passed in a file, so that neither its length nor a leading dash matters. ds4 decodes greedily for dumps.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..cancellation import Cancellation
from ..errors import TargetError, UsageError
from .answer import Delta, Finish, Step, Token, Usage
from .base import Ability, Request, Target
from .dialects import finish_of

MAX_TOP_K = 128
DEFAULT_CTX = 16384


class CommandTarget(Target):
    """An external ``ds4`` binary as a target.

    command  the binary with its fixed arguments ("./ds4 -m model.gguf")
    timeout  seconds that one run may take
    ctx      size of the context in tokens, unless a request sets its own
    """

    kind = "command"
    abilities = frozenset({Ability.CHAT, Ability.TOP_LOGPROBS, Ability.TOKENIZE})
    max_top_logprobs = MAX_TOP_K

    def __init__(self, command: str | Sequence[str], *, timeout: float = 3600.0, ctx: int = DEFAULT_CTX):
        self.command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self.command:
            raise UsageError("a command target needs a command")
        self.timeout, self.ctx = timeout, ctx
        self.name = Path(self.command[0]).name

    def stream(self, request: Request) -> Iterator[Delta]:
        """Run the binary once, then yield its whole answer as a single delta, since a dump cannot be streamed."""
        self.require(*request.needs, needed_for="this prompt")
        prompt = request.prompt
        if request.temperature > 0:
            raise UsageError(f"{self.name}: dumps are greedy, temperature {request.temperature:g} is not available")
        if prompt.answer:
            raise TargetError(f"{self.name} cannot continue a given answer")
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="ds4-target-") as folder:
            source, out = Path(folder, "prompt.txt"), Path(folder, "out.json")
            source.write_bytes((prompt.user or "").encode("utf-8", "surrogateescape"))
            think = {"none": "--nothink", "max": "--think-max"}.get(prompt.thinking, "--think")
            self._run(
                think, "-sys", prompt.system, "--temp", "0", "-n", str(request.max_tokens),
                "--ctx", str(request.ctx or self.ctx), "--prompt-file", str(source), "--dump-logprobs", str(out),
                "--logprobs-top-k", str(max(1, min(request.top_logprobs or 1, MAX_TOP_K))), cancel=request.cancel,
            )  # fmt: skip
            if request.cancel is not None and request.cancel():
                yield Delta(time=time.perf_counter() - start, finish=Finish.CANCELLED)
                return
            try:
                data = out.read_bytes()
            except OSError as error:
                raise TargetError(f"{self.name} exited 0 but wrote no dump: {error.strerror}") from None
        dump = read_dump(data, self.name)
        text = b"".join(step.token.raw for step in dump.steps[: -1 if dump.finish == "stop" else None])
        usage = Usage(dump.prompt_tokens, len(dump.steps))
        now = time.perf_counter() - start
        finish, why = finish_of(dump.finish)
        yield Delta(text.decode("utf-8", "replace"), dump.steps, now, finish, usage, dump.model, error=why)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Return token ids; ``control`` must be true, because ``--dump-tokens`` always recognises control strings."""
        if not control:
            raise TargetError(
                f"{self.name} --dump-tokens recognises control strings: plain tokenization is not available"
            )
        with tempfile.TemporaryDirectory(prefix="ds4-target-") as folder:
            source = Path(folder, "prompt.txt")
            source.write_bytes(text.encode("utf-8", "surrogateescape"))
            out = self._run("--dump-tokens", "--prompt-file", str(source))
        match = re.match(rb"\[([0-9, ]*)\]\r?\n", out)
        if match is None:
            raise TargetError(f"{self.name} --dump-tokens did not start with a list of ids")
        return [int(number) for number in match.group(1).split(b",") if number.strip()]

    def identity(self) -> dict[str, Any]:
        """Return kind, name and command line."""
        return {"kind": self.kind, "name": self.name, "command": shlex.join(self.command)}

    def _run(self, *args: str, cancel: Cancellation | None = None) -> bytes:
        """Run the binary with ``args`` and return its standard output.

        Raise TargetError with the last line of standard error if it fails. Cancelling kills the binary, without an
        error.
        """
        cancel = cancel or Cancellation()
        try:
            with subprocess.Popen(
                [*self.command, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                try:
                    with cancel.does(process.kill):
                        out, errors = process.communicate(timeout=self.timeout)
                except BaseException:
                    process.kill()
                    raise
        except subprocess.TimeoutExpired:
            raise TargetError(f"{self.name} did not finish within {self.timeout:g} s and was stopped") from None
        except OSError as error:
            raise TargetError(f"cannot run {self.command[0]}: {error.strerror}") from None
        if process.returncode and not cancel():
            raise TargetError(f"{self.name} exited with {process.returncode}{complaint(errors)}")
        return out


def complaint(errors: bytes) -> str:
    """Return ": " and the last line of a binary's standard error, "" if it has none."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""


class Dump(NamedTuple):
    """The contents of a ``--dump-logprobs`` file.

    ``finish`` is "stop" or "length"; ``prompt_tokens`` is None and ``model`` is "" if the file does not state them.
    """

    steps: tuple[Step, ...]
    prompt_tokens: int | None
    finish: str
    model: str


def read_dump(data: bytes, where: str) -> Dump:
    """Parse a ``--dump-logprobs`` file; raise TargetError saying what is malformed.

    Tokens are read from their ``bytes`` fields, because ``text`` cannot hold incomplete characters. ``where`` begins
    the error message.
    """
    try:
        fields = json.loads(data)
        steps = tuple(_step(entry) for entry in fields["steps"])
        prompt_tokens = n if type(n := fields.get("prompt_tokens")) is int else None
        model = fields.get("model")
        name = str(model.get("name") or "") if isinstance(model, dict) else ""
        finish = fields.get("finish") or ("stop" if steps and _is_eos(steps[-1].token.raw) else "length")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise TargetError(f"{where}: malformed logprob dump: {type(error).__name__}: {error}") from None
    return Dump(steps, prompt_tokens, str(finish), name)


def _step(entry: dict[str, Any]) -> Step:
    top = tuple(_token(item["token"], item) for item in entry["top_logprobs"])
    chosen = _token(entry["selected"], {})
    same = next((token for token in top if token.id == chosen.id), None)
    return Step(same or chosen, top)


def _token(token: dict[str, Any], values: dict[str, Any]) -> Token:
    def number(key: str) -> float | None:
        value = values.get(key)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    return Token(bytes(token["bytes"]), number("logprob"), int(token["id"]), number("logit"))


def _is_eos(raw: bytes) -> bool:
    from ..text.protocol import EOS

    return raw == EOS.encode()
