"""The list of mistakes on purpose names code that is there: trying them is by hand, and takes long."""

from __future__ import annotations

import pytest

from .faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.new.strip()[:40]}")
def test_every_mistake_has_its_place(fault) -> None:
    text = (ROOT / "kernels" / "cuda" / f"{fault.file}.py").read_text()
    assert text.count(fault.old) == 1 and fault.old != fault.new
    if ".py" in fault.by:
        assert (ROOT / "tests" / "kernels" / fault.by.split()[0]).exists()
