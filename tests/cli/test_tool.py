"""What the tools share: which options reach which kind of target."""

from __future__ import annotations

import pytest

from ds4ref.console import tool

GIVEN = {
    "--backend": "reference", "--gpu-memory": 2.0, "--expert-cache": 3000, "--numerics": "exact", "--threads": 3,
    "--ctx": 99,
    "--model-name": "m", "--accept-model": ["n"], "--id-prompts": True, "--dialect": "vllm", "--prefill": "vllm",
    "--key-env": "KEY", "--per-minute": 7.0, "--attempts": 4, "--timeout": 5.0,
}  # fmt: skip
HTTP = {
    "model": "m", "accept": ["n"], "prefill": "vllm", "ids": True, "dialect": "vllm", "key_env": "KEY",
    "per_minute": 7.0, "attempts": 4, "timeout": 5.0,
}  # fmt: skip
LOCAL = {
    "backend": "reference",
    "threads": 3,
    "gpu_memory": 2.0,
    "expert_cache": 3000,
    "numerics": "exact",
    "ctx": 99,
}


@pytest.fixture
def opened(monkeypatch):
    """Arguments to (spec, options) of the target that would be opened."""
    monkeypatch.setattr(tool, "open_target", lambda spec, **options: (spec, options))
    parser = tool.parser("prog", "", "")
    tool.add_target(parser)
    return lambda spec, *argv: tool.target_of(parser.parse(argv), spec)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("local", LOCAL), ("local:a.gguf", LOCAL), ("local?ctx=5", LOCAL), ("http://x/v1", HTTP),
        ("https://x/v1", HTTP), ("command:./ds4 -m x", {"timeout": 5.0, "ctx": 99}), ("other", {}),
    ],
)  # fmt: skip
def test_every_option_reaches_the_kind_it_is_for(opened, spec, options):
    argv = [part for name, value in GIVEN.items() for part in ([name] if value is True else [name, *_text(value)])]
    assert opened(spec, *argv) == (spec, options)


def _text(value):
    return [str(value[0] if isinstance(value, list) else value)]


def test_options_that_are_not_given_leave_the_target_its_defaults(opened):
    assert opened("command:x") == ("command:x", {})
    assert opened("local")[1] == {}
    assert "timeout" not in opened("http://x/v1")[1]
