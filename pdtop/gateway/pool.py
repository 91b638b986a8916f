"""What the router knows of its workers: requests in flight, health by probes, breaker by outcomes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pdtop.gateway.policies import POLICIES, Ask, Candidate

Role = Literal["prefill", "decode"]

#: Failures in a row that open a breaker, how long it stays open, successes that close it again.
BREAKER_FAILURES = 5
BREAKER_OPEN_S = 10.0
BREAKER_SUCCESSES = 2

_IDS = uuid.UUID("6f7a1f6e-54d5-4a5b-9c1c-7064746f7000")


@dataclass(slots=True)
class Breaker:
    """Closed, open, half-open: passive, from the outcomes of real requests."""

    failures: int = 0
    successes: int = 0
    opened_at: float | None = None

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        if self.opened_at is None:
            return "closed"
        return "open" if now - self.opened_at < BREAKER_OPEN_S else "half_open"

    def record(self, ok: bool, now: float) -> None:
        if ok:
            self.failures = 0
            self.successes += 1
            if self.opened_at is not None and self.successes >= BREAKER_SUCCESSES:
                self.opened_at = None
            return
        self.successes = 0
        self.failures += 1
        # A half-open breaker opens again at the first failure.
        if self.failures >= BREAKER_FAILURES or self.opened_at is not None:
            self.opened_at = now


@dataclass(slots=True)
class Probes:
    """Healthy until ``down_after`` probes in a row have failed, then until ``up_after`` have succeeded."""

    down_after: int
    up_after: int
    healthy: bool = True
    run: int = 0  # probes in a row that speak against the present state

    def record(self, ok: bool) -> None:
        if ok == self.healthy:
            self.run = 0
            return
        self.run += 1
        if self.run >= (self.up_after if ok else self.down_after):
            self.healthy = ok
            self.run = 0


@dataclass(slots=True)
class Backend:
    """One worker behind the router."""

    url: str
    role: Role
    probes: Probes
    bootstrap_port: int | None = None
    weight: float = 1.0
    drain: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    inflight: int = 0
    dispatched: int = 0
    succeeded: int = 0
    failed: int = 0
    model: str = "unknown"

    @property
    def worker_id(self) -> str:
        return str(uuid.uuid5(_IDS, self.url))

    @property
    def host(self) -> str:
        return self.url.partition("://")[2].rpartition(":")[0]

    def usable(self, now: float) -> bool:
        takes = self.probes.healthy and not self.drain and self.weight > 0
        return takes and self.breaker.state(now) != "open"

    def outcome(self, ok: bool, now: float) -> None:
        self.breaker.record(ok, now)
        if ok:
            self.succeeded += 1
        else:
            self.failed += 1

    def as_json(self, now: float) -> dict[str, object]:
        """The entry of ``GET /workers``, in smg's words plus breaker and weight."""
        status = "draining" if self.drain else "ready" if self.probes.healthy else "not_ready"
        return {
            "id": self.worker_id,
            "url": self.url,
            "model_id": self.model,
            "worker_type": self.role,
            "connection_mode": "http",
            "runtime_type": "sglang",
            "priority": 50,
            "cost": 1.0,
            "is_healthy": self.probes.healthy,
            "status": status,
            "load": self.inflight,
            "weight": self.weight,
            "breaker": self.breaker.state(now),
            "labels": {},
            **({"bootstrap_port": self.bootstrap_port} if self.role == "prefill" else {}),
        }


class Pool:
    """The workers of one role and the policy over them."""

    def __init__(self, role: Role, policy: str, backends: Iterable[Backend], seed: int | None) -> None:
        self.role = role
        self.policy = policy
        self.backends = list(backends)
        self._choose = POLICIES[policy]
        self._random = random.Random(seed)
        self._turn = 0

    def __iter__(self) -> Iterator[Backend]:
        return iter(self.backends)

    def pick(self, prefix: str, now: float, without: Sequence[Backend] = ()) -> Backend | None:
        """The worker for the next request; None if none is usable. ``without``: tried already."""
        usable = [b for b in self.backends if b.usable(now)]
        usable = [b for b in usable if b not in without] or usable
        if not usable:
            return None
        candidates = [Candidate(b.url, b.inflight, b.weight) for b in usable]
        ask = Ask(self._turn, (self._random.random(), self._random.random()), prefix)
        self._turn += 1
        chosen = self._choose(candidates, ask)
        return next(b for b in usable if b.url == chosen.url)
