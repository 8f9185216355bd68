"""The two pages: what they are served with, and, where there is a Chromium, what a browser does with the chat."""

from __future__ import annotations

import json
import os
import re

import pytest

from ds4ref.server.auth import Access
from ds4ref.server.service import Settings

from . import browser
from .browser import Browser

PAGES = ["/", "/watch"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_one_file_that_reaches_nobody_else(scripted, path):
    answer = scripted.client.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|//[a-z]+\.", answer.text.replace("http://www.w3.org/", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\son\w+=", answer.text)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', answer.text)) <= {"data:,", "watch", "status", "."}


def test_the_chat_is_small(scripted):
    assert len(scripted.client.get("/").text.splitlines()) < 200


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    program = browser.binary()
    if program is None:
        pytest.skip("no Chromium here")
    with Browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(chromium):
    """A browser that has asked nothing yet."""
    chromium.events.clear()
    yield chromium
    chromium.run("sessionStorage.clear()")


def say(page, text):
    page.run(f"document.getElementById('prompt').value = {json.dumps(text)}; document.getElementById('send').click()")


def done(page):
    page.until("document.getElementById('stop').hidden")


ANSWERS = "[...document.querySelectorAll('article:not(.user)')].map(a => a.querySelector('.text').textContent)"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> é🚲 & more"


def test_a_conversation(scripted, page):
    """Pieces appear as they come, markup stays text, and the next question has what was said before."""
    page.open(scripted.url)
    page.until("document.getElementById('model').textContent.includes('tokens')")
    scripted.engine.say(HOSTILE, "Twice.")
    say(page, "<b>Hi</b>")
    done(page)
    assert page.run(ANSWERS) == [HOSTILE]
    assert page.run("document.querySelector('article.user').textContent") == "<b>Hi</b>"
    assert page.run("document.querySelectorAll('article img, article script, article b').length") == 0
    assert "tokens" in page.run("document.querySelector('article:not(.user) > .soft').textContent")
    say(page, "Again")
    done(page)
    assert page.run(ANSWERS) == [HOSTILE, "Twice."]
    assert page.run("messages.map(m => m.role).join()") == "user,assistant,user,assistant"
    page.run("document.getElementById('fresh').click()")
    assert page.run("messages.length + document.querySelectorAll('article').length") == 0
    assert page.run("document.title") == "deepseek-v4-flash \u00b7 ds4-server" and page.complaints() == []
    assert all(url.startswith((scripted.url, "data:")) for url in page.asked())


def test_thinking_is_folded(scripted, page, tmp_path):
    page.open(scripted.url)
    scripted.engine.say("I think <b>hard</b>.</think>Done.")
    page.run("document.getElementById('think').checked = true")
    say(page, "Think")
    done(page)
    assert page.run(ANSWERS) == ["Done."]
    assert page.run("document.querySelector('details pre').textContent") == "I think <b>hard</b>."
    assert page.run("document.querySelector('details').open") is False
    assert page.run("messages[1].content") == "Done."
    page.picture(tmp_path / "chat.png")
    if os.environ.get("DS4_TEST_PICTURES"):
        page.picture(__import__("pathlib").Path(os.environ["DS4_TEST_PICTURES"]) / "chat.png")


def test_stop(scripted, page):
    """The button ends the answer on the server, too; what came so far stays and is part of the conversation."""
    page.open(scripted.url)
    scripted.engine.say("one two three four five six seven eight nine ten " * 20)
    scripted.engine.hold()
    say(page, "Count")
    scripted.engine.step(12)
    page.until(f"({ANSWERS})[0].startsWith('one two')")
    assert page.run("document.getElementById('send').disabled")
    page.run("document.getElementById('stop').click()")
    done(page)
    scripted.engine.release()
    scripted.until(lambda: not scripted.worker.running)
    (said,) = page.run(ANSWERS)
    assert said.startswith("one two") and page.run("messages[1].content") == said
    assert page.run("document.querySelector('article:not(.user) > .soft').textContent") == "stopped"


def test_a_key(serving, page):
    """It is asked for where it is needed, and sent with every request."""
    server = serving(settings=Settings(access=Access(key="secret")))
    page.open(server.url)
    page.until("!document.getElementById('locked').hidden")
    say(page, "Hi")
    done(page)
    assert page.run("document.querySelector('article.bad > .soft').textContent") == "a valid API key is needed"
    assert page.run("messages.length") == 0
    page.run("document.getElementById('key').value = 'secret'; document.getElementById('key').onchange()")
    page.until("document.getElementById('model').textContent.includes('tokens')")
    say(page, "Hi")
    done(page)
    assert page.run(ANSWERS)[-1] == "Hello there, friend."


def test_errors_are_told(scripted, page):
    page.open(scripted.url)
    say(page, "word " * 5000)
    done(page)
    assert "context size" in page.run("document.querySelector('article.bad > .soft').textContent")
    say(page, "Hi")
    done(page)
    assert page.run(ANSWERS)[-1] == "Hello there, friend." and page.run("messages.length") == 2
