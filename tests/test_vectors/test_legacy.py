"""official.vec and JSON captures: a synthetic copy in ds4's format, round trips, limits, malformed files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.errors import DataError
from test_vectors import legacy
from test_vectors.legacy import (
    VecCase,
    from_case,
    is_manifest,
    read_capture,
    read_manifest,
    read_vec,
    write_capture,
    write_vec,
)
from test_vectors.schema import CASE_SCHEMA, Case, Repetition, StepRecord, TokenRecord

TOKENS = [b"41", b"6c6c"]
VEC = """# ds4-official-logprob-vectors-v1
# synthetic
case short_a 4096 2 prompts/short_a.txt
  step 0 416461 1
top 416461 0
# between
step 1 c3 2
top c3 -0.5

top a9 -1.25e-1
end
case long_memory_archive 16384 1 prompts/long.txt
step 0 20 0
end
"""


def parse(tmp_path, text: str | bytes) -> list[VecCase]:
    path = tmp_path / "official.vec"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_vec(str(path))


def test_the_grammar(tmp_path) -> None:
    first, second = parse(tmp_path, VEC)
    assert first.id == "short_a" and first.ctx == 4096 and first.prompt_path == "prompts/short_a.txt"
    assert first.steps == ((b"Ada", ((b"Ada", 0.0),)), (b"\xc3", ((b"\xc3", -0.5), (b"\xa9", -0.125))))
    assert second.steps == ((b" ", ()),)


def test_crlf_and_indentation_are_nothing(tmp_path) -> None:
    assert parse(tmp_path, VEC.replace("\n", "\r\n")) == parse(tmp_path, VEC)


@pytest.mark.parametrize("broken, why", [
    (VEC.replace("end\n", "", 1), "line 11: expected \"step"),
    (VEC[: VEC.rindex("end")], '"end" of case long_memory_archive is missing'),
    (VEC.replace("step 1", "step 2", 1), "step 2 where 1 was due"),
    (VEC.replace("4096 2", "4096 3"), "has 2 steps, 3 were announced"),
    (VEC.replace("416461 1", "41646G 1", 1), "lowercase hex"),
    (VEC.replace("top c3 -0.5", "top c3 nan"), "not a log probability"),
    (VEC.replace("4096 2", "4096 17"), "steps must be 1 to 16"),
    (VEC.replace("c3 2", "c3 33"), "alternatives must be 0 to 32"),
    (VEC.replace("short_a 4096", "../x 4096"), "malformed"),
    (VEC.replace("long_memory_archive", "short_a"), "listed twice"),
    ("# nothing\n", "no case"),
    ("x" * 3000, "at most 2048"),
    (b"case \xff 1 1 p\n", "not UTF-8"),
], ids=range(13))  # fmt: skip
def test_malformed_files_name_the_line(tmp_path, broken, why) -> None:
    with pytest.raises(DataError) as caught:
        parse(tmp_path, broken)
    assert why in str(caught.value) and "\n" not in str(caught.value)


raw = st.binary(min_size=1, max_size=12)
logprob = st.floats(-30, 0, width=32).map(lambda x: float(f"{x:.9g}"))
step = st.tuples(raw, st.lists(st.tuples(raw, logprob), max_size=4).map(tuple))
case = st.builds(
    VecCase, st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True), st.integers(1, 10**6), st.just("prompts/x.txt"),
    st.lists(step, min_size=1, max_size=16).map(tuple),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(case, min_size=1, max_size=4, unique_by=lambda c: c.id))
def test_write_then_read_is_identity(tmp_path_factory, cases) -> None:
    path = tmp_path_factory.mktemp("vec") / "v.vec"
    path.write_bytes(write_vec(cases))
    assert read_vec(str(path)) == cases


def test_degenerate_alternatives_are_dropped() -> None:
    found = VecCase("a", 1, "p", ((b"x", ((b"x", 0.0), (b"y", -9999.0), (b"", -1.0))),))
    assert b"step 0 78 1\ntop 78 0\nend" in write_vec([found])


def test_as_many_alternatives_as_ds4_reads(tmp_path) -> None:
    top = tuple((bytes([65 + i]), -float(i)) for i in range(40))
    data = write_vec([VecCase("a", 1, "p", ((b"A", top), (b"B", top[:32]), (b"C", top[:1])))])
    (found,) = parse(tmp_path, data)
    assert found.steps == ((b"A", top[:32]), (b"B", top[:32]), (b"C", top[:1]))


def test_a_case_of_ours_as_theirs() -> None:
    """The first repetition; alternatives without a value say nothing."""
    steps = [StepRecord(TokenRecord([65], -0.5), [TokenRecord([65], -0.5), TokenRecord([66], None)])]
    ours = Case(CASE_SCHEMA, "a", "", [Repetition(steps, "stop"), Repetition([], "stop")])
    assert from_case(ours, 512, "prompts/a.txt") == VecCase("a", 512, "prompts/a.txt", ((b"A", ((b"A", -0.5),)),))


def test_limits_are_inclusive(tmp_path) -> None:
    longest = "# " + "x" * 2046
    assert len(parse(tmp_path, longest + "\n" + VEC)) == 2
    with pytest.raises(DataError, match="at most 2048"):
        parse(tmp_path, longest + "x\n" + VEC)
    many = "case a 1 16 p\n" + "".join(f"step {i} {'41' * 128} 0\n" for i in range(16)) + "end\n"
    assert len(parse(tmp_path, many)[0].steps) == 16
    with pytest.raises(DataError, match="1 to 128 bytes"):
        parse(tmp_path, many.replace("step 3 41", "step 3 4141"))
    with pytest.raises(DataError, match="cannot read"):
        read_vec(str(tmp_path / "absent.vec"))
    with pytest.raises(DataError, match="cannot read"):
        read_capture(str(tmp_path / "absent.json"))


def test_manifests_of_the_fetcher(tmp_path) -> None:
    path = tmp_path / "manifest.json"
    assert not is_manifest(str(tmp_path))
    path.write_text(json.dumps({"schema": legacy.MANIFEST_SCHEMA, "prompts": [{"official_file": "official/a.json"}]}))
    assert is_manifest(str(tmp_path)) and read_manifest(str(tmp_path)) == [str(tmp_path / "official" / "a.json")]
    for prompts in ([], [{"official_file": "../a.json"}], [{"official_file": "/a.json"}], [{}], 3):
        path.write_text(json.dumps({"schema": legacy.MANIFEST_SCHEMA, "prompts": prompts}))
        with pytest.raises(DataError):
            read_manifest(str(tmp_path))
    path.write_text('{"schema": "other"}')
    assert not is_manifest(str(tmp_path))


def capture_json(**changes) -> dict:
    token = {"text": "Ada", "bytes": [65, 100, 97]}
    other = {"text": "\u00e9"}  # no bytes: UTF-8 of the text
    top = [{"token": token, "logprob": 0.0}, {"token": other, "logprob": -9999.0}]
    steps = [{"step": 0, "token": token, "logprob": 0.0, "top_logprobs": top}]
    return {"schema": "ds4-official-logprobs-v1", "model": "deepseek-v4-flash", "id": "short_a", "prompt": "Chi?",
            "usage": {"prompt_tokens": 21}, "finish_reason": "length", "steps": steps} | changes  # fmt: skip


def test_captures_of_the_fetcher(tmp_path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(capture_json()))
    found = read_capture(str(path))
    assert found.degenerate and found.repetition.prompt_tokens == 21 and found.prompt == "Chi?"
    assert found.repetition.steps[0].token.raw == b"Ada" and len(found.repetition.steps[0].top) == 1
    again = tmp_path / "b.json"
    case_ = Case(CASE_SCHEMA, found.id, "", [found.repetition])
    again.write_bytes(write_capture(case_, found.prompt, found.model, "x", legacy.Asked(4, 20)))
    assert read_capture(str(again)).repetition.steps == found.repetition.steps


@pytest.mark.parametrize("broken", [
    b"", b"[]", b"{", b"3", json.dumps(capture_json(schema="v2")).encode(), json.dumps(capture_json(steps=3)).encode(),
    json.dumps(capture_json(steps=[{"token": {}}])).encode(),
    json.dumps(capture_json(steps=[{"token": {"bytes": [999]}, "logprob": 0, "top_logprobs": []}])).encode(),
], ids=range(8))  # fmt: skip
def test_malformed_captures(tmp_path, broken) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(broken)
    with pytest.raises(DataError):
        read_capture(str(path))


def test_the_known_bad_case_has_a_reason() -> None:
    assert "FP4 indexer" in legacy.KNOWN_DIVERGENCE["long_memory_archive"]
