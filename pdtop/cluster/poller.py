"""Asks every worker and router at its own pace; one target never waits for another."""

from __future__ import annotations

from typing import Protocol

from pdtop.cluster.readings import (
    HealthReading,
    InfoReading,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
    RouterReading,
)
from pdtop.cluster.targets import Targets, WorkerTarget


class Sink(Protocol):
    """Takes readings on the poller's loop. ``key`` is a worker's canonical key, ``name`` a router's name."""

    def metrics(self, key: str, reading: MetricsReading) -> None: ...
    def loads(self, key: str, reading: LoadsReading) -> None: ...
    def health(self, key: str, reading: HealthReading) -> None: ...
    def info(self, key: str, reading: InfoReading) -> None: ...
    def router(self, name: str, reading: RouterReading) -> None: ...
    def router_metrics(self, name: str, reading: RouterMetricsReading) -> None: ...

    def workers_changed(self, workers: tuple[WorkerTarget, ...], notices: tuple[str, ...]) -> None:
        """The workers watched from now on, in order; readings of others are no longer wanted."""


class Poller:
    """Polls until cancelled. All methods are to be called on the loop that runs it."""

    def __init__(self, targets: Targets, sink: Sink, *, seed: int = 0) -> None:
        self._targets = targets
        self._sink = sink
        self._seed = seed

    async def run(self) -> None:
        """Poll until cancelled; then close all connections."""
        raise NotImplementedError

    def apply(self, targets: Targets) -> None:
        """Watch this from now on (config reload): kept workers keep their connections and their pace."""
        raise NotImplementedError

    def set_interval(self, seconds: float) -> None:
        """Change the pace of the metrics pages; the others stay."""
        raise NotImplementedError
