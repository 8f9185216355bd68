"""JSON slices: the standard library is the oracle for what is JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.text import rawjson

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def strict(text: str):
    def constant(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=constant)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_finds_the_end_and_minifies(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert rawjson.value_end(" " + text + " tail") == len(text) + 1 or isinstance(value, (int, float))
    compact = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    assert rawjson.minify(text) == compact


@given(st.text(alphabet='{}[]:,"\\ 0123-+.eEtrufalsn\n', max_size=12))
def test_accepts_what_json_accepts(text):
    try:
        strict(text)
        valid = True
    except ValueError:
        valid = False
    try:
        got = rawjson.value_end(text) == len(text.rstrip(" \n"))
    except ValueError:
        got = False
    assert got == valid


def valid(text: str) -> bool:
    try:
        strict(text)
    except ValueError:
        return False
    return True


def accepts(text: str) -> bool:
    try:
        return rawjson.value_end(text) == len(text)
    except ValueError:
        return False


@pytest.mark.parametrize("char", " \t\n\r\v\f\x00\x1c\x85\xa0\u2003\u2028\ufeff")
def test_white_space_is_what_json_calls_so(char):
    spaced = char.join(["", "{", '"a b"', ":", "[", "1", ",", "true", "]", ",", '"c"', ":", "null", "}"])
    assert accepts(spaced) == valid(spaced) == (char in " \t\n\r")
    if char in " \t\n\r":
        assert rawjson.minify(spaced) == '{"a b":[1,true],"c":null}'
        assert rawjson.members(spaced + char)[0] == ("a b", f"[{char}1{char},{char}true{char}]")
        assert rawjson.items(f"{char}[{char}1{char},{char}2{char}]") == ["1", "2"]
    string = json.dumps(f"a{char} b", ensure_ascii=False)
    assert rawjson.minify(f"[ {string} ]") == f"[{string}]"


def test_members_keep_order_spelling_and_duplicates():
    text = ' { "b" : 1.50 , "a":[1, 2],"b":"x\\u0041" ,"c": {"d": null} } tail'
    assert rawjson.members(text) == [("b", "1.50"), ("a", "[1, 2]"), ("b", '"x\\u0041"'), ("c", '{"d": null}')]
    assert rawjson.members('{"a":1 "b":2,}') == [("a", "1"), ("b", "2")]
    assert rawjson.members("{}") == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"', '{"a":', '{"a":1', "{1:2}", '{"a":}', '{"a":1e}', "null"])
def test_no_members(text):
    with pytest.raises(ValueError):
        rawjson.members(text)


def test_items():
    assert rawjson.items(' [1, "a,]" ,{"x":[2]} ]') == ["1", '"a,]"', '{"x":[2]}']
    assert rawjson.items("[]") == []
    for text in ("{}", "[1", "[1,]", "1"):
        with pytest.raises(ValueError):
            rawjson.items(text)


def test_strings():
    assert rawjson.string('"a\\n\\ud83d\\ude00"') == "a\n😀"
    assert rawjson.string('"\\ud83d!"') == "\ufffd!"
    assert rawjson.string('"\\ud800\\udbff \\udc00 \\udfff"') == "\ufffd\ufffd \ufffd \ufffd"
    assert rawjson.string('"\\ud7ff\\ue000"') == "\ud7ff\ue000"
    assert rawjson.quote('é"\\\n\x01') == '"é\\"\\\\\\n\\u0001"'


def test_depth_is_bounded_and_time_linear():
    assert rawjson.value_end("[" * 256 + "]" * 256) == 512
    for depth in (257, 10**6):
        with pytest.raises(ValueError, match="256"):
            rawjson.value_end("[" * depth + "]" * depth)
    assert rawjson.value_end('"' + "\\n" * 10**6 + '"') == 2 * 10**6 + 2
    assert rawjson.value_end("9" * 10**6) == 10**6  # no number is ever converted
