"""Chat templates: what they render, and that none of them can hurt."""

from __future__ import annotations

import json
import os

import pytest

from ds4ref.errors import TextError
from ds4ref.text import limited, limited_worker
from ds4ref.text.template import ChatTemplate
from tests.marking import sampled

CHATML = """{%- if tools %}
<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界"}]


def test_a_conversation():
    template = ChatTemplate(CHATML)
    start = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße, 世界<|im_end|>\n"
    assert template.render(TALK) == start + "<|im_start|>assistant\n"
    assert template.render(TALK, answer=False) == start
    assert template.render(TALK, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    tool = {"name": "größer", "n": [1, None]}
    assert json.dumps(tool, ensure_ascii=False) in template.render(TALK, tools=[tool])


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "system"),
        ("{% generation %}{{ messages[1]['content'][:5] }}{% endgeneration %}", "Grüße"),
        ("{% for i in range(3) %}\n    {{- i }}\n{% endfor %}", "0\n1\n2\n"),
        ("{{ {'a': '<é>'} | tojson }} {{ [1] | tojson(indent=1) }}", '{"a": "<é>"} [\n 1\n]'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}", "3"),
        ("{{ missing }}{{ messages[0].content.strip().upper() }}", "BE BRIEF."),
        ("", ""),
    ],
)
def test_what_templates_rely_on(source, want):
    assert ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(TALK) == want


REFUSED = {
    "a syntax error": ("{% for %}", "TemplateSyntaxError"),
    "its own refusal": ("{{ raise_exception('roles\nmust\nalternate') }}", "roles must alternate"),
    "the root of all objects": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "globals by attribute": ("{{ raise_exception.__globals__['sys'] }}", "SecurityError"),
    "an open file": ("{{ open('/etc/passwd').read() }}", "UndefinedError"),
    "changing a message": ("{{ messages.append(1) }}", "SecurityError"),
    "a long range": ("{% for i in range(10 ** 9) %}x{% endfor %}", "OverflowError"),
    "much output": ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "more than 16777216 characters"),
    "doubling": (
        "{% set s = namespace(x='ab') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "memory|not done"),
    "recursion": ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recurses"),
    "loops in loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}", "not done"),
}  # fmt: skip


@pytest.mark.parametrize("case", sampled(REFUSED, 3))
def test_a_hostile_template_is_one_line(case):
    source, match = REFUSED[case]
    template = ChatTemplate(source, seconds=2.0)
    with pytest.raises(TextError, match=match) as caught:
        template.render(TALK)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_process_that_was_killed_is_replaced_and_the_last_one_ends_with_its_template():
    template = ChatTemplate("ok")
    assert template.render(TALK) == "ok"
    os.kill(template._process._process.pid, 9)
    template._process._process.wait()
    assert template.render(TALK) == "ok"
    process = template._process._process
    del template
    assert process.wait(300) is not None


def test_after_ctrl_c_or_in_vain_the_next_text_gets_its_own_answer(monkeypatch):
    """Not the one that the process was still making."""
    template = ChatTemplate("{{ messages[0].content }}")
    for stop in (KeyboardInterrupt, TextError("not done")):
        with monkeypatch.context() as patch:

            def stopped(*_, stop=stop):
                raise stop

            patch.setattr(limited.select, "select", stopped)
            with pytest.raises(BaseException, match="not done|^$"):
                template.render([{"role": "user", "content": "first"}])
        assert template.render([{"role": "user", "content": "second"}]) == "second"


def test_the_worker_says_what_went_wrong_without_a_process():
    def rendered(template, limit, **variables):
        opened = limited_worker.answer({"do": "template", "template": template, "limit": limit})
        return opened or limited_worker.answer({"do": "render", "variables": variables})

    assert rendered("{{ x }}", 10, x="é") == {"text": "é"}
    assert "more than 2 characters" in rendered("{{ x }}", 2, x="long")["error"]
    assert "TemplateSyntaxError" in rendered("{% for %}", 2)["error"]


def test_an_error_does_not_reach_the_terminal_raw():
    with pytest.raises(TextError, match="failed: .*red") as caught:
        ChatTemplate("{{ raise_exception('\x1b[31mred\x9b2J\u202e') }}").render(TALK)
    assert str(caught.value).isprintable() and "\\x1b[31mred\\x9b2J\\u202e" in str(caught.value)
