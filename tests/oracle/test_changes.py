"""One thing changed in a model folder: our logits are Hugging Face's, or one line refuses it; never another model.

DS4_CHANGES=100 draws so many changes of each of the folders, DS4_CHANGES_SEED other ones.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import missing

pytestmark = pytest.mark.oracle

COUNT = int(os.environ.get("DS4_CHANGES", "17"))
SEED = int(os.environ.get("DS4_CHANGES_SEED", "0"))
FOLDERS = 11


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")
    from .changes import bases

    return list(bases(tmp_path_factory.mktemp("changes")))


@pytest.mark.parametrize("number", range(FOLDERS))
def test_a_changed_folder_is_computed_right_or_refused(number: int, folders: list[Any]) -> None:
    from .changes import verdicts

    assert len(folders) == FOLDERS and FOLDERS * 17 > 180
    found: Counter[str] = Counter()
    for change, verdict, why in verdicts(folders[number], COUNT, SEED):
        assert verdict in ("right", "refused", "unread"), (folders[number].name, change.says, verdict, why)
        found[verdict] += 1
    print(folders[number].name, dict(found))
    assert found["right"] > COUNT // 10 and found["refused"] > COUNT // 10, found


def test_the_judge_sees_a_change_that_is_passed_over(folders: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that computes what it did before, whatever is changed."""
    from . import changes

    base = folders[0]
    ids = [np.random.default_rng(0).integers(0, base.vocab, 40).tolist()]
    before = changes.ours(base.folder, ids)
    assert not isinstance(before, str)

    def set_key(key: str, value: Any) -> changes.Change:
        def make(folder: Path) -> None:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, key: value}))

        return changes.Change(key, make)

    assert changes.judge(base, set_key("rms_norm_eps", 0.5), ids, before)[0] == "right"
    assert changes.judge(base, set_key("attention_xyz", 0.5), ids, before)[0] == "refused"
    monkeypatch.setattr(changes, "ours", lambda folder, lists: before)
    assert changes.judge(base, set_key("rms_norm_eps", 0.5), ids, before)[0] == "WRONG"
    assert changes.judge(base, set_key("hidden_act", "gelu"), ids, before)[0] == "WRONG"
    assert changes.judge(base, set_key("use_cache", False), ids, before)[0] == "right"
    assert changes.judge(base, set_key("hidden_act", "no such function"), ids, before)[0] == "unread"
