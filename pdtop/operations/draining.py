"""Whether a worker that gets no new work has become empty, from what it and every router say. No I/O.

Routers do not wait: removal takes effect at once and leaves the streams alone, and what is left on the worker
only the worker knows. sglang-router 0.3.2 says 0 for a removed worker from the first moment on and misses
streams before their first token; smg 1.13.0 counts right, but only for the seconds that it lists a worker as
draining. So a router's count can keep a worker from being empty, and never make it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from pdtop.cluster.model import READABLE, Health, Role, Router, RouterOpinion, Snapshot, State, Worker
from pdtop.cluster.watch import STALE_AFTER_S
from pdtop.cluster.words import span
from pdtop.insight.quiet import Poll, row_after, work_of
from pdtop.insight.words import count, several
from pdtop.operations.model import DrainProgress, DrainState

#: Engines whose count of a worker's requests holds from dispatch to end while they list it as draining.
_EXACT = frozenset({"smg", "pdtop"})
#: The fall that an ETA goes by: of so long, seen so long, in no more points than that.
_FALL_S = 120.0
_FALL_SEEN_S = 15.0
_FALL_POINTS = 24
#: Readings that must agree before requests are said to be held by no router: both sides are read at
#: different moments.
_ORPHAN_READINGS = 3
#: A clock that is only corrected a little was not set.
_CLOCK_SET_S = 1.0
#: Two moments closer than this are one: ages were subtracted from clocks.
_SAME_S = 1e-3


@dataclass(frozen=True, slots=True)
class RouterSays:
    """What one router says of the worker. None: it does not say, or not now.

    ``takes_new``: new requests may be sent to it. Of what is listed only a draining worker gets none for
    certain: an unhealthy one may be well a moment later. ``exact``: ``inflight`` holds from dispatch to end.
    """

    listed: bool | None
    takes_new: bool | None
    inflight: float | None = None
    age_s: float | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A worker and its routers at one moment. ``at`` and ``reading_at`` are the poller's monotonic clock.

    ``reading_at``: when the worker's numbers were read; samples of one reading count once. Parts of it may be
    ``mixed_s`` older. ``work`` and its parts are None when they are not known for certain, with the reason
    in ``unknown_because``. ``finished`` and ``restarts`` are counters of which only growth matters.
    """

    at: float
    wall: float  # epoch seconds
    reading_at: float | None
    work: float | None
    running: float | None = None
    backlog: float | None = None
    inflight: float | None = None  # prefill: KV that decode workers still read
    finished: float | None = None
    restarts: int = 0
    mixed_s: float = 0.0
    gone: bool = False  # nothing answers at its address
    unknown_because: str = ""
    routers: Mapping[str, RouterSays] = field(default_factory=dict)


def sample_of(worker: Worker, snapshot: Snapshot, now: float) -> Sample:
    """One sample out of a snapshot made at ``now`` (the poller's clock)."""
    work = work_of(worker)
    limit = max(STALE_AFTER_S, 3 * snapshot.interval_s)
    return Sample(
        at=now,
        wall=snapshot.at,
        reading_at=now - worker.age_s if worker.age_s is not None else None,
        work=work,
        running=worker.running if work is not None else None,
        backlog=worker.backlog.total if work is not None else None,
        inflight=worker.inflight if work is not None and worker.role is Role.PREFILL else None,
        finished=worker.finished,
        restarts=worker.resets,
        # /v1/loads never tells what runs on a prefill worker, and never what was finished: the page does.
        mixed_s=snapshot.interval_s if worker.source == "/v1/loads" else 0.0,
        gone=work is None and worker.state in (State.REFUSED, State.TIMEOUT),
        unknown_because="" if work is not None else _why_unknown(worker),
        routers={
            router.name: _router_says(
                router, [said for said in worker.opinions if said.router == router.name], limit
            )
            for router in snapshot.routers
        },
    )


def _why_unknown(worker: Worker) -> str:
    if worker.state is None:
        return "it was not read yet"
    if worker.state is State.REFUSED:
        return "nothing listens at its address: stopped or crashed, what it held cannot be counted"
    if worker.stale:
        since = f" for {span(worker.age_s)}" if worker.age_s is not None else ""
        if worker.state is State.FROZEN:
            return f"its numbers have not moved{since}"
        why = "" if worker.state in READABLE else f": {worker.state.value.replace('_', ' ')}"
        return f"no new numbers from it{since}{why}"
    if worker.incomplete:
        return f"{len(worker.ranks_used)} of {worker.ranks_expected} DP ranks report"
    if worker.backlog.total is None or worker.backlog.lower_bound:
        return "it does not tell all its queues"
    return "it does not tell what " + ("runs" if worker.running is None else "is being sent")


def _router_says(router: Router, said: Sequence[RouterOpinion], limit_s: float) -> RouterSays:
    """All that one router says of the worker, which it may list under several names.

    Its list has to be of now: a router that does not answer may be starting, with the worker on its command
    line.
    """
    current = router.state in READABLE and not router.list_stale and router.workers is not None
    if not current or router.age_s is None or router.age_s > limit_s or not said:
        sends = any(one.listed and one.health is Health.HEALTHY for one in said)
        return RouterSays(None, True if sends else None, None, router.age_s)
    listed = [one for one in said if one.listed]
    counts = [one.inflight for one in listed if one.inflight is not None and one.inflight >= 0]
    draining = all(one.health is Health.DRAINING for one in listed)
    return RouterSays(
        listed=bool(listed),
        takes_new=bool(listed) and not draining,
        inflight=sum(counts) if counts else None,
        age_s=router.age_s,
        exact=router.engine in _EXACT and bool(listed) and draining and len(counts) == len(listed),
    )


class _Word(Enum):
    """A router's word as far as a drain goes."""

    OUT = auto()  # no new request goes to the worker
    SENDS = auto()
    BEFORE = auto()  # from before new work was stopped: says nothing yet
    MISSING = auto()


class DrainWatch:
    """One worker's drain. Feed it samples in the order of their time; ask :meth:`progress`.

    ``since``: epoch seconds of the request, from which ``timeout_s`` counts. ``stopped_at``: when new work
    was stopped, on the samples' clock; None: not yet, then it cannot become drained. Set it when it happens.
    """

    def __init__(
        self,
        worker: str,
        *,
        role: Role,
        since: float,
        stopped_at: float | None,
        quiet_needed: int = 2,
        timeout_s: float = 1800.0,
        by: str = "",
    ) -> None:
        self.worker = worker
        self.role = role
        self.since = since
        self.stopped_at = stopped_at
        self.quiet_needed = quiet_needed
        self.timeout_s = timeout_s
        self.by = by
        self._epoch: float | None = None  # epoch seconds at 0 of the samples' clock, as at first
        self._now: float | None = None
        self._sample: Sample | None = None
        self._words: Mapping[str, _Word] = {}
        self._seen_out: set[str] = set()
        self._clear_since: float | None = None  # no router sends any more, as they said then
        self._row = 0
        self._counted: Sample | None = None  # the newest that was looked at for the row
        self._restarted = False
        self._fall: deque[tuple[float, float]] = deque()
        self._unheld: deque[float | None] = deque(maxlen=_ORPHAN_READINGS)

    def feed(self, sample: Sample) -> None:
        """Take one sample; one that is older than the newest says nothing."""
        before = self._sample
        if before is not None and sample.at < before.at:
            return
        self._now = max(sample.at, self._now if self._now is not None else sample.at)
        self._sample = sample
        if self._epoch is None:
            self._epoch = sample.wall - sample.at
        self._hear(sample)
        restarted = before is not None and sample.restarts > before.restarts
        self._restarted = self._restarted or restarted
        self._count(sample, restarted)
        if before is None or not _same_reading(before, sample):
            self._unheld.append(_unheld(sample))
        left = _left(sample)
        if left is not None and self.stopped_at is not None:
            self._fall.append((sample.at, left))
        while self._fall and sample.at - self._fall[0][0] > _FALL_S:
            self._fall.popleft()

    @property
    def reappeared(self) -> tuple[str, ...]:
        """Routers that had stopped sending and list the worker again as taking new work."""
        return tuple(
            name for name, word in self._words.items() if word is _Word.SENDS and name in self._seen_out
        )

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed without the worker being drained. Nothing follows by itself."""
        now, epoch = self._now, self._epoch
        if now is None or epoch is None or self._state(now) is DrainState.DRAINED:
            return False
        return epoch + now >= self.since + self.timeout_s

    def wait_longer(self, seconds: float) -> None:
        """From now on for so long."""
        if self._now is not None and self._epoch is not None:
            self.timeout_s = max(0.0, self._epoch + self._now - self.since) + seconds

    def progress(self, now: float) -> DrainProgress:
        """How far it is at ``now``, on the samples' clock."""
        self._now = now if self._now is None else max(now, self._now)
        sample, state = self._sample, self._state(now)
        left = _left(sample) if sample is not None and not _old(sample, now) else None
        return DrainProgress(
            worker=self.worker,
            state=state,
            left=left,
            eta_s=self._eta(left) if state is DrainState.DRAINING else None,
            since=self.since,
            by=self.by,
            deadline=self.since + self.timeout_s + self._clock_set(),
            still_on=self._still_on(),
            orphans=self._orphans(),
            note="; ".join(self._notes(now, state, left)),
        )

    def _clock_set(self) -> float:
        """By how much the machine's clock was set since the first sample: no deadline moves by that."""
        if self._sample is None or self._epoch is None:
            return 0.0
        moved = self._sample.wall - self._sample.at - self._epoch
        return moved if abs(moved) >= _CLOCK_SET_S else 0.0

    def _hear(self, sample: Sample) -> None:
        """What the routers say, and since when none of them sends."""
        self._words = {name: self._word(says, sample.at) for name, says in sample.routers.items()}
        out = [name for name, word in self._words.items() if word is _Word.OUT]
        if self.stopped_at is not None:
            self._seen_out.update(out)
        if self.stopped_at is None or not out or len(out) < len(self._words):
            self._clear_since = None
        elif self._clear_since is None:
            self._clear_since = max(sample.at - (sample.routers[name].age_s or 0.0) for name in out)

    def _word(self, says: RouterSays, at: float) -> _Word:
        if says.takes_new is None or says.age_s is None:
            return _Word.MISSING
        if self.stopped_at is not None and at - says.age_s < self.stopped_at - _SAME_S:
            return _Word.BEFORE if at - self.stopped_at <= STALE_AFTER_S else _Word.MISSING
        return _Word.SENDS if says.takes_new else _Word.OUT

    def _count(self, sample: Sample, restarted: bool) -> None:
        """The row of quiet readings, each wholly later than the one before and than the end of new work."""
        left = _left(sample)
        if restarted or self._clear_since is None:
            self._row = 0
        elif sample.gone and self._row >= self.quiet_needed and not _held(sample):
            return  # stopped, as it was safe to do
        elif left != 0:
            self._row = 0
        elif self._is_new(sample, self._clear_since):
            self._row = row_after(self._row, Poll(left, _grown(self._counted, sample)))
            self._counted = sample

    def _is_new(self, sample: Sample, clear_since: float) -> bool:
        """Whether all parts of its reading are later than ``clear_since`` and the last counted reading."""
        if sample.reading_at is None:
            return False
        oldest, counted = sample.reading_at - sample.mixed_s, self._counted
        if oldest < clear_since - _SAME_S:
            return False
        if counted is None or counted.reading_at is None:
            return True
        return oldest >= counted.reading_at - _SAME_S and not _same_reading(counted, sample)

    def _state(self, now: float) -> DrainState:
        sample = self._sample
        if self.stopped_at is not None and self._still_on():
            return DrainState.PARTLY_DRAINED
        if sample is None or _old(sample, now) or not sample.routers:
            return DrainState.UNKNOWN
        if self._row >= self.quiet_needed:
            return DrainState.DRAINED
        return DrainState.UNKNOWN if sample.work is None else DrainState.DRAINING

    def _still_on(self) -> tuple[str, ...]:
        return tuple(name for name, word in self._words.items() if word in (_Word.SENDS, _Word.MISSING))

    def _eta(self, left: float | None) -> float | None:
        if not left or not self._fall or self._fall[-1][0] - self._fall[0][0] < _FALL_SEEN_S:
            return None
        slope = _slope(_thinned(self._fall, _FALL_POINTS))
        return left / -slope if slope is not None and slope < 0 else None

    def _orphans(self) -> float | None:
        if len(self._unheld) < 2 or None in self._unheld:
            return None
        return min(value for value in self._unheld if value is not None)

    def _notes(self, now: float, state: DrainState, left: float | None) -> list[str]:
        sample = self._sample
        if sample is None:
            return ["not read yet"]
        if _old(sample, now):
            return [f"it has not been seen for {span(now - sample.at)}"]
        notes = [f"back at router {name}: it lists the worker again" for name in self.reappeared]
        missing = [name for name, word in self._words.items() if word is _Word.MISSING]
        if missing:
            notes.append(f"{', '.join(missing)}: not known whether new work is sent from there")
        if not sample.routers:
            notes.append("no router is watched: not known who sends to it")
        if sample.gone and state is DrainState.DRAINED:
            notes.append("it was drained and does not answer any more")
        elif sample.unknown_because:
            notes.append(sample.unknown_because)
            if held := _held(sample):
                notes.append(f"the routers hold {count(held)}")
        if self._restarted:
            notes.append("it restarted during the drain: what it held then was cut")
        if sample.inflight:
            notes.append(f"decode workers still read {several(sample.inflight, 'KV transfer')} from it")
        if orphans := self._orphans():
            notes.append(f"{count(orphans)} not held by the router")
        if state is DrainState.DRAINING and left == 0 and self.stopped_at is not None:
            more = self.quiet_needed - self._row
            notes.append(f"empty; {several(more, 'more quiet reading')} to be sure")
        return notes


def _held(sample: Sample) -> float:
    """Requests that routers say to have on the worker."""
    return sum(says.inflight for says in sample.routers.values() if says.inflight is not None)


def _left(sample: Sample) -> float | None:
    """The larger of what the worker has and what the routers hold; without the worker's word not known."""
    return None if sample.work is None else max(sample.work, _held(sample))


def _unheld(sample: Sample) -> float | None:
    """Requests on the worker beyond what the routers hold; None if one of them could hold more than it says.

    KV that is being sent does not count: smg lets go of the prefill worker before.
    """
    if not sample.routers or not all(says.exact for says in sample.routers.values()):
        return None
    if sample.running is None or sample.backlog is None:
        return None
    return max(0.0, sample.running + sample.backlog - _held(sample))


def _grown(before: Sample | None, sample: Sample) -> float | None:
    """Requests finished between two samples."""
    if before is None or before.finished is None or sample.finished is None:
        return None
    return sample.finished - before.finished


def _same_reading(one: Sample, other: Sample) -> bool:
    if one.reading_at is None or other.reading_at is None:
        return one.reading_at is other.reading_at
    return abs(one.reading_at - other.reading_at) < _SAME_S


def _old(sample: Sample, now: float) -> bool:
    """Whether nothing was heard of the worker for too long, e.g. since it is not watched any more."""
    return now - sample.at > STALE_AFTER_S


def _thinned(points: Iterable[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about so many of the points, the newest among them."""
    kept = list(points)
    step = max(1, -(-len(kept) // most))
    return kept[::-1][::step][::-1]


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Change per second: the median over all pairs, weighted by the time between them.

    One request that ends early or a count that jumps for a reading moves it little.
    """
    pairs = sorted(
        ((after - before) / (end - start), end - start)
        for index, (start, before) in enumerate(points)
        for end, after in points[index + 1 :]
        if end > start
    )
    half = sum(weight for _, weight in pairs) / 2
    for slope, weight in pairs:
        half -= weight
        if half <= 0:
            return slope
    return None
