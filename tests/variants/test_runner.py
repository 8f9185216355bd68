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
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.forced import resumed
from ds4ref.variants.runner import Runner, code_files
from ds4ref.variants.scoped import ScopedFault, first_half, scopes


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


def test_a_run_that_begins_where_its_fault_does_is_the_whole_run() -> None:
    """Logits and margins are equal to the last bit, for faults of every half layer and region, and an earlier start of
    a fault in a later half would have been noticed."""
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact", threads=1) as engine:
        runner, shape, ids = Runner(engine), engine.shape, PROMPTS["text"]()[:56]
        names = ("no_sink", "row_late", "router_softmax", "no_ape", "indexer_all", "no_clamp_shared")
        faults = [LIBRARY[name] for name in names]
        faults += [FAMILIES[name].fault(1.25) for name in ("logit_scale", "shared_scale", "ape_scale")]
        faults += [ScopedFault(LIBRARY["router_softmax"], part, where) for part, where in scopes(shape).items()]
        halves = {first_half(fault, shape) for fault in faults}
        assert {0, 1, 4, 2 * shape.n_layers} < halves, halves
        for fault in faults:
            runner.small = False
            whole = runner.run(ids, "exact", [fault])
            runner.small = True
            for a, b in zip(whole, runner.run(ids, "exact", [fault]), strict=True):
                np.testing.assert_array_equal(a, b, fault.name)
        model = runner._model("exact", False)
        _, streams = resumed(model, ids, None)
        late, _ = resumed(model, ids, LIBRARY["no_sink"].hooks(), 1, streams[1])
        assert not np.array_equal(late, runner.run(ids, "exact", [LIBRARY["no_sink"]])[0])
