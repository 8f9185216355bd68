"""What it saves to remember several conversations: recorded requests of agents, tokens that have to be evaluated.

    python -m benchmarks.reuse                     every client; each recording met by a server that was just started
    python -m benchmarks.reuse --together          all recordings of a client one after the other, by one server

Agents send side requests between the turns of one long conversation: titles, summaries, sub-agents. A server with one
live session, which is what ds4 has, gives the long conversation up for them; ours keeps timelines. Both are the worker
itself with its rules of what may be gone on with; the one differs in that only the newest timeline is kept. A third
column keeps none.

Tokens are counted, nothing is computed: an engine without a model says what the client's next request says it was
answered. Recorded texts are cut; here they have their length again, so shares are meant, not the tokens themselves,
which are those of the embedded model's vocabulary. Leaves out requests that score (echo) and count.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.runs.provenance import stamp
from ds4ref.server.api import About, Api, Refused
from ds4ref.server.app import apis
from ds4ref.server.timelines import Timelines
from ds4ref.server.turn import Delta, Failed, Turn
from ds4ref.text.chat import Message
from ds4ref.text.dsml import render_calls
from ds4ref.text.protocol import THINK_CLOSE
from tests.server.scripted import ScriptedEngine, ScriptedWorker

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "clients"
CTX = 131_072
CUT = re.compile(r"^(.*?)\u2026?\[(?:truncated: )?(\d+) bytes\]$", re.DOTALL)
WORDS = "the file of a user has one line that is not what it should be and so it was read again before".split()


class OneLive(Timelines):
    """A single session: what was there before is gone."""

    def keep(self, *args: Any, **named: Any) -> None:
        """Remember the newest alone."""
        super().keep(*args, **named)
        while len(self._kept) > 1:
            self._kept.popitem(last=False)


class Nothing(Timelines):
    """Every prompt from its first token on."""

    def keep(self, *args: Any, **named: Any) -> None:
        """Remember nothing."""


WAYS: dict[str, Callable[..., Timelines]] = {"timelines": Timelines, "one session": OneLive, "none": Nothing}


# ----------------------------------------------------------------------------------------------------- recordings


def long_again(value: Any) -> Any:
    """A recorded value with its texts as long as they were: the same text for the same beginning and length."""
    if isinstance(value, dict):
        return {name: long_again(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [long_again(inner) for inner in value]
    found = CUT.match(value) if isinstance(value, str) else None
    if found is None:
        return value
    text, size = found[1], int(found[2])
    draw = random.Random(value)
    words = [draw.choice(WORDS) for _ in range(size // 4)]
    return (text + " " + " ".join(words))[:size]


def requests(path: Path) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """(path, body, headers) of a recording's requests, in the order of their arrival."""
    tools: dict[int, Any] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        body = long_again(one["body"])
        if isinstance(body, dict):
            if "tools_same_as" in body:
                body["tools"] = tools[body.pop("tools_same_as")]
            tools[one["n"]] = body.get("tools")
            yield one["path"], json.dumps(body).encode(), {k.lower(): v for k, v in one["headers"].items()}


def turns(path: Path) -> list[Turn]:
    """What a server makes of them."""
    known = {api.path: api for api in apis() if isinstance(api, Api)}
    found = []
    for where, body, headers in requests(path):
        if where in known:
            try:
                turn, _ = known[where].read(body, About("deepseek-v4-flash", CTX, headers=headers))
            except Refused:
                continue
            if not turn.echo and not turn.results_only:
                found.append(turn)
    return found


def answers(asked: Sequence[Turn]) -> list[str]:
    """What each turn was answered, as a later one of the same conversation repeats it; a word where none does."""
    found = []
    for number, turn in enumerate(asked):
        size = len(turn.messages)
        after = (t.messages for t in asked[number + 1 :] if turn.messages and t.messages[:size] == turn.messages)
        said = next((m[size] for m in after if len(m) > size and m[size].role == "assistant"), None)
        found.append(script(turn, said or Message("assistant", "Done.")))
    return found


def script(turn: Turn, said: Message) -> str:
    """A message as the model would have written it."""
    thought = said.reasoning + THINK_CLOSE if turn.thinking != "none" else ""
    calls = "".join(part.text for part in render_calls(said.calls)) if said.calls else ""
    return thought + said.content + (said.raw_dsml or calls)


# -------------------------------------------------------------------------------------------------------- replay


def replay(recordings: Iterable[Path], tokenizer: Any, way: str) -> dict[str, int]:
    """Tokens of prompts, and those of them that were evaluated, when a new server meets these recordings."""
    engine = ScriptedEngine(tokenizer, chunk=CTX)
    worker = ScriptedWorker(engine, ctx=CTX, timelines=WAYS[way](tokenizer))
    found = {"requests": 0, "prompt": 0, "evaluated": 0}
    try:
        for path in recordings:
            asked = turns(path)
            for turn, text in zip(asked, answers(asked), strict=True):
                engine.say(text)
                prompt, cached = ask(worker, turn)
                found["requests"] += 1
                found["prompt"] += prompt
                found["evaluated"] += prompt - cached
    finally:
        worker.shut_down()
    return found


def ask(worker: ScriptedWorker, turn: Turn) -> tuple[int, int]:
    """Tokens of the prompt, and those that were known."""
    over, last = threading.Event(), list[Any]()

    def listen(event: Any) -> None:
        if isinstance(event, Failed) or (isinstance(event, Delta) and event.finish):
            last.append(event)
            over.set()

    worker.submit(turn, listen)
    over.wait()
    if isinstance(last[0], Failed):
        raise RuntimeError(last[0].message)
    usage = last[0].usage
    return usage.prompt, usage.cached


def by_client(folder: Path) -> dict[str, list[Path]]:
    """Recordings by the client that they are of. Harnesses that score have no conversations."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if not path.stem.startswith(("lm_eval", "sdk")):
            found.setdefault(path.stem.partition("_")[0], []).append(path)
    return found


def table(tokenizer: Any, together: bool) -> dict[str, dict[str, dict[str, int]]]:
    """client -> way -> counts."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for client, paths in by_client(FOLDER).items():
        groups = [paths] if together else [[path] for path in paths]
        found[client] = {}
        for way in WAYS:
            parts = [replay(group, tokenizer, way) for group in groups]
            found[client][way] = {name: sum(part[name] for part in parts) for name in parts[0]}
    found["all"] = {
        way: {name: sum(one[way][name] for one in found.values()) for name in ("requests", "prompt", "evaluated")}
        for way in WAYS
    }
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--together", action="store_true", help="one server for all recordings of a client")
    args = parser.parse_args(argv)
    with Engine.open(embedded_path(), threads=1) as engine:
        found = table(engine.tokenizer, args.together)
    print(f"{'client':10} {'requests':>8} {'prompt':>9} {'timelines':>9} {'one session':>11}   evaluated tokens")
    for client, ways in found.items():
        ours, one = ways["timelines"], ways["one session"]
        print(f"{client:10} {ours['requests']:8} {ways['none']['evaluated']:9} {ours['evaluated']:9} "
              f"{one['evaluated']:11}   {ours['evaluated'] / one['evaluated']:.2f} of one session's")  # fmt: skip
    print(json.dumps({"reuse": found, "together": args.together, **stamp()}))


if __name__ == "__main__":
    main()
