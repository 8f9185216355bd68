"""What the four APIs have in common in reading a request: what they tolerate, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.server.api import Refused
from ds4ref.server.apis.common import PlainInput
from ds4ref.server.deviations import DEVIATIONS, on
from ds4ref.server.turn import Failed
from ds4ref.targets.answer import Delta, Finish, Usage
from ds4ref.text.chat import Message
from ds4ref.text.rawjson import quote

from .answers import APIS, deltas, play, read

PROMPTS = {
    "/v1/chat/completions": ("messages", '[{"role":"user","content":"q"}]'),
    "/v1/completions": ("prompt", '"q"'),
    "/v1/messages": ("messages", '[{"role":"user","content":"q"}]'),
    "/v1/responses": ("input", '"q"'),
}
EACH = pytest.mark.parametrize("path", PROMPTS)


def body(path: str, more: str = "") -> str:
    """A request with further members."""
    name, value = PROMPTS[path]
    return f'{{"{name}":{value}{"," * bool(more)}{more}}}'


def refused(path, raw):
    with pytest.raises(Refused) as error:
        read(path, raw)
    assert error.value.status == 400 and error.value.kind == "invalid_request_error"
    assert "\n" not in error.value.message and len(error.value.message) < 400
    return error.value.message


# --- tolerance


@EACH
def test_what_is_tolerated(path):
    """server.md 3.1: unknown members, other orders, missing commas, duplicates, what follows the object."""
    wanted = read(path, body(path))[0]
    name, value = PROMPTS[path]
    for raw in (
        body(path, '"unknown":{"a":[1,{"b":null}]},"user":"x","metadata":{},"logit_bias":{},"n":1'),
        f' \n\t{{ "{name}" : {value} }} and more',
        f'{{"{name}":"first","{name}":{value}}}',
        f'{{"x":1 "{name}":{value} "y":2}}',
        "\ufeff" + body(path),
        body(path, '"stream_options":null,"tools":null,"tool_choice":null,"stop":null,"stop_sequences":null'),
        body(path, '"reasoning_effort":null,"reasoning":null,"system":null,"instructions":null,"response_format":null'),
        body(path, '"prompt_cache_key":5'),
    ):
        assert read(path, raw)[0] == wanted, raw


@EACH
def test_commas_may_be_missing_between_the_members_of_the_request_alone(path):
    """As docs/reference/server.md says."""
    name, value = PROMPTS[path]
    read(path, f'{{"a":1 "{name}":{value} "b":{{"c":2,"d":3}}}}')
    for wrong in ('"b":{"c":2 "d":3}', '"b":[1 2]', '"stop":["x" "y"]', '"b":[{"c":[3 4]}]'):
        refused(path, body(path, wrong))


@EACH
def test_the_last_of_two_counts(path):
    assert read(path, body(path, '"temperature":"no","temperature":0.5'))[0].sampling.temperature == 0.5
    assert read(path, body(path, '"temperature":0.5,"temperature":null'))[0].sampling.temperature == 1.0


HONOURED = {
    "/v1/chat/completions": ("model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "min_p", "top_k",
                             "seed", "stream", "think"),
    "/v1/completions": ("model", "max_tokens", "temperature", "top_p", "min_p", "top_k", "seed", "stream", "think",
                        "echo"),
    "/v1/messages": ("model", "max_tokens", "temperature", "top_p", "top_k", "stream"),
    "/v1/responses": ("model", "max_tokens", "max_output_tokens", "temperature", "top_p", "stream"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in HONOURED.items() for name in names])
def test_fields_of_another_type(path, name):
    for wrong in ("[]", "{}", '"1"' if name not in ("model",) else "5", "true" if name != "stream" else "1"):
        if name in ("think", "echo") and wrong == "true":
            continue
        assert name in refused(path, body(path, f'"{name}":{wrong}')), wrong


@EACH
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "0x10", "01", ".5", "5.", "+1", "1e", "--1", "nul"])
def test_numbers_that_are_none(path, value):
    refused(path, body(path, f'"temperature":{value}'))
    refused(path, body(path, f'"unknown":{value}'))


@EACH
def test_numbers_of_any_size(path):
    big = "9" * 5000
    for value in ("1e999", big, "1E+400"):
        assert read(path, body(path, f'"max_tokens":{value}'))[0].max_tokens == 2**31 - 1
        assert 1e38 < read(path, body(path, f'"temperature":{value}'))[0].sampling.temperature < float("inf")
    for value in ("-0", "0", "0.9"):
        assert read(path, body(path, f'"max_tokens":{value}'))[0].max_tokens == 0
    assert read(path, body(path, '"max_tokens":7.9'))[0].max_tokens == 7


NONSENSE = {
    "max_tokens": "-5 -1 -1e999", "temperature": "-1 -0.01 -1e999", "top_p": "-3 1.01 5 1e999", "min_p": "5 -0.5 1.5",
    "top_k": "-1 -1e9", "presence_penalty": "2.5 -3 1e999", "frequency_penalty": "2.01 -100", "seed": "0.5 5.9",
    "logit_bias": '{"5":101} {"5":-101} {"a":1} {"-5":1} {"5.0":1} {"\u0665":1} {"5":"1"} {"5":true} [] 5 "x"',
}  # fmt: skip


@EACH
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_in_a_line(path, name):
    for value in NONSENSE[name].split():
        assert name in refused(path, body(path, f'"{name}":{value}'))


@EACH
def test_what_lies_at_the_edge_is_no_nonsense(path):
    for name, value in (("top_p", 1), ("min_p", 1), ("min_p", 0), ("top_k", 0), ("presence_penalty", -2),
                        ("presence_penalty", 2), ("frequency_penalty", -2), ("frequency_penalty", 2),
                        ("temperature", 0)):  # fmt: skip
        drawn = read(path, body(path, f'"{name}":{value}'))[0].sampling
        assert getattr(drawn, name.removesuffix("_penalty")) == value
    assert 0 < read(path, body(path, '"top_p":0'))[0].sampling.top_p < 1e-20, "the likeliest token alone"
    assert read(path, body(path, '"logit_bias":{"7":-100,"3":100,"5":0.5}'))[0].sampling.bias == (
        (3, 100.0), (5, 0.5), (7, -100.0))  # fmt: skip


@EACH
def test_seeds(path):
    """Every whole number is one, 0 too."""
    for value, seed in (("5", 5), ("0", 0), ("-0", 0), ("-3", 2**64 - 3), (str(2**53 + 1), 2**53 + 1), ("2e3", 2000),
                        (str(2**64 - 1), 2**64 - 1)):  # fmt: skip
        assert read(path, body(path, f'"seed":{value}'))[0].sampling.seed == seed
    for value in ("1e999", "9" * 9000):
        assert 0 <= read(path, body(path, f'"seed":{value}'))[0].sampling.seed < 2**64
    assert read(path, body(path))[0].sampling.seed is None


@EACH
def test_roles_that_are_not_rendered_are_refused(path):
    """Not answered as if the message were not there."""
    if path == "/v1/completions":
        return
    name, _ = PROMPTS[path]
    for role in ("User", "human", "", "ai", "SYSTEM", "tool " * 100):
        said = refused(path, json.dumps({name: [{"role": "user", "content": "q"}, {"role": role, "content": "lost"}]}))
        assert "role" in said and "user" in said
    for role in ("user", "assistant", "system"):
        read(path, json.dumps({name: [{"role": role, "content": "q"}, {"role": "user", "content": "q"}]}))


@EACH
def test_nothing_said_is_refused(path):
    if path == "/v1/completions":
        return
    name, _ = PROMPTS[path]
    refused(path, f'{{"{name}":[]}}')
    refused(path, f'{{"{name}":[],"system":"x"}}' if path == "/v1/messages" else f'{{"{name}":[]}}')
    if path == "/v1/responses":
        refused(path, '{"input":[],"instructions":"Be brief."}')


@EACH
def test_nesting_has_a_limit(path):
    """json_skip_has_nesting_limit."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inside = "1" if opening != "[" else ""
        read(path, body(path, f'"unknown":{opening * 256}{inside}{closing * 256}'))
        assert "256 deep" in refused(path, body(path, f'"unknown":{opening * 257}{inside}{closing * 257}'))
    refused(path, "[" * 100_000)
    refused(path, body(path, '"unknown":' + '{"a":' * 100_000))


@EACH
@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"null", b"[]", b'"x"', b"5", b"{", b'{"', b'{"a"}', b'{"a":}', b'{"a":1', b"{'a':1}", b"{a:1}",
     b"\x00", b'{"a":"\x01"}', b'{"a":"\\x"}', b'{"a":"\\u12"}', b"\xff\xfe{}", b'{"a":"\xff"}',
     b'{"a":"\xed\xa0\x80"}'],
)  # fmt: skip
def test_bodies_that_are_no_object(path, raw):
    assert refused(path, raw).startswith("invalid JSON request")


@EACH
def test_what_there_has_to_be(path):
    name, _ = PROMPTS[path]
    with pytest.raises(Refused) as error:
        read(path, "{}")
    assert error.value.message == f"missing {name}"


@EACH
@pytest.mark.parametrize("stream", ["true", "false"])
def test_halves_of_characters(path, stream):
    """A lone surrogate becomes U+FFFD, on the way in as on the way out."""
    raw = body(path, f'"model":"a\\ud800b\\udc00\\ud83d\\ude00","stream":{stream}')
    turn, reply = read(path, raw)
    assert turn.model == "a�b�😀"
    assert "a�b�😀" in play(reply, deltas("x")).decode()


@EACH
def test_long_complaints_are_cut(path):
    field = "thinking" if path != "/v1/responses" else "tool_choice"
    refused(path, body(path, f'"{field}":"{"x" * 5000}"'))
    refused(path, body(path, f'"reasoning":"{"x" * 5000}","reasoning_effort":"{"x" * 5000}"'))


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/chat/completions", "stop"), ("/v1/completions", "stop"), ("/v1/messages", "stop_sequences")],
)
def test_stop_strings(path, name):
    """stop_list_parses_all_sequences."""
    assert read(path, body(path, f'"{name}":["a","","b\\n"]'))[0].stop == ("a", "b\n")
    assert read(path, body(path, f'"{name}":[]'))[0].stop == ()
    assert read(path, body(path, f'"{name}":"one"'))[0].stop == ("one",)
    for wrong in ("5", "{}", "[5]", "[null]", "true"):
        refused(path, body(path, f'"{name}":{wrong}'))
    many = ",".join(['"x"'] * 256)
    assert len(read(path, body(path, f'"{name}":[{many}]'))[0].stop) == 256
    many += ',"x"'
    refused(path, body(path, f'"{name}":[{many}]'))


@EACH
def test_who_asks(path):
    assert read(path, body(path, '"prompt_cache_key":"k"'), headers={"session-id": "s"})[0].affinity == "k"
    assert read(path, body(path), headers={"x-session-affinity": "s"})[0].affinity == "s"
    assert read(path, body(path))[0].affinity == ""


@EACH
def test_an_answer_that_the_server_cut_off_is_no_answer(path):
    said = [Delta("x"), Delta(finish=Finish.CANCELLED, usage=Usage(1, 1, 0, 0))]
    with pytest.raises(Refused) as error:
        play(read(path, body(path))[1], said)
    assert (error.value.status, error.value.headers) == (503, {"x-should-retry": "false"})
    stream = play(read(path, body(path, '"stream":true'))[1], said)
    assert b"server shutting down" in stream.split(b"\n\n")[-2]


@EACH
@pytest.mark.parametrize("end", [Delta(finish=Finish.STOP, usage=Usage(1, 1, 0, 0)), Failed("engine", "broke")])
def test_nothing_comes_after_the_end(path, end):
    _, reply = read(path, body(path, '"stream":true'))
    assert reply.feed(Delta("x")) and reply.feed(end)
    assert reply.feed(Delta("y")) == reply.feed(Failed("engine", "again")) == reply.feed(end) == b""
    whole = read(path, body(path))[1]
    assert whole.feed(Delta("x")) == whole.feed(end) == b"" and b'"x"' in whole.document()


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
LAST = [{"role": "user", "content": "417+248="}, {"role": "assistant", "content": "66"}]
OPEN = [LAST[0], {"role": "assistant", "content": "66", "prefix": True}]
OFF = {"thinking": {"type": "disabled"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "request_", "end"),
    [
        # an answer that is not said to be a beginning has ended, and a new one begins
        (CHAT, {"messages": LAST, **OFF}, "</think>66<｜end▁of▁sentence｜><｜Assistant｜></think>"),
        (CHAT, {"messages": LAST}, "</think>66<｜end▁of▁sentence｜><｜Assistant｜><think>"),
        (RESPONSES, {"input": LAST}, "</think>66<｜end▁of▁sentence｜><｜Assistant｜><think>"),
        # DeepSeek's prefix, vLLM's field, Anthropic's prefill
        (CHAT, {"messages": OPEN, **OFF}, "<｜Assistant｜></think>66"),
        (CHAT, {"messages": OPEN}, "<｜Assistant｜><think></think>66"),
        (CHAT, {"messages": LAST, "continue_final_message": True, "add_generation_prompt": False, **OFF},
         "<｜Assistant｜></think>66"),
        (CHAT, {"messages": [OPEN[0], OPEN[1] | {"reasoning_content": "r"}]}, "<｜Assistant｜><think>r</think>66"),
        (CHAT, {"messages": [OPEN[0], OPEN[1] | {"content": "", "reasoning_content": "r"}]}, "<｜Assistant｜><think>r"),
        (CHAT, {"messages": [OPEN[0], OPEN[1] | {"content": ""}]}, "<｜Assistant｜><think>"),
        (MESSAGES, {"messages": LAST}, "<｜Assistant｜></think>66"),
        (MESSAGES, {"messages": LAST, "thinking": {"type": "enabled", "budget_tokens": 1024}},
         "<｜Assistant｜><think></think>66"),
    ],
)  # fmt: skip
def test_conversations_that_end_with_the_assistant(path, request_, end):
    """No prompt to answer ends with the end of a text: control tokens were what followed it."""
    turn, _ = read(path, request_)
    text = turn.rendered().text
    assert text.endswith(end)


def test_a_continued_answer_is_found_again_as_a_whole():
    """The client's next request holds one message, what it began and what followed."""
    turn, _ = read(CHAT, {"messages": OPEN, **OFF})
    whole = turn.rendered(Message("assistant", "5"), Message("user", "")).text
    assert whole.endswith("</think>665<｜end▁of▁sentence｜><｜User｜><｜Assistant｜></think>")


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [LAST[0] | {"prefix": True}]},
        {"messages": [*OPEN, LAST[0]]},
        {"messages": LAST[:1], "continue_final_message": True},
        {"messages": LAST, "add_generation_prompt": False},
        {"messages": [LAST[0], OPEN[1] | {"tool_calls": [CALL]}]},
        {"messages": OPEN, "response_format": {"type": "json_object"}},
    ],
)
def test_what_cannot_be_continued_is_refused(request_):
    with pytest.raises(Refused) as error:
        read(CHAT, request_)
    assert error.value.status == 400


@EACH
def test_created_by_the_clock_of_the_server(path):
    out = json.loads(play(read(path, body(path))[1], deltas("x")))
    assert out.get("created", out.get("created_at", 1795223090)) == 1795223090


def test_deviations_are_documented():
    table = (Path(__file__).parents[2] / "docs" / "reference" / "server.md").read_text()
    for name in DEVIATIONS:
        assert f"| `{name}` | " in table


def test_deviations_have_names():
    assert on({}, "no-retry") and not on({"no-retry": False}, "no-retry")
    assert all(text and text[0] != " " for text in DEVIATIONS.values())
    with pytest.raises(KeyError):
        on({}, "no-such-thing")


# --- whatever comes

NAMES = sorted(
    {name for names in HONOURED.values() for name in names}
    | {"messages", "input", "prompt", "system", "instructions", "tools", "tool_choice", "stop", "stop_sequences",
       "thinking", "reasoning", "reasoning_effort", "output_config", "output_format", "response_format", "text",
       "stream_options", "logprobs", "top_logprobs", "parallel_tool_calls", "previous_response_id", "conversation"}
)  # fmt: skip
INSIDE = """role content type text name id tool_calls function arguments input output tool_use_id call_id source data
summary tools parameters input_schema format custom definition grammar schema json_schema effort status namespace action
defer_loading tool_name mode allowed_tools include_usage refusal thinking""".split()
WORDS = """user assistant system tool developer function custom namespace tool_search message function_call
function_call_output custom_tool_call reasoning tool_search_output text image input_text input_image output_text refusal
tool_use tool_result tool_reference document thinking enabled adaptive auto required any json_schema grammar
allowed_tools high max completed x {} []""".split()
WORDS += ["", "\ud800"]

LEAVES = st.sampled_from([None, True, False, 0, 1, -1, 2.5, 10**20, *WORDS])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INSIDE), inner, max_size=5)
    ),
    max_leaves=12,
)  # fmt: skip


@EACH
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), st.booleans())
def test_no_request_is_a_bug(path, found, keep_prompt):
    """Whatever is asked is refused with 400, or can be rendered and answered."""
    name, value = PROMPTS[path]
    if keep_prompt:
        found = {**found, name: json.loads(value)}
    try:
        turn, reply = read(path, json.dumps(found))
    except Refused as error:
        assert error.status == 400
        assert json.loads(APIS[path].error(error))
        return
    if turn.text is None and turn.ids is None:
        turn.rendered()
    out = play(reply, deltas("Hm.</think>Hi", thinking=True))
    assert out.endswith((b"\n", b"}"))


# --- the text of a custom tool


@given(st.text(), st.integers(1, 9))
def test_the_text_of_a_custom_tool_however_it_is_cut(text, size):
    raw = quote(text).replace("é", "\\u00e9").replace("😀", "\\ud83d\\ude00")
    arguments = '{"input":' + raw + "}"
    plain = PlainInput()
    given_out = "".join(plain.feed(arguments[at : at + size]) for at in range(0, len(arguments), size))
    whole, rest = plain.finish()
    assert whole == given_out + rest == json.loads(arguments)["input"]
    assert not rest, "nothing is kept back that could go out"


def test_the_text_of_a_custom_tool_comes_early():
    plain = PlainInput()
    assert [plain.feed(piece) for piece in ('{"inp', 'ut":"a', "b\\", "nc", '\\ud83d', '\\ude00"', "}")] == [
        "", "a", "b", "\nc", "", "😀", "",
    ]  # fmt: skip
