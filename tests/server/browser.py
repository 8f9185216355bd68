"""A headless Chromium for tests, over its debugging pipe: no driver, no websocket.

with Browser(binary, folder) as browser:
    browser.open(url)
    browser.run("document.title")
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0


def binary():
    """The browser of this machine, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, program, folder):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self.reads, self.writes = ours_in, ours_out

        def pipes():
            # it reads commands from 3 and answers at 4
            high_in, high_out = os.dup(theirs_in) + 0, os.dup(theirs_out) + 0
            spare = [os.dup(fd) for fd in (high_in, high_out)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--remote-debugging-pipe", f"--user-data-dir={folder}", "--window-size=800,900"]  # fmt: skip
        self.process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.rest, self.last, self.session = b"", 0, None
        self.events = []

    def __enter__(self):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *exc):
        with suppress(OSError, AssertionError):
            self.ask("Browser.close")
        self.process.kill()
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)

    def ask(self, method, **params):
        """Send a command; its result."""
        self.last += 1
        session = {"sessionId": self.session} if self.session and not method.startswith(("Target", "Browser")) else {}
        os.write(
            self.writes, json.dumps({"id": self.last, "method": method, "params": params, **session}).encode() + b"\0"
        )
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self.rest:
                assert select.select([self.reads], [], [], max(0.0, end - time.monotonic()))[0], (
                    f"no answer to {method}"
                )
                data = os.read(self.reads, 1 << 16)
                assert data, "the browser has ended"
                self.rest += data
            line, _, self.rest = self.rest.partition(b"\0")
            said = json.loads(line)
            if said.get("id") == self.last:
                assert "error" not in said, said
                return said["result"]
            self.events.append(said)

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression, promises awaited."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script):
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.02)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def complaints(self):
        """Exceptions, errors in the log (of policies, too), and requests to other hosts."""
        self.run("1")
        bad = [one for one in self.events if one["method"] == "Runtime.exceptionThrown"]
        return bad + [
            one
            for one in self.events
            if one["method"] == "Log.entryAdded" and one["params"]["entry"]["level"] == "error"
        ]

    def asked(self):
        """The addresses of all requests."""
        return [one["params"]["request"]["url"] for one in self.events if one["method"] == "Network.requestWillBeSent"]
