"""The prefill engine: bootstrap, waiting, forward batches, KV transfers.

A request waits in *bootstrap* until decode has given KV slots, then in the *queue* for a forward pass,
and after it is *inflight* while its KV goes over this worker's one network link, first come first served.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from pdtop.simulator.engine import (
    Ended,
    Event,
    Finished,
    Gauges,
    KvSent,
    LinkModel,
    Machine,
    Observer,
    Request,
    Site,
)
from pdtop.simulator.kv_pool import Hold, KvPool


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Speed and size of one prefill rank."""

    tokens_per_s: float = 9000.0
    overhead_s: float = 0.012  # of each forward pass
    chunk_tokens: int = 4096  # computed tokens in one forward pass
    kv_tokens: int = 120_000
    kv_bytes_per_token: int = 160 * 1024
    link: LinkModel = field(default_factory=LinkModel)
    site: Site = field(default_factory=Site)


#: Rooms that have failed and are remembered, should decode still ask for them.
_GONE_ROOMS = 4096


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    arrived: float
    target: Site | None = None  # decode's place, once it has given slots
    ready: float = 0.0
    hold: Hold | None = None
    left: int = 0  # tokens still to compute
    first_forward: float = 0.0
    sent_from: float = 0.0
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class _ForwardDone:
    parts: tuple[tuple[_Job, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Sent:
    job: _Job
    ok: bool


class PrefillEngine(Machine[_Job, _ForwardDone | _Sent]):
    """See the module. ``slow`` stretches forward passes, ``transfer_slow`` transfers; 1.0 is normal."""

    def __init__(self, model: PrefillModel, observer: Observer, now: float, seed: int = 0) -> None:
        super().__init__(observer, now)
        self.model = model
        self.slow = 1.0
        self.transfer_slow = 1.0
        self.transfer_fail_rate = 0.0
        self.pool = KvPool(model.kv_tokens)
        self._random = random.Random(seed)
        self._rooms: dict[int, _Job] = {}
        self._early: dict[int, Site] = {}  # slots given before the request came
        self._gone: deque[int] = deque(maxlen=_GONE_ROOMS)
        self._queue: deque[_Job] = deque()
        self._batch: tuple[tuple[_Job, int], ...] = ()
        self._batch_from = now
        self._inflight: dict[str, _Job] = {}
        self._link_free = now
        self._busy = 0.0
        self._passes = 0
        self._hit_rate = 0.0
        self._evicted = 0
        self.reporter.report(self.gauges(now))
        self.reporter.publish(self.gauges(now))

    # ---- what the outside does

    def submit(self, request: Request, now: float) -> list[Event]:
        events = self.advance(now)
        job = _Job(request, now)
        if request.prompt_tokens > self.model.kv_tokens:
            self._observer.aborted()
            return [*events, Ended(request.rid, now, "the prompt is longer than the KV pool")]
        self._jobs[request.rid] = self._rooms[request.room] = job
        early = self._early.pop(request.room, None)
        if early is not None:
            self._bootstrapped(job, early, now)
        return events

    def grant(self, room: int, target: Site, now: float) -> list[Event]:
        """Decode, at ``target``, has KV slots for ``room``; the request itself may still be on its way."""
        events = self.advance(now)
        job = self._rooms.get(room)
        if job is None and room in self._gone:
            return [*events, KvSent(room, now, False, 0)]
        if job is None:
            self._early[room] = target
        elif job.target is None:
            self._bootstrapped(job, target, now)
        return events

    def revoke(self, room: int, now: float) -> list[Event]:
        """Decode no longer wants ``room``: it gave up or went away."""
        events = self.advance(now)
        self._early.pop(room, None)
        job = self._rooms.get(room)
        return [*events, *self._fail(job, now, "decode gave up the request")] if job else events

    def abort(self, rid: str, now: float) -> list[Event]:
        """The client has gone. Decode is told, as it waits for KV that will not come."""
        events = self.advance(now)
        job = self._jobs.get(rid)
        return [*events, *self._fail(job, now, "aborted")] if job else events

    def gauges(self, now: float) -> Gauges:
        return Gauges(
            at=now,
            running=len(self._batch),
            queue=len(self._queue),
            bootstrap=sum(1 for j in self._jobs.values() if j.target is None),
            inflight=len(self._inflight),
            used_tokens=self.pool.used,
            evictable_tokens=self.pool.evictable,
            capacity_tokens=self.pool.capacity,
            queued_prompt_tokens=sum(j.request.prompt_tokens for j in self._jobs.values() if j.hold is None),
            cache_hit_rate=self._hit_rate,
            busy_s=self._busy + (max(0.0, now - self._batch_from) if self._batch else 0.0),
            passes=self._passes,
        )

    # ---- inside

    def _do(self, step: _ForwardDone | _Sent, now: float) -> list[Event]:
        events: list[Event] = []
        if isinstance(step, _ForwardDone):
            self._forward_done(step, now)
        else:
            events = self._sent(step, now)
        self._start_forward(now)
        return events

    def _bootstrapped(self, job: _Job, target: Site, now: float) -> None:
        job.target = target
        job.ready = now
        self._observer.stage("prefill_bootstrap", now - job.arrived)
        self._queue.append(job)
        self._start_forward(now)

    def _start_forward(self, now: float) -> None:
        if self._batch or not self._queue:
            return
        budget = self.model.chunk_tokens
        parts: list[tuple[_Job, int]] = []
        cached = 0
        while self._queue and budget > 0:
            job = self._queue[0]
            request = job.request
            if job.hold is None:
                job.left = self.pool.uncached(request.blocks, request.prompt_tokens)
                job.hold = self.pool.take(request.blocks, request.prompt_tokens)
                if job.hold is None:
                    break
                cached += request.prompt_tokens - job.left
                job.first_forward = now
                self._observer.queued(now - job.ready)
            part = min(job.left, budget)
            budget -= part
            job.left -= part
            parts.append((job, part))
            if job.left:
                break  # the rest of it goes into the next pass
            self._queue.popleft()
        if not parts:
            return
        computed = sum(part for _, part in parts)
        self._observer.prefilled(computed, cached)
        if self.pool.evicted_tokens > self._evicted:
            self._observer.evicted(self.pool.evicted_tokens - self._evicted)
            self._evicted = self.pool.evicted_tokens
        self._hit_rate = cached / (cached + computed)
        self._batch = tuple(parts)
        self._batch_from = now
        seconds = (self.model.overhead_s + computed / self.model.tokens_per_s) * self.slow
        self._timeline.add(now + seconds, _ForwardDone(self._batch, seconds))
        self.reporter.report(self.gauges(now))
        self.reporter.publish(self.gauges(now))

    def _forward_done(self, done: _ForwardDone, now: float) -> None:
        self._batch = ()
        self._busy += done.seconds
        self._passes += 1
        for job, _ in done.parts:
            if job.left:
                self._observer.stage("chunked_prefill", done.seconds)
                continue
            if job.aborted:
                self._release(job)
                continue
            self._observer.stage("prefill_forward", now - job.first_forward)
            self._send(job, now)

    def _send(self, job: _Job, now: float) -> None:
        size = job.request.prompt_tokens * self.model.kv_bytes_per_token
        target = job.target or self.model.site
        speed = self.model.link.gb_s(self.model.site, target) * 2**30
        start = max(now, self._link_free)
        self._link_free = start + size / speed * self.transfer_slow
        job.sent_from = now
        self._inflight[job.request.rid] = job
        ok = self._random.random() >= self.transfer_fail_rate
        self._timeline.add(self._link_free + self.model.link.setup_s, _Sent(job, ok))

    def _sent(self, sent: _Sent, now: float) -> list[Event]:
        job = sent.job
        if job.aborted:
            return []
        if not sent.ok:
            self._observer.transfer_failed()
            return self._fail(job, now, "KV transfer failed")
        request = job.request
        seconds = now - job.sent_from
        self._observer.stage("prefill_transfer_kv_cache", seconds)
        self._observer.transferred(seconds, request.prompt_tokens * self.model.kv_bytes_per_token)
        self._observer.handshake(job.ready - job.arrived, 0.0)
        cached = job.hold.hit_tokens if job.hold else 0
        self._observer.finished(
            Finished(now, request.streaming, request.prompt_tokens, cached, 1, now - job.arrived, None)
        )
        self._forget(job)
        self._release(job)
        self._left(now)
        return [KvSent(request.room, now, True, cached), Ended(request.rid, now, "", cached)]

    def _fail(self, job: _Job, now: float, error: str) -> list[Event]:
        """Take the request out wherever it is; slots in a running pass or transfer are freed at its end."""
        self._observer.aborted()
        job.aborted = True
        running = any(job is other for other, _ in self._batch)
        self._forget(job)
        if job in self._queue:
            self._queue.remove(job)
            job.left = 0
        if not running:
            self._release(job)
        self._left(now)
        events: list[Event] = [Ended(job.request.rid, now, error)]
        if job.target is None:
            self._gone.append(job.request.room)
        else:
            events.insert(0, KvSent(job.request.room, now, False, 0))
        self._start_forward(now)
        return events

    def _forget(self, job: _Job) -> None:
        self._jobs.pop(job.request.rid, None)
        self._rooms.pop(job.request.room, None)
        self._inflight.pop(job.request.rid, None)

    def _release(self, job: _Job) -> None:
        if job.hold is not None:
            self.pool.release(job.hold)
            job.hold = None
