"""What each API makes of a request: every field is carried out, refused by name, or known to change no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.server.api import Refused
from ds4ref.server.apis import fields
from ds4ref.server.apis.requests import BUDGETS, REQUESTS
from ds4ref.server.refusals import document, overflow
from ds4ref.server.turn import Choice, Sampling
from ds4ref.text.chat import Message
from ds4ref.text.protocol import ASSISTANT, EOS, USER

from .answers import deltas, play, read
from .understood import CHAT, COMPLETIONS, MESSAGES, RESPONSES

FIELDS = json.loads((Path(__file__).parents[1] / "data" / "request_fields.json").read_text())
IGNORED = {name for names in FIELDS["ignored"].values() for name in names}
PATHS = {"chat": CHAT, "completions": COMPLETIONS, "messages": MESSAGES, "responses": RESPONSES}
EACH = pytest.mark.parametrize("api", PATHS)
ASK = [{"role": "user", "content": "q"}]
ASKS: dict[str, dict[str, Any]] = {
    "chat": {"messages": ASK}, "completions": {"prompt": "q"}, "messages": {"messages": ASK},
    "responses": {"input": "q"},
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = {"type": "json_schema", "name": "n", "schema": SCHEMA, "json_schema": {"name": "n", "schema": SCHEMA}}


def tool(api: str, name: str, **more: Any) -> dict[str, Any]:
    """A function as the API has it."""
    if api == "chat":
        return {"type": "function", "function": {"name": name, "parameters": SCHEMA}, **more}
    return {"name": name, "input_schema": SCHEMA, **more} if api == "messages" else {
        "type": "function", "name": name, "parameters": SCHEMA, **more}  # fmt: skip


def outcome(api: str, asked: dict[str, Any], **more: Any) -> Any:
    """All that decides about the answer to a request, or the message that refuses it."""
    try:
        turn, reply = read(PATHS[api], {**ASKS[api], **asked}, ctx=2**20, **more)
    except Refused as refused:
        assert refused.status == 400 and len(refused.message) < 400 and "\n" not in refused.message
        return refused.message
    return turn, {name: value for name, value in vars(reply).items() if isinstance(value, (bool, int))}


VALUES: dict[str, Any] = {
    # a value for each field that is carried out, with which the answer is another one than without the field
    "frequency_penalty": 0.5, "presence_penalty": 1.5, "logit_bias": {"50": -100, "7": 3.5}, "logprobs": True,
    "max_completion_tokens": 3, "max_tokens": 3, "max_output_tokens": 3, "model": "deepseek-chat", "n": 3,
    "parallel_tool_calls": False, "reasoning_effort": "none", "response_format": FORM, "seed": 0, "stop": ["END"],
    "stream": True, "temperature": 0, "top_p": 0.3, "top_k": 5, "min_p": 0.5, "echo": True, "instructions": "Be brief.",
    "reasoning": {"effort": "none"}, "output_config": {"format": FORM}, "output_format": FORM, "system": "Be brief.",
    "stop_sequences": ["END"], "thinking": {"type": "enabled", "budget_tokens": 1024}, "think": False,
    "text": {"format": FORM}, "messages": [*ASK, *ASK], "prompt": [1, 2], "input": [*ASK, *ASK], "n_predict": 3,
    "num_predict": 3, "max_new_tokens": 3, "min_tokens": 3, "ignore_eos": True, "return_token_ids": True,
    "include_reasoning": False, "top_logprobs": 3, "stream_options": {"include_usage": True}, "tool_choice": "none",
    **dict.fromkeys(BUDGETS, 7),
}  # fmt: skip
OF_API = {
    ("chat", "thinking"): False, ("completions", "logprobs"): 2, ("messages", "tool_choice"): {"type": "none"},
    ("messages", "reasoning_effort"): "max",
}  # fmt: skip
NEEDS = {"tool_choice": "tools", "parallel_tool_calls": "tools", "top_logprobs": "logprobs", "stream_options": "stream",
         "reasoning_effort": "thinking"}  # fmt: skip
BY_CONTENT = {
    # fields of which only some members or values are refused
    "include": (["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
    "context_management": ({"edits": [{"type": "clear_tool_uses_20250919", "trigger": {}}]},
                           {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "continue_final_message": (True, False), "add_generation_prompt": (False, True),
}  # fmt: skip
NO_VALUES: list[Any] = [{"a": [1]}, "x", 3.5, -7, ["x"], True, False, 0]


@EACH
def test_each_field_does_what_its_table_says(api):
    """Carried out: it makes another request of it. Refused: by its name, but for values that ask for what happens
    anyway, with a field to use instead that is not refused itself. Ignored: whatever it is, the same request."""
    done, plain = REQUESTS[api].__struct_fields__, outcome(api, {})
    for name in sorted({*FIELDS[api], *FIELDS["other servers"], *VALUES, *fields.NEUTRAL, *IGNORED}):
        if name in done:
            needed = (
                NEEDS.get(name, "") if NEEDS.get(name) in done and (api, name) != ("chat", "reasoning_effort") else ""
            )
            more = {needed: [tool(api, "f")] if needed == "tools" else VALUES[needed]} if needed else {}
            if name == "tools":
                found = outcome(api, {name: [tool(api, "f")]})
            elif name in BY_CONTENT:
                refused, taken = BY_CONTENT[name]
                assert name in outcome(api, {name: refused}) and outcome(api, {name: taken}) == plain
                continue
            else:
                found = outcome(api, {**more, name: OF_API.get((api, name), VALUES[name])})
            assert not isinstance(found, str) and found != outcome(api, more), (name, found)
            continue
        ignored = name in IGNORED or name in fields.IGNORED.get(api, ())
        for value in NO_VALUES:
            found = outcome(api, {name: value})
            if ignored or json.dumps(value) in fields.NEUTRAL.get(name, fields.OFF):
                assert found == plain, (name, value)
            else:
                words, _, instead = found.partition("; use ")
                assert words == f"{name} is not supported", (name, value, found)
                assert instead == fields.INSTEAD.get(name, ("",) * 4)[list(PATHS).index(api)]
                assert not instead or "/v1/" in instead or instead.split(".")[0] in (*done, "its members as fields of "
                                                                                     "the request")  # fmt: skip
    assert outcome(api, {"never_heard_of": {"a": 1}}) == plain
    assert not IGNORED & set(fields.NEUTRAL)


@EACH
def test_null_is_absent(api):
    """LangChain and others send every parameter they know."""
    (required,) = ASKS[api]
    for name in {*REQUESTS[api].__struct_fields__, *fields.NEUTRAL, *IGNORED} - {required}:
        assert outcome(api, {name: None}) == outcome(api, {}), name
    assert outcome(api, {required: None}) == f"missing {required}"
    for name, members in {"stream_options": "include_usage", "thinking": "type", "output_config": "effort format",
                          "reasoning": "effort summary context mode", "text": "format"}.items():  # fmt: skip
        if name in REQUESTS[api].__struct_fields__:
            assert outcome(api, {name: dict.fromkeys(members.split())}) == outcome(api, {name: {}}), name


NONSENSE = {
    "max_tokens": "-5 -1 true \"1\" [] 1e999", "temperature": "-0.01 -1e999 true \"x\"", "top_p": "1.01 -3",
    "min_p": "1.5",
    "top_k": "-1 {}", "presence_penalty": "2.5 -3", "frequency_penalty": "2.01", "seed": "0.5 \"1\"",
    "stream": "1 \"x\"",
    "logit_bias": '{"5":101} {"5":-101} {"a":1} {"-5":1} {"5.0":1} {"5":"1"} {"5":true} [] 5', "model": "5 []",
}  # fmt: skip


@EACH
def test_nonsense_is_refused_in_a_line_that_names_the_field(api):
    (name,) = ASKS[api]
    base = json.dumps(ASKS[api])[:-1]
    for wrong, values in NONSENSE.items():
        for value in values.split():
            with pytest.raises(Refused, match=wrong) as refused:
                read(PATHS[api], f'{base},"{wrong}":{value}}}')
            assert refused.value.message.startswith("invalid JSON request")
    for number in ("NaN", "Infinity", "0x10", "01", ".5", "5.", "+1", "1e", "nul"):
        for field in ("temperature", "unknown"):
            with pytest.raises(Refused, match="invalid JSON request"):
                read(PATHS[api], f'{base},"{field}":{number}}}')
    for body in (b"", b" ", b"null", b"[]", b"5", b"{", b'{"a"}', b'{"a":1', b"{'a':1}", b"\x00", b'{"a":"\x01"}',
                 b'{"a":"\\x"}', b"\xff\xfe{}", b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}'):  # fmt: skip
        with pytest.raises(Refused, match="invalid JSON request"):
            read(PATHS[api], body)
    with pytest.raises(Refused, match=f"^missing {name}$"):
        read(PATHS[api], "{}")
    if api != "completions":
        for role in ("User", "human", "", "tool " * 100):
            said = outcome(api, {name: [*ASK, {"role": role, "content": "lost"}]})
            assert "is not known: choose from" in said
        assert "invalid JSON request" in outcome(api, {name: []})


@EACH
def test_what_lies_at_the_edge_is_no_nonsense(api):
    name, huge = {"responses": "max_output_tokens"}.get(api, "max_tokens"), 10**30
    turn, _ = read(PATHS[api], {
        **ASKS[api], "temperature": 0, "top_p": 0, "min_p": 1, "top_k": 0, "presence_penalty": -2, name: huge,
        "frequency_penalty": 2, "seed": -3, "logit_bias": {"7": -100, "3": 100, "5": 0.5}, "model": "m", "stream": True,
    })  # fmt: skip
    assert turn.sampling == Sampling(0.0, turn.sampling.top_p, 1.0, 0, 2**64 - 3, -2.0, 2.0,
                                     ((3, 100.0), (5, 0.5), (7, -100.0)))  # fmt: skip
    assert 0 < turn.sampling.top_p < 1e-20, "the likeliest token alone"
    assert turn.max_tokens == 2**31 - 1 and turn.model == "m"
    plain = read(PATHS[api], ASKS[api])[0]
    assert plain.sampling == Sampling() and plain.max_tokens is None and plain.stop == ()
    raw = json.dumps(ASKS[api])[:-1] + ',"seed":1,"seed":18446744073709551616'
    raw += ',"model":"a\\ud800b\\udc00\\ud83d\\ude00\\\\ud800"}'
    turn, reply = read(PATHS[api], "\ufeff" + raw)
    assert turn.sampling.seed == 0 and turn.model == "a\ufffdb\ufffd😀\\ud800", "half a character becomes U+FFFD"
    assert turn.model.replace("\\", "\\\\") in play(reply, deltas("x")).decode()


@EACH
def test_the_lower_limit_counts(api):
    name = {"responses": "max_output_tokens"}.get(api, "max_tokens")
    for asked, limit, usual, wanted in ((None, None, None, None), (None, 9, None, 9), (5, 9, None, 5), (50, 9, None, 9),
                                        (None, None, 4, 4), (50, None, 4, 50), (0, None, None, 0)):  # fmt: skip
        more = {"max_tokens": limit, "usual_tokens": usual}
        assert read(PATHS[api], {**ASKS[api], name: asked}, **more)[0].max_tokens == wanted
    if api in ("chat", "completions"):
        assert outcome(api, {"max_tokens": 4, "min_tokens": 5}).endswith("but the answer has at most 4 tokens")
        assert read(PATHS[api], {**ASKS[api], "min_tokens": 5}, usual_tokens=4)[0].max_tokens == 5
        for alias in ("n_predict", "num_predict", "max_new_tokens"):
            assert outcome(api, {alias: 7}) == outcome(api, {"max_tokens": 7})
            assert outcome(api, {alias: -1}) == outcome(api, {}) and alias in outcome(api, {alias: -2})
    for alias in BUDGETS if api == "chat" else ():
        assert outcome(api, {alias: 0})[0].max_thinking == 0 and outcome(api, {alias: -1}) == outcome(api, {})


@pytest.mark.parametrize(
    ("api", "asked", "mode"),
    [
        ("chat", {}, "high"), ("chat", {"thinking": {"type": "disabled", "budget_tokens": 5}}, "none"),
        ("chat", {"thinking": True}, "high"), ("chat", {"think": False}, "none"), ("chat", {"thinking": False}, "none"),
        ("chat", {"thinking": True, "think": False}, "none"), ("chat", {"thinking": {"type": "adaptive"}}, "high"),
        ("chat", {"reasoning_effort": "minimal"}, "low"), ("chat", {"reasoning_effort": "max"}, "max"),
        ("chat", {"reasoning_effort": "none"}, "none"), ("chat", {"model": "deepseek-chat"}, "none"),
        ("chat", {"model": "deepseek-chat", "reasoning_effort": "high"}, "none"),
        ("chat", {"model": "deepseek-reasoner"}, "high"), ("chat", {"reasoning_effort": "huge"}, None),
        # clients.md 0.6: who does not mention thinking wants none there; an effort does not switch it on
        ("messages", {}, "none"), ("messages", {"output_config": {"effort": "max"}}, "none"),
        ("messages", {"reasoning_effort": "high"}, "none"), ("messages", {"thinking": {"type": "disabled"}}, "none"),
        ("messages", {"thinking": {"type": "adaptive", "display": "omitted"}}, "high"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9}}, "high"),
        ("messages", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ("messages", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "none"}}, "none"),
        ("messages", {"model": "deepseek-reasoner"}, "high"), ("messages", {"model": "deepseek-chat"}, "none"),
        ("responses", {"reasoning": {"effort": "max"}}, "max"),
        ("responses", {"reasoning": {"effort": "none"}}, "none"),
        ("responses", {"reasoning": {"effort": None}}, "high"), ("responses", {"model": "deepseek-chat"}, "none"),
        ("responses", {"model": "deepseek-chat", "reasoning": {"effort": "low"}}, "low"),
        ("responses", {"model": "deepseek-chat", "reasoning": {"summary": "auto"}}, "none"),
    ],
)  # fmt: skip
def test_thinking(api, asked, mode):
    found = outcome(api, asked)
    assert "unknown reasoning effort" in found if mode is None else found[0].thinking == mode
    if mode == "max":
        assert read(PATHS[api], {**ASKS[api], **asked}, ctx=393215)[0].thinking == "high", "which needs room"


SPACE = {"type": "namespace", "name": "mcp__gmail__", "tools": [{"type": "function", "name": "send"}]}
SEARCH = {"type": "tool_search", "execution": "client"}
BASH = {"type": "function", "function": {"name": "bash"}}
NAMED = {"type": "function", "name": "bash"}


@pytest.mark.parametrize(
    ("api", "choice", "wanted", "left"),
    [
        *((api, None, Choice(), 2) for api in ("chat", "messages", "responses")),
        *((api, kind, Choice(kind), 2) for api in ("chat", "responses") for kind in ("auto", "none", "required")),
        *((api, "maybe", "tool_choice=maybe", 0) for api in ("chat", "responses")),
        ("chat", BASH, Choice("named", "bash"), 2),
        ("chat", {"type": "custom", "custom": {"name": "edit"}}, Choice("named", "edit"), 2),
        ("chat", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [BASH]}},
         Choice("required"), 1),
        ("chat", {"type": "function", "function": {"name": "gone"}}, "names the tool 'gone'", 0),
        ("chat", {"type": "function"}, "names the tool ''", 0), ("chat", 5, "tool_choice", 0),
        ("messages", {"type": "auto", "disable_parallel_tool_use": True}, Choice(parallel=False), 2),
        ("messages", {"type": "none"}, Choice("none"), 2), ("messages", {"type": "any"}, Choice("required"), 2),
        ("messages", {"type": "tool", "name": "bash"}, Choice("named", "bash"), 2),
        ("messages", {"type": "tool", "name": "gone"}, "names the tool 'gone'", 0),
        ("responses", NAMED, Choice("named", "bash"), 2),
        ("responses", {"type": "custom", "name": "edit"}, Choice("named", "edit"), 2),
        ("responses", {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}, Choice(), 1),
        ("responses", {"type": "web_search_preview"}, "tool_choice=web_search_preview", 0),
    ],
)  # fmt: skip
def test_tool_choice(api, choice, wanted, left):
    edit = {"chat": {"type": "custom", "custom": {"name": "edit"}}, "messages": tool(api, "edit"),
            "responses": {"type": "custom", "name": "edit"}}[api]  # fmt: skip
    found = outcome(api, {"tools": [tool(api, "bash"), edit], "tool_choice": choice})
    if isinstance(wanted, str):
        assert wanted in found
        return
    turn = found[0]
    assert turn.choice == wanted and len(turn.tools) == left
    assert len(turn.offered) == (0 if wanted.kind == "none" else left)
    if wanted.kind in ("required", "named"):
        assert "no tools" in outcome(api, {"tools": [{"type": "web_search"}], "tool_choice": choice})
    if api != "messages":
        assert not outcome(api, {"tools": [BASH], "parallel_tool_calls": False})[0].choice.parallel


@pytest.mark.parametrize(("api", "outer"), [("chat", "response_format"), ("messages", "output_config"),
                                            ("messages", "output_format"), ("responses", "text")])  # fmt: skip
def test_formats(api, outer):
    def asked(form: Any) -> Any:
        return outcome(api, {outer: form if outer.endswith("format") else {"format": form}})

    schema = '{"b": 1, "a": 2}'
    inner = {"schema": json.loads(schema)}
    assert asked({"type": "json_schema", **({"json_schema": inner} if api == "chat" else inner)})[0].format == schema
    for form, wanted in (
        (None, ""),
        ({"type": "text"}, ""),
        ({"type": "json_object"}, "{}"),
        ({"type": "json_schema"}, "{}"),
    ):
        assert asked(form)[0].format == wanted
    for kind in ("xml", "", "JSON_OBJECT"):
        assert "choose from text, json_object, json_schema" in asked({"type": kind})
    assert "schema" in asked(
        {"type": "json_schema", **({"json_schema": {"schema": 5}} if api == "chat" else {"schema": 5})}
    )


def test_what_ends_an_answer_clashes_with_what_forbids_its_end():
    for name, other in (("tools", [BASH]), ("response_format", {"type": "json_object"})):
        for asked in ({"min_tokens": 3}, {"ignore_eos": True}):
            assert (
                outcome("chat", {name: other, **asked}) == f"{next(iter(asked))} is not supported together with {name}"
            )
    assert outcome("chat", {"tools": [BASH], "tool_choice": "none", "ignore_eos": True})[0].sampling.ignore_eos


def test_stop_strings_prompts_choices_and_log_probabilities():
    for api, name in (("chat", "stop"), ("completions", "stop"), ("messages", "stop_sequences")):
        assert outcome(api, {name: ["a", "", "b\n"]})[0].stop == ("a", "b\n") and outcome(api, {name: []})[0].stop == ()
        assert len(outcome(api, {name: ["x"] * 256})[0].stop) == 256 and name in outcome(api, {name: ["x"] * 257})
        assert all(name in outcome(api, {name: wrong}) for wrong in (5, {}, [5], [None], True))
        assert name == "stop_sequences" or outcome(api, {name: "one"})[0].stop == ("one",)
    for prompt, texts, ids in (("q", ["q"], [None]), (["a", "b"], ["a", "b"], [None] * 2),
                               ([1, 2], [None], [(1, 2)]),
                               ([[1], [2, 3]], [None] * 2, [(1,), (2, 3)]),
                               (["", "x"], ["", "x"], [None] * 2)):  # fmt: skip
        turn = outcome("completions", {"prompt": prompt})[0]
        assert [one.text for one in (turn, *turn.more)] == texts and [one.ids for one in (turn, *turn.more)] == ids
    for prompt in ([], [[]], [1, "a"], [[1], 2], [1.5], [-1], {}, 5, True, ["x"] * 257, [None]):
        assert "prompt" in outcome("completions", {"prompt": prompt}), prompt
    assert "256 choices" in outcome("completions", {"prompt": ["x"] * 100, "n": 3})
    assert "cannot be echoed" in outcome("completions", {"prompt": "", "echo": True})
    for api in ("chat", "completions"):
        assert all("n`" in outcome(api, {"n": n}) for n in (0, -1, 129, 1.5, "2", True, []))
    for asked, top in (({}, None), ({"logprobs": False, "top_logprobs": 0}, None), ({"logprobs": True}, 0),
                       ({"logprobs": True, "top_logprobs": 20}, 20)):  # fmt: skip
        assert outcome("chat", asked)[0].top_logprobs == top
    for asked in ({"logprobs": 5}, {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}):
        assert "logprobs" in outcome("chat", asked)
    assert "logprobs" in outcome("completions", {"logprobs": 21})
    for asked in ({"best_of": 1}, {"best_of": 3, "n": 3}):
        assert not isinstance(outcome("completions", asked), str)
    assert outcome("completions", {"best_of": 3, "n": 2}) == "best_of is not supported; use n"


def test_a_thread_is_refused_with_the_code_that_anthropics_runner_falls_back_on():
    """anthropic 2.14: error.details.error_code; it sends the request again without the thread."""
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    for asked, extra in (({"thread": {"type": "create"}}, {"details": details}), ({"container": "c"}, {})):
        with pytest.raises(Refused) as refused:
            read(MESSAGES, {**ASKS["messages"], **asked})
        assert refused.value.extra == extra


# --- histories


LAST = [{"role": "user", "content": "417+248="}, {"role": "assistant", "content": "66"}]
OPEN = [LAST[0], {**LAST[1], "prefix": True}]
OFF = {"thinking": {"type": "disabled"}}
AGAIN = f"</think>66{EOS}{ASSISTANT}"


@pytest.mark.parametrize(
    ("api", "asked", "end"),
    [
        # an answer that is not said to be a beginning has ended, and a new one begins
        ("chat", {"messages": LAST, **OFF}, f"{AGAIN}</think>"), ("chat", {"messages": LAST}, f"{AGAIN}<think>"),
        ("responses", {"input": LAST}, f"{AGAIN}<think>"),
        # DeepSeek's prefix, vLLM's field, Anthropic's prefill
        ("chat", {"messages": OPEN, **OFF}, f"{ASSISTANT}</think>66"),
        ("chat", {"messages": LAST, "continue_final_message": True, "add_generation_prompt": False, **OFF},
         f"{ASSISTANT}</think>66"),
        ("chat", {"messages": [LAST[0], {**OPEN[1], "content": "", "reasoning_content": "r"}]}, f"{ASSISTANT}<think>r"),
        ("messages", {"messages": LAST}, f"{ASSISTANT}</think>66"),
        ("messages", {"messages": LAST, "thinking": True}, f"{ASSISTANT}<think></think>66"),
        # what cannot be continued
        ("chat", {"messages": [{**LAST[0], "prefix": True}]}, None), ("chat", {"messages": [*OPEN, LAST[0]]}, None),
        ("chat", {"messages": LAST[:1], "continue_final_message": True}, None),
        ("chat", {"messages": LAST, "add_generation_prompt": False}, None),
        ("chat", {"messages": OPEN, "response_format": {"type": "json_object"}}, None),
        # Codex sends reasoning that was cut before the answer began, and asks again
        ("responses", {"input": [*ASK, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}]},
         f"q{ASSISTANT}<think>"),
        ("responses", {"input": [], "instructions": "Be brief."}, None),
        # system texts after the first turn stay where they are
        ("chat", {"messages": [*ASK, {"role": "system", "content": "NOW"}]}, f"{USER}q\n\nNOW{ASSISTANT}<think>"),
    ],
)  # fmt: skip
def test_how_prompts_end(api, asked, end):
    found = outcome(api, asked)
    assert isinstance(found, str) if end is None else found[0].rendered().text.endswith(end)


def test_a_continued_answer_is_found_again_as_a_whole():
    """The client's next request holds one message, what it began and what followed."""
    turn, _ = read(CHAT, {"messages": OPEN, **OFF})
    whole = turn.rendered(Message("assistant", "5"), Message("user", "")).text
    assert whole.endswith(f"</think>665{EOS}{USER}{ASSISTANT}</think>")


def test_a_result_needs_its_call():
    """The words are ds4's; a prompt that is only counted may lack it."""
    result = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9", "content": "r"}]}]
    use = [{"content": [{"type": "tool_use", "id": "t9", "name": "f", "input": {}}], "role": "assistant"}]
    words = "continuation state is not available for {} t9; retry by replaying the full {} history"
    assert outcome("messages", {"messages": result}) == "Anthropic " + words.format("tool_use_id", "messages")
    assert not isinstance(outcome("messages", {"messages": [*use, *result]}), str)
    output = [{"type": "function_call_output", "call_id": "t9", "output": "r"}]
    call = [{"type": "function_call", "call_id": "t9", "name": "f", "arguments": "{}"}]
    assert outcome("responses", {"input": output}) == "Responses " + words.format("call_id", "input")
    assert not isinstance(outcome("responses", {"input": [*call, *output]}), str)
    assert not isinstance(outcome("chat", {"messages": [{"role": "tool", "tool_call_id": "c", "content": "r"}]}), str)


def test_what_a_search_found_is_shown_by_its_result():
    """The prompt's beginning does not change; what was found may be called from then on."""
    call = {"type": "tool_search_call", "call_id": "c1", "status": "completed", "execution": "client",
            "arguments": {"query": "mail"}}  # fmt: skip
    hidden = {**NAMED, "description": "again", "defer_loading": True}
    output = {"type": "tool_search_output", "call_id": "c1", "tools": [SPACE, hidden]}
    send = {"type": "function_call", "call_id": "c2", "name": "send", "namespace": "mcp__gmail__", "arguments": "{}"}
    before = outcome("responses", {"input": ASK, "tools": [SEARCH, NAMED]})[0]
    after = outcome("responses", {"input": [*ASK, call, output, send], "tools": [SEARCH, NAMED]})[0]
    assert after.rendered().text.startswith(before.rendered().text.removesuffix("<think>"))
    assert [one.name for one in after.callable] == ["tool_search", "bash", "mcp__gmail__send"]
    text = after.rendered().text
    assert text.count('"name":"mcp__gmail__send"') == 1 and '<｜DSML｜invoke name="mcp__gmail__send">' in text
    turn = outcome("responses", {"input": [call, output], "tools": [SEARCH, hidden]})[0]
    assert "again" in turn.rendered().text and [one.name for one in turn.tools].count("bash") == 1
    assert "tools of a tool_search_output" in outcome("responses", {"input": [{**output, "tools": 5}]})


# --- errors


def test_errors_have_the_shape_of_their_api():
    kinds = {400: ("invalid_request_error",) * 2, 401: ("authentication_error",) * 2, 413: ("request_too_large",) * 2,
             403: ("invalid_request_error", "permission_error"), 404: ("invalid_request_error", "not_found_error"),
             500: ("server_error", "api_error"), 503: ("server_error", "overloaded_error")}  # fmt: skip
    for status, (openai, anthropic) in kinds.items():
        error = Refused(status, 'a "b"', {"code": "c"})
        assert document(error) == f'{{"error":{{"message":"a \\"b\\"","type":"{openai}","code":"c"}}}}\n'.encode()
        found = json.loads(document(error, "messages"))
        assert found == {"type": "error", "error": {"message": 'a "b"', "type": anthropic, "code": "c"}}


def test_a_prompt_too_long_names_the_field_of_its_api():
    """Anthropic's errors have none: its words are those that clients look for."""
    named = {api: overflow(api, 16, 15).extra.get("param") for api in REQUESTS}
    assert named == {"chat": "messages", "completions": "prompt", "messages": None, "responses": "input"}
    assert "prompt is too long: 16 tokens > 15 maximum" in str(overflow("messages", 16, 15))


# --- whatever comes


INSIDE = """role content type text name id tool_calls function arguments input output tool_use_id call_id source data
summary tools parameters input_schema format custom definition grammar schema json_schema effort status namespace action
defer_loading tool_name mode allowed_tools include_usage refusal thinking""".split()
WORDS = """user assistant system tool developer function custom namespace tool_search message function_call
function_call_output custom_tool_call reasoning tool_search_output text image input_text output_text tool_use {} []
tool_result tool_reference thinking enabled auto required any json_schema grammar allowed_tools high max x""".split()
LEAVES = st.sampled_from([None, True, False, 0, 1, -1, 2.5, 10**20, "", "\ud800", *WORDS])
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(INSIDE), inner, max_size=5), max_leaves=12)  # fmt: skip


@EACH
@given(st.data())
def test_no_request_is_a_bug(api, data):
    """Whatever is asked is refused with 400, or can be rendered and answered."""
    names = sorted(REQUESTS[api].__struct_fields__)
    asked = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, max_size=6))
    found = outcome(api, asked)
    if not isinstance(found, str):
        turn, reply = read(PATHS[api], {**ASKS[api], **asked})
        if not turn.plain:
            turn.rendered()
        assert play(reply, deltas("Hm.</think>Hi", thinking=True)).endswith((b"\n", b"}"))
