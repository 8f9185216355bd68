"""Results of a check as JUnit XML, the format that CI systems display."""

from __future__ import annotations

from collections.abc import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from .verdicts import CaseResult


def report(results: Sequence[CaseResult], name: str) -> bytes:
    """Return JUnit XML with one test case per vector.

    Expected divergences and incomparable cases count as skipped, with their reason.
    """
    suite = TestSuite(name)
    for result in results:
        case = TestCase(result.id, classname=name, time=result.seconds)
        lines = "\n".join(f"step {s.index}: {s.verdict} {s.why}".rstrip() for s in result.steps)
        if result.verdict == "error":
            case.result = [Error(_legal(result.reason))]
        elif result.failed:
            case.result = [Failure(_legal(f"{result.verdict} {result.reason}\n{lines}".strip()))]
        elif result.verdict in ("expected", "incomparable"):
            case.result = [Skipped(_legal(f"{result.verdict}: {result.reason or 'nothing to compare'}"))]
        suite.add_testcase(case)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    return xml.tostring()


def _legal(text: str) -> str:
    """Replace the control characters that XML forbids."""
    return "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text)
