"""``ds4-eval`` in this process, and a folder to work in."""

from __future__ import annotations

import pytest

from ds4ref.eval import cli


@pytest.fixture
def call(capsys):
    """Run a command line: exit code, stdout, stderr."""

    def run(*argv):
        code = cli.main([str(arg) for arg in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
