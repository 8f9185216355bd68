"""Checks of OpenAI's legacy completions, as lm-evaluation-harness needs them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from .general import tokenizer_info, tokens_of
from .said import Said, offered, typed
from .shapes import Completion
from .shared import Api

TEXT = "Once upon a time"


def read(answer: Answer) -> Said:
    """Return the content of an answer, a document or a stream; raises Wrong if clients could not assemble it."""
    if answer.kind == "text/event-stream":
        values = [event.json for event in answer.events() if event.data != "[DONE]"]
    else:
        values = [answer.document()]
    chunks = [typed(value, Completion) for value in values]
    heads = {(chunk.id, chunk.model) for chunk in chunks}
    expect(len(heads) == 1, f"ids and models {shown(sorted(heads))}")
    text, finish, used = "", None, None
    scores: list[tuple[str, float | None]] | None = None
    for chunk in chunks:
        used = chunk.usage or used
        for one in chunk.choices:
            expect(finish is None or not (one.text or one.finish_reason), f"behind the end {shown(str(one))}")
            text += one.text or ""
            if one.logprobs is not None:
                more = zip(one.logprobs.tokens, one.logprobs.token_logprobs, strict=True)
                scores = [*(scores or ()), *more]
            finish = finish or one.finish_reason
    expect(finish, "no finish_reason")
    return Said(
        text, finish=finish or "", prompt=used and used.prompt_tokens, tokens=used and used.completion_tokens,
        scores=None if scores is None else tuple(scores),
    )  # fmt: skip


api = Api(
    name="completions",
    path="/v1/completions",
    read=read,
    clients="openai litellm lm-eval",
    prompt="prompt",
    always={"max_tokens": 64},
    stream={"stream": True, "stream_options": {"include_usage": True}},
    cut="length",
    stop="stop",
    has_text=lambda chunk: any(one.get("text") for one in chunk.get("choices") or ()),
    done=True,
    scores={"logprobs": 1},
    wrong={"prompt": {}},
    optional=("overflow", "stream_usage", "bad_field"),
)


def choices(answer: Answer, count: int) -> list[dict[str, Any]]:
    """Return the choices of a completion; raises Wrong unless there are ``count`` of them, in order."""
    found = typed(answer.document().get("choices"), list[dict[str, Any]])
    indices = [one.get("index") for one in found]
    expect(indices == list(range(count)), f"indices {shown(indices)}")
    return found


@api.check("turn", "lm-eval")
def several(talk: Talk) -> None:
    """a list of prompts gets a choice each, with its index."""
    choices(offered(api.ask(talk, [TEXT, "Twice"], max_tokens=4), "several prompts"), 2)


def _score(talk: Talk, prompt: Any, count: int) -> list[dict[str, Any]]:
    asked = api.ask(talk, prompt, max_tokens=1, logprobs=1, echo=True, seed=1234)
    entries = choices(offered(asked, "echo with logprobs"), count)
    if all(one.get("logprobs") is None for one in entries):
        raise NotOffered("echo with logprobs: there are none")
    return entries


def _scored(one: dict[str, Any], text: str, tokens: int | None = None) -> None:
    """Raise Wrong unless lm-evaluation-harness can take a score from the choice ``one``.

    text, tokens: the prompt, and its number of tokens, None if unknown.
    """
    scores = one["logprobs"]
    lengths = {name: len(scores.get(name) or ()) for name in ("tokens", "token_logprobs", "top_logprobs")}
    count = lengths["tokens"]
    expect(len(set(lengths.values())) == 1 and count > 1, f"entries {shown(lengths)}")
    expect(tokens is None or count == tokens + 1, f"{count} entries for {tokens} tokens and one")
    values, tops = scores["token_logprobs"][1:], scores["top_logprobs"][1:]
    numbers = all(isinstance(value, (int, float)) and value <= 0 for value in values)
    expect(numbers and (count < 4 or len(set(values)) > 1), f"token_logprobs {shown(values)}")
    expect(all(isinstance(top, dict) and top for top in tops), f"top_logprobs {shown(tops)}")
    for value, top in zip(values, tops, strict=True):
        best = max(top.values())
        expect(best <= 0, f"a log probability of {best} in top_logprobs")
        expect(best >= value - 1e-3, f"top_logprobs {shown(top)} without the most likely token, of {value}")
    # the last token was generated at temperature 0, so it is the most likely one, which harnesses look for
    expect(max(tops[-1].values()) - values[-1] < 0.05, f"top_logprobs {shown(tops[-1])} of a token of {values[-1]}")
    expect(str(one.get("text")).startswith(text), f"text {shown(one.get('text'))}")


@api.check("score", "lm-eval")
def score(talk: Talk) -> None:
    """echo and logprobs: an entry a token of the prompt, and one for what comes next."""
    _scored(_score(talk, TEXT, 1)[0], TEXT)


@api.check("score", "lm-eval")
def score_ids(talk: Talk) -> None:
    """the same of token ids, several at once."""
    tokenizer_info(talk)
    ids = tokens_of(talk, TEXT)
    whole, part = _score(talk, [ids, ids[:-1]], 2)
    _scored(whole, TEXT, len(ids))
    _scored(part, "", len(ids) - 1)
