"""Legacy completions, as lm-evaluation-harness needs them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Skip, Talk, expect, shown
from . import Checks
from .common import counts, event_stream, one_id, openai_error, overflow_known, too_long

PATH = "/v1/completions"
check = Checks("completions", PATH)

TEXT = "Once upon a time"


def body(talk: Talk, **more: Any) -> dict[str, Any]:
    return {"model": talk.model, "prompt": TEXT, "max_tokens": 16, "temperature": 0, **more}


def choices(answer: Answer) -> list[dict[str, Any]]:
    entries = answer.document().get("choices")
    expect(isinstance(entries, list) and entries, f"choices {shown(entries)}")
    return list(entries or ())


@check("turn")
def document(talk: Talk) -> None:
    """a text_completion with the text of one choice."""
    completion = talk.ask(PATH, body(talk)).document()
    expect(completion.get("object") == "text_completion", f"object {shown(completion.get('object'))}")
    (one,) = choices(talk.ask(PATH, body(talk)))
    expect(isinstance(one.get("text"), str), f"text {shown(one.get('text'))}")
    expect(one.get("finish_reason") in ("stop", "length"), f"finish_reason {shown(one.get('finish_reason'))}")


@check("usage")
def usage(talk: Talk) -> None:
    """usage: prompt, completion and their total."""
    counts(talk.ask(PATH, body(talk)).document().get("usage"), ("prompt_tokens", "completion_tokens"), "total_tokens")


@check("turn", required=False)
def several(talk: Talk) -> None:
    """a list of prompts gets a choice each, with its index."""
    entries = choices(talk.ask(PATH, body(talk, prompt=[TEXT, "Twice"], max_tokens=4)))
    expect([one.get("index") for one in entries] == [0, 1], f"indices {shown([one.get('index') for one in entries])}")


@check("stream")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(talk.ask(PATH, body(talk, stream=True)))


@check("stream")
def stream_done(talk: Talk) -> None:
    """chunks of one id, then [DONE]."""
    events = talk.ask(PATH, body(talk, stream=True)).events()
    expect(events and events[-1].data == "[DONE]", f"the last event is {shown(events[-1].data if events else 'none')}")
    one_id([event.json for event in events[:-1]])


@check("stream", required=False)
def stream_same(talk: Talk) -> None:
    """a stream says what the document says."""
    chunks = [event.json for event in talk.ask(PATH, body(talk, stream=True)).events() if event.data != "[DONE]"]
    text = "".join(one.get("text") or "" for chunk in chunks for one in chunk.get("choices") or ())
    whole = choices(talk.ask(PATH, body(talk)))[0]["text"]
    expect(text == whole, f"{shown(text)[:60]} and {shown(whole)[:60]}")


def _score(talk: Talk, prompt: object) -> list[dict[str, Any]]:
    asked = body(talk, prompt=prompt, max_tokens=1, logprobs=1, echo=True, seed=1234)
    return choices(talk.ask(PATH, asked))


def _scored(one: dict[str, Any], text: str, tokens: int | None = None) -> None:
    """Wrong unless lm-evaluation-harness can take a score from this choice."""
    scores = one.get("logprobs")
    expect(isinstance(scores, dict), f"logprobs {shown(scores)}")
    assert scores is not None
    names = ("tokens", "token_logprobs", "top_logprobs")
    lengths = {name: len(scores.get(name) or ()) for name in names}
    expect(len(set(lengths.values())) == 1 and lengths["tokens"] > 1, f"entries {shown(lengths)}")
    expect(
        tokens is None or lengths["tokens"] == tokens + 1, f"{lengths['tokens']} entries for {tokens} tokens and one"
    )
    values = scores["token_logprobs"]
    expect(
        all(isinstance(value, (int, float)) and value <= 0 for value in values[1:]), f"token_logprobs {shown(values)}"
    )
    tops = scores["top_logprobs"]
    expect(all(isinstance(top, dict) and top for top in tops[1:]), f"top_logprobs {shown(tops)}")
    expect(str(one.get("text")).startswith(text), f"text {shown(one.get('text'))}")


@check("score", required=False)
def score(talk: Talk) -> None:
    """echo and logprobs: an entry a token of the prompt, and one for what comes next."""
    _scored(_score(talk, TEXT)[0], TEXT)


@check("score", required=False)
def score_ids(talk: Talk) -> None:
    """the same of token ids, several at once."""
    if not talk.offers("/tokenize"):
        raise Skip("there is no /tokenize")
    ids = talk.ask("/tokenize", {"prompt": TEXT, "add_special_tokens": False}).document()["tokens"]
    scores = _score(talk, [ids, ids[:-1]])
    expect([one.get("index") for one in scores] == [0, 1], f"indices {shown([one.get('index') for one in scores])}")
    _scored(scores[0], TEXT, len(ids))
    _scored(scores[1], "", len(ids) - 1)


@check("limits", required=False)
def overflow(talk: Talk) -> None:
    """a prompt that does not fit is refused in words that clients know."""
    answer = talk.ask(PATH, body(talk, prompt=too_long(talk)))
    openai_error(answer, 400, 413)
    overflow_known(answer.text)


@check("errors")
def bad_json(talk: Talk) -> None:
    """an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"prompt": '))
