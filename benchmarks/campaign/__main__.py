"""Attack all that reads, writes or serves, and count: ``python -m benchmarks.campaign --hours 4 -o out/campaign``.

    parsers   coverage-guided inputs for each parser (needs atheris; ``make campaign`` installs it)
    faults    every call of the system that fails, is cut short, delayed or the last one; several processes at once
    states    random sequences of what can be done with sessions, disk cache, answers and logs
    server    connections that idle, trickle, lie and leave, for minutes; signals

Each attack writes its rows into OUT/results.json as it goes, and OUT/results.md is the table of all. A campaign that
was stopped goes on: rows that have as many tries as are asked for are not repeated. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ds4ref.files import atomic_write
from ds4ref.runs.provenance import stamp

ATTACKS = ("parsers", "faults", "states", "server")
TRIES = {"parsers": 10_000, "faults": 1, "states": 100_000, "server": 10_000}
SHARE = {"parsers": 0.5, "faults": 0.25, "states": 0.15, "server": 0.1}
"""Shares of the hours that each attack may take."""
KILLS = 80
"""Of each work, at times drawn at random."""
Row = dict[str, Any]


class Campaign:
    """The rows of all attacks so far, by attack and subject, in a folder.

    Rows: subject, tries, seconds, failures (their number by kind), and more figures of the attack.
    """

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "results.json"
        self.rows: dict[str, Row] = json.loads(file.read_text())["rows"] if file.exists() else {}

    def keep(
        self, attack: str, subject: str, tries: int, failures: dict[str, int], seconds: float, **more: Any
    ) -> None:
        """Enter a row and write both files."""
        self.rows[f"{attack}: {subject}"] = {"attack": attack, "tries": tries, "failures": failures,
                                             "seconds": round(seconds), **more}  # fmt: skip
        with atomic_write(self.folder / "results.json") as out:
            out.write(json.dumps({"rows": self.rows, "seed": self.seed, **stamp()}, indent=1).encode())
        with atomic_write(self.folder / "results.md") as out:
            out.write(table(self.rows).encode())
        wrong = "; ".join(f"{count} x {kind}" for kind, count in failures.items())
        print(f"{attack:8} {subject:16} {tries:7} tries {seconds:6.0f} s  {wrong or 'no failure'}", flush=True)

    def done(self, attack: str, subject: str, tries: int) -> bool:
        """Return whether a row has as many tries, without a failure."""
        row = self.rows.get(f"{attack}: {subject}", {"tries": 0})
        return row["tries"] >= tries and not row.get("failures")


def table(rows: dict[str, Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| attack | tries | failures | more |", "|---|---|---|---|"]
    for name, row in rows.items():
        wrong = "; ".join(f"{count} x {kind}" for kind, count in row["failures"].items())
        more = ", ".join(f"{key} {value}" for key, value in row.items()
                         if key not in ("attack", "tries", "failures", "seconds"))  # fmt: skip
        lines.append(f"| {name} | {row['tries']:,} | {wrong or 0} | {more} |")
    return "\n".join(lines) + "\n"


def run(command: list[str], seconds: float, **environment: str) -> tuple[int, str]:
    """Run a module of the campaign; return its exit code (124: it took too long) and standard output."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, env={**os.environ, **environment})  # fmt: skip
    try:
        return process.wait(seconds) or 0, process.stdout.read()  # type: ignore[union-attr]
    except subprocess.TimeoutExpired:
        return 124, ""
    finally:
        process.kill()
        process.wait()


def parsers(campaign: Campaign, names: Iterable[str], tries: int, seconds: float) -> None:
    """Fuzz each parser; after a crash of the process go on with another seed, at most ten times."""
    from .parsers import PARSERS

    chosen = list(names) or list(PARSERS)
    for name in chosen:
        if campaign.done("parsers", name, tries):
            continue
        folder, count, failures, started = campaign.folder / "parsers" / name, 0, dict[str, int](), time.monotonic()
        more = dict.fromkeys(("read", "refused"), 0)
        for attempt in range(10):
            left = seconds / len(chosen) - (time.monotonic() - started)
            (folder / "status.json").unlink(missing_ok=True)
            code, _ = run(["benchmarks.campaign.fuzz", name, str(folder), str(tries - count), str(left),
                           str(campaign.seed + attempt)], left + 120)  # fmt: skip
            status = json.loads((folder / "status.json").read_text()) if (folder / "status.json").exists() else {}
            count += status.get("tries", 0)
            more = {key: more[key] + status.get(key, 0) for key in more}
            for kind, number in status.get("kinds", {}).items():
                failures[kind] = failures.get(kind, 0) + number
            if code == 0:
                break
            failures[f"process ended with {code}"] = failures.get(f"process ended with {code}", 0) + 1
            if not status:
                break
        campaign.keep("parsers", name, count, failures, time.monotonic() - started, **more)


def faults(campaign: Campaign, names: Iterable[str], tries: int, seconds: float) -> None:
    """Let every call of every work fail in every way."""
    from .faults import layer
    from .works import WORKS

    chosen = list(names) or list(WORKS)
    preload = str(layer(campaign.folder))
    for name in chosen:
        if campaign.done("faults", name, tries):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            code, text = run(["benchmarks.campaign.faults", name, folder, str(KILLS), str(campaign.seed)], seconds,
                             LD_PRELOAD=preload)  # fmt: skip
        found = json.loads(text) if code == 0 else {"tries": 0, "kinds": {f"process ended with {code}": 1}}
        calls = max([value for key, value in found.items() if key.startswith("calls")], default=0)
        more = {"kills": found.get("kills", 0), "positions": calls} | (
            {"where": e} if (e := found.get("examples")) else {}
        )
        campaign.keep("faults", name, found["tries"], found["kinds"], time.monotonic() - started, **more)


def states(campaign: Campaign, names: Iterable[str], tries: int, seconds: float) -> None:
    """Run each state machine; all of them share the number of steps."""
    from .states import counted, machines

    chosen = list(names) or list(machines())
    for name in chosen:
        if campaign.done("states", name, tries // len(chosen)):
            continue
        started = time.monotonic()
        done, failures, last = counted(name, tries // len(chosen), seconds / len(chosen), campaign.seed)
        if last:
            (campaign.folder / f"states-{name}.txt").write_text(last)
        campaign.keep("states", name, done, failures, time.monotonic() - started)


def server(campaign: Campaign, names: Iterable[str], tries: int, seconds: float) -> None:
    """Load a server, and end servers in every phase."""
    from .server import signals, under_load

    parts = {"load": lambda: under_load(tries, seconds, campaign.seed), "signals": lambda: signals(campaign.seed)}
    for name in list(names) or list(parts):
        started = time.monotonic()
        done, failures, figures = parts[name]()
        campaign.keep("server", name, done, failures, time.monotonic() - started, **figures)


def main(argv: list[str] | None = None) -> int:
    """Run the attacks that are named, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaign", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("attacks", nargs="*", metavar="ATTACK[:SUBJECT]", help=f"{', '.join(ATTACKS)}; default: all")
    parser.add_argument("--hours", type=float, default=4.0, help="for all attacks together (default 4)")
    parser.add_argument("--tries", type=int, help="for each subject, instead of what docs/evidence/robustness.md has")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/campaign"), help="folder (default out/campaign)")
    args = parser.parse_args(argv)
    chosen: dict[str, list[str]] = {}
    for word in args.attacks or ATTACKS:
        attack, _, subject = word.partition(":")
        if attack not in ATTACKS:
            parser.error(f"no attack {attack}: {', '.join(ATTACKS)}")
        chosen.setdefault(attack, []).extend([subject] if subject else [])
    campaign = Campaign(args.output.absolute(), args.seed)
    runners = {"parsers": parsers, "faults": faults, "states": states, "server": server}
    total = sum(SHARE[attack] for attack in chosen)
    try:
        for attack, subjects in chosen.items():
            seconds = args.hours * 3600 * SHARE[attack] / total
            runners[attack](campaign, subjects, args.tries or TRIES[attack], seconds)
    except KeyboardInterrupt:
        print(f"stopped; what was done is in {campaign.folder}, and the same command goes on", file=sys.stderr)
        return 130
    print(f"{campaign.folder / 'results.md'}")
    return int(any(row["failures"] for row in campaign.rows.values()))


if __name__ == "__main__":
    sys.exit(main())
