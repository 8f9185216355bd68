"""A folder to work in, beside one that must never be reached, and the tools on it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ds4ref.agent.permit import TOOLS, Permit
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Result, Toolbox
from ds4ref.agent.workspace import Workspace
from ds4ref.cancellation import Cancellation
from ds4ref.text.dsml import ToolCall


@pytest.fixture
def folder(tmp_path) -> Path:
    """The workspace; ``tmp_path`` has a secret beside it."""
    for path in ("outside", "work"):
        (tmp_path / path).mkdir()
    for path in ("secret.txt", "outside/secret.txt"):
        (tmp_path / path).write_text("secret\n")
    return tmp_path / "work"


@pytest.fixture
def workspace(folder) -> Workspace:
    return Workspace(str(folder))


class Tools:
    """Calls tools as a model does."""

    def __init__(self, box: Toolbox):
        self.box = box

    def __call__(self, name: str, **arguments: Any) -> Result:
        return self.raw(name, json.dumps(arguments))

    def raw(self, name: str, arguments: str) -> Result:
        return self.box.run(ToolCall(name, arguments), Cancellation())


@pytest.fixture
def tools(workspace) -> Tools:
    """Everything allowed."""
    return Tools(Toolbox(workspace, Permit(TOOLS), Shell(workspace.root, os.environ)))
