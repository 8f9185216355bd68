"""Make the two logs of the README's picture: the embedded model, and the same one with a mistake in its engine.

    python -m tests.eval.broken tests/data/replay

Both are real runs of a dozen questions of the pack ``nano``; the mistake is the library's ``key_position_late``: cached
rows are rotated at the next position.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.engine import Engine
from ds4ref.eval import library
from ds4ref.eval.log import Writer, header_of
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.plan import settings_of
from ds4ref.eval.runner import ask
from ds4ref.nano import embedded_path
from ds4ref.targets.local import LocalTarget
from ds4ref.variants import LIBRARY

FAULT = "key_position_late"
ASKED = (
    "think-sums2-01cf03d8", "facts", "think-choice-facd9f50", "lists-reverse", "choice-0a739f4e",
    "think-sums3-9952c59d", "recall-window", "think-choice-05cccd45", "sums2", "lists-sort", "topic", "facts-94f65f25",
)  # fmt: skip
"""Questions by how their ids begin, in their order."""


class Hooks:
    """Hooks of a session that put the mistake in."""

    def begin(self, chunk: Any) -> None:
        """Begin anew for every chunk."""
        self.part: Any = LIBRARY[FAULT].hooks()
        self.part.begin(chunk)

    def tap(self, *args: Any) -> Any:
        """Edit what the mistake edits."""
        return self.part.tap(*args)


class Broken:
    """An engine whose sessions have the mistake."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def session(self, *args: Any, **options: Any) -> Any:
        """Return a session with hooks."""
        made = self.engine.session(*args, **options)
        made.hooks = Hooks()
        return made


def main(folder: Path) -> None:
    """Write both logs."""
    folder.mkdir(parents=True, exist_ok=True)
    nano = library.load("nano")
    found = [next(q for q in nano.questions if q.id.startswith(name)) for name in ASKED]
    pack = Pack(Header("nano", nano.header.version, nano.header.canary, "MIT"), tuple(found))
    settings = settings_of(nano.header, {})
    with Engine.open(embedded_path(), threads=1) as engine:
        for name, wrong in (("right", False), ("broken", True)):
            target = LocalTarget(Broken(engine) if wrong else engine)  # type: ignore[arg-type]
            target.name = f"an engine with {FAULT}" if wrong else "ds4ref"
            path = folder / f"{name}.jsonl"
            path.unlink(missing_ok=True)
            command = ["python", "-m", "tests.eval.broken", "tests/data/replay"]
            with Writer.create(path, header_of(pack, settings, 1, {"kind": "local", "name": target.name},
                                               {"command": command})) as log:  # fmt: skip
                for question in pack.questions:
                    log.add(msgspec.structs.replace(ask(target, question, 1, settings), model="embedded"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
