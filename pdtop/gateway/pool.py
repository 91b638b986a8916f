"""The router's view of its workers: who is there, what each has in flight, whom the policy may choose."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pdtop.config.schema import LoadWeights, Topology, WorkerTable, node_key
from pdtop.config.schema import Pool as PoolTable
from pdtop.gateway.health import Breaker, Probes
from pdtop.gateway.loads import FRESH_S, Report, load_of
from pdtop.gateway.policies import REMEMBERING, Ask, Candidate, Rules, View, turn_after
from pdtop.gateway.prefixes import PrefixTree

Role = Literal["prefill", "decode"]

#: What a weight counts as at least and at most: 1/weight and sums of weights must stay numbers.
LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9

BOOTSTRAP_PORT = 8998  # SGLang's --disaggregation-bootstrap-port default

_IDS = uuid.UUID("6f7a1f6e-54d5-4a5b-9c1c-7064746f7000")
_REPORTS_APART = (
    3  # reports whose time may hold what a report counts: it is up to 1.2 s old, polls are 1 s apart
)


def url_of(address: str) -> str:
    """How a worker is dialled, for any spelling of its address."""
    scheme = address.strip().lower().partition("://")[0] if "://" in address else "http"
    return f"{scheme}://{node_key(address)}"


@dataclass(slots=True, eq=False)
class Leg:
    """One dispatch to one worker, from its begin to its end. ``limit`` ends the wait for the worker."""

    backend: Backend
    began: float
    tokens: float  # not yet computed (prefill) or produced (decode), as far as known
    trial: bool  # sent to find out whether an open breaker may close
    limit: asyncio.Timeout | None = None
    streaming: bool = False  # the client has been told something
    ended: bool = False

    def progress(self, tokens: float) -> None:
        done = min(tokens, self.tokens)
        self.tokens -= done
        self.backend.tokens -= done


@dataclass(slots=True, eq=False)
class Backend:
    """One worker behind the router.

    ``drain`` is wanted by file or API; ``leaving``: it was removed and goes when its last request has ended.
    """

    url: str
    role: Role
    probes: Probes
    settings: WorkerTable = field(default_factory=WorkerTable)
    drain: bool = False
    weight: float = 1.0
    bootstrap_port: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    priority: int = 50
    cost: float = 1.0
    key: str | None = field(default=None, repr=False)  # given through the API; secret
    added_by_api: bool = False
    leaving: bool = False
    gone: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    inflight: int = 0
    tokens: float = 0.0
    trials: int = 0
    dispatched: int = 0
    succeeded: int = 0
    failed: int = 0
    turn: float = 0.0
    model: str = "unknown"
    report: Report | None = None
    prefixes: PrefixTree = field(default_factory=PrefixTree)
    legs: set[Leg] = field(default_factory=set)
    _peak: int = 0
    _peaks: deque[int] = field(default_factory=lambda: deque(maxlen=_REPORTS_APART))

    @property
    def worker_id(self) -> str:
        return str(uuid.uuid5(_IDS, f"{self.role} {self.url}"))

    @property
    def host(self) -> str:
        """The name under which decode workers find it: without port, IPv6 without brackets."""
        return self.url.partition("://")[2].rpartition(":")[0].strip("[]")

    @property
    def draining(self) -> bool:
        return self.drain or self.leaving

    def usable(self, now: float) -> bool:
        """It may get a new request now; a half-open breaker lets one through at a time."""
        if not self.probes.healthy or self.draining or self.weight <= 0:
            return False
        state = self.breaker.state(now)
        return state == "closed" or (state == "half_open" and not self.trials)

    @property
    def status(self) -> str:
        return "draining" if self.draining else "ready" if self.probes.healthy else "not_ready"

    def load(self, weights: LoadWeights, now: float) -> float:
        fresh = self.report is not None and now - self.report.at <= FRESH_S and not self.report.stuck
        return load_of(weights, self.inflight, self.tokens, self.report if fresh else None)

    def reported(self, report: Report | None) -> None:
        """A new answer of ``/v1/loads``; None: it could not be read."""
        self._peaks.append(max(self._peak, self.inflight))
        self._peak = self.inflight
        self.report = replace(report, ours=max(self._peaks)) if report else None

    def begin(self, tokens: float, now: float) -> Leg:
        trial = self.breaker.state(now) == "half_open"
        leg = Leg(self, now, tokens, trial)
        self.legs.add(leg)
        self.inflight += 1
        self._peak = max(self._peak, self.inflight)
        self.tokens += tokens
        self.trials += trial
        self.dispatched += 1
        return leg

    def end(self, leg: Leg, ok: bool | None, now: float) -> None:
        """The dispatch is over, well or not; None: nobody can blame the worker. Ending twice is no news."""
        if leg.ended:
            return
        leg.ended = True
        leg.progress(leg.tokens)
        self.legs.discard(leg)
        self.inflight -= 1
        if not self.inflight:
            self.tokens = 0.0  # adding and taking off leaves a trace in floating point
        self.trials -= leg.trial
        if ok is None:
            return
        self.breaker.record(ok, now)
        if ok:
            self.succeeded += 1
        else:
            self.failed += 1

    def as_json(self, now: float) -> dict[str, object]:
        """The entry of ``GET /workers``, in smg's words plus breaker, weight and draining."""
        return {
            "id": self.worker_id,
            "url": self.url,
            "model_id": self.model,
            "worker_type": self.role,
            "connection_mode": "http",
            "runtime_type": "sglang",
            "priority": self.priority,
            "cost": self.cost,
            "is_healthy": self.probes.healthy and not self.draining,
            "status": self.status,
            "draining": self.draining,
            "load": self.inflight,
            "weight": self.weight,
            "breaker": self.breaker.state(now),
            "labels": self.labels,
            **({"bootstrap_port": self.bootstrap_port} if self.role == "prefill" else {}),
        }


class Pool:
    """The workers of one role. What the file says is put in force with :meth:`apply`."""

    def __init__(self, role: Role) -> None:
        self.role: Role = role
        self.policy = "round_robin"
        self.rules = Rules()
        self.weights = LoadWeights()
        self._backends: dict[str, Backend] = {}
        self._turn = 0.0  # virtual time: that of the last choice
        self._in_turn: frozenset[Backend] = frozenset()

    def __iter__(self) -> Iterator[Backend]:
        return iter(tuple(self._backends.values()))

    def __len__(self) -> int:
        return len(self._backends)

    @property
    def backends(self) -> list[Backend]:
        return list(self._backends.values())

    def find(self, address: str) -> Backend | None:
        return self._backends.get(node_key(address))

    def apply(self, table: PoolTable, weights: LoadWeights, topology: Topology, probes: Probes) -> None:
        """What the file says is so: workers that stay keep their counts, in-flight requests and breaker."""
        self.policy = table.policy
        self.weights = weights
        self.rules = Rules(
            table.cache_aware_threshold,
            table.load_balance_threshold,
            weights.cache_benefit,
            weights.affinity_guard,
            table.cache_match_threshold or 0.0,
            table.balance_abs_threshold,
            table.balance_rel_threshold,
            topology,
        )
        before, self._backends = self._backends, {}
        for text in table.workers:
            key = node_key(text)
            backend = before.get(key) or self._backends.get(key)
            if backend is None or backend.url != url_of(text):
                backend = Backend(url_of(text), self.role, replace(probes))
            self._backends[key] = backend
            self._configure(backend, table.settings_of(text), probes)
        for key, backend in before.items():
            if self._backends.get(key) is not backend:
                # Under another name if the same node is dialled in another way from now on.
                self._backends[key if key not in self._backends else backend.url] = backend
                self.remove(backend)

    def _configure(self, backend: Backend, settings: WorkerTable, probes: Probes) -> None:
        backend.settings = settings
        backend.drain = settings.drain
        backend.leaving = backend.added_by_api = False
        backend.probes.down_after, backend.probes.up_after = probes.down_after, probes.up_after
        backend.bootstrap_port = None
        if self.role == "prefill":
            backend.bootstrap_port = settings.bootstrap_port or BOOTSTRAP_PORT
        self.weigh(backend, settings.weight)

    def weigh(self, backend: Backend, weight: float) -> None:
        if weight != backend.weight:
            backend.turn = self._turn  # what it was owed under another weight is void
        backend.weight = weight

    def add(self, backend: Backend) -> None:
        self._backends[node_key(backend.url)] = backend

    def remove(self, backend: Backend) -> None:
        """No new requests; it is gone when its last one has ended."""
        backend.leaving = True
        self.settle(backend)

    def settle(self, backend: Backend) -> None:
        """Let a leaving worker go if nothing is left of it."""
        if backend.leaving and not backend.inflight:
            backend.gone = True
            self._backends = {k: b for k, b in self._backends.items() if b is not backend}

    def view(
        self, prefix: str, names: tuple[int, ...], chance: random.Random, now: float, tried: set[Backend]
    ) -> tuple[View, Mapping[str, Backend]]:
        """What a policy sees. ``tried`` are left out unless nobody else is usable."""
        usable = [b for b in self._backends.values() if b.usable(now)]
        present = frozenset(usable)
        for backend in present - self._in_turn:
            backend.turn = max(backend.turn, self._turn)  # nothing is owed for the time away
        self._in_turn = present
        usable = [b for b in usable if b not in tried] or usable
        looks = bool(names) and self.policy in REMEMBERING
        candidates = tuple(
            Candidate(
                b.url,
                b.load(self.weights, now),
                min(max(b.weight, LEAST_WEIGHT), MOST_WEIGHT),
                b.turn,
                b.prefixes.matched(names) if looks else 0.0,
                b.settings.host or b.host,
                b.settings.rack,
            )
            for b in usable
        )
        ask = Ask((chance.random(), chance.random()), prefix)
        return View(candidates, self.policy, ask, self.rules), {b.url: b for b in usable}

    def chose(self, backend: Backend, candidate: Candidate) -> None:
        backend.turn = self._turn = max(self._turn, turn_after(candidate))
