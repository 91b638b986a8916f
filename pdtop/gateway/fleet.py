"""Both pools under one configuration: chooses pairs, counts what is in flight, changes while it serves.

There is no I/O in here and the clock is an argument, so that any order of events can be tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pdtop.config.schema import Config, WorkerTable
from pdtop.config.schema import Pool as PoolTable
from pdtop.gateway.health import Probes
from pdtop.gateway.policies import NAMES, REMEMBERING, Pair, choose
from pdtop.gateway.pool import BOOTSTRAP_PORT, Backend, Leg, Pool, Role, url_of
from pdtop.gateway.prefixes import block_names


class CannotServe(Exception):
    """The configuration asks for something that this router does not do; the text says what."""


class NoWorker(Exception):
    """A pool has nobody who can take the request."""


class Wanted(NamedTuple):
    """One request as the choice sees it: its text, tokens to compute on prefill, to produce on decode."""

    prefix: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0


@dataclass(slots=True, eq=False)
class Dispatch:
    """One attempt: two legs and the room where the workers meet. ``pair`` says why they were chosen."""

    prefill: Leg
    decode: Leg
    room: int
    pair: Pair

    @property
    def legs(self) -> tuple[Leg, Leg]:
        return self.prefill, self.decode


def check(config: Config) -> None:
    """Raises :class:`CannotServe`."""
    for role, table in (("prefill", config.prefill), ("decode", config.decode)):
        if table.policy not in NAMES:
            raise CannotServe(f"{role}.policy = {table.policy!r}: this router has {', '.join(NAMES)}")


class Fleet:
    """See the module."""

    def __init__(self, config: Config, seed: int | None = None) -> None:
        self.prefill = Pool("prefill")
        self.decode = Pool("decode")
        self.rooms: set[int] = set()
        self._chance = random.Random(seed)
        self._rooms = random.SystemRandom()
        self.apply(config)

    @property
    def pools(self) -> tuple[Pool, Pool]:
        return self.prefill, self.decode

    def __iter__(self) -> Iterator[Backend]:
        yield from self.prefill
        yield from self.decode

    def pool_of(self, role: Role) -> Pool:
        return self.prefill if role == "prefill" else self.decode

    def apply(self, config: Config) -> None:
        """Put a configuration in force. Raises :class:`CannotServe` and then has changed nothing."""
        check(config)
        probes = Probes(config.health.unhealthy_threshold, config.health.healthy_threshold)
        for pool, table in ((self.prefill, config.prefill), (self.decode, config.decode)):
            pool.apply(table, config.load, config.topology, probes)
        self.config = config

    # ---- changes through the API: until the file is read again

    def find(self, worker_id: str) -> Backend | None:
        return next((b for b in self if b.worker_id == worker_id), None)

    def add(self, role: Role, address: str, bootstrap_port: int | None = None) -> Backend:
        """A worker that is not in the file; one that was leaving stays."""
        pool = self.pool_of(role)
        backend = pool.find(address)
        if backend is None:
            health = self.config.health
            probes = Probes(health.unhealthy_threshold, health.healthy_threshold)
            backend = Backend(url_of(address), role, probes, WorkerTable(), added_by_api=True)
            pool.add(backend)
        if role == "prefill":
            backend.bootstrap_port = bootstrap_port or backend.bootstrap_port or BOOTSTRAP_PORT
        backend.leaving = False
        return backend

    def remove(self, backend: Backend) -> None:
        self.pool_of(backend.role).remove(backend)

    def weigh(self, backend: Backend, weight: float) -> None:
        self.pool_of(backend.role).weigh(backend, weight)

    @property
    def transient(self) -> tuple[str, ...]:
        """What is not as the file says, in words."""
        found: list[str] = []
        for pool, table in ((self.prefill, self.config.prefill), (self.decode, self.config.decode)):
            found += _differences(pool, table)
        return tuple(found)

    # ---- requests

    def dispatch(self, wanted: Wanted, now: float, tried: set[Backend]) -> Dispatch:
        """Choose a pair and count the request on both. Raises :class:`NoWorker`."""
        remembers = any(pool.policy in REMEMBERING for pool in self.pools)
        names = block_names(wanted.prefix) if remembers else ()
        views = []
        for pool in self.pools:
            view, by_url = pool.view(wanted.prefix, names, self._chance, now, tried)
            if not view.candidates:
                raise NoWorker(f"no {pool.role} worker can take a request")
            views.append((view, by_url))
        (p_view, p_by_url), (d_view, d_by_url) = views
        pair = choose(p_view, d_view)
        prefill, decode = p_by_url[pair.prefill.chosen.url], d_by_url[pair.decode.chosen.url]
        self.prefill.chose(prefill, pair.prefill.chosen)
        self.decode.chose(decode, pair.decode.chosen)
        for pool, backend in ((self.prefill, prefill), (self.decode, decode)):
            if pool.policy in REMEMBERING:
                backend.prefixes.add(names)
        computed = wanted.input_tokens * (1 - pair.prefill.chosen.matched)
        return Dispatch(
            prefill.begin(computed, now), decode.begin(wanted.output_tokens, now), self._open_room(), pair
        )

    def end(self, leg: Leg, ok: bool | None, now: float) -> None:
        """A leg is over: see :meth:`Backend.end`. A leaving worker goes with its last one."""
        leg.backend.end(leg, ok, now)
        if leg.backend.leaving:
            self.pool_of(leg.backend.role).settle(leg.backend)

    def close(self, dispatch: Dispatch, now: float) -> None:
        """The attempt is over, however: what has not ended yet ends without an outcome."""
        for leg in dispatch.legs:
            self.end(leg, None, now)
        self.rooms.discard(dispatch.room)

    def _open_room(self) -> int:
        room = self._rooms.getrandbits(63)
        while room in self.rooms:
            room = self._rooms.getrandbits(63)
        self.rooms.add(room)
        return room


def _differences(pool: Pool, table: PoolTable) -> Iterator[str]:
    listed = {url_of(text) for text in table.workers}
    for backend in pool:
        settings = backend.settings
        if backend.url in listed and backend.leaving:
            yield f"{backend.url} was removed through the API"
        elif backend.url not in listed and not backend.leaving:
            yield f"{backend.url} was added through the API"
        elif not backend.leaving:
            if backend.drain != settings.drain:
                yield f"{backend.url} {'drains' if backend.drain else 'does not drain'} because of the API"
            if backend.weight != settings.weight:
                yield f"{backend.url} has weight {backend.weight:g} because of the API"
    for url in sorted(listed - {b.url for b in pool}):
        yield f"{url} was removed through the API"
