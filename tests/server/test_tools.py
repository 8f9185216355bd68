"""The memory of calls: what the model wrote comes back, by id, and only where it is still what the client means."""

from __future__ import annotations

import json
import struct
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.server.tools import Memory, Stats, read_map
from ds4ref.text.chat import Message, render
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.dsml_parser import parse
from ds4ref.text.messages import from_anthropic, from_openai, from_responses

D = "\uff5cDSML\uff5c"


def written(*calls: tuple[str, dict], lead: str = "\n\n", space: str = "") -> str:
    """A block as a model may write it: in its own key order and spacing."""
    body = "".join(
        f'<{D}invoke name="{name}">{space}\n'
        + "".join(
            f'<{D}parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{value if isinstance(value, str) else json.dumps(value)}</{D}parameter>\n"
            for key, value in arguments.items()
        )
        + f"</{D}invoke>\n"
        for name, arguments in calls
    )
    return f"{lead}<{D}tool_calls>\n{body}</{D}tool_calls>"


def answer(block: str, *ids: str) -> Message:
    calls = parse(block, False).calls
    return Message(
        "assistant", "ok", "r", tuple(replace(call, id=i) for call, i in zip(calls, ids, strict=True)), block
    )


BASH = written(("bash", {"timeout": 1.50, "command": "ls && pwd"}))
TWO = written(("bash", {"command": "ls"}), ("read", {"path": "a"}), lead="\n")


def sent_back(**arguments: object) -> str:
    """A chat history with one call, its arguments as the client spells them."""
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps(arguments)}}
    return json.dumps(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": " ok \n", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ]
    )


def test_what_was_written_is_rendered_again() -> None:
    memory, stats = Memory(), Stats()
    memory.remember(answer(BASH, "c1"))
    messages = memory.attach(from_openai(sent_back(command="ls && pwd", timeout=1.5)), stats)
    assert BASH in render(messages).text and messages[1].raw_dsml == BASH
    assert stats == Stats(mem=1) and memory.stats == stats
    # The canonical form would have been another text.
    assert BASH not in render(from_openai(sent_back(command="ls && pwd", timeout=1.5))).text


def test_other_apis_send_the_same_ids() -> None:
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    use = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls && pwd", "timeout": 1.5}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
    told = json.dumps([{"content": [use], "role": "assistant"}, {"role": "user", "content": [result]}])
    assert BASH in render(memory.attach(from_anthropic(told))).text
    items = [
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    assert BASH in render(memory.attach(from_responses(json.dumps(items))[0])).text


def test_white_space_before_the_block_is_kept_as_it_was() -> None:
    memory = Memory()
    memory.remember(answer(TWO, "a", "b"))
    (message,) = memory.attach([replace(answer(TWO, "a", "b"), raw_dsml=None)])
    assert message.raw_dsml == TWO and TWO.startswith("\n<")


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        ((("bash", "a"),), 0),  # one of two
        ((("read", "b"), ("bash", "a")), 0),  # in another order
        ((("bash", "a"), ("bash", "b")), 0),  # another tool
        ((("bash", "a"), ("read", "b"), ("bash", "x")), 1),  # one more
        ((("bash", "x"), ("read", "y")), 2),
        ((("bash", "a"), ("read", "a")), 0),  # one id twice
        ((("bash", ""), ("read", "")), 2),
        ((("bash", "c1"), ("read", "b")), 0),  # of two blocks
    ],
)
def test_other_calls_than_were_made_are_rendered_canonically(calls, missing) -> None:
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    memory.remember(answer(TWO, "a", "b"))
    message = Message("assistant", "", "", tuple(ToolCall(name, "{}", call_id) for name, call_id in calls))
    assert memory.attach([message]) == [message]
    assert memory.stats == Stats(canonical=1, missing=missing)


def test_equal_blocks_of_two_turns_are_not_mixed() -> None:
    """Calls of two turns that wrote the same text are no one turn's."""
    memory = Memory()
    memory.remember(answer(TWO, "a", "b"))
    memory.remember(answer(TWO, "c", "d"))
    for ids in ("a", "b"), ("c", "d"):
        assert memory.attach([replace(answer(TWO, *ids), raw_dsml=None)])[0].raw_dsml == TWO
    assert len(memory) == 4


def test_messages_that_are_none_of_its_business() -> None:
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    others = [
        Message("user", "c1"),
        Message("assistant", "no calls"),
        answer(TWO, "p", "q"),
        Message("tool", "x", result_ids=("c1",)),
    ]
    assert memory.attach(others) == others and memory.stats == Stats()
    memory.remember(Message("assistant", "", "", (ToolCall("f", "{}", ""),), BASH))  # without an id
    memory.remember(Message("assistant", "", "", (ToolCall("f", "{}", "i"),)))  # without a block
    memory.remember(Message("assistant", "plain"))
    assert len(memory) == 1


def test_switched_off() -> None:
    memory = Memory(enabled=False)
    memory.remember(answer(BASH, "c1"))
    plain = from_openai(sent_back(command="ls"))
    assert memory.attach(plain) == plain and memory.stats == Stats(canonical=1, missing=1)
    assert memory.map_of(BASH) == b"" and memory.load([("c1", BASH)]) == 0 and len(memory) == 0
    assert memory.missing(plain) == set()


# --- bounds


def test_the_oldest_ids_go_first_and_use_keeps_them() -> None:
    memory = Memory(ids=2)
    blocks = {i: written(("f", {"n": i})) for i in range(4)}
    memory.remember(answer(blocks[0], "0"))
    memory.remember(answer(blocks[1], "1"))
    memory.attach([replace(answer(blocks[0], "0"), raw_dsml=None)])  # used: 1 is older now
    memory.remember(answer(blocks[2], "2"))
    assert ["0" in memory, "1" in memory, "2" in memory] == [True, False, True]
    memory.remember(answer(blocks[0], "0"))  # remembered again
    memory.remember(answer(blocks[3], "3"))
    assert ["0" in memory, "2" in memory, "3" in memory] == [True, False, True]


def test_bytes_are_bounded_and_counted_down_again() -> None:
    memory = Memory(nbytes=20_000)
    for i in range(50):
        memory.remember(answer(written(("f", {"s": f"{i}-" + "x" * 3000})), str(i)))
        assert memory.nbytes <= 20_000
    assert 0 < len(memory) < 7 and "49" in memory
    shared = Memory()
    shared.remember(answer(TWO, "a", "b"))
    once = shared.nbytes
    shared.remember(answer(TWO, "c", "d"))
    assert shared.nbytes - once < len(TWO)  # one block, four ids
    shared.remember(answer(BASH, "a"))  # an id that means another block now
    for call_id in "bcd":
        shared.remember(answer(BASH, call_id))
    bash = Memory()
    for call_id in "abcd":
        bash.remember(answer(BASH, call_id))
    assert shared.nbytes == bash.nbytes  # nothing is left of the block that no id means


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=30))
def test_counts_never_drift(steps) -> None:
    memory = Memory(ids=4, nbytes=2000)
    for call, block, disk in steps:
        text = written(("f", {"n": block, "s": "y" * 100 * block}))
        memory.load([(str(call), text)]) if disk else memory.remember(answer(text, str(call)))
        fresh = Memory()
        for call_id, known in memory.entries(" ".join(written(("f", {"n": b, "s": "y" * 100 * b})) for b in range(4))):
            fresh.load([(call_id, known)])
        assert memory.nbytes == fresh.nbytes and len(memory) == len(fresh) <= 4


def test_from_many_threads() -> None:
    memory, failed = Memory(ids=50), []

    def work(number: int) -> None:
        try:
            for i in range(60):
                call_id = f"{number}-{i}"
                memory.remember(answer(written(("f", {"n": i % 5})), call_id))
                memory.attach([Message("assistant", "", "", (ToolCall("f", "{}", call_id),))])
                memory.map_of(BASH)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = memory.stats
    assert not failed and len(memory) == 50
    assert stats.mem + stats.canonical == 240 and stats.missing == stats.canonical


# --- on disk


def test_only_blocks_of_the_text_are_written_down() -> None:
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    memory.remember(answer(TWO, "a", "b"))
    other = written(("g", {}))
    memory.remember(answer(other, "z"))
    text = f"<user>go<assistant>let me{TWO}<end><user>x<assistant>{BASH}<end>{TWO}"
    assert memory.entries(text) == [("b", TWO), ("a", TWO), ("c1", BASH)]
    data = memory.map_of(text)
    sizes = [8 + len(i) + len(block.encode()) for i, block in memory.entries(text)]
    assert len(data) == 8 + sum(sizes) and data[:8] == b"KTM\x01\x03\x00\x00\x00"
    assert read_map(data) == memory.entries(text)
    assert memory.map_of("nothing here") == b""


def test_a_map_brings_the_bytes_back_before_anything_is_rendered() -> None:
    old, new, stats = Memory(), Memory(), Stats()
    old.remember(answer(BASH, "c1"))
    old.remember(answer(TWO, "a", "b"))
    history = from_openai(sent_back(timeout=1.5, command="ls && pwd"))
    assert new.missing(history) == {"c1"}
    assert new.load_map(old.map_of(f"{BASH} {TWO}"), new.missing(history)) == 1 and len(new) == 1
    assert new.attach(history, stats)[1].raw_dsml == BASH and stats == Stats(disk=1)
    assert new.missing(history) == set()
    new.remember(answer(BASH, "c1"))
    new.attach(history, stats)
    assert stats == Stats(disk=1, mem=1)
    # What this process wrote stands, whatever a file says.
    new.load([("c1", TWO)])
    assert new.attach(history)[1].raw_dsml == BASH
    both = replace(answer(TWO, "a", "b"), raw_dsml=None)
    new.load_map(old.map_of(TWO))
    assert new.attach([both])[0].raw_dsml == TWO


def test_the_form_of_the_section() -> None:
    memory = Memory()
    block = written(("f", {"k": "v" * 3}))
    memory.remember(answer(block, "call_x"))
    memory.remember(answer(block, "call_y"))
    raw = block.encode()
    expected = b"KTM\x01" + struct.pack("<I", 2)
    for call_id in (b"call_y", b"call_x"):
        expected += struct.pack("<II", 6, len(raw)) + call_id + raw
    assert memory.map_of(block) == expected


def test_damaged_maps() -> None:
    memory = Memory()
    memory.remember(answer(TWO, "a", "b"))
    memory.remember(answer(BASH, "c1"))
    whole = memory.map_of(TWO + BASH)
    pairs = read_map(whole)
    for cut in range(len(whole)):
        found = read_map(whole[:cut])
        assert found == pairs[: len(found)] and len(found) < 3
    assert read_map(b"KTX" + whole[3:]) == read_map(whole[:3] + b"\x02" + whole[4:]) == []
    assert read_map(whole[:4] + struct.pack("<I", 99) + whole[8:]) == pairs
    assert read_map(whole[:4] + struct.pack("<I", 99) + whole[8:], most=98) == []
    for bad in (struct.pack("<II", 0, 5), struct.pack("<II", 257, 5), struct.pack("<II", 1, 0)):
        assert read_map(whole[:8] + bad + whole[16:]) == []
    assert read_map(whole[:16] + b"\xff" + whole[17:]) == []


def test_end_tags_inside_strings() -> None:
    block = written(("write", {"text": f"</{D}tool_calls> is how it ends", "n": 1}))
    memory = Memory()
    memory.remember(answer(block, "w"))
    assert memory.entries(f"x \n{block} y") == [("w", block)]


def test_a_text_full_of_openers_is_no_burden() -> None:
    """Only what is as long as a known block is looked up: this is 20,000 openers in front of a million characters."""
    memory = Memory()
    memory.remember(answer(BASH, "c1"))
    text = f"<{D}tool_calls>" * 20_000 + "x" * 1_000_000 + f"</{D}tool_calls>" + BASH
    assert memory.entries(text) == [("c1", BASH)]


def test_canonical_blocks_are_found_as_well() -> None:
    block = "".join(part.text for part in render_calls([ToolCall("f", '{"a":1}')]))
    memory = Memory()
    memory.remember(answer(block, "i"))
    assert memory.entries(block) == [("i", block)]
