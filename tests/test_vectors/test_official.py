"""ds4's official.vec: a synthetic file in ds4's format, round trips, limits, damaged files."""

from __future__ import annotations

import pytest

from ds4ref.errors import DataError
from ds4ref.test_vectors.official import VecCase, from_case, read_vec, write_vec
from ds4ref.test_vectors.schema import CASE_SCHEMA, RecordedCase, Repetition, StepRecord, TokenRecord

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
LONGEST = "# " + "x" * 2046
SIXTEEN = "case a 1 16 p\n" + "".join(f"step {i} {'41' * 128} 0\n" for i in range(16)) + "end\n"


def parse(tmp_path, text: str | bytes) -> list[VecCase]:
    path = tmp_path / "official.vec"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_vec(str(path))


def test_the_grammar(tmp_path) -> None:
    first, second = parse(tmp_path, VEC)
    assert first == VecCase("short_a", 4096, "prompts/short_a.txt",
                            ((b"Ada", ((b"Ada", 0.0),)), (b"\xc3", ((b"\xc3", -0.5), (b"\xa9", -0.125)))))  # fmt: skip
    assert second.steps == ((b" ", ()),)
    assert parse(tmp_path, VEC.replace("\n", "\r\n")) == [first, second] == parse(tmp_path, LONGEST + "\n" + VEC)
    assert len(parse(tmp_path, SIXTEEN)[0].steps) == 16


@pytest.mark.parametrize("broken, why", [
    (VEC.replace("end\n", "", 1), 'line 11: expected "end"'),
    (VEC[: VEC.rindex("end")], '"end" is missing'),
    (VEC.replace("step 1", "step 2", 1), "step 2, expected 1"),
    (VEC.replace("4096 2", "4096 3"), 'line 11: expected "step'),
    (VEC.replace("416461 1", "41646G 1", 1), "step INDEX HEX"),
    (VEC.replace("top c3 -0.5", "top c3 nan"), "top HEX LOGPROB"),
    (VEC.replace("4096 2", "4096 17"), "steps must be 1 to 16"),
    (VEC.replace("c3 2", "c3 33"), "alternatives must be 0 to 32"),
    (VEC.replace("4096 2", "0 2"), "ctx must be 1 to"),
    (VEC.replace("short_a 4096", "../x 4096"), "case ID CTX"),
    (VEC.replace("long_memory_archive", "short_a"), "listed twice"),
    (SIXTEEN.replace("step 3 41", "step 3 4141"), "step INDEX HEX"),
    ("# nothing\n", "no case"), (LONGEST + "x\n" + VEC, "the maximum is 2048"), (b"case \xff 1 1 p\n", "case ID CTX"),
], ids=range(15))  # fmt: skip
def test_malformed_files_name_the_line(tmp_path, broken, why) -> None:
    with pytest.raises(DataError) as caught:
        parse(tmp_path, broken)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_written(tmp_path) -> None:
    """Alternatives without a value or without bytes are left out, and at most as many as ds4 reads are written."""
    result = VecCase("a", 1, "p", ((b"x", ((b"x", 0.0), (b"y", -9999.0), (b"", -1.0))),))
    assert b"step 0 78 1\ntop 78 0\nend" in write_vec([result])
    top = tuple((bytes([65 + i]), -float(i)) for i in range(40))
    (read_again,) = parse(tmp_path, write_vec([VecCase("a", 1, "p", ((b"A", top), (b"C", top[:1])))]))
    assert read_again.steps == ((b"A", top[:32]), (b"C", top[:1]))
    steps = [StepRecord(TokenRecord([65], -0.5), [TokenRecord([65], -0.5), TokenRecord([66], None)])]
    ours = RecordedCase(CASE_SCHEMA, "a", "", [Repetition(steps, "stop"), Repetition([], "stop")])
    assert from_case(ours, 512, "prompts/a.txt") == VecCase("a", 512, "prompts/a.txt", ((b"A", ((b"A", -0.5),)),))
    for bad in (
        VecCase("a", 1, "a b", result.steps),
        VecCase("a", 1, "p", ()),
        VecCase("a", 1, "p", result.steps * 17),
    ):
        with pytest.raises(DataError):
            write_vec([bad])
