"""What the prefill and the decode engine share: requests, events, gauges, the observer, the event queue.

An engine is a state machine over a clock that its caller owns: every call carries ``now`` (seconds, any
origin), ``advance`` does everything that was due until then at the moment it was due, and returns what
the outside must know. The same code so runs against the wall clock and in virtual time, and one seed
gives one history.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

Role = Literal["prefill", "decode"]

#: Prompt tokens that one prefix-cache block holds.
BLOCK_TOKENS = 64

#: Seconds between two load snapshots of an idle scheduler.
BEAT_S = 1.0

#: An idle scheduler refreshes its gauges at most this often.
IDLE_REPORT_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """One inference request as both legs see it. ``blocks`` are the hashes of its whole prefix blocks."""

    rid: str
    room: int
    prompt_tokens: int
    output_tokens: int
    streaming: bool
    blocks: tuple[int, ...] = ()
    stream_interval: int = 1


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker stands; decides how fast KV moves between two of them."""

    host: str = "localhost"
    rack: str = "r0"


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Bytes per second by distance, and the fixed cost of a transfer."""

    same_host_gb_s: float = 40.0
    same_rack_gb_s: float = 20.0
    cross_rack_gb_s: float = 6.0
    setup_s: float = 0.002

    def gb_s(self, here: Site, there: Site) -> float:
        if here.host == there.host:
            return self.same_host_gb_s
        return self.same_rack_gb_s if here.rack == there.rack else self.cross_rack_gb_s


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a scheduler reports about itself at ``at``. Requests and tokens."""

    at: float = 0.0
    running: int = 0
    queue: int = 0
    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    retracted: int = 0
    used_tokens: int = 0
    evictable_tokens: int = 0
    capacity_tokens: int = 0
    sequence_tokens: int = 0  # of the running batch
    pending_tokens: int = 0  # held by requests that do not run yet
    queued_prompt_tokens: int = 0  # of requests that hold no KV yet
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    busy_s: float = 0.0  # in forward passes since the start
    passes: int = 0

    @property
    def available_tokens(self) -> int:
        return self.capacity_tokens - self.used_tokens - self.evictable_tokens

    @property
    def usage(self) -> float:
        return self.used_tokens / self.capacity_tokens if self.capacity_tokens else 0.0


# ---- what an engine tells the outside


@dataclass(frozen=True, slots=True)
class KvSent:
    """Prefill: the KV of a room has arrived at decode, or could not be sent."""

    room: int
    at: float
    ok: bool
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Decode: there is KV memory for a room, prefill may send."""

    room: int
    rid: str
    at: float


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens that go out to the client now; ``total`` so far."""

    rid: str
    at: float
    tokens: int
    total: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The request has left the engine. ``error`` is empty when it ended well."""

    rid: str
    at: float
    error: str = ""
    cached_tokens: int = 0


Event = KvSent | Granted | Output | Ended


class Observer(Protocol):
    """Who keeps the numbers; every call is one observation in seconds, tokens or requests."""

    def stage(self, name: str, seconds: float) -> None: ...
    def queued(self, seconds: float) -> None: ...
    def prefilled(self, computed: int, cached: int) -> None: ...
    def evicted(self, tokens: int) -> None: ...
    def decoded(self, tokens: int) -> None: ...
    def handshake(self, bootstrap_s: float, alloc_s: float) -> None: ...
    def transferred(self, seconds: float, size_bytes: float) -> None: ...
    def transfer_failed(self) -> None: ...
    def retracted(self, input_tokens: int, output_tokens: int) -> None: ...
    def first_token(self, seconds: float, streaming: bool, at: float) -> None: ...
    def tokens_out(self, tokens: int, gap_s: float) -> None: ...
    def finished(self, done: Finished) -> None: ...
    def aborted(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended well, as the worker's own records see it."""

    at: float
    streaming: bool
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    e2e_s: float
    token_time_s: float | None  # (last - first) / (tokens - 1); None for one chunk


KindT = TypeVar("KindT")


class Timeline(Generic[KindT]):
    """Events that will be due, in order of time and then of entry."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, KindT]] = []
        self._ticket = count()

    def add(self, at: float, what: KindT) -> None:
        heapq.heappush(self._heap, (at, next(self._ticket), what))

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> tuple[float, KindT] | None:
        if not self._heap or self._heap[0][0] > now:
            return None
        at, _, what = heapq.heappop(self._heap)
        return at, what


class Reporter:
    """When the outside sees which gauges: they lag as those of a real scheduler do.

    ``page`` is what ``/metrics`` shows: written with a batch or at a log interval, in idle at most every
    30 s, at once if ``running`` has become wrong. ``loads`` is what ``/v1/loads`` shows: written every few
    iterations and once a second in idle.
    """

    def __init__(self, now: float) -> None:
        self.page: Gauges | None = None
        self.loads: Gauges | None = None
        self._beat = now

    def report(self, gauges: Gauges) -> None:
        self.page = gauges

    def publish(self, gauges: Gauges) -> None:
        self.loads = gauges
        self._beat = gauges.at

    def due(self, now: float) -> float | None:
        """The newest beat that should have happened by ``now``, if one is missing."""
        missed = int((now - self._beat) / BEAT_S)
        return self._beat + missed * BEAT_S if missed > 0 else None

    def beat(self, gauges: Gauges, idle: bool) -> None:
        self.publish(gauges)
        if idle:
            self.idle(gauges)

    def idle(self, gauges: Gauges) -> None:
        page = self.page
        if page is not None and (page.running != gauges.running or gauges.at - page.at >= IDLE_REPORT_S):
            self.page = gauges


JobT = TypeVar("JobT")


class Machine(ABC, Generic[JobT, KindT]):
    """What both engines are: jobs by request id, steps that will be due, reports. See the module."""

    def __init__(self, observer: Observer, now: float) -> None:
        self.frozen = False
        self.reporter = Reporter(now)
        self._observer = observer
        self._timeline: Timeline[KindT] = Timeline()
        self._jobs: dict[str, JobT] = {}

    @abstractmethod
    def gauges(self, now: float) -> Gauges: ...

    @abstractmethod
    def _do(self, step: KindT, now: float) -> list[Event]:
        """A step is due."""

    @property
    def next_event(self) -> float | None:
        return None if self.frozen else self._timeline.next_at

    @property
    def idle(self) -> bool:
        return not self._jobs

    def advance(self, now: float) -> list[Event]:
        events: list[Event] = []
        if self.frozen:
            return events
        while (due := self._timeline.pop_due(now)) is not None:
            at, step = due
            self._beat(at)
            events += self._do(step, at)
        self._beat(now)
        return events

    def _beat(self, now: float) -> None:
        due = self.reporter.due(now)
        if due is not None:
            self.reporter.beat(self.gauges(due), self.idle)

    def _left(self, now: float) -> None:
        """A job has gone: with the last one the page is put right at once."""
        if self.idle:
            self.reporter.idle(self.gauges(now))
