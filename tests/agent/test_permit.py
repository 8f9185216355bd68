"""What may be done without a question."""

from __future__ import annotations

import pytest

from ds4ref.agent.permit import GROUPS, TOOLS, Answer, Permit, Question, group_of, tools_of
from ds4ref.agent.workspace import ToolError
from ds4ref.errors import UsageError


def test_names_of_tools_and_groups() -> None:
    assert tools_of("read,edit") == {"read", "list", "search", "edit", "write"}
    assert tools_of(" bash , list") == {"bash", "list"} and tools_of("") == tools_of(",") == set()
    assert tools_of(",".join(GROUPS)) == set(TOOLS)
    assert [group_of(tool) for tool in TOOLS] == ["read"] * 3 + ["edit"] * 2 + ["bash"]
    for bad in ("all", "read;edit", "Read", "read,rm"):
        with pytest.raises(UsageError, match="choose from read, list, search, edit, write, bash"):
            tools_of(bad)


def test_what_is_allowed_is_not_asked_for() -> None:
    permit = Permit({"read"}, ask=lambda question: pytest.fail("asked"))
    permit(Question("read", "read a"))


def test_what_nobody_can_be_asked_for_is_denied_at_once() -> None:
    with pytest.raises(ToolError, match="edit was not allowed beforehand"):
        Permit({"read"}).check("edit")
    Permit({"read"}).check("read")
    Permit(ask=lambda question: Answer.NO).check("edit")


def test_always_is_for_the_group_and_no_other() -> None:
    asked = []
    answers = iter([Answer.ALWAYS, Answer.YES, Answer.NO])

    def ask(question: Question) -> Answer:
        asked.append(question.tool)
        return next(answers)

    permit = Permit(ask=ask)
    permit(Question("edit", "edit a"))
    permit(Question("write", "write a"))
    permit(Question("bash", "run"))
    with pytest.raises(ToolError, match="permission denied: the user said no to this bash call"):
        permit(Question("bash", "run"))
    assert asked == ["edit", "bash", "bash"]
