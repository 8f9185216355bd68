"""Make one moving SVG of many screens: every line of the terminal is drawn once for each of its contents.

    python -m tests.eval.animation docs/reference/eval-replay.svg

The picture shows two real logs (tests/eval/broken.py), played by ``ds4-eval --replay``: an engine that is right, then
the same one with a mistake. The last screen stands where nothing moves.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ds4ref.eval import log as logs
from ds4ref.eval.replay import Replay, asked
from ds4ref.eval.tui.app import EvalApp

LOGS = Path(__file__).parents[1] / "data" / "replay"
SCENES = ("right.jsonl", "broken.jsonl")
SIZE, SPEED, PAUSE_S = (100, 22), 0.23, 0.28
EVERY_S, HOLD_S = 0.25, 2.5
"""Seconds between two screens, and for which the end of a scene stands."""
BACKGROUND = "#16171f"
ROW, MIDDLE = 24.4, 610.0
"""Height of a line in the SVGs of rich; where the answer begins, which changes more often than the table."""
_RULE = re.compile(r"\.terminal-\d+-(r\d+) \{ (.*?) \}")
_SVG = "{http://www.w3.org/2000/svg}"


def cells_of(svg: str) -> dict[tuple[int, int], str]:
    """Return the drawing of each half line of the terminal by (row, half), with styles in place of rich's classes."""
    styles = dict(_RULE.findall(svg))
    cells: dict[tuple[int, int], list[str]] = defaultdict(list)
    last: tuple[tuple[int, int], str, float] | None = None  # the background to the left: half, colour, right edge
    for part in ElementTree.fromstring(svg).iter():
        tag, x, y = part.tag.removeprefix(_SVG), float(part.get("x") or 0), float(part.get("y") or 0)
        place = int(y // ROW), int(x >= MIDDLE)
        if tag == "rect" and part.get("shape-rendering") and part.get("fill") != BACKGROUND:  # of the terminal
            fill, width = str(part.get("fill")), float(part.get("width") or 0)
            if last is not None and last[:2] == (place, fill) and abs(last[2] - x) < 0.1:
                begin = float(cells[place].pop().split('x="')[1].partition('"')[0])
                x, width = begin, x + width - begin
            rect = f'<rect fill="{fill}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="24.65"/>'
            cells[place].append(rect)
            last = place, fill, x + width
        elif tag == "text" and part.get("clip-path") and (text := (part.text or "").rstrip("\n")).strip("\xa0 "):
            style = styles.get((part.get("class") or "").rpartition("-")[2], "")
            drawn = f'<text x="{x:g}" y="{y:g}" textLength="{part.get("textLength")}" style="{style}">'
            cells[place].append(f"{drawn}{escape(text)}</text>")
    return {place: "".join(drawn) for place, drawn in cells.items()}


def animated(screens: list[tuple[float, str]], end: float) -> str:
    """Return the moving SVG of screens, each with the second at which it appears; it begins again after ``end``."""
    cells = [cells_of(svg) for _, svg in screens]
    spans: dict[tuple[tuple[int, int], str], list[tuple[float, float]]] = defaultdict(list)
    times = [at for at, _ in screens] + [end]
    for number, cell in enumerate(cells):
        for key in cell.items():
            shown = spans[key]
            if shown and shown[-1][1] == times[number]:
                shown[-1] = shown[-1][0], times[number + 1]
            else:
                shown.append((times[number], times[number + 1]))
    rules: dict[str, str] = {}
    body = []
    for (_, drawn), shown in sorted(spans.items()):
        if shown == [(times[0], end)]:
            body.append(f"<g>{drawn}</g>")
            continue
        steps = "".join(f"{100 * a / end:.3f}%{{opacity:1}}{100 * b / end:.3f}%{{opacity:0}}" for a, b in shown)
        first = "" if shown[0][0] == 0 else "0%{opacity:0}"
        name = rules.setdefault(first + steps, f"k{len(rules)}")
        rest = 1 if shown[-1][1] == end else 0
        body.append(f'<g opacity="{rest}" style="animation:{name} {end:g}s step-end infinite">{drawn}</g>')
    keyframes = "".join(f"@keyframes {name}{{{steps}}}" for steps, name in rules.items())
    view = SIZE[0] * 12.2, SIZE[1] * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 {view[0] + 24:.0f} {view[1] + 24:.0f}">'
        f"<style>text{{font:20px 'Fira Code',Menlo,Consolas,monospace;white-space:pre}}{keyframes}</style>"
        f'<rect x="-12" y="-12" width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{"".join(body)}</svg>\n'
    )


async def played(name: str, begin: float, speed: float = SPEED) -> tuple[list[tuple[float, str]], float]:
    """Return the screens of one scene, and the second at which it ends."""
    log = logs.read(LOGS / name)
    title = f"{log.header.pack['pack']} on {log.header.target['name']}"
    app = EvalApp(lambda listen: Replay(log, speed, listen), asked(log), 1, Replay(log).log, title=title,
                  pause_s=PAUSE_S * SPEED / speed)  # fmt: skip
    screens, over = [], 0.0
    async with app.run_test(size=SIZE) as pilot:
        start = time.monotonic()
        while not over or time.monotonic() < over + HOLD_S * SPEED / speed:
            await pilot.pause(EVERY_S * SPEED / speed)
            at = begin + (time.monotonic() - start) * speed / SPEED
            screens.append((at, app.export_screenshot(title="ds4-eval")))
            if not over and not app.work.alive:
                over = time.monotonic()
        app.work.leave()
    return screens, begin + (time.monotonic() - start) * speed / SPEED


async def scenes() -> str:
    """Return the whole picture."""
    screens: list[tuple[float, str]] = []
    end = 0.0
    for name in SCENES:
        more, end = await played(name, end)
        screens += more
    screens[0] = 0.0, screens[0][1]
    return animated(screens, round(end, 2))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(asyncio.run(scenes()), encoding="utf-8")
