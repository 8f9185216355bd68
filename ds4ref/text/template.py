"""Chat templates of models: Jinja in a sandboxed process with limits.

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}])

A template is part of an untrusted file. It runs in Jinja's sandbox, in a process of its own
(``template_worker``) that has 1 GiB of memory and ``SECONDS`` of time, and renders at most ``MAX_CHARACTERS``; one that
exceeds a limit is a ``TextError``, and its process is killed.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import TextError

MAX_SOURCE = 1 << 20
MAX_CHARACTERS = 1 << 24
SECONDS = 20.0
_WORKER = Path(__file__).with_name("template_worker.py")


class ChatTemplate:
    """A chat template and the control tokens it may insert; safe for several threads, which wait for each other."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None, seconds: float = SECONDS):
        """Take the Jinja text ``source``; raise TextError if it has more than a million characters."""
        if len(source) > MAX_SOURCE:
            raise TextError(f"a chat template of {len(source)} characters, at most {MAX_SOURCE} are allowed")
        self.source, self._tokens, self._seconds = source, dict(tokens or {}), seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, answer: bool = True,
        **variables: Any,
    ) -> str:  # fmt: skip
        """Render a conversation; with ``answer`` the text ends in the start of the assistant's turn.

        Raise TextError if the template fails or exceeds a limit.
        """
        values = {
            **self._tokens, **variables, "messages": list(messages), "tools": tools, "add_generation_prompt": answer,
        }  # fmt: skip
        ask = {"template": self.source, "variables": values, "limit": MAX_CHARACTERS}
        with self._lock:
            reply = self._ask(json.dumps(ask).encode() + b"\n")
        if "error" in reply:
            raise TextError(f"the chat template failed: {' '.join(str(reply['error']).split())}")
        return str(reply["text"])

    def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        end = time.monotonic() + self._seconds
        try:
            # the worker reads a whole line before it writes, so this does not block for longer than it takes to read
            process.stdin.write(line)
            process.stdin.flush()
            answer = bytearray()
            while not answer.endswith(b"\n"):
                remaining = end - time.monotonic()
                if remaining <= 0 or not select.select([process.stdout], [], [], remaining)[0]:
                    raise TextError(f"the chat template failed: not done after {self._seconds:g} seconds")
                piece = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not piece:
                    raise TextError("the chat template failed: its process ended, out of memory perhaps")
                answer += piece
            reply: dict[str, Any] = json.loads(answer)
            return reply
        except OSError as error:
            self.close()
            raise TextError(f"the chat template failed: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return self._process

    def close(self) -> None:
        """Kill the worker process; the next ``render`` starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
