"""Units of work for the tests of the fan-out, importable by worker processes."""

import os
import time
from pathlib import Path

from ds4ref.errors import DataError


def square(args):
    """Notes that it ran, then squares."""
    with open(Path(args["log"]), "a") as log:
        log.write(f"{args['x']} {os.getpid()}\n")
    if args.get("fail") and Path(args["fail"]).exists():
        raise DataError(f"no {args['x']} today")
    time.sleep(args.get("seconds", 0))
    rows = [{"ctx_tokens": 1, "gen_tps": float(args["x"])}]
    return {"square": args["x"] ** 2, "runs": [{"kind": "bench", "facts": {"x": args["x"]}, "rows": rows}]}


def deadly(args):
    """Kills the process it runs in while a file is there."""
    if Path(args["fail"]).exists() and args["x"] == 3:
        os._exit(1)
    return square(args | {"fail": None})


class Bomb:
    """Ends the process that sends it, while a file is there; an integer where it arrives."""

    def __init__(self, path, value):
        self.path, self.value = path, value

    def __reduce__(self):
        if Path(self.path).exists():
            os._exit(1)
        return int, (self.value,)


def dies_when_asked(args):
    """The unit is done, and its worker dies when the result is fetched."""
    return {**square(args | {"fail": None}), "square": Bomb(args["fail"], args["x"] ** 2)}
