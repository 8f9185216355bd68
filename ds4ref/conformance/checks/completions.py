"""Legacy completions, as lm-evaluation-harness needs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from . import Checks
from .common import counts, event_stream, one_id, openai_error, overflow_known, tokenizer_info, too_long
from .said import (
    COUNT,
    PROMPTS,
    Said,
    agree,
    as_written,
    counted,
    grows,
    is_cut,
    named,
    offered,
    scored,
    stopped,
    text_or_none,
    with_stop,
)  # fmt: skip

PATH = "/v1/completions"
check = Checks("completions", PATH)

TEXT = "Once upon a time"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
FINISHES = ("stop", "length")
PARTS = ("prompt_tokens", "completion_tokens")


def body(talk: Talk, **more: Any) -> dict[str, Any]:
    return {"model": talk.model, "prompt": TEXT, "max_tokens": 16, "temperature": 0, **more}


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


@check("turn", "object, id, created, model, choices[].index, .text, .finish_reason", "lm-eval openai litellm")
def document(talk: Talk) -> None:
    """a text_completion with the text of one choice."""
    completion = talk.ask(PATH, body(talk)).document()
    expect(completion.get("object") == "text_completion", f"object {shown(completion.get('object'))}")
    (one,) = choices(talk.ask(PATH, body(talk)))
    expect(isinstance(one.get("text"), str), f"text {shown(one.get('text'))}")
    expect(one.get("finish_reason") in ("stop", "length"), f"finish_reason {shown(one.get('finish_reason'))}")
    read(talk.ask(PATH, body(talk)))


@check("usage", "usage.prompt_tokens, .completion_tokens, .total_tokens", "openai litellm")
def usage(talk: Talk) -> None:
    """usage: prompt, completion and their total."""
    counts(talk.ask(PATH, body(talk)).document().get("usage"), ("prompt_tokens", "completion_tokens"), "total_tokens")


@check("usage", "usage.prompt_tokens, .completion_tokens", "openai litellm")
def usage_counts(talk: Talk) -> None:
    """usage counts: a longer prompt has more tokens, cached or not, and so has a longer answer."""
    short = read(talk.ask(PATH, body(talk, prompt=COUNT, max_tokens=3)))
    longer = read(talk.ask(PATH, body(talk, prompt=COUNT, max_tokens=12)))
    long = body(talk, prompt="word " * 100 + COUNT, max_tokens=3)
    counted(short, read(talk.ask(PATH, long)), read(talk.again(PATH, long)), 100)
    grows(short, longer, (3, 12), "length")


@check("turn", "choices[].index", "lm-eval")
def several(talk: Talk) -> None:
    """a list of prompts gets a choice each, with its index."""
    entries = choices(offered(talk.ask(PATH, body(talk, prompt=[TEXT, "Twice"], max_tokens=4)), "several prompts"))
    expect([one.get("index") for one in entries] == [0, 1], f"indices {shown([one.get('index') for one in entries])}")


@check("stream", "Content-Type", "openai litellm")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(talk.ask(PATH, body(talk, stream=True)))


@check("stream", "id, [DONE]", "openai litellm")
def stream_done(talk: Talk) -> None:
    """chunks of one id, then [DONE]."""
    events = talk.ask(PATH, body(talk, stream=True)).events()
    expect(events and events[-1].data == "[DONE]", f"the last event is {shown(events[-1].data if events else 'none')}")
    one_id([event.json for event in events[:-1]])


@check("stream", "choices[].text, .finish_reason; usage", "openai litellm")
def stream_same(talk: Talk) -> None:
    """a stream says what the document says: text, end and usage."""
    agree(talk, PATH, body(talk), read, STREAM)


@check("stream", "choices[].text", "openai litellm")
def stream_written(talk: Talk) -> None:
    """the answer is sent as it is written, not all at once."""
    asked = body(talk, prompt=COUNT, stream=True, max_tokens=max(talk.tokens, 256))
    as_written(talk, PATH, [asked], lambda chunk: any(one.get("text") for one in chunk.get("choices") or ()))


@check("usage", "usage", "openai litellm")
def stream_usage(talk: Talk) -> None:
    """usage in a chunk of a stream, if stream_options ask for it."""
    said = read(offered(talk.ask(PATH, body(talk, **STREAM)), "stream_options"))
    if said.prompt is None:
        raise NotOffered("usage of streams")
    expect(said.prompt > 0, f"{said.prompt} tokens of the prompt")


def _asked(talk: Talk, asked: dict[str, Any]) -> Said:
    return read(talk.ask(PATH, asked))


@check("limits", "choices[].finish_reason, usage.completion_tokens", "lm-eval openai")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as finish_reason "length", in documents and in streams."""
    for more in ({}, STREAM):
        asked = [body(talk, prompt=prompt, max_tokens=3, **more) for prompt in PROMPTS]
        is_cut([partial(_asked, talk, one) for one in asked], 3, "length")


@check("limits", "choices[].text, .finish_reason", "lm-eval")
def stop(talk: Talk) -> None:
    """a stop string ends the answer in front of it, with finish_reason "stop", in documents and in streams."""
    asked = body(talk, max_tokens=64)
    prompt, before, word = with_stop(talk, lambda prompt: talk.ask(PATH, {**asked, "prompt": prompt}), read)
    for more in ({}, STREAM):
        answer = offered(talk.ask(PATH, {**asked, "prompt": prompt, "stop": [word], **more}), "stop")
        stopped(before, read(answer), word, ("stop",))


def _score(talk: Talk, prompt: object) -> list[dict[str, Any]]:
    asked = body(talk, prompt=prompt, max_tokens=1, logprobs=1, echo=True, seed=1234)
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


def _scores(talk: Talk) -> tuple[Said, Said]:
    asked = body(talk, logprobs=1, max_tokens=4)
    said, stream = read(offered(talk.ask(PATH, asked), "logprobs")), read(talk.ask(PATH, {**asked, **STREAM}))
    if said.scores is stream.scores is None:
        raise NotOffered("logprobs: there are none")
    return said, stream


@check("score", "choices[].logprobs.tokens, .token_logprobs", "openai")
def logprobs(talk: Talk) -> None:
    """logprobs of an answer, one a token, no log probability above 0."""
    said, _ = _scores(talk)
    scored(said)


@check("score", "choices[].logprobs of the pieces", "openai", required=False)
def stream_logprobs(talk: Talk) -> None:
    """streamed: the same, which no client in use reads of completions."""
    _, stream = _scores(talk)
    scored(stream)


@check("limits", "error.message", "litellm lm-eval", required=False)
def overflow(talk: Talk) -> None:
    """a prompt that does not fit is refused in words that clients know."""
    answer = talk.ask(PATH, body(talk, prompt=too_long(talk)))
    openai_error(answer, 400, 413)
    overflow_known(answer.text)


@check("errors", "error.message", "openai lm-eval")
def bad_json(talk: Talk) -> None:
    """an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"prompt": '))
