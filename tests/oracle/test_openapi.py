"""The server against its own description, judged by schemathesis: requests that fit ``/openapi.json`` and requests that
do not, for a minute (DS4_SCHEMATHESIS_SECONDS); no 5xx, nothing that the description does not announce.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.server.process import process

from .conftest import missing

pytestmark = pytest.mark.oracle

SECONDS = os.environ.get("DS4_SCHEMATHESIS_SECONDS", "60")

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance",
)  # fmt: skip
"""Not whether every request that does not fit is refused: what is tolerated is more than what is described
(docs/reference/server.md), and unknown methods are a 404 as they are in ds4."""


def test_the_server_is_as_it_is_described(nano_path: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        missing("schemathesis is not installed (pip install 'ds4ref[oracle]')")
    with process(nano_path, "-c", "2048", "-n", "4") as one:
        assert httpx2.get(f"{one.url}/openapi.json", trust_env=False).json()["openapi"] == "3.1.0"
        command = [
            sys.executable, "-m", "schemathesis.cli", "--no-color", "run", f"{one.url}/openapi.json",
            "--checks", ",".join(CHECKS), "--max-time", SECONDS, "--mode", "all", "--seed", "1",
            "--generation-database", "none", "--suppress-health-check", "all", "--continue-on-failure",
            "--request-timeout", "30",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120 + 3 * int(SECONDS))
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
        assert not [line for line in one.lines if "Traceback" in line]
