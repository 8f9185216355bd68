"""Parts shared by the probes: running checks, writing their results, one tool."""

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
    """Decorate a check: run it at once and append its result to the file OUT."""

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
    """Return the source line at which the current exception was raised."""
    return shown(traceback.extract_tb(sys.exc_info()[2])[-1].line)
