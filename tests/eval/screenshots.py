"""Pictures of the screen for the docs, with a target that plays a part: nothing in them was measured.

python -m tests.eval.screenshots docs
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from .demo import THOUGHTS, script
from .plausible import plausible
from .staged import Stage, until

PICTURES = {
    "eval-screen.svg": ((110, 30), ()),
    "eval-narrow.svg": ((80, 24), ()),
    "eval-details.svg": ((110, 30), ("o",)),
}
DONE = 14
"""Samples that are finished before the picture is taken."""


async def picture(stage: Stage, size: tuple[int, int], presses: tuple[str, ...]) -> str:
    """The screen in the middle of a run, after some keys."""
    async with stage.app.run_test(size=size) as pilot:
        await until(pilot, lambda: len(stage.log.samples) >= DONE and "THINK" in stage.states())
        await pilot.pause(0.35)  # more of what it thinks
        stage.work.runner.pause()
        for key in presses:
            await pilot.press(*(["k"] * 2), key)
        await pilot.pause(0.5)
        return stage.app.export_screenshot(title="ds4-eval")


def main(folder: Path) -> None:
    """Write all of them."""
    questions = plausible(40)
    for name, (size, presses) in PICTURES.items():
        with tempfile.TemporaryDirectory() as place:
            play = script(questions, 400.0, 5, parts=[t for t in THOUGHTS if t.isascii()], prefill=0.01)
            stage = Stage(Path(place), questions, play=play, title="ds4ref on a play")
            try:
                (folder / name).write_text(asyncio.run(picture(stage, size, presses)), encoding="utf-8")
            finally:
                stage.work.leave()
                stage.log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
