"""Tests of ops that are given the CUDA backend as a parameter are marked ``cuda``."""

import pytest

from ds4ref.kernels.cuda import CUDA

from .cuda.device import cuda


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(value is cuda or value is CUDA for value in _parameters(item)):
            item.add_marker(pytest.mark.cuda)


def _parameters(item):
    return item.callspec.params.values() if hasattr(item, "callspec") else ()
