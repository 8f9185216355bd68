"""The incremental parser (docs/explanation/text.md 5): worked examples, and independence from how the input is cut.

Where ours departs from ds4 on purpose, the test says what ds4 does.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.text.dsml_events import ArgumentsDelta, CallStart, Failed, Generated, ReasoningDelta, TextDelta
from ds4ref.text.dsml_parser import DsmlParser, parse
from tests.growth import grows_linearly

TC, TC_END = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"
I_END, P_END = "</｜DSML｜invoke>", "</｜DSML｜parameter>"


def I(name):  # noqa: E743  (a letter a tag)
    return f'<｜DSML｜invoke name="{name}">'


def P(name, string):
    return f'<｜DSML｜parameter name="{name}" string="{string}">'


def call(*body, name="a"):
    """One call in a block."""
    return f"\n\n{TC}\n{I(name)}\n" + "".join(part + "\n" for part in body) + f"{I_END}\n{TC_END}"


def args(generated, index=0):
    return json.loads(generated.calls[index].arguments)


def value(parameter):
    """Arguments of the one call whose one parameter is given as markup."""
    got = parse(call(parameter), thinking=False)
    assert got.complete and got.error is None
    return got.calls[0].arguments


# --- finished texts


def test_31_reasoning_text_call():
    body = f"{TC}\n{I('bash')}\n{P('command', 'true')}ls{P_END}\n{P('n', 'false')}10{P_END}\n{I_END}\n{TC_END}"
    got = parse(f"reason</think>Text\n\n{body}", thinking=True)
    assert (got.reasoning, got.content) == ("reason", "Text")
    assert [(c.name, c.arguments) for c in got.calls] == [("bash", '{"command":"ls","n":10}')]
    assert got.raw_block == f"\n\n{body}"
    assert got.finish_reason("stop") == "tool_calls"


def test_32_two_calls():
    x = f'{P("x", "false")}{{"k": [1, "a b"]}}{P_END}'
    got = parse(f"</think>\n\n{TC}\n{I('a')}\n{I_END}\n{I('b')}\n{x}\n{I_END}\n{TC_END}", thinking=True)
    assert [(c.name, c.arguments) for c in got.calls] == [("a", "{}"), ("b", '{"x":{"k":[1,"a b"]}}')]


def test_33_entities_are_not_decoded():
    """ds4 turns these into < > & " '; a model that writes HTML would be misquoted."""
    body = "&lt;a&gt; &amp;&amp; &quot;q&quot; &apos;z&apos; &nbsp; & x"
    assert json.loads(value(f"{P('s', 'true')}{body}{P_END}"))["s"] == body
    assert json.loads(value(f"{P('s', 'false')}{body}{P_END}"))["s"] == body


def test_33_only_the_own_closer_is_unescaped():
    assert json.loads(value(f"{P('s', 'true')}a&lt;/｜DSML｜parameter>b{P_END}")) == {"s": f"a{P_END}b"}
    assert json.loads(value(f"{P('s', 'true')}&amp;lt;/｜DSML｜parameter>{P_END}")) == {"s": "&lt;/｜DSML｜parameter>"}


def test_34_missing_string_attribute():
    assert value(f'<｜DSML｜parameter name="s">hello{P_END}') == '{"s":"hello"}'
    assert value(f'<｜DSML｜parameter name="s">\n  a <b{P_END}') == '{"s":"\\n  a <b"}'


def test_35_bad_json_becomes_a_string():
    """ds4 sends {} and so loses every argument of the call."""
    assert value(f"{P('s', 'yes')}hello there{P_END}") == '{"s":"hello there"}'
    assert value(f"{P('s', 'yes')}1{P_END}") == '{"s":1}', "only true means text"
    assert value(f"{P('s', 'false')}{{'a': 1}}{P_END}") == '{"s":"{\'a\': 1}"}'
    assert value(f"{P('s', 'false')}2024-01-31{P_END}") == '{"s":"2024-01-31"}'
    assert value(f"{P('s', 'false')}NaN{P_END}") == '{"s":"NaN"}'
    assert value(f"{P('s', 'false')} 2024-01-31 {P_END}") == '{"s":" 2024-01-31 "}'  # text as it is, blanks included
    assert value(f"{P('s', 'false')}\nno JSON {P_END}") == '{"s":"\\nno JSON "}'
    assert value(f"{P('s', 'false')}\u00a01{P_END}") == '{"s":"\u00a01"}'  # white space is ASCII
    both = f"{P('ok', 'true')}v{P_END}\n{P('s', 'false')}[1,{P_END}"
    assert value(both) == '{"ok":"v","s":"[1,"}'


def test_36_empty_and_trailing_garbage():
    assert value(f"{P('s', 'false')}{P_END}") == '{"s":null}'
    assert value(f"{P('s', 'false')} \n{P_END}") == '{"s":null}'
    assert value(f"{P('s', 'false')}[1, 2] zzz{P_END}") == '{"s":[1,2]}'
    assert value(f'{P("s", "false")}{{"k": 1}} zzz{P_END}') == '{"s":{"k":1}}'
    assert value(f"{P('s', 'false')} -1.50e3 {P_END}") == '{"s":-1.50e3}'


def test_37_nested_parameters():
    leaves = f"{P('old', 'true')}A{P_END}\n{P('n', 'false')}1{P_END}"
    opener = '<｜DSML｜parameter name="edits">'
    for closer in (P_END, ""):
        assert value(f"{opener}\n{leaves}\n{closer}") == '{"edits":{"old":"A","n":1}}'
    more = f"{opener}{leaves}{P_END}\n{P('z', 'true')}q{P_END}"
    assert value(more) == '{"edits":{"old":"A","n":1},"z":"q"}'
    one_level = f'{opener}<｜DSML｜parameter name="in">{P("x", "true")}1{P_END}{P_END}'
    assert json.loads(value(one_level)) == {"edits": {"in": f"{P('x', 'true')}1"}}


def test_38_first_bar_missing():
    got = parse('<DSML｜tool_calls>\n<DSML｜invoke name="a">\n</DSML｜invoke>\n</DSML｜tool_calls>', thinking=False)
    assert [(c.name, c.arguments) for c in got.calls] == [("a", "{}")] and got.content == ""


def test_39_plain_xml():
    text = 'hello <tool_calls><invoke name="a"><parameter name="p" string="true">v</parameter></invoke></tool_calls>'
    got = parse(text, thinking=False)
    assert got.content == "hello" and got.calls[0].arguments == '{"p":"v"}'
    assert got.raw_block == text.removeprefix("hello")  # with the blank


MALFORMED = [
    f"try\n\n{TC}\n<｜DSML｜invoke>\n{TC_END}",
    f"try\n\n{TC}\n{I('a')}\nstray\n{I_END}\n{TC_END}",
    f"try\n\n{TC}\n{I('a')}\n{I_END}\nstray{I('b')}\n{I_END}\n{TC_END}",
    f"try\n\n{TC}\n{I('a')}\n{TC_END}",  # invoke not closed
    f'try\n\n{TC}\n{I("a")}\n<｜DSML｜parameter string="true">x{P_END}\n{I_END}\n{TC_END}',
    f"try\n\n{TC}\n{I('a>b')}\n{I_END}\n{TC_END}",  # > inside an attribute
    f"try\n\n{TC}\n{I('')}\n{I_END}\n{TC_END}",
    f'try\n\n{TC}\n{I("a")}\n<｜DSML｜parameter name="p">{P("x", "true")}1{P_END} stray{P_END}\n{I_END}\n{TC_END}',
    f"try\n\n{TC}\n{I('a')}\n</invoke>\n{TC_END}",  # the wrong closer
    f"try\n\n{TC}\n{I('a')}\n<｜DSML｜parameters>x{P_END}\n{I_END}\n{TC_END}",
    f'try\n\n{TC}\n<｜DSML｜invoke name="{"x" * 20000}">\n{I_END}\n{TC_END}',
]


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("engine", ["stop", "length"])
def test_40_malformed_is_text(text, engine):
    got = parse(text, thinking=False)
    assert (got.content, got.calls, got.complete) == (text, (), False)
    assert got.error and not got.unterminated
    assert got.finish_reason(engine) == engine


def test_40_unclosed_parameter_never_ends():
    text = f"try\n\n{TC}\n{I('a')}\n{P('s', 'true')}x\n{I_END}\n{TC_END}"
    got = parse(text, thinking=False)
    assert (got.content, got.calls, got.unterminated) == (text, (), True)
    assert (got.finish_reason("stop"), got.finish_reason("length")) == ("error", "length")


def test_after_a_malformed_block_calls_are_no_longer_looked_for():
    got = parse(MALFORMED[1] + call(), thinking=False)
    assert (got.content, got.calls, got.complete) == (MALFORMED[1] + call(), (), False)
    assert got.error and not got.unterminated and not got.trailing


@pytest.mark.parametrize(
    ("text", "thinking", "closed"),
    [
        ("a</think>b", True, True),
        ("a", True, False),
        ("a", False, True),
        ("<think>a", False, False),
        ("<think>a</think>", False, True),
        ("", True, False),
        ("b<think>c", False, True),  # quoted
    ],
)
def test_whether_reasoning_is_still_open(text, thinking, closed):
    assert parse(text, thinking).thinking_closed == closed


def test_43_unclosed_reasoning_is_reasoning():
    """ds4 returns it as content when not streaming and as reasoning when streaming."""
    text = f"thinking forever {TC}\n{I('a')}\n{I_END}\n{TC_END}"
    got = parse(text, thinking=True)
    assert (got.reasoning, got.content, got.calls, got.thinking_closed) == (text, "", (), False)


def test_44_calls_inside_reasoning_are_not_calls():
    got = parse(f"x {TC} y</think>Final", thinking=True)
    assert (got.reasoning, got.content, got.calls) == (f"x {TC} y", "Final", ())
    stanza = call()
    got = parse(f"x{stanza}</think>Final", thinking=True)
    assert (got.reasoning, got.content, got.calls) == (f"x{stanza}", "Final", ())


def test_leading_think_tag():
    assert parse("<think>a</think>b", thinking=True).reasoning == "a"
    got = parse("<think>a</think>b", thinking=False)
    assert (got.reasoning, got.content) == ("a", "b")
    assert parse("<thin", thinking=False).content == "<thin"
    assert parse("<thin", thinking=True).reasoning == "<thin"
    assert parse(" <think>a", thinking=False).content == " <think>a"


def test_thinking_again_suspends_calls():
    """Calls are looked for again after ``</think>``."""
    got = parse(f"a</think>b<think>{call()}</think>c{call(name='real')}", thinking=True)
    assert got.content == f"b<think>{call()}</think>c"
    assert [c.name for c in got.calls] == ["real"]


def test_46_only_the_first_block():
    for tail in ("\ntrailing", call(name="second")):
        got = parse(call() + tail, thinking=False)
        assert [c.name for c in got.calls] == ["a"] and got.trailing == tail and got.raw_block == call()


def test_47_empty_block():
    got = parse(f"</think>\n\n{TC}\n{TC_END}", thinking=True)
    assert (got.calls, got.content, got.finish_reason("stop")) == ((), "", "tool_calls")


def test_attributes_are_whole_words():
    """ds4 finds name=" inside filename="."""
    got = parse(f'{TC}<｜DSML｜invoke filename="x" name="y">{I_END}{TC_END}', thinking=False)
    assert got.calls[0].name == "y"
    got = parse(
        f'{TC}<｜DSML｜invoke\n name="a &lt;&quot;b&quot;&gt; &amp;amp;" x="name=">{I_END}{TC_END}', thinking=False
    )
    assert got.calls[0].name == 'a <"b"> &amp;'
    for entity, char in {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": "&nbsp;"}.items():
        assert parse(f"{TC}{I(f'x&{entity};y')}{I_END}{TC_END}", thinking=False).calls[0].name == f"x{char}y"


def test_of_duplicate_attributes_the_first_counts():
    got = parse(f'{TC}<｜DSML｜invoke name="y" name="z">{I_END}{TC_END}', thinking=False)
    assert got.calls[0].name == "y"
    assert value(f'<｜DSML｜parameter name="s" string="true" string="false" name="t">1{P_END}') == '{"s":"1"}'


def test_without_tools_markup_is_text():
    """D10"""
    for thinking in (False, True):
        got = parse("x</think>" * thinking + "hi" + call(), thinking, tools=False)
        assert (got.content, got.calls, got.error) == ("hi" + call(), (), None)


def test_earliest_opener_counts():
    text = f'<tool_calls><invoke name="x"></invoke></tool_calls>{call()}'
    assert [c.name for c in parse(text, thinking=False).calls] == ["x"]


def test_value_after_quotation():
    got = parse(f"The tag {TC} starts a block. {TC}{TC} Now:{call()}", thinking=False)
    assert got.content == f"The tag {TC} starts a block. {TC}{TC} Now:"
    assert [c.name for c in got.calls] == ["a"] and got.error is None


# --- where the text so far ends


def states(pieces, thinking=False):
    parser = DsmlParser(thinking)
    found = []
    for piece in pieces:
        parser.feed(piece)
        found.append((parser.in_block, parser.greedy))
    return found


OUT, TAG, BODY = (False, False), (True, True), (True, False)


def test_49_states():
    steps = [
        *[(piece, OUT) for piece in ("ok\n\n<", "｜DSML｜", "tool", "_c", "alls")], (">\n", TAG),
        ("<｜DSML｜invoke nam", TAG), ('e="e">\n<｜DSML｜parameter name="p" string="true"', TAG),
        (">", BODY), ("hel", BODY), ("lo </", TAG), ("div>", BODY),
        ("<", BODY), ("b ", BODY), *[(piece, TAG) for piece in ("</", "｜DSML｜", "parameter", ">\n")],
        ('<｜DSML｜parameter name="q" string="false"', TAG), (">", TAG), ("[{", TAG), ('"', BODY), ("k</", BODY),
        ("\\", BODY), ('"', BODY), ('"', TAG), (":1}", TAG), ("]", TAG), ("<", TAG), ("/｜DSML｜", TAG),
        ("parameter>", TAG), ("\n</｜DSML｜invoke>\n</｜DSML｜tool_calls", TAG), (">", OUT), (call(), OUT),
    ]  # fmt: skip
    assert states([piece for piece, _ in steps]) == [state for _, state in steps]


# --- text that is held back


def held(*pieces, tools=True):
    parser = DsmlParser(False, tools)
    shown = sum(len(e.text) for piece in pieces for e in parser.feed(piece) if isinstance(e, TextDelta))
    return shown, parser


def test_52_text_hold():
    """ds4 also holds ``< 2`` back, up to 80 characters; here a ``<`` waits only while it can become a tag."""
    assert held("Hello  ")[0] == 5
    assert held("1 < 2")[0] == 5
    assert held("1 <")[0] == 1
    assert held("Hi\n\n<｜DSML")[0] == 2
    assert held("Hello  ", tools=False)[0] == 7
    for text in ("Hello  ", "1 < 2", "1 <", "Hi\n\n<｜DSML"):
        _, parser = held(text)
        parser.finish()
        assert parser.result.content == text


# --- independence from the cuts

CORPUS = [
    f"why <b</think>Text <i> 1 < 2 \n\n{TC}\n{I('bash')}\n{P('c', 'true')}a </b> &lt;/｜DSML｜x "
    f'&amp;lt;/｜DSML｜parameter>é😀</{P_END}\n{P("n", "false")} {{"k": [1, "</x \\" "]}} {P_END}'
    f"\n{I_END}\n{I('b')}{I_END}\n{TC_END} tail",
    f'<think>a</think>b <think>{TC}</think> {TC} no {TC}\n\n<｜DSML｜parameter> <tool_calls>\n<invoke name="x">'
    f'<parameter name="p"> <parameter name="q">1</parameter> <parameter name="r" string="false">[</parameter>'
    "</invoke></tool_calls>",
    f"a</think>{call(P('x', 'false') + P_END, '<｜DSML｜parameter name=' + chr(34) + 'y' + chr(34) + '> z' + P_END)}",
    '</think>  <DSML｜tool_calls> <DSML｜invoke name="a"> <DSML｜parameter name="p" string="true"></DSML｜parameter>',
    "unclosed <think> </thin",
    *MALFORMED[:-1],
]


def joined(events):
    """Events with neighbouring deltas of one kind put together."""
    out = []
    for event in events:
        last = out[-1] if out else None
        if type(event) is type(last) and isinstance(event, (TextDelta, ReasoningDelta)):
            out[-1] = type(event)(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            assert event.index == last.index
            out[-1] = ArgumentsDelta(event.index, last.fragment + event.fragment)
        else:
            out.append(event)
    return out


def run(pieces, thinking, tools=True):
    parser = DsmlParser(thinking, tools)
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish()
    assert all(e.text for e in events if isinstance(e, (TextDelta, ReasoningDelta)))
    assert all(e.fragment for e in events if isinstance(e, ArgumentsDelta))
    return joined(events), parser.result


def check_events(events, result: Generated):
    """The events tell the same story as the result."""
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == result.content
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == result.reasoning
    names = [e.name for e in events if isinstance(e, CallStart)]
    streamed = {e.index: "" for e in events if isinstance(e, CallStart)}
    for e in events:
        if isinstance(e, ArgumentsDelta):
            streamed[e.index] += e.fragment
    if result.error is None:
        assert [(c.name, c.arguments) for c in result.calls] == list(zip(names, streamed.values(), strict=True))
    assert [e.reason for e in events if isinstance(e, Failed)] == ([result.error] if result.error else [])
    for c in result.calls:
        json.loads(c.arguments)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("text", CORPUS)
def test_cut_at_every_byte(text, thinking):
    data = text.encode()
    for tools in (False, True):
        whole = run([text], thinking, tools)
        check_events(*whole)
        for cut in range(len(data) + 1):
            assert run([data[:cut], data[cut:]], thinking, tools) == whole
        assert run([data[i : i + 1] for i in range(len(data))], thinking, tools) == whole
        assert run(list(text), thinking, tools) == whole


ATOMS = st.sampled_from([
    TC, TC_END, I("a"), I_END, P("s", "true"), P("j", "false"), '<｜DSML｜parameter name="n">', P_END, "<tool_calls>",
    "</tool_calls>", '<invoke name="x">', "</invoke>", "<think>", "</think>", "&lt;/｜DSML｜parameter>", "&amp;",
    "lt;", "&", "<", "</", "｜DSML｜", "\n", "\n\n", " ", "text", '{"k": "v"}', '"', "\\", "1", "é",
])  # fmt: skip


@given(st.lists(ATOMS, max_size=25))
def test_state_does_not_depend_on_the_pieces(atoms):
    """The state after a text is a property of the text."""
    text = "".join(atoms)
    assert states([text]) == [states(list(text))[-1] if text else OUT]


def test_text_after_bytes_that_break_off():
    """What was cut off cannot be completed by text: it is a replacement character, in its place."""
    parser = DsmlParser(False)
    events = [*parser.feed(b"a\xe2\x82"), *parser.feed("x"), *parser.feed(b"\xac"), *parser.finish()]
    assert parser.result.content == "a\ufffdx\ufffd"
    assert joined(events) == [TextDelta("a\ufffdx\ufffd")]


def test_lone_surrogates_are_replaced():
    got = parse(call(f"{P('s', 'true')}\ud800{P_END}") + "\udfff", thinking=False)
    assert got.calls[0].arguments == '{"s":"\ufffd"}' and got.trailing == "\ufffd"


LONG = {
    "space": lambda size: " " * size + "x",
    "angles": lambda size: "<" * size,
    "openers": lambda size: f"{TC} x " * (size // 20),
    "thoughts": lambda size: "<think></think>" * (size // 10),
    "escapes": lambda size: call(f"{P('s', 'true')}{'&lt;/' * size}{P_END}"),
    "a list": lambda size: call(f"{P('s', 'false')}[{'1, ' * size}1]{P_END}"),
    "calls": lambda size: TC + (I("a") + I_END) * (size // 40) + TC_END,
}


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1 << 30, 50], ids=["whole", "in pieces"])
@pytest.mark.parametrize("kind", LONG)
def test_long_inputs_take_linear_time(kind, cut):
    def parsed(size):
        parser, text = DsmlParser(thinking=False), LONG[kind](size)
        for at in range(0, len(text), cut):
            parser.feed(text[at : at + cut])
        parser.finish()

    assert grows_linearly(parsed, 12_500)
