"""The decode engine: preallocation, KV transfer, waiting, batched steps, retraction.

A request waits in *prealloc* for KV memory, in *transfer* for its KV, in *waiting* for the next step; a
step gives every running request one token and takes longer with the batch and with the KV in it. When the
pool is full the requests with the fewest tokens are *retracted* and come back before new ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pdtop.simulator.engine import (
    IDLE_REPORT_S,
    Ended,
    Event,
    Finished,
    Gauges,
    Granted,
    Machine,
    Observer,
    Output,
    Request,
    Site,
)

#: Tokens after which a request that does not stream is looked at, as the engine does.
FORCED_INTERVAL = 50

#: Steps between two reports of the gauges and between two load snapshots.
LOG_STEPS = 40
PUBLISH_STEPS = 15


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Speed and size of one decode rank."""

    step_s: float = 0.018
    step_per_request_s: float = 0.0006
    step_per_kilotoken_s: float = 0.00012
    kv_tokens: int = 30_000
    reserve_tokens: int = 256  # kept free for each request that runs or will
    max_running: int = 64
    handshake_s: float = 0.0004
    site: Site = field(default_factory=Site)


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    arrived: float
    kv: int = 0  # slots held
    kv_back: int = 0  # slots to take again after a retraction
    produced: int = 0
    shown: int = 0  # tokens that have gone out
    granted_at: float = 0.0
    ready_at: float = 0.0
    cached: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    joined: bool = False

    @property
    def interval(self) -> int:
        return self.request.stream_interval if self.request.streaming else FORCED_INTERVAL


@dataclass(frozen=True, slots=True)
class _StepDone:
    seconds: float


class DecodeEngine(Machine[_Job, _StepDone]):
    """See the module. ``slow`` stretches every step; 1.0 is normal."""

    def __init__(self, model: DecodeModel, observer: Observer, now: float) -> None:
        super().__init__(observer, now)
        self.model = model
        self.slow = 1.0
        self._prealloc: deque[_Job] = deque()
        self._transfer: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._retracted: deque[_Job] = deque()
        self._used = 0
        self._stepping = False
        self._step_from = now
        self._busy = 0.0
        self._passes = 0
        self._log_tokens = 0
        self._log_from = now
        self._throughput = 0.0
        self.reporter.publish(self.gauges(now))

    # ---- what the outside does

    def submit(self, request: Request, now: float) -> list[Event]:
        events = self.advance(now)
        if request.prompt_tokens + request.output_tokens > self.model.kv_tokens:
            self._observer.aborted()
            return [*events, Ended(request.rid, now, "the request is longer than the KV pool")]
        job = _Job(request, now)
        if self.idle:
            self._log_from, self._log_tokens = now, 0
        self._jobs[request.rid] = job
        self._prealloc.append(job)
        self._observer.stage("decode_prepare", self.model.handshake_s / 2)
        return [*events, *self._admit(now)]

    def kv_arrived(self, room: int, ok: bool, cached_tokens: int, now: float) -> list[Event]:
        events = self.advance(now)
        job = self._transfer.pop(room, None)
        if job is None:
            return events
        if not ok:
            self._observer.transfer_failed()
            events.append(self._end(job, now, "KV transfer failed"))
            return [*events, *self._admit(now)]
        job.ready_at = now
        job.cached = cached_tokens
        self._observer.stage("decode_transferred", now - job.granted_at)
        self._waiting.append(job)
        return [*events, *self._start_step(now)]

    def abort(self, rid: str, now: float) -> list[Event]:
        """The client has gone."""
        events = self.advance(now)
        job = self._jobs.get(rid)
        if job is None:
            return events
        self._transfer.pop(job.request.room, None)
        for queue in (self._prealloc, self._waiting, self._retracted, self._running):
            if job in queue:
                queue.remove(job)
        events.append(self._end(job, now, "aborted"))
        return [*events, *self._admit(now)]

    def gauges(self, now: float) -> Gauges:
        return Gauges(
            at=now,
            running=len(self._running),
            queue=len(self._waiting),
            prealloc=len(self._prealloc),
            transfer=len(self._transfer),
            retracted=len(self._retracted),
            used_tokens=self._used,
            capacity_tokens=self.model.kv_tokens,
            sequence_tokens=sum(j.kv for j in self._running),
            pending_tokens=sum(j.kv for j in (*self._transfer.values(), *self._waiting)),
            queued_prompt_tokens=sum(j.request.prompt_tokens for j in self._prealloc),
            gen_throughput=self._throughput,
            busy_s=self._busy + (max(0.0, now - self._step_from) if self._stepping else 0.0),
            passes=self._passes,
        )

    # ---- inside

    def _beat(self, now: float) -> None:
        if self.idle and now - self._log_from >= IDLE_REPORT_S:
            self._throughput = 0.0  # until then the last value sticks
        super()._beat(now)

    def _admit(self, now: float) -> list[Event]:
        """Give KV memory to what was retracted, then to what waits; prefill hears of each grant."""
        events: list[Event] = []
        while self._retracted and self._fits(self._retracted[0].kv_back):
            job = self._retracted.popleft()
            job.kv = job.kv_back
            self._used += job.kv
            self._waiting.append(job)
        while not self._retracted and self._prealloc and self._fits(self._prealloc[0].request.prompt_tokens):
            job = self._prealloc.popleft()
            job.kv = job.request.prompt_tokens
            self._used += job.kv
            job.granted_at = now
            self._transfer[job.request.room] = job
            self._observer.stage("decode_bootstrap", now - job.arrived + self.model.handshake_s)
            self._observer.handshake(self.model.handshake_s, now - job.arrived)
            events.append(Granted(job.request.room, job.request.rid, now))
        return [*events, *self._start_step(now)]

    def _fits(self, tokens: int) -> bool:
        active = len(self._running) + len(self._waiting) + len(self._transfer)
        if not active:
            return True
        free = self.model.kv_tokens - self._used
        return (
            active < 2 * self.model.max_running and tokens + self.model.reserve_tokens * (active + 1) <= free
        )

    def _start_step(self, now: float) -> list[Event]:
        if self._stepping:
            return []
        events = self._join(now)
        events += self._make_room()
        if not self._running:
            return events
        kv = sum(j.kv for j in self._running)
        model = self.model
        seconds = model.step_s + model.step_per_request_s * len(self._running)
        seconds = (seconds + model.step_per_kilotoken_s * kv / 1000) * self.slow
        self._stepping = True
        self._step_from = now
        self._timeline.add(now + seconds, _StepDone(seconds))
        return events

    def _join(self, now: float) -> list[Event]:
        """What has its KV joins the batch; its first token came with the KV and goes out at once."""
        events: list[Event] = []
        joined = False
        while self._waiting and len(self._running) < self.model.max_running:
            job = self._waiting.popleft()
            joined = True
            if not job.joined:
                job.joined = True
                self._observer.stage("decode_waiting", now - job.ready_at)
                self._observer.queued(now - job.ready_at)
                self._observer.stage("fake_output", self.model.handshake_s)
                job.produced = 1
                self._observer.decoded(1)
                self._log_tokens += 1
                events += self._show(job, now)
                if job.produced >= job.request.output_tokens:
                    events.append(self._end(job, now, ""))
                    continue
            self._running.append(job)
        if joined:
            self._report(now)
        return events

    def _make_room(self) -> list[Event]:
        """The next step needs one slot for each running request; retract until there is one."""
        events: list[Event] = []
        while self._running and self._used + len(self._running) > self.model.kv_tokens:
            victim = min(self._running, key=lambda j: (j.produced, -j.request.prompt_tokens))
            self._running.remove(victim)
            self._used -= victim.kv
            victim.kv_back, victim.kv = victim.kv, 0
            self._observer.retracted(victim.request.prompt_tokens, victim.produced)
            self._retracted.append(victim)
        return events

    def _do(self, step: _StepDone, now: float) -> list[Event]:
        self._stepping = False
        self._busy += step.seconds
        self._passes += 1
        events: list[Event] = []
        still: list[_Job] = []
        for job in self._running:
            job.produced += 1
            job.kv += 1
            done = job.produced >= job.request.output_tokens
            if done or (job.produced - 1) % job.interval == 0:
                events += self._show(job, now)
            if not done:
                still.append(job)
        tokens = len(self._running)
        ended = [j for j in self._running if j.produced >= j.request.output_tokens]
        self._used += tokens
        self._log_tokens += tokens
        self._observer.decoded(tokens)
        self._running = still
        events += [self._end(job, now, "") for job in ended]
        if self._passes % LOG_STEPS == 0:
            self._report(now)
        if self._passes % PUBLISH_STEPS == 0:
            self.reporter.publish(self.gauges(now))
        return [*events, *self._admit(now)]

    def _show(self, job: _Job, now: float) -> list[Event]:
        """Send out what was produced since the last time; the time per token is over the whole chunk."""
        tokens = job.produced - job.shown
        first = job.first_at is None
        # Without streaming the engine looks at a request every 50 tokens only.
        if (
            first
            and not job.request.streaming
            and job.produced < min(FORCED_INTERVAL, job.request.output_tokens)
        ):
            return []
        if first:
            job.first_at = now
            self._observer.first_token(now - job.arrived, job.request.streaming, now)
        elif tokens:
            self._observer.tokens_out(tokens, (now - job.last_at) / tokens)
        job.last_at = now
        job.shown = job.produced
        return [Output(job.request.rid, now, tokens, job.produced)]

    def _end(self, job: _Job, now: float, error: str) -> Ended:
        self._jobs.pop(job.request.rid, None)
        self._used -= job.kv
        job.kv = 0
        self._left(now)
        if error:
            self._observer.aborted()
            return Ended(job.request.rid, now, error)
        request = job.request
        per_token = None
        if job.first_at is not None and now > job.first_at and job.produced > 1:
            per_token = (now - job.first_at) / (job.produced - 1)
        self._observer.finished(
            Finished(
                at=now,
                streaming=request.streaming,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=job.cached,
                output_tokens=job.produced,
                e2e_s=now - job.arrived,
                token_time_s=per_token,
            )
        )
        return Ended(request.rid, now, "", job.cached)

    def _report(self, now: float) -> None:
        elapsed = now - self._log_from
        if elapsed > 0 and self._passes % LOG_STEPS == 0:
            self._throughput = self._log_tokens / elapsed
            self._log_tokens = 0
            self._log_from = now
        self.reporter.report(self.gauges(now))
