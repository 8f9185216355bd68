"""The checks that are the same for every API, written once; an ``Api`` describes how one API spells requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ..talk import Answer, NotOffered, Skip, Talk, Wrong, expect, shown
from . import Checks
from .said import CITIES, REFUSALS, Said, agree, clean, in_order, offered, refused, scored, stop_string, weather_fits
from .shapes import Form

Body = dict[str, Any]

ASK = "What will the weather be in Oslo tomorrow? Use the tool."
RESULT = "Cloudy, 12 degrees."
COUNT = "Count from one to a thousand, in words."
"""A prompt whose answer is long."""
PROMPTS = ("Say hello.", COUNT, "Tell a long story about a ship.", "List ten animals.")
"""Prompts to try in turn until a model gives an answer of some length."""
SOON = 0.15
"""Seconds below which an answer is too short to show whether it was streamed while it was generated."""
SHARE = 0.1
"""The part of an answer's duration that must pass between the first quarter of its pieces and its end."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LARGEST = 200_000
"""Largest context length in tokens for which a prompt beyond it is tried."""
OVERFLOWS = (
    "prompt is too long", "context size", "context length", "context window", "maximum context", "too many tokens",
    "exceeds the available context", "context_length_exceeded", "maximum number of tokens", "reduce the length",
)  # fmt: skip
"""Wordings by which agents recognise an error as a context overflow (docs/evidence/clients.md)."""


def schema(**properties: Body) -> Body:
    """Return the JSON schema of an object that has all ``properties`` and no other."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip


PARAMETERS = schema(city={"type": "string", "enum": list(CITIES)}, tomorrow={"type": "boolean"})
OTHER = schema()
"""Parameter schemas of the tools ``weather`` and ``clock``; values that fit are short, so that any model ends soon."""
FORM = schema(answer={"type": "string", "enum": ["yes", "no"]}, sure={"type": "boolean"})
LONG_FORM = schema(text={"type": "string", "enum": [" ".join(f"{n} ships and {n + 1} boats," for n in range(60))]})
"""A schema that only one long text fits, for models whose answers are short."""
UNICODE = "Zürich – 東京 🚲"
UNICODE_FORM = schema(place={"type": "string", "enum": [UNICODE]})
"""A schema that only one text fits; its characters have one to four bytes in UTF-8."""


def overflow_known(answer: Answer) -> None:
    """Raise Wrong unless the error in ``answer`` has a wording by which agents recognise a context overflow."""
    expect(any(words in answer.text.lower() for words in OVERFLOWS), shown(answer.text))


@dataclass(kw_only=True)
class Api(Checks):
    """How one API spells what the shared checks ask for, and what they find in its answers.

    "Members" are members of a request's JSON object. What an API does not have is empty, and not checked.

    read       function that returns the content of an answer
    clients    names of the clients that use the API, separated by spaces
    prompt     name of the member with the conversation or prompt
    length     name of the member that limits an answer's length; ``few``: two small limits that every server accepts
    always     members of every request
    quiet      members that switch reasoning off, used in requests if the server accepts them
    off        several sets of members, each of which means that there is no reasoning
    thinks     members that switch reasoning on
    stream     members that ask for a stream
    cut        finish reason of an answer that reached its limit
    called     finish reasons of an answer with calls
    form       function that returns the members that demand a given JSON schema
    tools      two declared tools; ``single``: members that allow only one call at a time
    choices    sets of members that demand a call: first of a named tool, then of any tool
    no_choice  members that forbid calls
    strict     whether a server must hold the arguments of a demanded call to their schema
    results    function of an answer with a call and the call's result (text or parts), returning messages for both
    parts      parts of results that are not text
    image      message content with an image
    stop       name of the member with stop strings
    ends       function of a stop string, returning the possible finish reasons of an answer that it ended
    has_text   function that returns whether an event of a stream carries text
    order      types of a stream's events in their order; ``last``: types of the last event
    done       whether a stream ends with [DONE]
    scores     members that ask for log probabilities
    wrong      members with a value of the wrong type
    overflow   function that raises Wrong unless an error says in words that the API's clients know that a prompt is too
               long
    optional   names of checks that are not required
    """

    read: Callable[[Answer], Said]
    clients: str
    prompt: str = "messages"
    length: str = "max_tokens"
    few: tuple[int, int] = (3, 12)
    always: Mapping[str, Any] = field(default_factory=dict)
    quiet: Mapping[str, Any] = field(default_factory=dict)
    off: Sequence[Body] = ()
    thinks: Mapping[str, Any] = field(default_factory=dict)
    stream: Body
    cut: str
    called: Sequence[str] = ()
    form: Callable[[object], Body] | None = None
    tools: Sequence[Body] = ()
    single: Mapping[str, Any] = field(default_factory=dict)
    choices: Sequence[Body] = ()
    no_choice: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    results: Callable[[Answer, Any], list[Body]] | None = None
    parts: Sequence[Body] = ()
    image: Sequence[Body] = ()
    stop: str = ""
    ends: Callable[[str], Sequence[str]] = lambda word: ("stop",)
    has_text: Callable[[Body], bool]
    order: Sequence[str] = ()
    last: Sequence[str] = ()
    done: bool = False
    scores: Mapping[str, Any] = field(default_factory=dict)
    wrong: Body
    overflow: Callable[[Answer], None] = overflow_known
    optional: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, feature, needs, expected, run, how in SHARED:
            if all(getattr(self, need) for need in needs.split()):
                required = name not in self.optional
                self.add(name, feature, self.clients, expected, partial(run, self), required, how)

    @property
    def forms(self) -> tuple[Body, Body]:
        """The members that ask for a document (none), and those that ask for a stream."""
        return {}, self.stream

    def body(self, talk: Talk, content: Any = "Say hello.", **more: Any) -> Body:
        """Return a request's JSON object, with reasoning off if the server accepts that.

        content: text or parts of the user's message, or whole messages; more: further members, which take precedence.
        """
        if self.prompt == "messages" and not (isinstance(content, list) and content and "role" in content[0]):
            content = [{"role": "user", "content": content}]
        asked = {"model": talk.model, self.length: talk.tokens, "temperature": 0, **self.always, self.prompt: content}
        if self.quiet and content != (hi := [{"role": "user", "content": "Hi"}]):
            probe = {**self.body(talk, hi), self.length: self.few[0], **self.quiet}
            asked |= self.quiet if talk.ask(self.path, probe).status == 200 else {}
        return {**asked, **more}

    def ask(self, talk: Talk, content: Any = "Say hello.", **more: Any) -> Answer:
        """Send the request ``body(talk, content, **more)`` and return the answer."""
        return talk.ask(self.path, self.body(talk, content, **more))

    def said(self, talk: Talk, content: Any = "Say hello.", **more: Any) -> Said:
        """Send the request ``body(talk, content, **more)`` and return the content of the answer."""
        return self.read(self.ask(talk, content, **more))

    def forced(self, talk: Talk, first: int = 0) -> Body:
        """Return a request that demands a call: the first of ``choices`` from number ``first`` that the server accepts.

        Raises NotOffered if the server accepts tools, but none of these demands.
        """
        for choice in self.choices[first:]:
            asked = self.body(talk, ASK, tools=self.tools, **self.single, **choice)
            if not 400 <= talk.ask(self.path, asked).status < 500:
                return asked
        if self.ask(talk, ASK, tools=self.tools).status == 200:
            raise NotOffered("tool_choice: tools are taken, but nothing forces a call")
        return asked

    def called_with(self, talk: Talk, result: Any = RESULT) -> list[Body]:
        """Return a conversation in which the model has called a tool and got ``result``."""
        assert self.results is not None
        return [{"role": "user", "content": ASK}, *self.results(talk.ask(self.path, self.forced(talk)), result)]

    def stopped_by(self, talk: Talk) -> tuple[str, Said, str]:
        """Return a prompt, its answer, and a string in the middle of that answer to use as stop string.

        Raises Skip if the answers to all of PROMPTS are too short.
        """
        for prompt in PROMPTS:
            said = self.said(talk, prompt)
            if word := stop_string(said.text):
                return prompt, said, word
        raise Skip(f"no answer long enough to be stopped: {shown(said.text)[:60]}")

    def taken(self, name: str, clients: str, expected: str, content: Any = "Say hello.", **more: Any) -> None:
        """Add a check that the request ``body(talk, content, **more)`` is accepted, and the answer readable by clients.

        name, clients, expected: as in Spec.
        """

        def run(talk: Talk) -> None:
            answer = self.ask(talk, content, **more)
            self.read(offered(answer, "such tools") if more.get("tools") else answer)

        self.add(name, "tools" if more.get("tools") else "turn", clients, expected, run)


Run = Callable[[Api, Talk], None]
SHARED: list[tuple[str, str, str, str, Run, str]] = []
"""The shared checks: name, feature, fields of Api that must not be empty, expectation, function, and "forced" or ""."""


def shared(feature: str, needs: str = "", how: str = "") -> Callable[[Run], Run]:
    """Register the decorated check for each API in which none of the fields ``needs`` of Api is empty.

    ``needs``: names separated by spaces; ``feature`` and ``how`` as in Spec.
    """

    def add(run: Run) -> Run:
        SHARED.append((run.__name__, feature, needs, run.__doc__ or "", run, how))
        return run

    return add


@shared("turn")
def document(api: Api, talk: Talk) -> None:
    """an answer that clients can read."""
    said = api.said(talk)
    expect(not said.calls, f"calls {shown(said.calls)}")


@shared("turn")
def left(api: Api, talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    long = {api.length: 4 * talk.tokens, "stream": True}
    talk.leave(api.path, api.body(talk, "Count to a thousand.", **long))
    api.said(talk, "Say hello after somebody left.")


@shared("turn")
def markup(api: Api, talk: Talk) -> None:
    """no markup of a chat template: no <think>, no end-of-turn tokens."""
    for more in api.forms:
        for thinks in ({}, api.thinks) if api.thinks else ({},):
            answer = api.ask(talk, **{**thinks, **more})
            if answer.status not in REFUSALS:
                clean(api.read(answer))


@shared("turn", "image")
def image(api: Api, talk: Talk) -> None:
    """an image is answered or refused, never an error of the server."""
    content = list(api.image)
    answer = api.ask(talk, [{"role": "user", "content": content}] if api.prompt == "input" else content)
    expect(answer.status, f"no answer: {answer.cut}")
    expect(answer.status < 500, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")


@shared("usage")
def usage(api: Api, talk: Talk) -> None:
    """usage: tokens of the prompt and of the answer, and their total."""
    said = api.said(talk)
    expect(said.prompt and said.tokens is not None, f"tokens of the prompt {said.prompt}, of the answer {said.tokens}")


@shared("usage")
def usage_counts(api: Api, talk: Talk) -> None:
    """a longer prompt has more tokens, cached or not, and so has a longer answer."""
    few, many = (api.said(talk, COUNT, **{api.length: limit}) for limit in api.few)
    long = api.body(talk, "word " * 100 + COUNT, **{api.length: api.few[0]})
    once, again = api.read(talk.ask(api.path, long)).prompt, api.read(talk.again(api.path, long)).prompt
    tokens = few.prompt or 0, once or 0
    expect(tokens[0] > 0 and 50 <= tokens[1] - tokens[0] <= 2000, f"{few.prompt} tokens, with 100 words more {once}")
    expect(again == once, f"{once} tokens, and for the same prompt again {again}")
    for said, limit in ((few, api.few[0]), (many, api.few[1])):
        expect(0 < (said.tokens or 0) <= limit, f"{said.tokens} tokens where {limit} are the limit")
    if few.finish == many.finish == api.cut:
        expect((few.tokens or 0) < (many.tokens or 0), f"{few.tokens} tokens, and {many.tokens} of a longer answer")


@shared("usage")
def stream_usage(api: Api, talk: Talk) -> None:
    """the same at the end of a stream."""
    said = api.read(offered(api.ask(talk, **api.stream), "stream_options"))
    if said.prompt is None and "stream_usage" in api.optional:
        raise NotOffered("usage of streams")
    expect(said.prompt and said.tokens is not None, f"tokens of the prompt {said.prompt}, of the answer {said.tokens}")


@shared("stream")
def stream_same(api: Api, talk: Talk) -> None:
    """a stream says what the document says: text, end and usage."""
    agree(talk, api.path, api.body(talk), api.read, api.stream)


@shared("stream")
def stream_written(api: Api, talk: Talk) -> None:
    """the answer is sent as it is written, not all at once."""
    asked = api.body(talk, COUNT, stream=True, **{api.length: max(talk.tokens, 256)})
    bodies = [asked, *([] if api.form is None else [{**asked, **api.form(LONG_FORM)}])]
    told = ""
    for _ in range(3):
        times = _long_enough(api, talk, bodies)
        early = times[len(times) // 4]  # not the first piece: it alone may come early, and all others at the end
        if times[-1] - early >= SHARE * times[-1]:
            return
        told = f"{len(times)} pieces, a quarter of them after {early:.2f} s, the last after {times[-1]:.2f} s"
    raise Wrong(told)


def _long_enough(api: Api, talk: Talk, bodies: list[Body]) -> list[float]:
    """Return the arrival times, in seconds since the request, of the pieces of text of a streamed answer.

    Sends the first of ``bodies``; if its answer is too short or refused, removes it and tries the next one. Raises Skip
    if none is left.
    """
    while bodies:
        answer = talk.again(api.path, bodies[0])
        if answer.status not in REFUSALS:
            times = [at for event, at in answer.timed() if event.data != "[DONE]" and api.has_text(event.json)]
            if len(times) >= 8 and times[-1] >= SOON:
                return times
        del bodies[0]
    raise Skip("no answer is long enough to tell")


@shared("stream", "order")
def stream_order(api: Api, talk: Talk) -> None:
    """the events of a stream in their order."""
    names = [kind for event in api.ask(talk, **api.stream).events() if event.data != "[DONE]"
             and (kind := str(event.json.get("type"))) != "ping"]  # fmt: skip
    in_order(names, api.order)
    expect(names[0] == api.order[0] and names[-1] in api.last, f"{names[0]} first, {names[-1]} last")


@shared("stream", "done")
def stream_done(api: Api, talk: Talk) -> None:
    """[DONE] and nothing behind it."""
    for answer in (api.ask(talk, **api.stream), *([talk.ask(api.path, {**api.forced(talk), "stream": True})]
                                                  if api.tools else [])):  # fmt: skip
        events = answer.events()
        ends = [i for i, event in enumerate(events) if event.data == "[DONE]"]
        expect(ends == [len(events) - 1], f"the last event is {shown(events[-1].data if events else 'none')}")


@shared("limits")
def limit(api: Api, talk: Talk) -> None:
    """the limit of an answer is kept and told, in documents and in streams."""
    least = api.few[0]
    for more in api.forms:
        bodies = [
            api.body(talk, prompt, **{api.length: least}, **more) for prompt in ("Count to a thousand.", *PROMPTS)
        ]
        if api.form is not None and talk.ask(api.path, formed := {**bodies[0], **api.form(LONG_FORM)}).status == 200:
            bodies.append(formed)
        for body in bodies:
            said = api.read(talk.ask(api.path, body))
            cut = said.finish == api.cut
            expect(cut or said.tokens is not None and said.tokens < least, f"the end {shown(said.finish)}")
            expect(said.tokens is None or said.tokens <= least, f"{said.tokens} tokens where {least} are the limit")
            if cut:
                break
        else:
            raise Skip(f"no answer of {least} tokens")


@shared("limits", "stop")
def stop(api: Api, talk: Talk) -> None:
    """a stop string ends the answer in front of it, in documents and in streams."""
    prompt, before, word = api.stopped_by(talk)
    for more in api.forms:
        after = api.read(offered(api.ask(talk, prompt, **{api.stop: [word]}, **more), api.stop))
        expect(word not in after.text, f"{shown(word)} in {shown(after.text)}")
        if not before.text.startswith(after.text.rstrip()):
            raise Skip("the answers to one request differ")
        wanted = before.text[: before.text.index(word)].rstrip()
        expect(after.text.rstrip() == wanted, f"{shown(after.text)[-40:]} in place of {shown(wanted)[-40:]}")
        expect(after.finish in api.ends(word), f"the end {shown(after.finish)}")


@shared("limits")
def overflow(api: Api, talk: Talk) -> None:
    """a prompt that does not fit is refused in words that agents know."""
    if talk.ctx is None:
        raise Skip("the list of models does not tell the context")
    if talk.ctx > LARGEST:
        raise Skip(f"a context of {talk.ctx} tokens is not overflown")
    for more in api.forms:
        answer = api.ask(talk, "word " * (talk.ctx + 16), **more)
        refused(answer, 400, 413)
        api.overflow(answer)


@shared("errors")
def bad_json(api: Api, talk: Talk) -> None:
    """an error object for what is no JSON."""
    refused(talk.raw(api.path, b'{"messages": ['))


@shared("errors")
def bad_field(api: Api, talk: Talk) -> None:
    """an error with a status of its own for a field of the wrong type, also where a stream is asked for."""
    for more in ({}, {"stream": True}):
        refused(talk.ask(api.path, {"model": talk.model, **api.wrong, **more}), *range(400, 600))


@shared("thinking", "thinks")
def thinking_on(api: Api, talk: Talk) -> None:
    """reasoning comes apart from the text, streamed as well."""
    asked = api.body(talk, **api.thinks)
    said = api.read(offered(talk.ask(api.path, asked), "reasoning"))
    if not said.reasoning and not api.read(talk.ask(api.path, {**asked, **api.stream})).reasoning:
        raise NotOffered("reasoning of its own")
    agree(talk, api.path, asked, api.read, api.stream)
    expect(said.reasoning, "reasoning in the stream alone")


@shared("thinking", "off")
def thinking_off(api: Api, talk: Talk) -> None:
    """where reasoning is switched off, or not mentioned where that means off, there is none."""
    for members in api.off:
        asked = {name: value for name, value in api.body(talk).items() if name not in api.quiet}
        said = api.read(talk.ask(api.path, {**asked, **members}))
        expect(not said.reasoning, f"reasoning {shown(said.reasoning)}")


@shared("format", "form", "forced")
def format_schema(api: Api, talk: Talk) -> None:
    """an answer that fits the schema, characters of several bytes whole, streamed as well."""
    assert api.form is not None
    for more in api.forms:
        for wanted in (FORM, UNICODE_FORM):
            answer = api.ask(talk, "Is water wet? Answer in JSON.", **api.form(wanted), **more)
            text = api.read(offered(answer, "a JSON schema")).text
            if wanted is FORM:
                msgspec.json.decode(text, type=Form)
            else:
                expect(msgspec.json.decode(text) == {"place": UNICODE}, f"{shown(text)} in place of {UNICODE}")


@shared("tools", "tools", "forced")
def tool_call(api: Api, talk: Talk) -> None:
    """tool_choice with a name: a call of that tool, with an id and arguments that fit, streamed as well."""
    for more in api.forms:
        said = api.read(talk.ask(api.path, {**api.forced(talk), **more}))
        expect(len(said.calls) == 1 and said.calls[0].name == "weather", f"calls {shown(said.calls)}")
        clean(said)
        weather_fits(said.calls[0], strict=api.strict)
        expect(said.finish in api.called, f"the end {said.finish}")


@shared("tools", "tools", "forced")
def tool_any(api: Api, talk: Talk) -> None:
    """tool_choice without a name: a call of one of the tools, and an end that says so, or the agent's turn is over."""
    for more in api.forms:
        said = api.read(offered(talk.ask(api.path, {**api.forced(talk, 1), **more}), "tool_choice of any tool"))
        expect(said.calls and {call.name for call in said.calls} <= {"weather", "clock"}, f"calls {shown(said.calls)}")
        expect(said.finish == api.called[0], f"the end {said.finish}")


@shared("tools", "tools")
def tool_none(api: Api, talk: Talk) -> None:
    """tool_choice "none": no call."""
    said = api.read(offered(api.ask(talk, ASK, tools=api.tools, **api.no_choice), "tool_choice none"))
    expect(not said.calls, f"calls {shown(said.calls)}")


@shared("tools", "tools", "forced")
def stream_tool_same(api: Api, talk: Talk) -> None:
    """streamed: the calls of the document."""
    agree(talk, api.path, api.forced(talk), api.read, api.stream)


@shared("tools", "tools", "forced")
def tool_ids(api: Api, talk: Talk) -> None:
    """the calls of one conversation have ids of their own, by which results are told apart."""
    ids = [call.id for more in api.forms for call in api.read(talk.ask(api.path, {**api.forced(talk), **more})).calls]
    expect(len(set(ids)) == len(ids), f"ids {shown(ids)}")


@shared("answer", "results")
def answer(api: Api, talk: Talk) -> None:
    """the history with call and result is answered in text."""
    said = api.said(talk, api.called_with(talk), tools=api.tools, **api.no_choice)
    expect(not said.calls, f"calls {shown(said.calls)}")


@shared("answer", "parts")
def answer_parts(api: Api, talk: Talk) -> None:
    """results with an image or a reference to a tool are taken."""
    for part in api.parts:
        api.said(talk, api.called_with(talk, [part]), tools=api.tools, **api.no_choice)


@shared("score", "scores")
def logprobs(api: Api, talk: Talk) -> None:
    """log probabilities, one a token, none above 0; the same in a stream."""
    said, stream = (
        api.read(offered(api.ask(talk, **api.scores, **{api.length: 4}, **more), "logprobs")) for more in api.forms
    )
    if said.scores is stream.scores is None:
        raise NotOffered("logprobs: there are none")
    scored(said)
    scored(stream)
    if stream.text == said.text:
        # a server may score the end-of-answer token in one form and not in the other
        pairs = list(zip(said.scores or (), stream.scores or (), strict=False))
        same = abs(len(said.scores or ()) - len(stream.scores or ())) <= (said.finish == "stop")
        same = same and all(a == b and abs((x or 0) - (y or 0)) < 0.05 for (a, x), (b, y) in pairs)
        expect(same, f"{shown(said.scores)[:60]} as a document, {shown(stream.scores)[:60]} as a stream")
