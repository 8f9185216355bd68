"""One handler for all APIs, over a scripted engine."""


def test_an_answer(scripted):
    scripted.engine.say("Good day.")
    answer = scripted.ask()
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == "Good day."
