"""Asks one router: finds out which kind it is and where its metrics are, then reads it round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pdtop.cluster.address import Address
from pdtop.cluster.answers import KeyUse
from pdtop.cluster.http import Dialler
from pdtop.cluster.interpret_router import METRICS_FIX, NO_ROUTE, router_metrics_reading, router_reading
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer, RouterMetricsReading, RouterReading
from pdtop.cluster.targets import PollSettings, RouterTarget, listed_address
from pdtop.metrics.router_page import RouterNumbers, RouterPageReader
from pdtop.routers import detect
from pdtop.routers.dialect import METRICS_PORT, Dialect, read_version

METRICS = "/metrics"
HEALTH = "/health"
SEARCH_AGAIN_S = 30.0  # for the metrics page, while none is found


class RouterClient:
    """One router. Every ``read`` is one round; nothing is repeated within a round."""

    def __init__(self, target: RouterTarget, dialler: Dialler, settings: PollSettings) -> None:
        self.target = target
        self._dialler = dialler
        self._settings = settings
        engine = {"embedded": "pdtop"}.get(target.engine or "", target.engine or "")
        self._dialect = detect.DIALECTS.get(engine, detect.UNKNOWN)
        self._known = engine in detect.DIALECTS
        self._probed = False
        self._list_at = 0  # which of the dialect's list paths answers
        self._loads: Mapping[str, float | None] | None = None
        self._loads_due = 0.0
        self._version: str | None = None
        self._worker_keys: frozenset[str] = frozenset()
        self._metrics_at = target.metrics
        self._search_due = 0.0
        self._page = RouterPageReader()

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics page is, once it is known."""
        return self._metrics_at.metrics_url if self._metrics_at is not None else None

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    async def read(self) -> RouterReading:
        """Worker list, readiness and, when due, loads."""
        listed, ready = await asyncio.gather(self._list(), self._ready())
        alive: bool | None = None
        if listed.status is not None or (ready is not None and ready.status is not None):
            if not self._known:
                await self._find_out(listed)
            alive = ready is not None and ready.status == 200
            if not alive:
                alive = (await self._get(HEALTH)).status == 200
            await self._read_loads()
        elif not self.target.engine:  # another kind may come up in its place
            self._known = self._probed = False
        reading = router_reading(
            listed,
            ready,
            alive=alive,
            dialect=self._dialect,
            keys=self._keys,
            loads=self._loads,
            version=self._version,
        )
        addresses = (listed_address(worker.url, self.target.address) for worker in reading.workers or ())
        keys = frozenset(address.key for address in addresses if address is not None)
        if keys != self._worker_keys:  # it has just come up, or its page can be told from another's now
            self._worker_keys, self._search_due = keys, 0.0
            if not self._loads:
                self._loads_due = 0.0
        return reading

    async def read_metrics(self) -> RouterMetricsReading:
        """The metrics page: at the address given, else where it is usually found."""
        if self._metrics_at is not None:
            answer = await self._dialler.get(
                self._metrics_at, METRICS, timeout_s=self._settings.timeout_s, key=self._settings.key
            )
            reading = router_metrics_reading(answer, self._page, self._metrics_keys)
        else:
            reading = await self._search()
        if reading.numbers is not None and reading.numbers.family:
            self._become(detect.by_metrics(reading.numbers.family, self._dialect))
        return reading

    async def _list(self) -> Answer:
        paths = self._dialect.list_paths
        answer = await self._get(paths[min(self._list_at, len(paths) - 1)])
        if answer.status in NO_ROUTE and len(paths) > 1:  # ask at the other place from the next round on
            self._list_at = (self._list_at + 1) % len(paths)
        return answer

    async def _ready(self) -> Answer | None:
        path = self._dialect.ready_path
        return await self._get(path) if path is not None else None

    async def _find_out(self, listed: Answer) -> None:
        found = detect.by_list(listed)
        if found is None and not self._probed:
            self._probed = True
            found = detect.by_probe(await self._get(detect.PROBE))
        if found is not None:
            self._become(found)
            self._known = found.engine != "vllm-router"  # its metrics may still tell that it is the ancestor

    def _become(self, dialect: Dialect) -> None:
        if dialect is not self._dialect:
            self._dialect = dialect
            self._loads_due = 0.0

    async def _read_loads(self) -> None:
        path, every = self._dialect.loads_path, self._dialect.loads_every_s
        now = asyncio.get_running_loop().time()
        if path is None or every is None or now < self._loads_due:
            return
        self._loads_due = now + every
        answer = await self._get(path)
        if answer.status != 200 or answer.failure is not None:
            if answer.status in NO_ROUTE:
                self._loads = None
            return
        self._loads = self._dialect.loads(answer.body)
        told = read_version(answer.body)
        self._version = told[1] if told is not None else None
        if not self._known:
            found = detect.by_loads(answer)
            if found is not None:
                self._become(found)
                self._loads_due = now + (found.loads_every_s or every)
                self._known = True

    async def _search(self) -> RouterMetricsReading:
        """Look at the usual places; a page counts if it is a router's and not visibly another one's."""
        now = asyncio.get_running_loop().time()
        main = self.target.address
        port = self._dialect.metrics_port if self._known else METRICS_PORT
        places = [metrics_place(main, port), main] if port is not None else [main]
        words = "no metrics page at " + " or ".join(place.shown_as for place in places)
        if now < self._search_due:
            return RouterMetricsReading(now, State.METRICS_DISABLED, None, words, METRICS_FIX)
        for place in places:
            answer = await self._dialler.get(
                place,
                METRICS,
                timeout_s=self._settings.timeout_s,
                key=self._settings.key if place is main else None,  # who listens elsewhere is a guess
            )
            reading = router_metrics_reading(answer, self._page, self._metrics_keys)
            numbers = reading.numbers
            if numbers is None or not numbers.family:
                continue
            if not self._is_ours(numbers):
                words = f"the page at {place.shown_as} is another router's"
                continue
            self._metrics_at = place
            return reading
        self._search_due = now + SEARCH_AGAIN_S
        return RouterMetricsReading(now, State.METRICS_DISABLED, None, words, METRICS_FIX)

    def _is_ours(self, numbers: RouterNumbers) -> bool:
        """False if the page speaks of workers and none of them is on this router's list."""
        addresses = (listed_address(name, self.target.address) for name in numbers.workers)
        keys = {address.key for address in addresses if address is not None}
        return not keys or not self._worker_keys or not keys.isdisjoint(self._worker_keys)

    async def _get(self, path: str) -> Answer:
        settings = self._settings
        return await self._dialler.get(
            self.target.address, path, timeout_s=settings.timeout_s, key=settings.admin_key or settings.key
        )

    @property
    def _keys(self) -> KeyUse:
        settings = self._settings
        admin = settings.admin_key_variable
        if settings.admin_key is not None:
            return KeyUse(admin, True, admin)
        return KeyUse(settings.key_variable, settings.key is not None, admin)

    @property
    def _metrics_keys(self) -> KeyUse:
        return KeyUse(self._settings.key_variable, self._settings.key is not None)


def metrics_place(address: Address, port: int = METRICS_PORT) -> Address:
    """The usual place of a router's metrics page."""
    return Address("http", address.host, port)
