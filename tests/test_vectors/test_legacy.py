"""official.vec and JSON captures: a synthetic copy in ds4's format, round trips, limits, malformed files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.errors import DataError
from ds4ref.targets import Delta, Step, Token, Usage
from ds4ref.test_vectors import cli, legacy
from ds4ref.test_vectors.capture import PromptCase, record_missing, start
from ds4ref.test_vectors.legacy import (
    VecCase,
    from_case,
    is_manifest,
    read_capture,
    read_manifest,
    read_vec,
    write_capture,
    write_vec,
)
from ds4ref.test_vectors.schema import CASE_SCHEMA, RecordedCase, Repetition, StepRecord, TokenRecord

from .scripted import Scripted

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
    (VEC.replace("step 1", "step 2", 1), "step 2, expected 1"),
    (VEC.replace("4096 2", "4096 3"), "has 2 steps, but its header says 3"),
    (VEC.replace("416461 1", "41646G 1", 1), "lowercase hex"),
    (VEC.replace("top c3 -0.5", "top c3 nan"), "not a log probability"),
    (VEC.replace("4096 2", "4096 17"), "steps must be 1 to 16"),
    (VEC.replace("c3 2", "c3 33"), "alternatives must be 0 to 32"),
    (VEC.replace("short_a 4096", "../x 4096"), "malformed"),
    (VEC.replace("long_memory_archive", "short_a"), "listed twice"),
    ("# nothing\n", "no case"),
    ("x" * 3000, "the maximum is 2048"),
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
    ours = RecordedCase(CASE_SCHEMA, "a", "", [Repetition(steps, "stop"), Repetition([], "stop")])
    assert from_case(ours, 512, "prompts/a.txt") == VecCase("a", 512, "prompts/a.txt", ((b"A", ((b"A", -0.5),)),))


def test_limits_are_inclusive(tmp_path) -> None:
    longest = "# " + "x" * 2046
    assert len(parse(tmp_path, longest + "\n" + VEC)) == 2
    with pytest.raises(DataError, match="the maximum is 2048"):
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
    case_ = RecordedCase(CASE_SCHEMA, found.id, "", [found.repetition])
    again.write_bytes(write_capture(case_, found.prompt, found.model, "x", legacy.RequestParameters(4, 20)))
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


# ----------------------------------------------------------------------------------------------------------- convert


FETCHED = {
    "schema": "ds4-official-logprobs-v1", "source": "deepseek-official-api", "model": "deepseek-v4-flash",
    "endpoint": "https://api.example.com/chat/completions", "created_at": "2026-05-06T10:00:00Z", "kind": "short",
    "id": "short_a", "prompt": "Chi?", "finish_reason": "length", "logits_available": False,
    "request": {"model": "deepseek-v4-flash", "temperature": 0, "max_tokens": 4, "logprobs": True, "top_logprobs": 20,
                "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "Chi?"}]},
    "usage": {"prompt_tokens": 21, "completion_tokens": 2, "total_tokens": 23, "prompt_cache_hit_tokens": 0,
              "prompt_tokens_details": {"cached_tokens": 0}},
    "message": {"role": "assistant", "content": "Ada", "reasoning_content": None},
}  # fmt: skip


def fetched(**changes) -> dict:
    """As the fetcher writes it: the token chosen at 0, nineteen others at -9999."""

    def entry(raw: bytes, p: float) -> dict:
        return {"token": {"text": raw.decode(), "bytes": list(raw)}, "logprob": p}

    steps = []
    for i, raw_ in enumerate((b"A", b"da")):
        others = [entry(bytes([97 + k]), -9999.0) for k in range(19)]
        steps.append({"step": i, **entry(raw_, 0.0), "top_logprobs": [entry(raw_, 0.0), *others]})
    return {**FETCHED, "steps": steps, **changes}


def folder(tmp_path, *cases: dict):
    """The folder of ds4's fetcher, without its official.vec."""
    (tmp_path / "f" / "official").mkdir(parents=True)
    listed = []
    for found in cases:
        (tmp_path / "f" / "official" / f"{found['id']}.json").write_text(json.dumps(found))
        listed.append({"id": found["id"], "official_file": f"official/{found['id']}.json"})
    (tmp_path / "f" / "manifest.json").write_text(json.dumps({"schema": legacy.MANIFEST_SCHEMA, "prompts": listed}))
    return tmp_path / "f"


def test_a_folder_of_captures_converted_is_the_same(tmp_path, capsys) -> None:
    """Nineteen of twenty alternatives went, message lost its role, usage and request what this program does not use."""
    found = fetched()
    assert cli.main(["convert", str(folder(tmp_path, found)), str(tmp_path / "out")]) == 0
    again = json.loads((tmp_path / "out" / "short_a.json").read_text())
    assert again.pop("ctx") == 16384, "captures do not tell it, and ours do"
    assert again == found
    assert cli.main(["convert", str(tmp_path / "out"), str(tmp_path / "twice")]) == 0
    assert (tmp_path / "twice" / "short_a.json").read_bytes() == (tmp_path / "out" / "short_a.json").read_bytes()


def test_alternatives_without_a_value_are_kept_apart(tmp_path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(fetched()))
    found = read_capture(str(path))
    assert found.degenerate and all(len(s.top) == 1 and len(s.rest) == 19 for s in found.repetition.steps)
    assert len(from_case(RecordedCase(CASE_SCHEMA, "a", "", [found.repetition]), 1, "p").steps[0][1]) == 1, (
        "a .vec drops them"
    )


def test_contexts_of_ds4s_set(tmp_path, capsys) -> None:
    """Upstream has two of its cases at 4096; the folder's official.vec tells, or the set is known by its names."""
    made = folder(tmp_path, *(fetched(id=name) for name in ("short_code_completion", "short_a", "long_code_audit")))

    def contexts(path) -> dict[str, int]:
        assert cli.main(["list", str(path), "--json"]) == 0
        return {c["id"]: c["ctx"] for c in json.loads(capsys.readouterr().out)["cases"]}

    known = {"short_code_completion": 4096, "short_a": 16384, "long_code_audit": 16384}
    assert contexts(made) == contexts(made / "official") == known
    cases = [VecCase(name, ctx, "p.txt", ((b"A", ()),)) for name, ctx in (("short_a", 8192), ("long_code_audit", 512))]
    (made / "official.vec").write_bytes(write_vec(cases))
    told = known | {"short_a": 8192, "long_code_audit": 512}
    assert contexts(made) == contexts(made / "official") == told
    assert contexts(made / "official" / "short_a.json") == {"short_a": 8192}
    assert cli.main(["convert", str(made), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert contexts(tmp_path / "out") == told, "a converted folder has no official.vec beside it"
    (made / "official.vec").write_text("damaged")
    assert contexts(made) == known


def test_vectors_of_ours_as_captures(tmp_path, capsys) -> None:
    """What was asked, what was counted, and a message as the API writes one."""
    eos = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    steps = [Step(Token(raw_, -0.5), (Token(raw_, -0.5), Token(b"z", -3.0), Token(b"y", -9999.0)))
             for raw_ in (b"A", b"da", eos.encode())]  # fmt: skip

    class Counted(Scripted):
        def stream(self, request):
            yield Delta("x", tuple(steps), 0.1, "stop", Usage(21, 3, 5), "m")

    target = Counted(steps)
    vectors = start(str(tmp_path / "v"), target, [PromptCase("one", "Chi?", 512)], max_tokens=8, top_logprobs=3,
                    repetitions=1, system="Be brief.")  # fmt: skip
    record_missing(vectors, target)
    assert cli.main(["convert", str(tmp_path / "v"), str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "one.json").read_text())
    assert found["message"] == {"role": "assistant", "content": "Ada"} and found["ctx"] == 512
    assert found["request"] == FETCHED["request"] | {
        "model": "m", "max_tokens": 8, "top_logprobs": 3,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Chi?"}],
    }  # fmt: skip
    assert set(found) == {*FETCHED, "ctx", "steps"}
    assert (found["source"], found["kind"], found["logits_available"]) == ("ds4ref", "short", False)
    assert found["usage"] == {"prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24,
                              "prompt_cache_hit_tokens": 5}  # fmt: skip
    assert [t["logprob"] for t in found["steps"][0]["top_logprobs"]] == [-0.5, -3.0, -9999.0]
    capsys.readouterr()
    again = read_capture(str(tmp_path / "out" / "one.json"))
    assert (again.system, again.ctx, again.repetition.completion_tokens, again.repetition.cached_tokens) == (
        "Be brief.", 512, 3, 5)  # fmt: skip


def test_a_prompt_that_is_no_utf8_survives(tmp_path) -> None:
    ours = RecordedCase(CASE_SCHEMA, "a", "", [Repetition([StepRecord(TokenRecord([65], -0.5))], "stop")])
    prompt = b"\xffabc\xe2".decode("utf-8", "surrogateescape")
    (tmp_path / "a.json").write_bytes(write_capture(ours, prompt, "m", "x", legacy.RequestParameters(1, 1)))
    assert read_capture(str(tmp_path / "a.json")).prompt == prompt
