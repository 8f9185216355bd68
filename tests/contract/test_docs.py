"""Pages that hold: every link leads somewhere, and every command line has options that the command knows."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from .running import ROOT, SCRIPTS, run

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@functools.cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


@EACH
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@functools.cache
def help_of(*command: str) -> str:
    return run(command[0], *command[1:], "--help").out


def commands(page: Path) -> list[list[str]]:
    """Command lines of ours in code blocks: words without comments."""
    lines = [line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in page.read_text().splitlines()
             if line.startswith(("    ", "ds4"))]  # fmt: skip
    return [re.split(r"\s{3,}|\s+\(|;|\s#", line)[0].split() for line in lines if line.split(" ")[0] in SCRIPTS]


@EACH
def test_options_in_examples_exist(page: Path) -> None:
    for words in commands(page):
        text = help_of(words[0])
        for n in (1, 2):  # ds4-vectors check, ds4-vectors trace blame
            if len(words) > n and re.fullmatch(r"[a-z][a-z-]+", words[n]):
                nested = help_of(*words[: n + 1])
                text += nested
        for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", " ".join(words)):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{option} of: {' '.join(words)}"


@EACH
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    named = set(
        re.findall(r"(?<![\w/.:])(?:tests|ds4ref|kernels|eval|speed_bench|test_vectors|benchmarks)/[\w./]+\.\w+", text)
    )
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:benchmarks|tests|ds4ref)[\w.]+)", text)}
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    missing += [
        name for name in modules if not ((ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists())
    ]
    assert not missing
