"""Readings made by hand for tests of the watches: a page from a few names, loads from a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.interpret import metrics_reading
from pdtop.cluster.interpret_router import router_metrics_reading
from pdtop.cluster.model import Role, State
from pdtop.cluster.readings import (
    Answer,
    HealthReading,
    InfoReading,
    LoadRank,
    Loads,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
)
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.worker_page import WorkerPageReader

LABELS = 'model_name="m",tp_rank="0",pp_rank="0"'
LE = ("0.1", "0.2", "0.4", "1.0", "+Inf")


def page(labels: str = LABELS, /, **values: float | Mapping[str, float]) -> str:
    """A metrics page: gauges, and counters by their ``_total``; a mapping gives values by ``mode``."""
    lines: list[str] = []
    for name, value in values.items():
        lines.append(f"# TYPE sglang:{name} {'counter' if name.endswith('_total') else 'gauge'}")
        if isinstance(value, Mapping):
            lines += [f'sglang:{name}{{{labels},mode="{mode}"}} {number}' for mode, number in value.items()]
        else:
            lines.append(f"sglang:{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


def histogram(name: str, counts: Sequence[float], total: float, labels: str = LABELS) -> str:
    """Cumulative ``counts`` for the bounds of :data:`LE`."""
    lines = [f"# TYPE sglang:{name} histogram"]
    lines += [
        f'sglang:{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in zip(LE, counts, strict=True)
    ]
    lines += [f"sglang:{name}_sum{{{labels}}} {total}", f"sglang:{name}_count{{{labels}}} {counts[-1]}"]
    return "\n".join(lines) + "\n"


def answer(at: float, text: str, status: int = 200) -> Answer:
    return Answer(at, 0.01, status, {"content-type": "text/plain"}, text.encode())


def failed(at: float, state: State, words: str = "") -> Answer:
    return Answer(at, 2.0, failure=state, detail=words or str(state))


@dataclass(slots=True)
class Pages:
    """Makes readings of one worker's and one router's pages, as the poller would."""

    reader: WorkerPageReader = field(default_factory=WorkerPageReader)
    router_reader: RouterPageReader = field(default_factory=RouterPageReader)

    def read(self, at: float, text: str, status: int = 200) -> MetricsReading:
        return metrics_reading(answer(at, text, status), self.reader, KeyUse())

    def fail(self, at: float, state: State, words: str = "") -> MetricsReading:
        return metrics_reading(failed(at, state, words), self.reader, KeyUse())

    def router(self, at: float, text: str, status: int = 200) -> RouterMetricsReading:
        return router_metrics_reading(answer(at, text, status), self.router_reader, KeyUse())


def loads(
    at: float, *ranks: LoadRank, clock: float = 1000.0, role: Role = Role.UNKNOWN, version: str = "0.5.23"
) -> LoadsReading:
    return LoadsReading(at, State.OK, 200, loads=Loads(clock, version, role, ranks))


def rank(
    number: str = "0", running: float | None = 0.0, waiting: float | None = 0.0, **more: float
) -> LoadRank:
    """One rank that reported half a second before the answer's clock of 1000."""
    return LoadRank(number, more.pop("timestamp", 999.5), running, waiting, **more)


def no_loads(at: float) -> LoadsReading:
    return LoadsReading(at, State.HTTP_ERROR, 404, "404 Not Found", supported=False)


def health(at: float, ready: bool | None, state: State = State.OK, endpoint: str = "/ready") -> HealthReading:
    return HealthReading(at, endpoint, ready, state)


def info(at: float, role: Role = Role.UNKNOWN) -> InfoReading:
    return InfoReading(at, State.OK, role)
