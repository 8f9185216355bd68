"""Runs with faults and noise: kept results are found again by the same code only, and runs side by side agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ds4ref
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.test_vectors.diagnosis import Pass, Signatures
from ds4ref.variants import LIBRARY
from ds4ref.variants.runner import code_files


def test_the_digest_of_signatures_covers_all_that_a_run_imports():
    """Only rooms that compute nothing may be left out."""
    code = (
        "import sys\n"
        "from ds4ref.engine import Engine\n"
        "from ds4ref.nano.diagnostic import diagnostic_path\n"
        "from ds4ref.variants import ROUNDING, Runner\n"
        "with Engine.open(diagnostic_path(), backend='cpu', numerics='exact') as e:\n"
        "    for mode in ROUNDING:\n"
        "        Runner(e).run([1, 2, 3], mode)\n"
        "for n, m in sys.modules.items():\n"
        "    if n.split('.')[0] in ('ds4ref', 'kernels'):\n"
        "        print(m.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    house = Path(ds4ref.__file__).parent
    names = ("__init__", "costs", "environment", "errors", "files", "sampling/__init__", "version")
    harmless = {house / f"{name}.py" for name in names}
    imported = {Path(line) for line in done.stdout.splitlines()}
    computing = {p for p in imported if not {"nano", "text"} & set(p.relative_to(house.parent).parts)} - harmless
    assert len(computing) > 40
    assert computing <= set(code_files())


def test_runs_side_by_side_are_those_of_one_after_the_other(own_cache):
    ids = PROMPTS["mixed"]()[:70]
    runs = [Pass("exact", (LIBRARY[name],), name) for name in ("no_sink", "gelu", "no_yarn")]
    runs += [Pass("ds4"), *(Pass("ds4", noise=i) for i in range(3)), Pass("f16", noise=0, louder=True)]
    path = diagnostic_path()
    with Engine.open(path, backend="cpu", numerics="exact", threads=2) as engine:
        library = Signatures(engine, ids)
        library.ahead(runs)
        assert len(library._coming) == len(runs)
        beside = [library.of(run) for run in runs]
        library.close()
    with Engine.open(path, backend="cpu", numerics="exact", threads=1) as engine:
        for run, one in zip(runs, beside, strict=True):
            again = Signatures(engine, ids)._run(run)
            np.testing.assert_array_equal(one.logprobs, again.logprobs)
            np.testing.assert_array_equal(one.margin, again.margin)
        assert Signatures(engine, ids)._path(runs[0].key).exists()


def test_what_is_no_longer_wanted_is_given_up(own_cache, monkeypatch):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact", threads=2) as engine:
        library, started = Signatures(engine, PROMPTS["mixed"]()[:40]), []
        computed = library._run

        def run(*args, **kwargs):
            started.append(args)
            if len(started) == 3:
                raise KeyboardInterrupt
            return computed(*args, **kwargs)

        monkeypatch.setattr(library, "_run", run)
        runs = [Pass("exact", noise=i) for i in range(40)]
        library.ahead(runs)
        with pytest.raises(KeyboardInterrupt):
            for one in runs:
                library.of(one)
        assert len(started) < 12
        assert library._pool is None
