"""The list of mistakes on purpose names code that is there: trying them is by hand, and takes long."""

from __future__ import annotations

from .faults import FAULTS, ROOT


def test_every_mistake_has_its_place() -> None:
    for fault in FAULTS:
        text = (ROOT / "kernels" / "cuda" / f"{fault.file}.py").read_text()
        assert text.count(fault.old) == 1 and fault.old != fault.new, fault
        assert ".py" not in fault.by or (ROOT / "tests" / "kernels" / fault.by.split()[0]).exists(), fault
