"""Files that a check writes: every step as JSON, and JUnit XML, the format that CI systems display."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from ds4ref.console.common import atomic_output

from .verdicts import CaseResult


def write_results(args: Namespace, result: Mapping[str, Any], results: Sequence[CaseResult]) -> None:
    """Write the files that --out and --junit name."""
    if args.out:
        with atomic_output(args.out) as out:
            out.write((json.dumps({**result, "results": [r.to_json() for r in results]}, indent=1) + "\n").encode())
    if args.junit:
        with atomic_output(args.junit) as out:
            out.write(report(results, "ds4-vectors"))


def report(results: Sequence[CaseResult], name: str) -> bytes:
    """Return JUnit XML with one test case per vector.

    Expected divergences and incomparable cases count as skipped, with their reason.
    """
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

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
