"""Results of a run: its clients and their checks, as JSON and as a table on a terminal.

A check passes, fails, or is skipped with a reason; a skip is never a pass. A check that is not ``required`` tests
something without which clients still work.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..console.tables import Column, fitted

State = Literal["ok", "fail", "skip"]

FEATURES = (
    "start", "turn", "stream", "tools", "answer", "thinking", "format", "usage", "limits", "errors", "score", "end",
)  # fmt: skip
"""Features that checks test, the columns of the table (docs/evidence/clients.md says what each is)."""
INTERRUPTED = "interrupted"
"""``Client.skipped`` of clients that did not run because of Ctrl-C."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    name, feature   the check, and the feature that it tests (one of FEATURES)
    state           "ok", "fail" or "skip"
    required        whether a client that is in use breaks if the check fails
    expected, got   the expectation, and the observed result if it failed or the reason if skipped
    how             "forced" if the request demanded a certain form of the answer, "scripted" if the server's answers
                    were scripted, else ""
    seconds         duration
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
        """The check as one readable line: expectation and observed result."""
        if self.state == "fail":
            mark = "FAIL" if self.required else "fail (not required)"
            return f"{mark} {self.name}: expected {self.expected}; got {self.got}"
        return f"{self.state} {self.name}" + (f": {self.got}" if self.got else "")


@dataclass
class Client:
    """A client's row in the report.

    skipped   why it did not run, "" if it did
    seconds   duration of its checks
    """

    name: str
    version: str = ""
    checks: list[Check] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> list[Check]:
        """The required checks that failed."""
        return [check for check in self.checks if check.state == "fail" and check.required]

    def cell(self, feature: str) -> str:
        """Return the table cell of a feature: "ok", "FAIL 3/4", "part 3/4", "skip", or "-" if it has no checks.

        The numbers are the checks that passed and all that ran. "part" means that none of the failed ones is required.
        """
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
    """The results of a run.

    server    identity of the tested server
    stamp     time, commit and machine of the run
    clients   a row for each client
    """

    server: dict[str, Any]
    stamp: dict[str, Any]
    clients: list[Client]

    @property
    def failed(self) -> int:
        """Number of failed required checks of all clients."""
        return sum(len(client.failed) for client in self.clients)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return any(client.skipped == INTERRUPTED for client in self.clients)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "server": self.server,
            **self.stamp,
            "failed": self.failed,
            "clients": [asdict(client) for client in self.clients],
        }


def table(report: Report, width: int) -> str:
    """Format the report as a table followed by failures and skips, in lines of at most ``width`` characters."""
    tried = {check.feature for client in report.clients for check in client.checks}
    features = [name for name in FEATURES if name in tried]
    cells = [Column(name, 1 if place > 2 else 0) for place, name in enumerate(features)]
    columns = [Column("client"), Column("version", 2), *cells, Column("time", 3, right=True)]
    rows = [
        [one.name, one.version or "?", *(one.cell(name) for name in features), f"{one.seconds:.0f} s"]
        for one in report.clients
    ]
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
