"""Legacy completions, as lm-evaluation-harness needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from . import Checks
from .common import counts, one_id, overflow_known, tokenizer_info
from .said import (
    Said,
    named,
    offered,
    scored,
    text_or_none,
)  # fmt: skip
from .shared import Api, register

PATH = "/v1/completions"
check = Checks("completions", PATH)

TEXT = "Once upon a time"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
FINISHES = ("stop", "length")
PARTS = ("prompt_tokens", "completion_tokens")


def body(talk: Talk, prompt: object = TEXT, **more: Any) -> dict[str, Any]:
    """Build the body of a request to /v1/completions."""
    return {"model": talk.model, "prompt": prompt, "max_tokens": 64, "temperature": 0, **more}


def choices(answer: Answer) -> list[dict[str, Any]]:
    entries = answer.document().get("choices")
    expect(isinstance(entries, list) and entries, f"choices {shown(entries)}")
    return list(entries or ())


def read(answer: Answer) -> Said:
    """Return what an answer says, a document or a stream; raises Wrong for what clients cannot put together."""
    if answer.kind != "text/event-stream":
        document = answer.document()
        (one,) = choices(answer)
        return _said(document, [one], one.get("finish_reason"), document.get("usage"))
    chunks = [event.json for event in answer.events() if event.data != "[DONE]"]
    expect(chunks, "a stream without a chunk")
    pieces: list[dict[str, Any]] = []
    finish, used = None, None
    for chunk in chunks:
        for name in ("id", "model"):
            expect(
                chunk.get(name) == chunks[0].get(name),
                f"{name} {shown(chunk.get(name))}, first {shown(chunks[0].get(name))}",
            )
        used = chunk.get("usage") or used
        for one in chunk.get("choices") or ():
            expect(finish is None or not (one.get("text") or one.get("finish_reason")), f"behind the end {shown(one)}")
            pieces.append(one)
            finish = finish or one.get("finish_reason")
    return _said(chunks[0], pieces, finish, used)


def _said(head: dict[str, Any], pieces: Sequence[dict[str, Any]], finish: object, used: Any) -> Said:
    for name in ("id", "model"):
        named(head.get(name), name)
    expect(isinstance(head.get("created"), int), f"created {shown(head.get('created'))}")
    expect(head.get("object") == "text_completion", f"object {shown(head.get('object'))}")
    expect(finish in FINISHES, f"finish_reason {shown(finish)}")
    text, scores, any_scores = "", list[tuple[str, float]](), False
    for one in pieces:
        expect(one.get("index") == 0, f"index {shown(one.get('index'))}")
        text += text_or_none(one.get("text"), "text")
        entries = one.get("logprobs")
        if entries is not None:
            any_scores = True
            scores += zip(entries["tokens"], entries["token_logprobs"], strict=True)
    if used is not None:
        counts(used, PARTS, "total_tokens")
    found = tuple(scores) if any_scores else None
    return Said(
        text, finish=str(finish), prompt=used and used["prompt_tokens"], tokens=used and used["completion_tokens"],
        scores=found,
    )  # fmt: skip


register(
    Api(
        check, body, read, "openai litellm lm-eval", STREAM, "max_tokens", "length",
        lambda chunk: any(one.get("text") for one in chunk.get("choices") or ()), {"prompt": {}},
        lambda answer: overflow_known(answer.text), stop="stop", optional=("overflow", "stream_usage", "bad_field"),
    )
)  # fmt: skip


@check("turn", "choices[].index", "lm-eval")
def several(talk: Talk) -> None:
    """a list of prompts gets a choice each, with its index."""
    entries = choices(offered(talk.ask(PATH, body(talk, [TEXT, "Twice"], max_tokens=4)), "several prompts"))
    expect([one.get("index") for one in entries] == [0, 1], f"indices {shown([one.get('index') for one in entries])}")


@check("stream", "id, [DONE]", "openai litellm")
def stream_done(talk: Talk) -> None:
    """chunks of one id, then [DONE]."""
    events = talk.ask(PATH, body(talk, stream=True)).events()
    expect(events and events[-1].data == "[DONE]", f"the last event is {shown(events[-1].data if events else 'none')}")
    one_id([event.json for event in events[:-1]])


def _score(talk: Talk, prompt: object) -> list[dict[str, Any]]:
    asked = body(talk, prompt, max_tokens=1, logprobs=1, echo=True, seed=1234)
    entries = choices(offered(talk.ask(PATH, asked), "echo with logprobs"))
    if all(one.get("logprobs") is None for one in entries):
        raise NotOffered("echo with logprobs: there are none")
    return entries


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
    expect(len(values) < 4 or len(set(values[1:])) > 1, f"token_logprobs {shown(values)}")
    for value, top in zip(values[1:], tops[1:], strict=True):
        best = max(top.values())
        expect(best <= 0, f"a log probability of {best} in top_logprobs")
        expect(
            best >= value - 1e-3, f"top_logprobs {shown(top)} without the most likely token: the one there has {value}"
        )
    # the last one was generated at temperature 0: it is the most likely one, which is what a harness looks for
    expect(max(tops[-1].values()) - values[-1] < 0.05, f"top_logprobs {shown(tops[-1])} of a token of {values[-1]}")
    expect(str(one.get("text")).startswith(text), f"text {shown(one.get('text'))}")


@check("score", "choices[].logprobs.tokens, .token_logprobs, .top_logprobs; .text", "lm-eval")
def score(talk: Talk) -> None:
    """echo and logprobs: an entry a token of the prompt, and one for what comes next."""
    _scored(_score(talk, TEXT)[0], TEXT)


@check("score", "choices[].logprobs, .index", "lm-eval")
def score_ids(talk: Talk) -> None:
    """the same of token ids, several at once."""
    tokenizer_info(talk)
    ids = talk.ask("/tokenize", {"prompt": TEXT, "add_special_tokens": False}).document()["tokens"]
    scores = _score(talk, [ids, ids[:-1]])
    expect([one.get("index") for one in scores] == [0, 1], f"indices {shown([one.get('index') for one in scores])}")
    _scored(scores[0], TEXT, len(ids))
    _scored(scores[1], "", len(ids) - 1)


@check("score", "choices[].logprobs.tokens, .token_logprobs", "openai")
def logprobs(talk: Talk) -> None:
    """logprobs of an answer, one a token, no log probability above 0."""
    asked = body(talk, logprobs=1, max_tokens=4)
    said, stream = read(offered(talk.ask(PATH, asked), "logprobs")), read(talk.ask(PATH, {**asked, **STREAM}))
    if said.scores is stream.scores is None:
        raise NotOffered("logprobs: there are none")
    scored(said)
