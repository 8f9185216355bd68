"""What every API has to do, stated once: ``register`` makes a check of each of it for an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from . import Checks
from .common import FAILURES, FORM, arguments_fit, form_fits, openai_error, too_long
from .said import (
    COUNT,
    LONG_FORM,
    PROMPTS,
    REFUSALS,
    UNICODE_FORM,
    Said,
    agree,
    as_written,
    clean,
    counted,
    different,
    grows,
    is_cut,
    offered,
    place_fits,
    stopped,
    with_stop,
)  # fmt: skip

Body = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """How one API says what the shared checks ask for and look at.

    body       (talk, prompt, **members): a request
    read       what an answer says
    clients    who reads its answers, separated by spaces
    stream     members of a request for a stream
    length     the member that limits an answer; ``few``: limits that every server takes
    cut        the end of an answer at its limit; ``called``: the ends of one with calls
    form       members that demand a JSON schema, None: there are none
    forced     the body of a request that demands a call of the weather tool, None: there is none; ``strict``: its
               arguments are held to their schema
    thinks     members that switch reasoning on, {}: there are none
    stop       the member with stop strings, "": there is none; ``ends``: the ends of what one of them ended
    has_text   whether an event of a stream carries text
    wrong      members of a request of the wrong type
    error      returns the message of an error, of the given statuses (any 4xx)
    overflow   raises Wrong unless an error says in the words of the API's clients that a prompt is too long
    optional   names of the checks without which no client in use breaks
    """

    check: Checks
    body: Callable[..., Body]
    read: Callable[[Answer], Said]
    clients: str
    stream: Body
    length: str
    cut: str
    has_text: Callable[[Body], bool]
    wrong: Body
    overflow: Callable[[Answer], None]
    few: tuple[int, int] = (3, 12)
    called: Sequence[str] = ()
    form: Callable[[object], Body] | None = None
    forced: Callable[[Talk], Body] | None = None
    strict: bool = False
    thinks: Mapping[str, Any] = field(default_factory=dict)
    stop: str = ""
    ends: Callable[[str], Sequence[str]] = lambda word: ("stop",)
    error: Callable[..., str] = openai_error
    optional: Sequence[str] = ()


def register(api: Api) -> None:
    """Add the shared checks to the registry of ``api``, as far as it has what they are about."""
    path, body, read, stream = api.check.path, api.body, api.read, api.stream
    forms: tuple[Body, ...] = ({}, stream)  # a document and a stream

    def check(name: str, feature: str, reads: str, expected: str, run: Callable[[Talk], None], how: str = "") -> None:
        run.__name__, run.__doc__ = name, expected
        api.check(feature, reads, api.clients, required=name not in api.optional, how=how)(run)

    def document(talk: Talk) -> None:
        said = read(talk.ask(path, body(talk)))
        expect(not said.calls, f"calls {shown(said.calls)}")

    def left(talk: Talk) -> None:
        talk.leave(path, body(talk, "Count to a thousand.", stream=True, **{api.length: 4 * talk.tokens}))
        read(talk.ask(path, body(talk, "Say hello after somebody left.")))

    def markup(talk: Talk) -> None:
        for more in forms:
            for thinks in ({}, api.thinks) if api.thinks else ({},):
                answer = talk.ask(path, body(talk, **thinks, **more))
                if answer.status not in REFUSALS:
                    clean(read(answer))

    def usage(talk: Talk) -> None:
        said = read(talk.ask(path, body(talk)))
        expect(
            said.prompt and said.tokens is not None, f"{said.prompt} tokens of the prompt, {said.tokens} of the answer"
        )

    def stream_usage(talk: Talk) -> None:
        said = read(offered(talk.ask(path, body(talk, **stream)), "stream_options"))
        if said.prompt is None and "stream_usage" in api.optional:
            raise NotOffered("usage of streams")
        expect(
            said.prompt and said.tokens is not None, f"{said.prompt} tokens of the prompt, {said.tokens} of the answer"
        )

    def usage_counts(talk: Talk) -> None:
        short, longer = (read(talk.ask(path, body(talk, COUNT, **{api.length: n}))) for n in api.few)
        long = body(talk, "word " * 100 + COUNT, **{api.length: api.few[0]})
        counted(short, read(talk.ask(path, long)), read(talk.again(path, long)), 100)
        grows(short, longer, api.few, api.cut)

    def stream_same(talk: Talk) -> None:
        agree(talk, path, body(talk), read, stream)

    def stream_written(talk: Talk) -> None:
        asked = body(talk, COUNT, stream=True, **{api.length: max(talk.tokens, 256)})
        bodies = [asked, *([{**asked, **api.form(LONG_FORM)}] if api.form is not None else [])]
        as_written(talk, path, bodies, api.has_text)

    def limit(talk: Talk) -> None:
        least = api.few[0]
        for more in forms:
            bodies = [
                body(talk, prompt, **{api.length: least}, **more) for prompt in ("Count to a thousand.", *PROMPTS)
            ]
            if api.form is not None and talk.ask(path, formed := {**bodies[0], **api.form(LONG_FORM)}).status == 200:
                bodies.append(formed)
            is_cut([partial(lambda one: read(talk.ask(path, one)), one) for one in bodies], least, api.cut)

    def stop(talk: Talk) -> None:
        prompt, before, word = with_stop(talk, lambda prompt: talk.ask(path, body(talk, prompt)), read)
        for more in forms:
            answer = offered(talk.ask(path, body(talk, prompt, **{api.stop: [word]}, **more)), api.stop)
            stopped(before, read(answer), word, api.ends(word))

    def overflow(talk: Talk) -> None:
        for more in forms:
            answer = talk.ask(path, body(talk, too_long(talk), **more))
            api.error(answer, 400, 413)
            api.overflow(answer)

    def bad_json(talk: Talk) -> None:
        api.error(talk.raw(path, b'{"messages": ['))

    def bad_field(talk: Talk) -> None:
        for more in ({}, {"stream": True}):
            api.error(talk.ask(path, {"model": talk.model, **api.wrong, **more}), *FAILURES)

    said, ends = "text, reasoning, calls", "the end"
    check("document", "turn", said, "an answer that clients can read", document)
    check("left", "turn", "-", "who leaves in the middle of a stream holds up nobody", left)
    check("markup", "turn", said, "no markup of a chat template: no <think>, no end-of-turn tokens", markup)
    check("usage", "usage", "usage", "usage: tokens of the prompt and of the answer, and their total", usage)
    counting = "a longer prompt has more tokens, cached or not, and so has a longer answer"
    check("usage_counts", "usage", "usage", counting, usage_counts)
    check("stream_usage", "usage", "usage", "the same at the end of a stream", stream_usage)
    check("stream_same", "stream", said, "a stream says what the document says: text, end and usage", stream_same)
    check("stream_written", "stream", "pieces", "the answer is sent as it is written, not all at once", stream_written)
    check("limit", "limits", ends, "the limit of an answer is kept and told, in documents and in streams", limit)
    if api.stop:
        told = "a stop string ends the answer in front of it, in documents and in streams"
        check("stop", "limits", ends, told, stop)
    check("overflow", "limits", "error", "a prompt that does not fit is refused in words that agents know", overflow)
    check("bad_json", "errors", "error", "an error object for what is no JSON", bad_json)
    wrong = "an error with a status of its own for a field of the wrong type, also where a stream is asked for"
    check("bad_field", "errors", "error", wrong, bad_field)
    if api.thinks:
        _thinking(api, check)
    if api.form is not None:
        _formats(api, api.form, check)
    if api.forced is not None:
        _calls(api, api.forced, check)


def _thinking(api: Api, check: Callable[..., None]) -> None:
    path, read = api.check.path, api.read

    def thinking_on(talk: Talk) -> None:
        asked = api.body(talk, **api.thinks)
        said = read(offered(talk.ask(path, asked), "reasoning"))
        if not said.reasoning and not read(talk.ask(path, {**asked, **api.stream})).reasoning:
            raise NotOffered("reasoning of its own")
        agree(talk, path, asked, read, api.stream)
        expect(said.reasoning, "reasoning in the stream alone")

    check("thinking_on", "thinking", "reasoning", "reasoning comes apart from the text, streamed as well", thinking_on)


def _formats(api: Api, form: Callable[[object], Body], check: Callable[..., None]) -> None:
    def format_schema(talk: Talk) -> None:
        for more in ({}, api.stream):
            for schema, fits in ((FORM, form_fits), (UNICODE_FORM, place_fits)):
                asked = api.body(talk, "Is water wet? Answer in JSON.", **form(schema), **more)
                fits(api.read(offered(talk.ask(api.check.path, asked), "a JSON schema")).text)

    expected = "an answer that fits the schema, characters of several bytes whole, streamed as well"
    check("format_schema", "format", "text", expected, format_schema, how="forced")


def _calls(api: Api, forced: Callable[[Talk], Body], check: Callable[..., None]) -> None:
    path, read = api.check.path, api.read
    forms: tuple[Body, ...] = ({}, api.stream)

    def tool_call(talk: Talk) -> None:
        for more in forms:
            said = read(talk.ask(path, {**forced(talk), **more}))
            expect(len(said.calls) == 1 and said.calls[0].name == "weather", f"calls {shown(said.calls)}")
            arguments_fit(said.calls[0].arguments, strict=api.strict)
            expect(said.finish in api.called, f"the end {said.finish}")
            clean(said)

    def stream_tool_same(talk: Talk) -> None:
        agree(talk, path, forced(talk), read, api.stream)

    def tool_ids(talk: Talk) -> None:
        different([call.id for more in forms for call in read(talk.ask(path, {**forced(talk), **more})).calls])

    named = "tool_choice with a name: a call of that tool, with an id and arguments that fit, streamed as well"
    check("tool_call", "tools", "calls, the end", named, tool_call, how="forced")
    check("stream_tool_same", "tools", "calls", "streamed: the calls of the document", stream_tool_same, how="forced")
    own = "the calls of one conversation have ids of their own, by which results are told apart"
    check("tool_ids", "tools", "ids of calls", own, tool_ids, how="forced")
