"""Print the code lines of each package, product and tests, and fail where one is above its limit (``make size``).

A code line is a line of a tracked Python file, in ruff's format, that is neither blank, comment nor docstring. The
limits are in pyproject.toml, ``[tool.ds4ref.size]``; whoever raises one says why in the commit.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: bytes) -> int:
    """Count the lines of a module that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def package(path: Path) -> str:
    """Name the package that a file counts for: ``ds4ref/server``, ``eval``, ``kernels/cuda``, ``tests/server``."""
    parts = path.parent.parts
    return "/".join(parts[: 2 if parts[0] in ("ds4ref", "kernels", "tests") else 1])


def packages() -> dict[str, int]:
    """Code lines by package, over the files that git tracks."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes: dict[str, int] = defaultdict(int)
    for name in names.splitlines():
        if (ROOT / name).is_file():
            sizes[package(Path(name))] += code_lines((ROOT / name).read_bytes())
    return dict(sizes)


def main() -> int:
    """Print the table; 1 if a package is above its limit or has none."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ds4ref"]["size"]
    sizes = packages()
    above = []
    for name in sorted(sizes, key=lambda name: (name.startswith("tests"), name)):
        limit = limits.get(name, 0)
        print(f"{sizes[name]:8,} of {limit:6,}  {name}")
        if sizes[name] > limit:
            above.append(name)
    tests = sum(size for name, size in sizes.items() if name.startswith("tests"))
    print(f"{sum(sizes.values()) - tests:8,} product\n{tests:8,} tests")
    for name in above:
        print(f"size: {name} is above its limit of [tool.ds4ref.size] in pyproject.toml", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
