"""The memory of calls: what the model wrote comes back, by id, and only where it is still what the client means."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.server.tools import Memory
from ds4ref.text.chat import Message, render
from ds4ref.text.dsml import ToolCall
from ds4ref.text.dsml_parser import parse
from ds4ref.text.messages import from_anthropic, from_openai, from_responses

from ..session.fake_kv import FakeSession, store

D = "\uff5cDSML\uff5c"


def written(*calls: tuple[str, dict[str, object]], lead: str = "\n\n") -> str:
    """A block as a model may write it: in its own key order and spacing."""
    body = ""
    for name, arguments in calls:
        parameters = "".join(
            f'<{D}parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{value if isinstance(value, str) else json.dumps(value)}</{D}parameter>\n"
            for key, value in arguments.items()
        )
        body += f'<{D}invoke name="{name}">\n{parameters}</{D}invoke>\n'
    return f"{lead}<{D}tool_calls>\n{body}</{D}tool_calls>"


def answer(block: str, *ids: str) -> Message:
    calls = [replace(call, id=i) for call, i in zip(parse(block, False).calls, ids, strict=True)]
    return Message("assistant", "ok", "r", tuple(calls), block)


def known(memory: Memory, block: str, *ids: str) -> bool:
    """Whether the calls ``ids`` are rendered as the model wrote them in ``block``."""
    return memory.attach([replace(answer(block, *ids), raw_dsml=None)])[0].raw_dsml == block


BASH = written(("bash", {"timeout": 1.50, "command": "ls && pwd"}))
TWO = written(("bash", {"command": "ls"}), ("read", {"path": "a"}), lead="\n")


def test_what_was_written_is_rendered_again_in_every_api():
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    arguments = '{ "command": "ls && pwd", "timeout": 1.5 }'
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    chat = from_openai(json.dumps([{"role": "assistant", "content": " ok ", "tool_calls": [call]}]))
    use = {"type": "tool_use", "id": "c1", "name": "bash", "input": json.loads(arguments)}
    messages = from_anthropic(json.dumps([{"content": [use], "role": "assistant"}]))
    item = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}
    responses, _ = from_responses(json.dumps([item]))
    for history in (chat, messages, responses):
        assert BASH not in render(history).text and BASH in render(memory.attach(history)).text


@pytest.mark.parametrize(
    "calls",
    [
        (("bash", "a"),), (("read", "b"), ("bash", "a")), (("bash", "a"), ("bash", "b")),
        (("bash", "a"), ("read", "b"), ("bash", "x")), (("bash", "x"), ("read", "y")), (("bash", "a"), ("read", "a")),
        (("bash", ""), ("read", "")), (("bash", "c1"), ("read", "b")), (("bash", "a"), ("read", "d")),
    ],
)  # fmt: skip
def test_other_calls_than_were_made_are_rendered_anew(calls):
    """One of two, another order, tool or number, an id twice or unknown, ids of two blocks or of two equal ones."""
    memory = Memory()
    for block, ids in ((BASH, ("c1",)), (TWO, ("a", "b")), (TWO, ("c", "d"))):
        memory.remember(answer(block, *ids))
    message = Message("assistant", "", "", tuple(ToolCall(name, "{}", call_id) for name, call_id in calls))
    if calls != (("bash", "a"), ("read", "d")):  # which two equal blocks cannot tell
        assert memory.attach([message]) == [message]
    assert known(memory, TWO, "a", "b") and known(memory, TWO, "c", "d")
    others = [Message("user", "c1"), Message("assistant", "no calls"), answer(TWO, "p", "q"),
              Message("tool", "x", result_ids=("c1",))]  # fmt: skip
    assert memory.attach(others) == others


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from("nru")), max_size=30))
def test_it_is_bounded_and_what_was_used_last_stays(steps):
    """Against a plain list of ids; bytes counted down again are those of a memory that never had more."""
    blocks = [written(("f", {"n": block, "s": "y" * 100 * block})) for block in range(4)]
    memory, model = Memory(ids=4), OrderedDict[str, int]()
    for call, block, what in steps:
        call_id = str(call)
        if what == "u":
            if call_id in model:
                assert known(memory, blocks[model[call_id]], call_id)
                model.move_to_end(call_id)
            continue
        if what == "r" and call_id in model:
            memory.restore(call_id, blocks[block])  # from a checkpoint: a known id keeps its block
            continue
        memory.remember(answer(blocks[block], call_id)) if what == "n" else memory.restore(call_id, blocks[block])
        model.pop(call_id, None)
        model[call_id] = block
        while len(model) > 4:
            model.popitem(last=False)
        fresh = Memory()
        for known_id, one in model.items():
            fresh.remember(answer(blocks[one], known_id))
        assert memory.nbytes == fresh.nbytes
    for block in range(4):
        assert set(memory.ids_of(blocks[block])) == {call_id for call_id, one in model.items() if one == block}


def test_calls_of_another_process_are_found_in_checkpoints(tmp_path: Path):
    """By their id, before a prompt is rendered, and with a checkpoint that is loaded."""
    kept = store(tmp_path)
    Memory(store=kept).remember(answer(BASH, "c1"))
    assert kept.save(FakeSession(("A question." + BASH).encode()), (), "cold")  # type: ignore[arg-type]
    assert known(Memory(store=store(tmp_path)), BASH, "c1")
    assert not known(Memory(store=store(tmp_path)), BASH, "c2")
    later = store(tmp_path)
    memory = Memory(store=later)
    assert later.load(FakeSession(), ("A question." + BASH + "more").encode()) is not None  # type: ignore[arg-type]
    assert list(memory.ids_of(BASH)) == ["c1"]
