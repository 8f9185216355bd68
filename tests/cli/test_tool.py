"""What the tools share: which options reach which kind of target."""

from __future__ import annotations

import pytest

from ds4ref.console import tool
from ds4ref.engine_options import Drafting, Steering
from ds4ref.errors import UsageError

GIVEN = {
    "--backend": "reference", "--numerics": "exact", "--threads": 3, "--ctx": 99,
    "--model-name": "m", "--accept-model": ["n"], "--id-prompts": True, "--dialect": "vllm", "--prefill": "vllm",
    "--key-env": "KEY", "--per-minute": 7.0, "--attempts": 4, "--timeout": 5.0,
}  # fmt: skip
HTTP = {
    "model": "m", "accept": ["n"], "prefill": "vllm", "ids": True, "dialect": "vllm", "key_env": "KEY",
    "per_minute": 7.0, "attempts": 4, "timeout": 5.0,
}  # fmt: skip
LOCAL = {"backend": "reference", "threads": 3, "numerics": "exact", "ctx": 99}
STEERED = "local:a.gguf?dir-steering-file=d.f32&gpu-memory=2&expert-cache=3KB&numerics=ds4&sessions=2&draft=lookup"


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
        ("local", LOCAL), ("local:a.gguf", LOCAL), ("local?ctx=5", {**LOCAL, "ctx": 5}), ("http://x/v1", HTTP),
        ("https://x/v1", HTTP), ("command:./ds4 -m x", {"timeout": 5.0, "ctx": 99}), ("other", {}),
        (STEERED, {
            **LOCAL, "numerics": "ds4", "gpu_memory": 2.0, "expert_cache": 3000, "sessions": 2,
            "drafts": Drafting(kind="lookup"), "steering": Steering("d.f32"),
        }),
    ],
)  # fmt: skip
def test_every_option_reaches_the_kind_it_is_for(opened, spec, options):
    argv = [part for name, value in GIVEN.items() for part in ([name] if value is True else [name, *_text(value)])]
    target, given = opened(spec, *argv)
    assert vars(given.pop("steering", Steering(""))) == vars(options.pop("steering", Steering("")))
    assert (target, given) == (spec.partition("?")[0], options)


def _text(value):
    return [str(value[0] if isinstance(value, list) else value)]


def test_options_that_are_not_given_leave_the_target_its_defaults(opened):
    assert opened("command:x") == ("command:x", {})
    assert opened("local")[1] == {}
    assert "timeout" not in opened("http://x/v1")[1]


@pytest.mark.parametrize(("query", "said"), [
    ("threds=2", "did you mean --threads"), ("numerics", "missing value for --numerics"),
    ("ctx=0", "expected an integer >= 1"), ("dir-steering-ffn=2", "needs --dir-steering-file"),
])  # fmt: skip
def test_mistakes_in_a_spec_are_named(opened, query, said):
    with pytest.raises(UsageError, match=said):
        opened(f"local:a.gguf?{query}")
