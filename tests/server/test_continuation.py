"""What a client sends back is not what the model wrote, and is gone on from all the same: in every API, thinking or
not, with tools or without, the next turn evaluates nothing but what is new."""

from __future__ import annotations

import json

import pytest

from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.protocol import THINK_CLOSE

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
EACH = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
CALL = ToolCall("bash", '{"z":"ls -la","a":1}')
BLOCK = "".join(part.text for part in render_calls([CALL]))


class Client:
    """A conversation in one of the APIs, whose history holds as little as that API's clients send back."""

    def __init__(self, server, path, thinking, tools=False, keep_reasoning=False):
        self.server, self.path, self.keep_reasoning = server, path, keep_reasoning
        self.history = []
        self.body = {"model": "m"}
        if path == RESPONSES:
            self.body["reasoning"] = {"effort": "high" if thinking else "none"}
            if keep_reasoning:
                self.body["reasoning"]["summary"] = "auto"
        else:
            self.body["thinking"] = {"type": "enabled" if thinking else "disabled"}
        if tools:
            inner = {"name": "bash", "description": "d"}
            self.body["tools"] = [
                {CHAT: {"type": "function", "function": inner}, MESSAGES: {**inner, "input_schema": {}},
                 RESPONSES: {"type": "function", **inner}}[path]
            ]  # fmt: skip

    def ask(self, says, *items, **more):
        """(prompt tokens, cached ones, generated ones) of a turn that the model answers so."""
        self.server.engine.say(says)
        self.history += items
        name = "input" if self.path == RESPONSES else "messages"
        answer = self.server.client.post(self.path, json={**self.body, name: self.history, "max_tokens": 500, **more})
        assert answer.status_code == 200, answer.text
        return getattr(self, self.path.rsplit("/", 1)[1])(answer.json())

    def completions(self, found):
        message = found["choices"][0]["message"]
        if not self.keep_reasoning:
            message.pop("reasoning_content", None)
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True)
        self.history.append(message)
        usage = found["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]

    def messages(self, found):
        kept = [block for block in found["content"] if block["type"] != "thinking" or self.keep_reasoning]
        for block in kept:
            if block["type"] == "tool_use":
                block["input"] = dict(sorted(block["input"].items()))
        self.history.append({"role": "assistant", "content": kept})
        usage = found["usage"]
        cached, new = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return cached + new, cached, usage["output_tokens"]

    def responses(self, found):
        for item in found["output"]:
            if item["type"] == "function_call":
                item["arguments"] = json.dumps(json.loads(item["arguments"]), sort_keys=True)
        self.history += found["output"]
        usage = found["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]

    def user(self, text):
        return {"role": "user", "content": text}

    def result(self, text):
        """The result of the call that was just made."""
        if self.path == CHAT:
            return {"role": "tool", "tool_call_id": self.history[-1]["tool_calls"][0]["id"], "content": text}
        if self.path == MESSAGES:
            call = self.history[-1]["content"][-1]
            return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": text}]}
        return {"type": "function_call_output", "call_id": self.history[-1]["call_id"], "output": text}


@pytest.mark.parametrize(
    ("path", "text"),
    [(CHAT, "It is so."), (CHAT, ""), (MESSAGES, "It is so."), (MESSAGES, ""), (RESPONSES, "It is so.")],
)
@pytest.mark.parametrize("thinking", [True, False])
def test_turns_of_a_talk(scripted, path, thinking, text):
    """thinking_checkpoint_canonical_matches_future_prompt, thinking_canonical_empty_content,
    thinking_canonical_multi_turn, thinking_canonical_non_thinking_mode_noop."""
    client = Client(scripted, path, thinking)
    says = f"I think so.{THINK_CLOSE}{text}" if thinking else text
    prompt, cached, made = client.ask(says, client.user("What is so? " * 5))
    assert cached == 0
    for turn in range(3):
        longer, cached, more = client.ask(says, client.user(f"And {turn}?"))
        assert cached == prompt + made + 1, "prompt, answer and its end"
        prompt, made = longer, more


@EACH
@pytest.mark.parametrize("keep_reasoning", [True, False])
def test_turns_with_tools(scripted, path, keep_reasoning):
    """thinking_canonical_with_tools_preserves_reasoning, responses_visible_suffix_matches_client_replay: whether the
    client sends back what was thought, and however it writes the arguments."""
    client = Client(scripted, path, True, tools=True, keep_reasoning=keep_reasoning)
    prompt, _, made = client.ask(f"Let me see.{THINK_CLOSE}Look:{BLOCK}", client.user("What is here? " * 5))
    longer, cached, more = client.ask(f"Two.{THINK_CLOSE}Two files.", client.result("a b"))
    assert cached == prompt + made + 1
    again, cached, _ = client.ask(f"Yes.{THINK_CLOSE}Sure.", client.user("Sure?"))
    assert cached == longer + more + 1 and again > longer


@EACH
@pytest.mark.parametrize("how", ["limit", "stop"])
def test_what_was_cut_off_is_not_gone_on_from(scripted, path, how):
    """thinking_checkpoint_remember_gate: the model wrote more, or less, than the client has."""
    if how == "stop" and path == RESPONSES:
        return  # which has no stop strings
    client = Client(scripted, path, False)
    more = {"max_tokens": 2} if how == "limit" else {"stop_sequences" if path == MESSAGES else "stop": ["END"]}
    prompt, _, made = client.ask("One, two, three. END and four.", client.user("Count! " * 5), **more)
    if path == RESPONSES:
        client.history[-1]["status"] = "completed"
    longer, cached, _ = client.ask("Five.", client.user("Go on."))
    if how == "limit":
        assert cached in (prompt, prompt + made), "all of it is what the client has, but for its end"
    else:
        assert cached == prompt, "what followed the text was evaluated, and is in nobody's history"
    assert longer > prompt
