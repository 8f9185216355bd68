"""Messages of the three APIs (docs/explanation/text.md 3) and tool schemas."""

import json

import pytest

from ds4ref.errors import TextError
from ds4ref.text.chat import Message, render
from ds4ref.text.dsml import ToolCall
from ds4ref.text.messages import from_anthropic, from_openai, from_responses, tool_references
from ds4ref.text.protocol import ASSISTANT, BOS, EOS, USER
from ds4ref.text.schemas import Schema, brought, by_name, found_in, read_schemas

Q = {"role": "user", "content": "q"}
EMPTY = '{"type":"object","properties":{}}'


def dump(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def responses(*items, **kw):
    return from_responses(dump(items), **kw)[0]


def test_openai():
    raw = """[
      {"content": "no role"},
      {"role": "system", "content": null},
      {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"text": "c"}]},
      {"role": "assistant", "reasoning_content": "r", "content": "x", "tool_calls": [
         {"id": "c1", "function": {"name": "f", "arguments": "{\\"z\\": 1, \\"a\\": 2}"}},
         {"id": "c2", "function": {"name": "g", "arguments": { "z": 1.50, "a":2 }}},
         {"id": "c3", "function": {"name": "h"}}, {"id": "c4"}, {"id": "c5", "function": {"arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "out"},
      {"role": "user", "role": "developer", "content": "last key wins"}]"""
    assert from_openai(raw) == [
        Message("user", "no role"),
        Message("system"),
        Message("user", "abc"),
        Message(
            "assistant",
            "x",
            "r",
            (ToolCall("f", '{"z": 1, "a": 2}', "c1"), ToolCall("g", '{ "z": 1.50, "a":2 }', "c2")),
        ),
        Message("tool", "out", result_ids=("c1",)),
        Message("system", "last key wins"),
    ]


def test_27_anthropic():
    messages = from_anthropic(
        dump(
            [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}]},
                {
                    "content": [
                        {"type": "thinking", "thinking": "T", "signature": "s"},
                        {"type": "text", "text": "X"},
                        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"p": "/x"}},
                    ],
                    "role": "assistant",
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "OK"}]},
                        {"type": "text", "text": "go on"},
                    ],
                },
            ]
        )
    )
    assert messages[2].result_ids == ("t1",)
    assert render(messages, (), "high").text == (
        f'{BOS}{USER}ab{ASSISTANT}<think>T</think>X\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="Read">\n'
        f'<｜DSML｜parameter name="p" string="true">/x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        f"{EOS}"
        f"{USER}<tool_result>OK</tool_result>go on{ASSISTANT}<think>"
    )


def test_anthropic_details():
    use = {"type": "tool_use", "name": "f"}
    result = {"type": "tool_result", "content": "a</tool_result>b"}
    messages = from_anthropic(dump([{"role": "assistant", "content": [use]}, {"content": [result]}]))
    assert messages[0].calls == (ToolCall("f", "{}"),)
    assert messages[1].content == "<tool_result>a&lt;/tool_result>b</tool_result>"
    parts = [{"type": "text", "text": t} for t in ("x-anthropic-billing: 1", "one", "two\n", "three")]
    assert from_anthropic(dump([Q]), dump(parts)) == [Message("system", "one\ntwo\nthree"), Message("user", "q")]
    thoughts = [{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b"}]
    assert from_anthropic(dump([{"role": "assistant", "content": thoughts}])) == [Message("assistant", "", "ab")]
    assert from_anthropic(dump([Q]), dump("S"))[0] == Message("system", "S")
    assert from_anthropic(dump([Q]), "null") == [Message("user", "q")]


def test_28_responses():
    messages = responses(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "txt"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "out"},
    )
    assert render(messages, (), "high").text == (
        f'{BOS}{USER}q{ASSISTANT}<think>S</think>txt\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        f'<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        f"{EOS}"
        f"{USER}<tool_result>out</tool_result>{ASSISTANT}<think>"
    )
    assert messages[1].calls == (ToolCall("f", '{"a":1}', "c1"),) and messages[2].result_ids == ("c1",)


def test_responses_details():
    assert from_responses('"hi"', "be nice") == ([Message("system", "be nice"), Message("user", "hi")], [])
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "content": ["b"]}
    assert responses(reasoning, Q) == [Message("assistant", "", "a\nb"), Message("user", "q")]
    assert responses(Q, reasoning) == [Message("user", "q"), Message("assistant", "", "a\nb")]
    assert responses(
        reasoning,
        {"type": "function_call", "id": "i1", "namespace": "ns.", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "id": "x", "name": "g", "input": "free text"},
        {"type": "local_shell_call", "call_id": "s", "action": {"command": ["ls"]}, "status": "completed"},
        {"type": "web_search_call", "id": "w"},
        {"type": "compaction"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
    ) == [
        Message(
            "assistant",
            "",
            "a\nb",
            (
                ToolCall("ns.f", "{}", "i1"),
                ToolCall("g", '{"input":"free text"}', "c"),
                ToolCall("local_shell", '{"command": ["ls"]}', "s"),
                ToolCall("web_search_call", "{}", "w"),
            ),
        ),
        Message("tool", "o", result_ids=("c",)),
    ]
    search = {"type": "tool_search_output", "call_id": "t", "tools": [{"name": "late"}]}
    messages, tools = from_responses(dump([search]))
    assert tools == ['{"name": "late"}'] and messages[0].role == "tool"
    again = {**search, "tools": [{"name": "later"}]}
    assert from_responses(dump([search, again]))[1] == ['{"name": "late"}', '{"name": "later"}']
    other = {"type": "function_call_output", "output": "o", "tools": [{"name": "not one"}]}
    assert from_responses(dump([other])) == ([Message("tool", "o")], [])
    assert responses({"type": "compaction"}, Q, {"type": "context_compaction"}) == [Message("user", "q")]


def test_responses_calls_join_the_turn_before_them():
    def thought(text):
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}

    def called(name):
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    f, g, h = (ToolCall(name, "{}", name) for name in "fgh")
    assert responses(
        {"role": "assistant", "content": "A"}, thought("1"), called("f"), thought("2"), called("g"), Q, called("h")
    ) == [
        Message("assistant", "A", "1\n2", (f, g)),
        Message("user", "q"),
        Message("assistant", calls=(h,)),
    ]
    # Thoughts never pass on to another's turn, and belong to one turn only.
    assert responses(thought("1"), {"type": "function_call_output", "output": "x"}, called("f")) == [
        Message("assistant", "", "1"),
        Message("tool", "x"),
        Message("assistant", calls=(f,)),
    ]
    assert responses(thought("1"), {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}) == [
        Message("assistant", "A", "1"),
        Message("assistant", "B"),
    ]


@pytest.mark.parametrize(
    ("item", "content", "ids"),
    [
        ({"type": "function_call_output", "call_id": "c", "id": "i", "output": "text"}, "text", ("c",)),
        ({"type": "custom_tool_call_output", "id": "i", "output": ["a", {"type": "text", "text": "b"}]}, "ab", ("i",)),
        ({"type": "local_shell_call_output", "output": {"exit": 1}}, '{"exit": 1}', ()),
        ({"type": "local_shell_output", "output": 12}, "12", ()),
        ({"type": "tool_search_output", "call_id": "c"}, "", ("c",)),
        ({"type": "image_generation_call_output", "call_id": None, "output": None}, "", ()),
    ],
)
def test_responses_outputs(item, content, ids):
    assert responses(item) == [Message("tool", content, result_ids=ids)]


@pytest.mark.parametrize(
    ("read", "raw", "message"),
    [
        (from_openai, "{}", "messages is not a JSON array"),
        (from_openai, "[1]", "a message is not a JSON object"),
        (from_openai, "[", "messages is not a JSON array"),
        (from_openai, '[{"role": 1}]', "role is not a string"),
        (from_openai, '[{"role": null}]', "role is null"),
        (from_openai, '[{"content": 1}]', "content is not a JSON array"),
        (from_openai, '[{"content": [[]]}]', "a part of content is not a JSON object"),
        (from_openai, '[{"tool_calls": {}}]', "tool_calls is not a JSON array"),
        (from_anthropic, '[{"content": [{"type": 3}]}]', "type of a content block is not a string"),
        (from_responses, '[{"type": "mystery"}]', "unknown input item type 'mystery'"),
        (from_responses, '[{"status": "in_progress"}]', "status 'in_progress'"),
        (from_responses, '[{"type": "function_call", "status": "incomplete"}]', "status 'incomplete'"),
        (from_openai, '[{"role": null}]', "role is null"),
        (from_responses, '[{"type": "tool_search_output", "tools": 1}]', "tools of a tool_search_output"),
        (from_openai, "[" * 300 + "]" * 300, "nested more than 256 deep"),
        (read_schemas, "{}", "tools is not a JSON array"),
        (read_schemas, '["f"]', "a tool is not a JSON object"),
        (read_schemas, '[{"type":"namespace","name":"n","tools":[{"name":""}]}]', ""),
    ],
)
def test_wrong_input(read, raw, message):
    if message:
        with pytest.raises(TextError, match=message):
            read(raw)
    else:
        assert read(raw)[0].name == "n"


def test_schemas_are_verbatim():
    inner = '{ "name":"f",  "parameters": {"b":1, "a":[ ]} }'
    flat = '{"name": "g", "input_schema": {"type":"object"}, "strict":true}'
    raw = f'[{{"type":"function","function":{inner}}}, {flat} ,{{"type":"web_search"}}]'
    assert read_schemas(raw) == [
        Schema(inner, "f"),
        Schema(flat, "g", strict=True),
        Schema('{"type":"web_search"}', "", kind="hosted"),
    ]
    assert read_schemas("[]") == read_schemas("null") == read_schemas(None) == []


def test_rebuilt_schemas():
    raw = dump(
        [
            {"type": "namespace", "name": "fs.", "tools": [{"name": "read", "parameters": {"x": 1}}, {"name": "é\n"}]},
            {"type": "tool_search"},
            {"type": "tool_search", "description": "D", "parameters": {"q": 1}},
            {"type": "function", "name": "tool_search"},
        ]
    )
    assert read_schemas(raw) == [
        Schema('{"name":"fs.read","description":"","parameters":{"x": 1}}', "fs.read", "fs."),
        Schema(f'{{"name":"fs.é\\n","description":"","parameters":{EMPTY}}}', "fs.é\n", "fs."),
        Schema(
            f'{{"name":"tool_search","description":"Search available tools.","parameters":{EMPTY}}}',
            "tool_search",
            kind="tool_search",
        ),
        Schema('{"name":"tool_search","description":"D","parameters":{"q": 1}}', "tool_search", kind="tool_search"),
        Schema('{"type": "function", "name": "tool_search"}', "tool_search"),
    ]


def test_the_function_of_a_namespace_says_whether_it_is_strict_before_its_tool_does():
    for own, outer, strict in ((None, True, True), (True, None, True), (False, True, False), (None, None, False)):
        tool = {"strict": outer, "function": {"name": "f"} | ({} if own is None else {"strict": own})}
        (schema,) = read_schemas(dump([{"type": "namespace", "name": "n.", "tools": [tool]}]))
        assert (schema.text, schema.strict) == (f'{{"name":"n.f","description":"","parameters":{EMPTY}}}', strict)


# --- what today's clients send (docs/reference/server.md)


def test_custom_tools_are_functions_with_one_parameter():
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    flat = {"type": "custom", "name": "patch", "description": "edits", "format": grammar}
    nested = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}}
    free = {"type": "custom", "name": "note", "format": {"type": "text"}}
    shown, other, plain = read_schemas(dump([flat, nested, free]))
    assert (shown.name, shown.kind, shown.grammar) == ("patch", "custom", ("lark", 'start: "x"')) and shown.in_prompt
    assert (other.kind, other.grammar) == ("custom", shown.grammar)
    assert (plain.kind, plain.grammar) == ("custom", None)
    told = json.loads(shown.text)
    assert told["description"] == "edits" and told["parameters"]["required"] == ["input"]
    assert 'start: "x"' in told["parameters"]["properties"]["input"]["description"]
    assert json.loads(shown.parameters) == told["parameters"]
    # Anthropic's word for its functions is custom, too.
    (function,) = read_schemas('[{"type":"custom","name":"f","input_schema":{"type":"object"}}]')
    assert (function.kind, function.parameters) == ("function", '{"type":"object"}')
    with pytest.raises(TextError, match="no name"):
        read_schemas('[{"type":"custom","format":{}}]')
    (inner,) = read_schemas(dump([{"type": "namespace", "name": "n_", "tools": [flat]}]))
    assert (inner.name, inner.bare, inner.kind, inner.grammar) == ("n_patch", "patch", "custom", shown.grammar)


def test_calls_of_custom_tools_come_back_as_their_parameter():
    chat = [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "p", "input": "a\nb"}}]}
    ]
    assert from_openai(dump(chat))[0].calls == (ToolCall("p", '{"input":"a\\nb"}', "c"),)
    assert (
        '<｜DSML｜parameter name="input" string="true">a\nb</｜DSML｜parameter>' in render(from_openai(dump(chat))).text
    )


def test_hosted_tools_are_hidden():
    tools = [
        {"type": "web_search", "external_web_access": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "function", "name": "f", "strict": True},
        {"type": "bash_20250124", "name": "bash"},
    ]
    found = read_schemas(dump(tools))
    assert [(s.kind, s.in_prompt, s.callable) for s in found] == [
        ("hosted", False, False), ("hosted", False, False), ("function", True, True), ("hosted", False, False),
    ]  # fmt: skip
    assert list(by_name(found)) == ["f"] and found[2].strict
    assert json.loads(found[2].parameters) == {"type": "object", "properties": {}}


def test_what_is_for_the_server_is_not_shown():
    one = '{"name":"f","description":"d","input_schema":{"type": "object"},"cache_control":{"type":"ephemeral"}}'
    (schema,) = read_schemas(f"[{one}]")
    assert schema.text == '{"name":"f","description":"d","input_schema":{"type": "object"}}'
    assert read_schemas(f"[{schema.text}]")[0] == schema  # wherever the mark is set
    (outer,) = read_schemas('[{"type":"function","function":{"name":"f","strict":true},"cache_control":{}}]')
    assert outer.text == '{"name":"f","strict":true}' and outer.strict


def test_deferred_tools_come_with_the_result_that_names_them():
    tools = [
        {"name": "ToolSearch", "input_schema": {"type": "object"}},
        {"name": "WebFetch", "input_schema": {"type": "object"}, "defer_loading": True},
        {"name": "Placeholder", "input_schema": {"type": "object"}, "defer_loading": True},
    ]
    result = [{"type": "text", "text": "found:"}, {"type": "tool_reference", "tool_name": "WebFetch"}]
    history = dump(
        [
            Q,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": result}]},
        ]
    )
    assert tool_references(history) == ["WebFetch"] and tool_references(dump([Q])) == []
    schemas = found_in(read_schemas(dump(tools)), tool_references(history))
    assert [(s.in_prompt, s.callable) for s in schemas] == [(True, True), (False, True), (False, False)]
    assert schemas[1].text == '{"name":"WebFetch","input_schema":{"type": "object"}}'
    messages = from_anthropic(history, references={s.name: s.text for s in schemas})
    assert messages[2].content == f"<tool_result>found:\n{schemas[1].text}</tool_result>"
    assert from_anthropic(history)[2].content == "<tool_result>found:\n[tool WebFetch]</tool_result>"
    # Wherever the tool stands in the list of a later request, the prompt begins as it did before it was found.
    before = render(messages[:1], [s.text for s in read_schemas(dump(tools[:1])) if s.in_prompt], "none").text
    after = render(messages, [s.text for s in schemas if s.in_prompt], "none").text
    assert after.startswith(before.removesuffix("<｜Assistant｜></think>"))


def test_found_tools_of_a_responses_search():
    item = {"type": "tool_search_output", "call_id": "t", "tools": [
        {"type": "namespace", "name": "n_", "tools": [{"name": "f"}]}, {"type": "web_search"}]}  # fmt: skip
    messages, tools = from_responses(dump([item]))
    line = '{"name":"n_f","description":"","parameters":{"type":"object","properties":{}}}'
    assert messages[0].content == line and messages[0].result_ids == ("t",)
    found = brought(tools)
    assert [(s.name, s.in_prompt, s.callable) for s in found] == [("n_f", False, True), ("", False, False)]


def test_images_become_words():
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    chat = dump([{"role": "user", "content": [{"type": "text", "text": "see "}, image, {"type": "text", "text": ""}]}])
    assert from_openai(chat)[0].content == "see [image]"
    picture = {"type": "image", "source": {"type": "base64", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [picture]}
    claude = dump([{"role": "user", "content": [result, picture, {"type": "document", "source": {}}]}])
    assert from_anthropic(claude)[0].content == "<tool_result>[image]</tool_result>[image][document]"
    view = {"type": "input_image", "image_url": "data:", "detail": "high"}
    items = [{"type": "function_call_output", "call_id": "c", "output": [view]}, {"role": "user", "content": [view]}]
    messages, _ = from_responses(dump(items))
    assert [message.content for message in messages] == ["[image]", "[image]"]


def test_text_that_stands_elsewhere():
    note = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    other = {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}
    hidden = {"type": "redacted_thinking", "data": "x"}
    messages = from_anthropic(dump([{"role": "user", "content": [note, other, hidden]}]))
    assert messages[0].content == "words[server_tool_use]", "a note in place of what is not rendered"
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert responses(refused)[0].content == "No."
    thoughts = '[{"role":"assistant","reasoning_content":[{"type":"text","text":"a"},"b"]}]'
    assert from_openai(thoughts)[0].reasoning == "ab"
