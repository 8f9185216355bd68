"""The run store: one SQLite file for the results of all tools; several processes may write to it at the same time.

    with Store.open() as store:                                  # the user's data directory; or Store.open(path)
        run = store.add("bench", facts, rows, label="m3 max")
        for info in store.runs(kind="bench"):
            print(info.id, info.label, info.created)

schema      the database's tables, its versions and migrations, and checks on opening a file
runs        reading and writing runs, their rows and their tags
digests     SHA-256 of large files, cached in the store
rows        fields of the rows for each kind of run
"""

from .runs import Measured, Run, Store, default_path

__all__ = ["Measured", "Run", "Store", "default_path"]
