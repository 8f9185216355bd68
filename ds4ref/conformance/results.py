"""Results: checks of a client, clients of a run, as JSON and as a table on a terminal.

A check passes, fails, or is skipped with a reason; a skip is never a pass. Clients can do without what a check tests
that is not ``required``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..console.tables import Column, fitted

State = Literal["ok", "fail", "skip"]

FEATURES = {
    "start": "it starts, and finds the server and its model",
    "turn": "a question gets an answer, and the client ends well",
    "stream": "the same as a stream",
    "tools": "a tool is called, with arguments that fit its schema",
    "answer": "the result of the call goes back, and an answer comes",
    "thinking": "reasoning is switched on and off, shown, and sent back",
    "format": "an answer that fits a JSON schema",
    "usage": "token counts",
    "limits": "limits of an answer, and of the context",
    "errors": "what is wrong is said as clients know it",
    "score": "log probabilities, echo, tokenizer",
    "end": "the server ends, and had nothing to complain of",
}
"""Features that checks belong to: the columns of the table."""
INTERRUPTED = "interrupted"
"""Reason of clients that were not run because of Ctrl-C."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    ``how``: the request demanded the form of the answer ("forced"), the tokens were scripted ("scripted"), or neither.
    """

    name: str
    feature: str
    state: State
    required: bool = True
    expected: str = ""
    got: str = ""
    how: str = ""
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """One line for people: what was expected, what came instead."""
        if self.state == "fail":
            mark = "FAIL" if self.required else "fail (not required)"
            return f"{mark} {self.name}: expected {self.expected}; got {self.got}"
        return f"{self.state} {self.name}" + (f": {self.got}" if self.got else "")


@dataclass
class Client:
    """One client's row. ``skipped``: why it did not run."""

    name: str
    version: str = ""
    checks: list[Check] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0

    def add(self, *checks: Check) -> None:
        """Append checks."""
        self.checks += checks

    @property
    def failed(self) -> list[Check]:
        """Required checks that failed."""
        return [check for check in self.checks if check.state == "fail" and check.required]

    def cell(self, feature: str) -> str:
        """Return the table cell of a feature: "ok", "FAIL 3/4" or "part 3/4", "skip", "-" without checks."""
        of = [check for check in self.checks if check.feature == feature]
        if not of:
            return "skip" if self.skipped else "-"
        tried = [check for check in of if check.state != "skip"]
        if not tried:
            return "skip"
        good = sum(check.state == "ok" for check in tried)
        if good == len(tried):
            return "ok"
        bad = any(check.state == "fail" and check.required for check in tried)
        return f"{'FAIL' if bad else 'part'} {good}/{len(tried)}"


@dataclass
class Report:
    """A whole run. ``server`` identifies the server; ``stamp``: time, commit and machine."""

    server: dict[str, Any]
    stamp: dict[str, Any]
    clients: list[Client]

    @property
    def failed(self) -> int:
        """Number of required checks that failed in all clients."""
        return sum(len(client.failed) for client in self.clients)

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted."""
        return any(client.skipped == INTERRUPTED for client in self.clients)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "server": self.server,
            **self.stamp,
            "failed": self.failed,
            "clients": [asdict(client) for client in self.clients],
        }


def read(document: dict[str, Any]) -> Report:
    """Rebuild a report from ``Report.document``."""
    clients = [
        Client(**{**one, "checks": [Check(**check) for check in one["checks"]]}) for one in document["clients"]
    ]  # fmt: skip
    stamp = {key: value for key, value in document.items() if key not in ("server", "clients", "failed")}
    return Report(document["server"], stamp, clients)


def features(clients: Iterable[Client]) -> list[str]:
    """Return the features that have checks."""
    tried = {check.feature for client in clients for check in client.checks}
    return [name for name in FEATURES if name in tried]


def cells(clients: Sequence[Client]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: client, version, a cell for each feature, seconds."""
    columns = features(clients)
    rows = [
        [one.name, one.version or "?", *(one.cell(name) for name in columns), f"{one.seconds:.0f} s"]
        for one in clients
    ]  # fmt: skip
    return ["client", "version", *columns, "time"], rows


def table(report: Report, width: int) -> str:
    """Format the table, failures and skips in lines of at most ``width`` characters."""
    head, rows = cells(report.clients)
    ranks = {"client": 0, "version": 2, "time": 3}
    columns = [Column(name, ranks.get(name, 1 if i > 4 else 0), right=name == "time") for i, name in enumerate(head)]
    out = [fitted(columns, rows, width)]
    failed = [f"{c.name}  {check.line}" for c in report.clients for check in c.checks if check.state == "fail"]
    skipped = [f"{c.name}  {check.line}" for c in report.clients for check in c.checks if check.state == "skip"]
    skipped += [f"{c.name}  skip: {c.skipped}" for c in report.clients if c.skipped]
    for part in (failed, skipped):
        out += ["", *part] if part else []
    checks = [check for client in report.clients for check in client.checks]
    counted = {state: sum(check.state == state for check in checks) for state in ("ok", "fail", "skip")}
    whole = sum(bool(client.skipped) for client in report.clients)
    say = (
        f"{counted['ok']} checks passed, {counted['fail']} failed ({report.failed} required), {counted['skip']} skipped"
    )
    out += ["", say + (f"; {whole} clients skipped" if whole else "")]
    return "\n".join(out)
