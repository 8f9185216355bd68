"""Rendering of tool calls (docs/explanation/text.md 4), and that parsing is its inverse."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ds4ref.text.dsml import ToolCall, escape_string, parameters, render_calls
from ds4ref.text.dsml_parser import parse
from ds4ref.text.protocol import CANONICAL

CLOSE = CANONICAL.param_close


def block(*calls: ToolCall) -> str:
    return "".join(part.text for part in render_calls(calls))


def test_26_escapes_of_the_closing_tag():
    arguments = '{"s":"a</｜DSML｜parameter>b &lt; <c>","j":["</｜DSML｜parameter>", 1]}'
    assert parameters(arguments) == [
        ("s", "a&lt;/｜DSML｜parameter>b &lt; <c>", True),
        ("j", '["\\u003c/｜DSML｜parameter>",1]', False),
    ]


def test_order_duplicates_and_what_follows():
    assert parameters('{"b": 1.0, "a": "x", "b": [ ]} trailing') == [
        ("b", "1.0", False),
        ("a", "x", True),
        ("b", "[]", False),
    ]
    assert parameters("[1]") == [("arguments", "[1]", True)]
    assert parameters("") == [("arguments", "", True)]
    assert parameters(f"no {CLOSE}") == [("arguments", f"no &lt;{CLOSE[1:]}", True)]
    assert parameters('{"s":"\\ud800"}') == [("s", "\ufffd", True)]


TRICKY = st.lists(
    st.sampled_from(
        ["a", "&", "amp;", "lt;", "&lt;", CLOSE, CLOSE[1:], "&amp;lt;" + CLOSE[1:], "<", '"', "\n", "é", " "]
    ),
    max_size=6,
).map("".join)
VALUE = st.one_of(
    TRICKY,
    st.integers(),
    st.none(),
    st.booleans(),
    st.lists(TRICKY, max_size=3),
    st.dictionaries(TRICKY, TRICKY, max_size=2),
)
CALL = st.builds(
    lambda name, arguments: ToolCall(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))),
    TRICKY.filter(bool),
    st.dictionaries(TRICKY, VALUE, max_size=3),
)


@given(st.lists(CALL, max_size=3), TRICKY, st.booleans())
def test_parse_is_the_inverse(calls, content, thinking):
    content = content.rstrip()
    text = ("why</think>" if thinking else "") + content + block(*calls)
    got = parse(text, thinking)
    assert [(c.name, json.loads(c.arguments)) for c in got.calls] == [(c.name, json.loads(c.arguments)) for c in calls]
    assert (got.content, got.reasoning, got.error) == (content, "why" if thinking else "", None)
    assert got.raw_block == block(*calls)
    if not any("\\u003c" in call.arguments or CLOSE in call.arguments for call in calls):
        assert [c.arguments for c in got.calls] == [c.arguments for c in calls]


@given(TRICKY)
def test_string_escape_is_minimal(text):
    escaped = escape_string(text)
    assert CLOSE not in escaped
    if CLOSE[1:] not in text:
        assert escaped == text  # code such as ``a < b && c`` is never touched
