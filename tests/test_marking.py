"""Which files a run imports, none of those asked for missed; which cases it runs where few are enough."""

import re
from pathlib import Path

import pytest

from tests.marking import WRITTEN, part, spread, unasked

ROOT = Path(__file__).parents[1]
DEFAULT = re.search(r"-m '(.*)'\"$", (ROOT / "pyproject.toml").read_text(), re.M)[1]
FILE = "import pytest\n{}\n\ndef test_one():\n    pass\n"
ORACLE = FILE.format("pytestmark = pytest.mark.oracle")
ONE_THOROUGH = FILE.format("@pytest.mark.thorough")


@pytest.mark.parametrize("expression", ["", "oracle", "oracle and not slow", "oracle or cuda", "not (oracle)"])
def test_a_file_of_oracles_is_read_where_they_may_be_asked_for(expression):
    assert not unasked(ORACLE, expression)


@pytest.mark.parametrize("expression", [DEFAULT, "thorough", "slow", "slow and not thorough", "not oracle"])
def test_and_nowhere_else(expression):
    assert unasked(ORACLE, expression)


@pytest.mark.parametrize(
    "mark", ["", "@pytest.mark.oracle", "x = [pytest.mark.oracle]", "    pytestmark = pytest.mark.oracle"]
)
def test_what_does_not_mark_every_test_leaves_the_file_in(mark):
    assert not unasked(FILE.format(mark), DEFAULT)


@pytest.mark.parametrize("text", [ONE_THOROUGH, FILE.format("CASES = sampled(range(9), 3)")])
def test_of_a_long_half(text):
    assert not unasked(text, "thorough") and not unasked(text, "thorough and not slow")
    assert unasked(text, "oracle and not slow")


@pytest.mark.parametrize("text", [FILE.format(""), FILE.format("@pytest.mark.thoroughly"), FILE.format("thorough = 1")])
def test_not_of_a_long_half(text):
    assert unasked(text, "thorough")


def test_any_file_may_have_tests_for_cuda():
    """Folders mark those (``tests/kernels/conftest.py``), not files."""
    assert not unasked(FILE.format(""), "cuda and not slow")


def test_only_files_of_tests_mark():
    """What a helper marked would not be in the text of the file that uses it."""
    marks = re.compile(rf"\bmark\.({'|'.join(WRITTEN)})\b")
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert [p.name for p in helpers if marks.search(p.read_text("utf-8"))] == ["marking.py"]
    assert [p.name for p in helpers if "sampled(" in p.read_text("utf-8")] == ["marking.py"]
    assert len(helpers) > 100


def test_no_file_takes_its_mark_from_another():
    imported = re.compile(r"^(from|import) .*\bpytestmark\b", re.M)
    files = [*(ROOT / "tests").rglob("test_*.py")]
    assert [p.name for p in files if imported.search(p.read_text("utf-8"))] == [] and len(files) > 300


class Case:
    def __init__(self, nodeid: str):
        self.nodeid = nodeid


@pytest.mark.parametrize(
    "count, most, kept",
    [(1, 2, [0]), (2, 2, [0, 1]), (3, 2, [0, 2]), (9, 2, [0, 8]), (9, 3, [0, 4, 8]), (3, 3, [0, 1, 2]),
     (4, 3, [0, 1, 3]), (5, 1, [0])],
)  # fmt: skip
def test_a_few_cases_of_each_test(count, most, kept):
    first, other = ([Case(f"tests/text/test_a.py::{test}[{n}]") for n in range(count)] for test in ("x", "y"))
    mixed = [case for pair in zip(first, other, strict=True) for case in pair]  # as a fixture of modules sorts them
    single = [Case("tests/text/test_a.py::z")]
    assert spread(mixed + single, most) == [row[n] for n in kept for row in (first, other)] + single


def test_kernels_keep_all():
    kernels = [Case(f"tests/kernels/test_ops.py::x[{n}]") for n in range(9)]
    assert spread(kernels, 2) == kernels


def test_successive_parts_are_all_cases_once():
    cases = [Case(f"tests/test_{file}.py::x[{n}]") for file in range(90) for n in range(3)]
    parts = [part(cases, place, 6) for place in range(41, 47)]
    assert sorted(case.nodeid for piece in parts for case in piece) == sorted(case.nodeid for case in cases)
    assert all(15 <= len(piece) <= 75 for piece in parts)
    assert part(cases, 47, 6) == parts[0] == sorted(parts[0], key=cases.index)


def test_a_part_has_whole_files_and_does_not_depend_on_others():
    cases = [Case(f"tests/test_{file}.py::x[{n}]") for file in range(90) for n in range(3)]
    chosen = part(cases, 3, 4)
    assert part(cases[1::3], 3, 4) == chosen[1::3] and len(chosen) % 3 == 0
