"""Counters for Prometheus. Each server has a registry of its own, so that several live in one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .turn import Event

if TYPE_CHECKING:
    from .exchange import Exchange
    from .service import Service

SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """What is counted, and the page that says it."""

    def __init__(self, service: Service):
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_State(service))
        self.requests = Counter("ds4_requests", "Requests by what they asked for and how they ended",
                                ["api", "status"], registry=registry)  # fmt: skip
        self.finished = Counter("ds4_answers", "Answers by the reason of their end", ["api", "finish"],
                                registry=registry)  # fmt: skip
        self.prompt = Counter("ds4_prompt_tokens", "Tokens of prompts, cached ones included", ["api"],
                              registry=registry)  # fmt: skip
        self.cached = Counter("ds4_cached_tokens", "Tokens of prompts that were not evaluated again", ["source"],
                              registry=registry)  # fmt: skip
        self.completion = Counter("ds4_completion_tokens", "Generated tokens", ["api"], registry=registry)
        self.reasoning = Counter("ds4_reasoning_tokens", "Generated tokens that were thought and not said", ["api"],
                                 registry=registry)  # fmt: skip
        self.seconds = {
            name: Histogram(f"ds4_{name}_seconds", text, ["api"], buckets=SECONDS, registry=registry)
            for name, text in {
                "queue": "Time in the queue",
                "prefill": "Time of evaluating prompts",
                "decode": "Time of generating",
                "first_token": "Time from the request to its first token",
                "request": "Time from the request to its end",
            }.items()
        }

    def began(self, x: Exchange) -> None:
        """Nothing to count."""

    def event(self, x: Exchange, event: Event) -> None:
        """Nothing to count before the end."""

    def ended(self, x: Exchange) -> None:
        """A turn is over."""
        api = x.api
        self.finished.labels(api, x.finish or "none").inc()
        self.prompt.labels(api).inc(x.prompt if x.prefill is not None else 0)
        if x.cached:
            self.cached.labels(x.source).inc(x.cached)
        self.completion.labels(api).inc(x.tokens)
        self.reasoning.labels(api).inc(x.usage.reasoning or 0)
        times = {"queue": x.queued, "prefill": x.prefilling, "decode": x.decoding, "request": x.lasted}
        for name, spent in times.items():
            self.seconds[name].labels(api).observe(spent)
        if x.ttft is not None:
            self.seconds["first_token"].labels(api).observe(x.ttft)

    def answered(self, api: str, status: int) -> None:
        """A request is over, whatever it asked for."""
        self.requests.labels(api, str(status)).inc()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The figures in the format that is asked for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind


class _State(Collector):
    """What is so at the moment it is asked for."""

    def __init__(self, service: Service):
        self.service = service

    def collect(self) -> Iterable[Metric]:
        """The queue, what runs, what is remembered."""
        service, worker = self.service, self.service.worker
        timelines = worker.timelines
        for name, text, value in (
            ("ds4_queue_length", "Turns that wait", len(worker.queue)),
            ("ds4_running", "Turns that are evaluated or generated", int(worker.running is not None)),
            ("ds4_timelines", "Conversations that can be gone on with, in memory", len(timelines)),
            ("ds4_timelines_bytes", "Memory that they take", timelines.nbytes),
            ("ds4_bodies_bytes", "Memory of request bodies that are being received", service.held.bytes),
            ("ds4_draining", "Whether the server is being shut down", int(service.draining)),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily("ds4_turns", "Turns that are over", value=worker.finished)
