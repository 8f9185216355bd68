"""The page docs/evidence/clients.md, generated from the results that ``--json`` wrote.

    cd docs/evidence; ds4-server smoke page clients/ours.json clients/peer.json > clients.md

Nothing on the page is written by hand; a test regenerates it from its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from .checks import CLIENTS, groups
from .clients import KINDS
from .results import FEATURES, Client, Report, cells, features

HEAD = """\
# Clients

What real clients did with the server, tried by `ds4-server smoke`. This page is made by `ds4-server smoke page` from
the files in `docs/evidence/clients/`; nothing on it is written by hand.

"ok": everything that was tried came through. "FAIL a/b", "part a/b": a of b checks did; in a FAIL one is missing
without which a client of today breaks. "skip": not tried, and why is said below; "-": nothing to try there.

Of our own server, what a client cannot force is scripted: the embedded model is no assistant, so its words come
from a script (`ds4ref/cli/scripted.py`), and all else, from the evaluation of the prompt to the last event, is
the server as everybody starts it.
"""


CHECKS = """\
# What smoke checks

Made by `ds4-server smoke checks` from the checks themselves (`ds4ref/conformance/checks/`); a test holds this page to
them. Every field that a client reads is looked at in documents and in streams.

A check is required if a client of today stops working without it: it fails the run. The others are told. What a server
need not have, and refuses (4xx) or shows no sign of, is "not offered", which is no failure; what it takes and does
wrong, or ignores, is one. "-": that the request is taken at all.
"""


def checks_page() -> str:
    """Return the Markdown page of all checks: what each looks at, and which clients need it."""
    out = [CHECKS, "| client | |", "|---|---|", *(f"| {name} | {text} |" for name, text in CLIENTS.items())]
    for group in groups():
        out += ["", f"## {group.name}" + (f": `{group.path}`" if group.path else ""), ""]
        out += ["| check | expects | fields | clients | required |", "|---|---|---|---|---|"]
        for spec in group.specs:
            name, fields = spec.name.partition(".")[2], spec.reads
            must = "yes" if spec.required else "no"
            shown = fields if fields == "-" else f"`{fields}`"
            out.append(f"| {name} | {_plain(spec.expected)} | {shown} | {', '.join(spec.clients)} | {must} |")
    return "\n".join(out) + "\n"


def merged(reports: Sequence[Report]) -> list[Report]:
    """Merge the reports about each server into one, with clients in the table's order.

    ``stamp["runs"]`` of the result lists the command and commit of each merged report.
    """
    order = {kind.name: place for place, kind in enumerate(KINDS)}
    by_name: dict[str, Report] = {}
    for report in reports:
        stamp = report.stamp
        whole = by_name.setdefault(_name(report), Report(report.server, {**stamp, "runs": []}, []))
        words = " ".join(str(word) for word in stamp.get("command") or ())
        commit = str(stamp.get("commit") or "unknown")[:12]
        whole.stamp["runs"].append(f"{words:<60}  # {str(stamp.get('created', ''))[:10]}, our commit {commit}")
        whole.clients += report.clients
    for whole in by_name.values():
        whole.clients.sort(key=lambda client: order.get(client.name.partition(" ")[0], len(order)))
    return list(by_name.values())


def _name(report: Report) -> str:
    return str(report.server.get("label") or report.server.get("name") or "a server")


def page(reports: Sequence[Report]) -> str:
    """Return the Markdown page, with a section for each server."""
    out, reports = [HEAD], merged(reports)
    tried = {name for report in reports for name in features(report.clients)}
    out += ["| column | what is tried |", "|---|---|"]
    out += [f"| {name} | {text} |" for name, text in FEATURES.items() if name in tried]
    for report in reports:
        out += ["", *_section(report)]
    out += ["", *_versions()]
    return "\n".join(out).rstrip() + "\n"


def _section(report: Report) -> list[str]:
    machine = report.stamp.get("machine") or {}
    where = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores"
    out = [f"## {_name(report)}", "", f"Model: {report.server.get('model', 'unknown')}. Machine: {where}.", ""]
    out += [*(f"    {run}" for run in report.stamp["runs"]), ""]
    head, rows = cells(report.clients)
    out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    out += [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
    for title, state in (("What came instead", "fail"), ("Not tried", "skip")):
        lines = [line for client in report.clients for line in _lines(client, state)]
        out += ["", f"### {title}", "", *lines] if lines else []
    checks = [check for client in report.clients for check in client.checks]
    good = sum(check.state == "ok" for check in checks)
    how = {kind: sum(check.how == kind for check in checks) for kind in ("forced", "scripted")}
    say = f"{good} of {len(checks)} checks passed; {report.failed} that are required failed. "
    say += f"In {how['forced']} the request forced the answer's form, in {how['scripted']} its words were scripted."
    out += ["", say]
    return out


def _lines(client: Client, state: str) -> list[str]:
    lines = []
    if state == "skip" and client.skipped:
        lines.append(f"- {client.name}: {_plain(client.skipped)}")
    for check in client.checks:
        if check.state != state:
            continue
        mark = "" if check.required else " (not required)"
        text = f"expected {check.expected}; got {check.got}" if state == "fail" else check.got
        lines.append(f"- {client.name}, `{check.name}`{mark}: {_plain(text)}")
    return lines


def _plain(text: str) -> str:
    """Escape ``text`` for Markdown."""
    for mark in "\\`*_<>[]|":
        text = text.replace(mark, f"\\{mark}")
    return text


def _versions() -> list[str]:
    out = [
        "## Versions",
        "",
        "What `--install` takes, into the user's cache; `--client NAME@VERSION` tries another one.",
    ]
    out += ["", "| client | package | version | MB |", "|---|---|---|---|"]
    out += [
        f"| {k.name}: {k.about} | {k.registry} `{k.package}` | {k.version} | {k.size} |" for k in KINDS if k.registry
    ]
    return out
