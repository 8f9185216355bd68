"""The run store: every run of every tool in one SQLite file, safe with several writers.

    with Store.open() as store:                                  # the user's data directory; or Store.open(path)
        run = store.add("bench", facts, rows, label="m3 max")
        for info in store.runs(kind="bench"):
            print(info.id, info.label, info.created)

schema      tables, versions and migrations; refusal of other files
runs        runs, rows, tags
digests     SHA-256 of large files, computed once
rows        fields of the rows of each kind of run
"""

from .runs import Measured, Run, Store, default_path

__all__ = ["Measured", "Run", "Store", "default_path"]
