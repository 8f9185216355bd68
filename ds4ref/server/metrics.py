"""Prometheus metrics. Each server has its own registry, so that one process can run several servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .exchange import Watcher

if TYPE_CHECKING:
    from .exchange import Exchange

SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Bucket bounds of the time histograms in seconds."""
GAUGES = {
    "ds4_queue_length": "Turns that wait",
    "ds4_running": "Turns that are evaluated or generated",
    "ds4_sequences": "Conversations that can be gone on with, in memory",
    "ds4_sequences_bytes": "Memory that they take",
    "ds4_sequences_limit_bytes": "Memory that they may take (--memory-mb); the oldest leave first",
    "ds4_bodies_bytes": "Memory of request bodies that are being received",
    "ds4_draining": "Whether the server is being shut down",
}
COUNTERS = {
    "ds4_turns": "Turns that are over",
    "ds4_drafted_tokens": "Tokens that were guessed, to be evaluated with the next one",
    "ds4_accepted_tokens": "Guessed tokens that were right",
}

COUNTED = {
    "requests": ("Requests by what they asked for and how they ended", "api", "status"),
    "answers": ("Answers by the reason of their end", "api", "finish"),
    "prompt_tokens": ("Tokens of prompts, cached ones included", "api"),
    "cached_tokens": ("Tokens of prompts that were not evaluated again", "source"),
    "completion_tokens": ("Generated tokens", "api"),
    "reasoning_tokens": ("Generated tokens that were thought and not said", "api"),
}
"""Counters of finished turns: the help text, then the names of the labels."""

State = Callable[[], Mapping[str, float]]
"""Type of a function that returns the current value of each of GAUGES and COUNTERS, by name."""


class Metrics(Watcher):
    """Watcher that counts turns and their tokens and times."""

    def __init__(self, state: State):
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Gauges(state))
        self.counters = {
            name: Counter(f"ds4_{name}", text, labels, registry=registry) for name, (text, *labels) in COUNTED.items()
        }
        self.seconds = {
            name: Histogram(f"ds4_{name}_seconds", text, ["api"], buckets=SECONDS, registry=registry)
            for name, text in {
                "queue": "Time in the queue",
                "prefill": "Time of evaluating prompts",
                "decode": "Time of generating",
                "first_token": "Time from the request to the first token that its client can see",
                "request": "Time from the request to its end",
            }.items()
        }

    def ended(self, x: Exchange) -> None:
        """Add a finished turn's tokens, times and finish reason to the metrics."""
        api = x.api
        counters = self.counters
        counters["answers"].labels(api, x.finish or "none").inc()
        counters["prompt_tokens"].labels(api).inc(x.prompt if x.prefill is not None else 0)
        if x.cached:
            counters["cached_tokens"].labels(x.source).inc(x.cached)
        counters["completion_tokens"].labels(api).inc(x.tokens)
        counters["reasoning_tokens"].labels(api).inc(x.usage.reasoning or 0)
        for name, spent in {**x.times, "request": x.lasted}.items():
            self.seconds[name].labels(api).observe(spent)
        if x.ttft is not None:
            self.seconds["first_token"].labels(api).observe(x.ttft)

    def answered(self, api: str, status: int) -> None:
        """Count a finished HTTP request by endpoint name and status."""
        self.counters["requests"].labels(api, str(status)).inc()

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return (metrics, content type) in the format that the header value ``accept`` requests."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind


class _Gauges(Collector):
    """Collector of the values that are read from the server whenever Prometheus asks for the metrics."""

    def __init__(self, state: State):
        self.state = state

    def collect(self) -> Iterable[Metric]:
        """Yield gauges and counters."""
        values = self.state()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=values[name])
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=values[name])
