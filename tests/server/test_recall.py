"""Calls that another process made: found in checkpoints by their id, before a prompt is rendered."""

from __future__ import annotations

from pathlib import Path

from ds4ref.server.recall import Recall
from ds4ref.server.tools import Memory
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls

from ..session.fake_kv import FakeSession, store

CANONICAL = "".join(part.text for part in render_calls([ToolCall("f", '{"a":"1"}', "call_x")]))
BLOCK = CANONICAL.replace("\n\n", "\n\n ", 1)
"""As the model wrote it: not as it would be rendered."""

ANSWER = Message("assistant", "Well.", calls=(ToolCall("f", '{"a":"1"}', "call_x"),), raw_dsml=BLOCK)
SENT = Message("assistant", "Well.", calls=(ToolCall("f", '{ "a": "1" }', "call_x"),))


def saved(path: Path, enabled: bool = True) -> Recall:
    """A process that made the call and wrote a checkpoint of the conversation."""
    kept = store(path)
    calls = Recall(Memory(enabled=enabled), kept)
    calls.remember(ANSWER)
    assert kept.save(FakeSession(("A question. Well." + BLOCK).encode()), (), "cold")  # type: ignore[arg-type]
    return calls


def test_a_call_is_known_after_a_restart(tmp_path: Path) -> None:
    saved(tmp_path)
    later = Recall(Memory(), store(tmp_path))
    assert later.attach([SENT])[0].raw_dsml == BLOCK
    assert later.memory.stats.disk == 1
    assert "call_x" in Recall(Memory(), store(tmp_path)) and "call_y" not in later


def test_loading_a_checkpoint_brings_its_calls(tmp_path: Path) -> None:
    saved(tmp_path)
    kept = store(tmp_path)
    later = Recall(Memory(), kept)
    text = ("A question. Well." + BLOCK).encode()
    assert kept.load(FakeSession(), text + b"more") is not None  # type: ignore[arg-type]
    assert "call_x" in later.memory


def test_without_a_disk_it_is_the_memory(tmp_path: Path) -> None:
    calls = Recall(Memory())
    assert calls.enabled and calls.attach([SENT])[0].raw_dsml is None and "call_x" not in calls
    calls.remember(ANSWER)
    assert calls.attach([SENT])[0].raw_dsml == BLOCK and "call_x" in calls


def test_it_can_be_off(tmp_path: Path) -> None:
    """server.md 9.2: nothing is attached, and nothing goes to disk."""
    assert not saved(tmp_path, enabled=False).enabled
    later = Recall(Memory(), store(tmp_path))
    assert later.attach([SENT])[0].raw_dsml is None
    saved(tmp_path / "other")
    off = Recall(Memory(enabled=False), store(tmp_path / "other"))
    assert off.attach([SENT])[0].raw_dsml is None and "call_x" not in off
