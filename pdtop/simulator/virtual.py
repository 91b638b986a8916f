"""A P/D cluster in virtual time: the engines joined directly, without HTTP, events in order of time.

For tests, for the farm and for questions of the kind "what if there were one decode worker more".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pdtop.simulator.decode import DecodeEngine
from pdtop.simulator.engine import Ended, Event, Granted, KvSent, Output, Request
from pdtop.simulator.kv_pool import prefix_blocks, token_count
from pdtop.simulator.prefill import PrefillEngine
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.telemetry import Engine, WorkerTelemetry
from pdtop.simulator.traffic import Arrival

_PID = 4242


@dataclass(slots=True)
class VirtualWorker:
    """A worker without HTTP: its engines (one a DP rank) and its numbers."""

    spec: WorkerSpec
    telemetry: WorkerTelemetry
    engines: list[Engine]

    @classmethod
    def make(cls, spec: WorkerSpec, now: float) -> VirtualWorker:
        telemetry = WorkerTelemetry(spec.role, spec.model_name, spec.dp, spec.tp, _PID, now)
        engines: list[Engine] = []
        for rank, observer in enumerate(telemetry.ranks):
            if spec.role == "prefill":
                engines.append(PrefillEngine(spec.prefill, observer, now, spec.seed + rank))
            else:
                engines.append(DecodeEngine(spec.decode, observer, now))
        telemetry.start(engines, now)
        return cls(spec, telemetry, engines)

    @property
    def load(self) -> int:
        gauges = [e.gauges(0.0) for e in self.engines]
        return sum(
            g.running + g.queue + g.bootstrap + g.inflight + g.prealloc + g.transfer + g.retracted
            for g in gauges
        )


@dataclass(frozen=True, slots=True)
class Result:
    """How one request ended. ``first_s``/``end_s`` from its arrival; ``error`` empty if well."""

    request: Request
    arrived: float
    first_s: float | None
    end_s: float
    tokens: int
    error: str


@dataclass(slots=True)
class _Open:
    request: Request
    arrived: float
    prefill: PrefillEngine
    decode: DecodeEngine
    first: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class VirtualCluster:
    """Workers and the requests between them. ``now`` is where the cluster stands."""

    prefill: Sequence[VirtualWorker]
    decode: Sequence[VirtualWorker]
    now: float
    results: deque[Result] = field(default_factory=lambda: deque(maxlen=50_000))
    _open: dict[str, _Open] = field(default_factory=dict)
    _rooms: dict[int, _Open] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def make(cls, specs: Sequence[WorkerSpec], now: float = 0.0) -> VirtualCluster:
        workers = [VirtualWorker.make(spec, now) for spec in specs]
        return cls(
            prefill=[w for w in workers if w.spec.role == "prefill"],
            decode=[w for w in workers if w.spec.role == "decode"],
            now=now,
        )

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def submit(self, request: Request, prefill: VirtualWorker, decode: VirtualWorker) -> None:
        """Send one request to both workers, now."""
        p = prefill.engines[request.room % len(prefill.engines)]
        d = decode.engines[request.room % len(decode.engines)]
        if not isinstance(p, PrefillEngine) or not isinstance(d, DecodeEngine):
            raise TypeError("submit wants a prefill and a decode worker, in this order")
        self._open[request.rid] = self._rooms[request.room] = _Open(request, self.now, p, d)
        self._handle([(p, e) for e in p.submit(request, self.now)])
        self._handle([(d, e) for e in d.submit(request, self.now)])

    def abort(self, rid: str) -> None:
        """The client of a request goes away: both legs hear of it."""
        one = self._open.get(rid)
        if one is not None:
            self._handle([(one.decode, e) for e in one.decode.abort(rid, self.now)])
            self._handle([(one.prefill, e) for e in one.prefill.abort(rid, self.now)])

    def run_until(self, end: float) -> None:
        """Do everything that is due until ``end``, each at its time."""
        while (due := self._next()) is not None and due[0] <= end:
            self.now = max(self.now, due[0])
            self._handle([(due[1], e) for e in due[1].advance(self.now)])
        self.now = max(self.now, end)
        for engine in self._engines():
            self._handle([(engine, e) for e in engine.advance(self.now)])

    def drain(self, limit_s: float = 3600.0) -> None:
        """Run until nothing is due any more."""
        end = self.now + limit_s
        while (due := self._next()) is not None and due[0] <= end:
            self.run_until(due[0])

    def feed(
        self,
        traffic: Iterator[Arrival],
        until: float,
        started: float,
        choose: Callable[[Sequence[VirtualWorker]], VirtualWorker],
    ) -> Iterator[Arrival]:
        """Let arrivals in until ``until``; gives back the rest, beginning with the first that is later."""
        for arrival in traffic:
            if started + arrival.at > until:
                self.run_until(until)
                return _again(arrival, traffic)
            self.run_until(started + arrival.at)
            self._count += 1
            request = request_of(arrival, f"r{self._count}", self._count)
            self.submit(request, choose(self.prefill), choose(self.decode))
        self.run_until(until)
        return iter(())

    def _engines(self) -> list[Engine]:
        return [e for w in (*self.prefill, *self.decode) for e in w.engines]

    def _next(self) -> tuple[float, Engine] | None:
        best: tuple[float, Engine] | None = None
        for engine in self._engines():
            at = engine.next_event
            if at is not None and (best is None or at < best[0]):
                best = (at, engine)
        return best

    def _handle(self, events: list[tuple[Engine, Event]]) -> None:
        todo = deque(events)
        while todo:
            engine, event = todo.popleft()
            match event:
                case Granted():
                    one = self._rooms.get(event.room)
                    if one is not None:
                        site = one.decode.model.site
                        todo.extend((one.prefill, e) for e in one.prefill.grant(event.room, site, event.at))
                case KvSent():
                    one = self._rooms.get(event.room)
                    if one is not None:
                        arrived = one.decode.kv_arrived(event.room, event.ok, event.cached_tokens, event.at)
                        todo.extend((one.decode, e) for e in arrived)
                case Output():
                    one = self._open.get(event.rid)
                    if one is not None:
                        one.first = event.at if one.first is None else one.first
                        one.tokens = event.total
                case Ended():
                    self._ended(engine, event)

    def _ended(self, engine: Engine, event: Ended) -> None:
        """Decode's end is the request's; prefill's end only if it failed before decode had any part."""
        one = self._open.get(event.rid)
        if one is None or engine is one.prefill:
            return
        del self._open[event.rid]
        self._rooms.pop(one.request.room, None)
        first = None if one.first is None else one.first - one.arrived
        self.results.append(
            Result(one.request, one.arrived, first, event.at - one.arrived, one.tokens, event.error)
        )


def request_of(arrival: Arrival, rid: str, room: int, stream_interval: int = 4) -> Request:
    return Request(
        rid=rid,
        room=room,
        prompt_tokens=token_count(arrival.prompt),
        output_tokens=arrival.output_tokens,
        streaming=arrival.streaming,
        blocks=prefix_blocks(arrival.prompt),
        stream_interval=stream_interval,
    )


def least_loaded(workers: Sequence[VirtualWorker]) -> VirtualWorker:
    return min(workers, key=lambda w: w.load)


def _again(first: Arrival, rest: Iterator[Arrival]) -> Iterator[Arrival]:
    yield first
    yield from rest
