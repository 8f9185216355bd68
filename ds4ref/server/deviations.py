"""Intended differences from the reference server (ds4-server), and the reason for each; all can be switched off.

All are on by default; ``About.options`` switches them: ``{"close-reasoning": False}`` restores ds4-server's behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping

DEVIATIONS = {
    "anthropic-errors": "/v1/messages answers every error in Anthropic's shape",
    "client-sampling": "temperature, top_p, top_k and min_p of a request count with thinking on, too",
    "close-reasoning": "a responses stream closes its reasoning item before anything else begins",
    "count-tokens": "/v1/messages/count_tokens is there",
    "json-keepalive": "what keeps an idle responses stream alive is an event: Codex's timer ignores comments",
    "limit-reason": "a response cut by its limit says max_output_tokens, by which clients know it is no error",
    "messages-quiet": "a request to /v1/messages that does not mention thinking gets none",
    "no-retry": "409 and 503 say x-should-retry: false where a second try would be in vain",
    "prompt-too-long": "/v1/messages says 'prompt is too long', by which Claude Code knows to compact",
    "raw-completions": "/v1/completions continues its text as it is, as OpenAI does; ds4 makes a chat of it",
    "recover-calls": "a complete call inside thinking that never ended is made",
    "tools-in-place": "tools that a search found are shown by its result: the prompt's beginning does not change",
    "system-in-place": "system texts after the first turn stay where they are: the prompt's beginning does not change",
}


def on(options: Mapping[str, bool], name: str) -> bool:
    """Return whether the deviation ``name`` is on; raises KeyError for an unknown name."""
    if name not in DEVIATIONS:
        raise KeyError(name)
    return options.get(name, True)
