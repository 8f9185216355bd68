"""Code shared by the probes: runs checks, writes their results, and holds the checks that are the same for every API.

``scenarios(api)`` runs these checks for an API, described by a class with

name         the beginning of its checks' names
usual        arguments that clients send with every request
tools        arguments that declare the tool; ``named``: that demand a call of it, ``none``: that forbid calls
thinks       sets of arguments, each of which switches reasoning on
bad          the exceptions that the SDK raises for a wrong request
ask          function that sends messages with further arguments and returns the answer
helper       the same through the SDK's helper for streams
read         function that returns an answer's text, the arguments of its calls, and whether it has reasoning
counts       function that returns the tokens of the prompt, of the answer, and their total
back         function that returns the messages to send back for an answer, and for a call's result if given
formed       function that demands an answer with two flags, "sure" and "warm", and returns it as a dictionary
"""

import json
import os
import sys
import time
import traceback

OUT, URL, MODEL, TOKENS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
KEY = os.environ.get("SMOKE_KEY") or "dummy"
SECONDS = float(os.environ.get("SMOKE_TIMEOUT") or 300)

ASK = "What will the weather be in Oslo tomorrow? Use the tool."
RESULT = "Cloudy, 12 degrees."
USER, HELLO = ([{"role": "user", "content": text}] for text in (ASK, "Say hello."))
CITIES = ["Oslo", "Paris", "Lima"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "tomorrow": {"type": "boolean"}},
    "required": ["city", "tomorrow"],
    "additionalProperties": False,
}


class Skip(Exception):
    """Raised by a check that cannot be run; the message says why."""


def fits(arguments):
    """Return whether ``arguments`` (parsed JSON) fit the schema PARAMETERS."""
    return (
        isinstance(arguments, dict)
        and set(arguments) == {"city", "tomorrow"}
        and arguments["city"] in CITIES
        and isinstance(arguments["tomorrow"], bool)
    )


def shown(value):
    """Format ``value`` as one line of at most 160 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else text[:159] + "\u2026"


def expect(true, got):
    """Raise AssertionError with the observed value ``got`` unless ``true``."""
    if not true:
        raise AssertionError(shown(got))


def check(name, feature, expected, required=True, how=""):
    """Return a decorator that runs a function as a check at once, and appends its result to the file OUT.

    The parameters are fields of the result (``ds4ref.conformance.results.Check``).
    """

    def run(function):
        begun, state, got = time.monotonic(), "ok", ""
        try:
            function()
        except Skip as skip:
            state, got = "skip", str(skip)
        except AssertionError as error:
            state, got = "fail", str(error) or where()
        except Exception as error:
            state, got = "fail", shown(f"{type(error).__name__}: {error}")
        line = {
            "name": name, "feature": feature, "state": state, "required": required, "expected": expected, "got": got,
            "how": how, "seconds": round(time.monotonic() - begun, 2),
        }  # fmt: skip
        with open(OUT, "a") as out:
            out.write(json.dumps(line) + "\n")
        return function

    return run


def where():
    """Return the text of the source line at which the current exception was raised."""
    return shown(traceback.extract_tb(sys.exc_info()[2])[-1].line)


def scenarios(api):
    """Run the checks that are the same for every API; ``api``: a class as described above."""
    state = {}

    @check(api.name, "turn", "an answer to a request with the usual fields; counts that add up")
    def _():
        reply = api.ask(HELLO, **api.usual)
        text, calls, _ = api.read(reply)
        prompt, answer, total = api.counts(reply.usage)
        expect(isinstance(text, str) and not calls and total == prompt + answer > 0, reply)

    @check(f"{api.name}.tool", "tools", "a call of the tool that tool_choice names", how="forced")
    def _():
        reply = api.ask(USER, **api.tools, **api.named)
        calls = api.read(reply)[1]
        expect(len(calls) == 1 and fits(calls[0]), reply)
        state["call"] = reply

    @check(f"{api.name}.answer", "answer", "an answer to the result, the call sent back as it came")
    def _():
        if "call" not in state:
            raise Skip("no call")
        reply = api.ask([*USER, *api.back(state["call"], RESULT)], **api.tools, **api.none)
        expect(isinstance(api.read(reply)[0], str), reply)

    @check(f"{api.name}.stream_tool", "tools", "the stream helper puts the call together", how="forced")
    def _():
        reply = api.helper(USER, **api.tools, **api.named)
        calls = api.read(reply)[1]
        expect(len(calls) == 1 and fits(calls[0]), reply)

    @check(f"{api.name}.thinking", "thinking", "reasoning apart from the text, and taken back", required=False)
    def _():
        for thinks in api.thinks:
            reply = api.ask(HELLO, **thinks)
            expect(api.read(reply)[2], reply)
        api.ask([*HELLO, *api.back(reply), {"role": "user", "content": "Again."}])

    @check(f"{api.name}.format", "format", "an answer of a schema, as the SDK reads it", how="forced")
    def _():
        value = api.formed(USER)
        expect(set(value) == {"sure", "warm"} and all(isinstance(flag, bool) for flag in value.values()), value)

    @check(f"{api.name}.errors", "errors", "an exception with the body for messages that are a number")
    def _():
        try:
            api.ask(5)
            raise AssertionError("no error")
        except api.bad as error:
            expect(isinstance(error.body, dict), f"the body {error.body}")
