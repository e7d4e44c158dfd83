"""What Prometheus is told, under names that begin with `statewell_`.

Counters are written by the engine's thread; bytes and requests are asked of the engine when they are collected, so that
they are its own figures to the byte.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from statewell.engine.request import Gauges, TokenEvent

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        at = self._registry
        self._requests = Counter("statewell_requests", "Requests that ended, by how.", ["finish"], registry=at)
        self._refused = Counter(
            "statewell_refused", "Requests answered with an error, by status.", ["status"], registry=at
        )
        self._tokens = Counter("statewell_tokens", "Tokens: read, reused or generated.", ["kind"], registry=at)
        self._missed = Counter("statewell_reuse_missed", "Prompts not all reused, by why.", ["reason"], registry=at)
        self._first = Histogram(
            "statewell_first_token_seconds", "From request to token.", buckets=_SECONDS, registry=at
        )
        self._each = Histogram(
            "statewell_token_seconds", "From token to token of a choice.", buckets=_SECONDS, registry=at
        )
        self._bytes = Gauge("statewell_memory_bytes", "Conversations' memory.", ["measure", "kind"], registry=at)
        self._allocated = Gauge("statewell_allocated_bytes", "Of the device, or the process on a CPU.", registry=at)
        self._now = Gauge("statewell_requests_now", "Requests here now.", ["state"], registry=at)
        self._rows = Gauge("statewell_rows", "Conversations with a row of memory now.", registry=at)

    def took(self, event: TokenEvent, seconds: tuple[float, bool] | None) -> None:
        """Count one event. seconds: since the request came or the choice's token before, and which of the two."""
        if seconds is not None:
            (self._first if seconds[1] else self._each).observe(seconds[0])
        if event.usage is not None:
            reuse = event.usage.reuse
            self._tokens.labels("generated").inc(event.usage.generated)
            self._tokens.labels("reused").inc(reuse.tokens)
            self._tokens.labels("read").inc(event.usage.prompt - reuse.tokens)
            if reuse.missed is not None:
                # one series for each reason, not for each place
                self._missed.labels(re.sub(r" (at|past) token \d+", "", reuse.missed)).inc()

    def ended(self, finish: str) -> None:
        """Count a request that is over."""
        self._requests.labels(finish).inc()

    def refused(self, status: int) -> None:
        """Count an answer that is an error."""
        self._refused.labels(str(status)).inc()

    def page(self, gauges: Gauges, device: torch.device) -> bytes:
        """All figures in Prometheus's text format. gauges: of now. device: the model's."""
        for measure, kinds in (("used", gauges.used), ("reserved", gauges.reserved)):
            for kind, count in kinds.items():
                self._bytes.labels(measure, kind).set(count)
        states = {"running": gauges.running, "waiting": gauges.waiting, "set_aside": gauges.set_aside}
        for state, count in states.items():
            self._now.labels(state).set(count)
        self._rows.set(gauges.rows)
        self._allocated.set(_allocated(device))
        return generate_latest(self._registry)


def _allocated(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the most so far, where the present is not told
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
