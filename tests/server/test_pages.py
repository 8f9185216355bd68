"""The two pages: what they are served with."""

from __future__ import annotations

import re

import pytest

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
