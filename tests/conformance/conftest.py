"""The servers of tests/server, as targets of the tester."""

from tests.server.conftest import scripted, server, serving

__all__ = ["scripted", "server", "serving"]
