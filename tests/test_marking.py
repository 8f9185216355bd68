"""Which files a run imports, none of those asked for missed; which cases it runs where few are enough."""

import re
from pathlib import Path

import pytest

from tests.marking import WRITTEN, unasked

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
    assert [p.name for p in files if imported.search(p.read_text("utf-8"))] == [] and len(files) > 200
