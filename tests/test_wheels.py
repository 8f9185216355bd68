"""Wheels for a Mac and for Linux on AArch64: how they are told apart, and, asking the index, that they exist."""

from __future__ import annotations

import pytest

from . import wheels

MAC, LINUX = wheels.MAC, wheels.LINUX


@pytest.mark.parametrize(
    ("wheel", "platform", "python", "oldest"),
    [
        ("numpy-2.4.6-cp311-cp311-macosx_11_0_arm64.whl", MAC, "3.11", (11, 0)),
        ("numpy-2.4.6-cp311-cp311-macosx_11_0_arm64.whl", MAC, "3.12", None),
        ("numpy-2.4.6-cp311-cp311-macosx_11_0_arm64.whl", LINUX, "3.11", None),
        ("numpy-2.4.6-cp314-cp314t-macosx_14_0_arm64.whl", MAC, "3.14", None),  # for Python without the GIL
        ("numpy-2.4.6-cp311-cp311-macosx_10_9_x86_64.whl", MAC, "3.11", None),
        ("kiwisolver-1.5.1-cp313-cp313-macosx_10_13_universal2.whl", MAC, "3.13", (10, 13)),
        ("tokenizers-0.23.3-cp39-abi3-macosx_11_0_arm64.whl", MAC, "3.14", (11, 0)),
        ("llguidance-1.6.1-cp39-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", LINUX, "3.12", (2, 17)),
        ("x-1-cp312-cp312-manylinux_2_26_aarch64.manylinux_2_28_aarch64.whl", LINUX, "3.12", (2, 26)),
        ("x-1-cp312-cp312-manylinux2014_aarch64.whl", LINUX, "3.12", (2, 17)),
        ("x-1-cp312-cp312-musllinux_1_2_aarch64.whl", LINUX, "3.12", None),
        ("x-1-cp312-cp312-manylinux_2_28_x86_64.whl", LINUX, "3.12", None),
        ("x-1-py3-none-manylinux_2_28_aarch64.whl", LINUX, "3.12", (2, 28)),
        ("rich-15.0.0-py3-none-any.whl", LINUX, "3.12", ()),
        ("x-1-2-cp312-cp312-macosx_12_0_arm64.whl", MAC, "3.12", (12, 0)),  # with a build number
        ("x-1-cp313-abi3-macosx_11_0_arm64.whl", MAC, "3.11", None),
        ("x-1-py2-none-any.whl", MAC, "3.12", None),
        ("x-1-cp312-cp312-macosx_11_0_x86_64.macosx_12_0_arm64.whl", MAC, "3.12", (12, 0)),
    ],
)
def test_what_a_wheel_is_for(wheel: str, platform: str, python: str, oldest: tuple[int, ...] | None):
    assert wheels.system(wheel, platform, python) == oldest


LOCK = """
lock-version = "1.0"
[[packages]]
name = "rich"
version = "15.0.0"
wheels = [{ url = "https://index/a/rich-15.0.0-py3-none-any.whl" }]
[[packages]]
name = "numba"
version = "0.68.1"
wheels = [
    { url = "https://index/b/numba-0.68.1-cp312-cp312-macosx_12_0_arm64.whl" },
    { url = "https://index/b/numba-0.68.1-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl" },
]
[[packages]]
name = "scipy"
version = "1.18.1"
wheels = [
    { name = "scipy-1.18.1-cp312-cp312-macosx_14_0_arm64.whl", url = "https://index/c" },
    { name = "scipy-1.18.1-cp312-cp312-macosx_11_0_arm64.whl", url = "https://index/d" },
]
[[packages]]
name = "ds4ref"
directory = { path = "." }
"""


def test_a_lock_file_is_counted():
    mac = wheels.read(LOCK, MAC, "3.12")
    assert mac == wheels.Wheels(3, (("numba 0.68.1", (12, 0)), ("scipy 1.18.1", (11, 0))))
    assert wheels.shown(mac, MAC) == "3, of which 2 compiled, for macOS 12.0"
    linux = wheels.read(LOCK, LINUX, "3.12")
    assert linux.reason == "no wheel of scipy 1.18.1" and wheels.shown(linux, LINUX) == "**no**"


def test_neighbouring_pythons_are_told_together():
    told = [("3.11", "a"), ("3.12", "b"), ("3.13", "b"), ("3.14", "a")]
    assert list(wheels.grouped(told)) == ["3.11: a", "3.12 to 3.13: b", "3.14: a"]


def test_every_reason_is_one_of_a_set_that_there_is():
    assert set(wheels.WITHOUT) < set(wheels.SETS) and {"base", "test", "oracle", "cuda"} <= set(wheels.SETS)
    page = (wheels.ROOT / "docs" / "reference" / "platforms.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert set(wheels.SETS) <= set(rows), "the table of the page has every extra"
    assert all(reason in page for reason in wheels.WITHOUT.values())


@pytest.mark.network
@pytest.mark.parametrize("python", wheels.PYTHONS)
@pytest.mark.parametrize("platform", wheels.PLATFORMS)
@pytest.mark.parametrize("extra", wheels.SETS)
def test_every_dependency_has_a_wheel_or_a_reason(extra: str, platform: str, python: str):
    pytest.importorskip("uv", reason="needs uv: pip install uv")
    reason = wheels.resolve(extra, platform, python).reason
    assert bool(reason) == (extra in wheels.WITHOUT), reason or f"{extra} resolves now: take it out of WITHOUT"
