"""llama.cpp's own HTTP server as a process of its own, from the package xllamacpp, on a free port.

    python -m tests.conformance.llamacpp MODEL.gguf        prints its address, serves until its input ends

``TEMPLATE`` is the chat format of DeepSeek V4 in the words of llama.cpp, which knows the format by "DSML" and builds
its grammars of tool calls for it; the embedded model's file has no template.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPLATE = Path(__file__).with_name("deepseek4.jinja")


@contextmanager
def llamacpp(model: Path | str) -> Iterator[str]:
    """The address of a server of the model."""
    command = [sys.executable, "-m", "tests.conformance.llamacpp", str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


def main(model: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, 0
    params.n_ctx, params.n_parallel = 4 * 8192, 4
    params.chat_template = TEMPLATE.read_text()
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
