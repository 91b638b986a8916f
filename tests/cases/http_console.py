"""The product behind a case of kind http: the poller's readings on the board, and what became of each row."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

from pdtop.cluster.board import Board
from pdtop.cluster.model import Worker
from pdtop.cluster.period import Span
from pdtop.cluster.poller import Poller
from pdtop.cluster.readings import (
    HealthReading,
    InfoReading,
    LoadsReading,
    MetricsReading,
    RouterMetricsReading,
    RouterReading,
)
from pdtop.cluster.targets import Targets, WorkerTarget
from tests.cases.look import Extra
from tests.cases.values import mismatch

LONGEST_STORY_S = 600.0
WINDOW_S = 30.0


@dataclass(slots=True)
class Console:
    """The product's board behind the poller, and what became of each row in the course of the run."""

    targets: Targets
    board: Board
    began: float
    keys: tuple[str, ...] | None = None  # of the workers that are watched; None: not announced yet
    metrics_polls: dict[str, list[float]] = field(default_factory=dict)
    loads_polls: dict[str, int] = field(default_factory=dict)
    router_polls: dict[str, int] = field(default_factory=dict)
    router_pages: dict[str, int] = field(default_factory=dict)
    states: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def tick(self, poller: Poller) -> None:
        """What the screen does once a second."""
        while True:
            self.board.metrics_urls(poller.metrics_url)
            self.board.snapshot(self.now, self.now, WINDOW_S)
            await asyncio.sleep(1.0)

    async def wait(self) -> None:
        self._news.clear()
        async with asyncio.timeout(LONGEST_STORY_S):
            await self._news.wait()

    def polled(self, times: int) -> bool:
        """Whether everybody that is watched now was polled so often, and once for its loads."""
        routers = [router.name for router in self.targets.routers]
        return (
            self.keys is not None
            and all(self.router_polls.get(name, 0) >= times for name in routers)
            and all(name in self.router_pages for name in routers)
            and all(len(self.metrics_polls.get(key, ())) >= times for key in self.keys)
            and all(key in self.loads_polls for key in self.keys)
        )

    def beside(self, worker: Worker, state: object, span: Span) -> Extra:
        watch = self.board.worker(worker.key)
        polls = [*self.metrics_polls.get(worker.key, ()), self.now]
        states = self.states.get(worker.key, [])
        words = [word for _, word in states]
        shown = next((at - self.began for at, word in states if mismatch(state, word) is None), None)
        return Extra(
            period=watch.period(span) if watch is not None else None,
            flaps=sum(before == "ok" != after for before, after in pairwise(words)),
            updated_every_s=max((after - before for before, after in pairwise(polls)), default=None),
            state_shown_after_s=shown,
        )

    def _note(self, key: str) -> None:
        watch = self.board.worker(key)
        if watch is not None:
            state = watch.view(self.now, WINDOW_S).state
            if state is not None:
                self.states.setdefault(key, []).append((self.now, state))
        self._news.set()

    # The poller's sink

    def metrics(self, key: str, reading: MetricsReading) -> None:
        self.board.metrics(key, reading)
        self.metrics_polls.setdefault(key, []).append(self.now)
        self._note(key)

    def loads(self, key: str, reading: LoadsReading) -> None:
        self.board.loads(key, reading)
        self.loads_polls[key] = self.loads_polls.get(key, 0) + 1
        self._note(key)

    def health(self, key: str, reading: HealthReading) -> None:
        self.board.health(key, reading)
        self._note(key)

    def info(self, key: str, reading: InfoReading) -> None:
        self.board.info(key, reading)
        self._news.set()

    def router(self, name: str, reading: RouterReading) -> None:
        self.board.router(name, reading)
        self.router_polls[name] = self.router_polls.get(name, 0) + 1
        self._news.set()

    def router_metrics(self, name: str, reading: RouterMetricsReading) -> None:
        self.board.router_metrics(name, reading)
        self.router_pages[name] = self.router_pages.get(name, 0) + 1
        self._news.set()

    def workers_changed(self, workers: tuple[WorkerTarget, ...], notices: tuple[str, ...]) -> None:
        self.board.workers_changed(workers, notices)
        self.keys = tuple(worker.key for worker in workers)
        self._news.set()
