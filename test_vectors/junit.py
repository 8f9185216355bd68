"""Write the result files of a check: all steps as JSON, and JUnit XML, the format that CI systems display."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from ds4ref.console.common import atomic_output

from .verdicts import CaseResult


def write_results(args: Namespace, result: Mapping[str, Any], results: Sequence[CaseResult]) -> None:
    """Write the files named by --out (JSON: ``result`` and every step of ``results``) and --junit."""
    if args.out:
        with atomic_output(args.out) as out:
            out.write((json.dumps({**result, "results": [r.to_json() for r in results]}, indent=1) + "\n").encode())
    if args.junit:
        with atomic_output(args.junit) as out:
            out.write(report(results, "ds4-vectors"))


def report(results: Sequence[CaseResult], name: str) -> bytes:
    """Return JUnit XML of a test suite ``name`` with one test case per result.

    Expected divergences and incomparable cases count as skipped, with their reason.
    """
    kinds = {"error": "error", "mismatch": "failure", "expected": "skipped", "incomparable": "skipped"}
    counts = {kind: sum(kinds.get(r.verdict) == kind for r in results) for kind in ("error", "failure", "skipped")}
    suite = ET.Element("testsuite", name=name, tests=str(len(results)), errors=str(counts["error"]),
                       failures=str(counts["failure"]), skipped=str(counts["skipped"]))  # fmt: skip
    for r in results:
        case = ET.SubElement(suite, "testcase", name=r.id, classname=name, time=f"{r.seconds:.3f}")
        if r.verdict in kinds:
            steps = [f"step {s.index}: {s.verdict} {s.why}".rstrip() for s in r.steps]
            ET.SubElement(case, kinds[r.verdict], message=_legal(f"{r.verdict} {r.reason}".strip())).text = _legal(
                "\n".join(steps)
            )
    root = ET.Element("testsuites")
    root.append(suite)
    return ET.tostring(root, "utf-8", xml_declaration=True)


def _legal(text: str) -> str:
    """Replace the control characters that XML forbids."""
    return "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text)
