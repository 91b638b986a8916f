"""Whether a worker that was brought back serves again as it did: the check list after an undrain. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from pdtop.cluster.model import Breaker, Health, Role, RouterOpinion, Snapshot, Worker
from pdtop.cluster.words import span
from pdtop.insight.words import percent, several

#: So long a router may take to find a worker healthy: routers probe as seldom as every 60 s by default, and
#: two good probes may be asked for.
PATIENCE_S = 180.0
#: A cache counts as warm again at this part of the pool's hit rate; below FEW_HITS there is none to recover.
_WARM = 0.8
_FEW_HITS = 0.05


class CheckState(StrEnum):
    OK = "ok"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the list: ``name`` is a stable word, ``words`` what was found."""

    name: str
    state: CheckState
    words: str


@dataclass(frozen=True, slots=True)
class Former:
    """Who the worker was before its drain; None: not known."""

    model: str | None = None
    version: str | None = None

    @classmethod
    def of(cls, worker: Worker) -> Former:
        return cls(worker.identity.model, worker.identity.version)


class ReadmissionWatch:
    """One worker since ``since`` (epoch seconds), when it was put back. Feed it every snapshot."""

    def __init__(self, worker: str, *, since: float, former: Former | None = None) -> None:
        self.worker = worker
        self.since = since
        self.former = former if former is not None else Former()
        self._checks: tuple[Check, ...] = (Check("seen", CheckState.WAITING, "not read yet"),)
        self._fewest: float | None = None  # requests in a window since then, at the lowest
        self._failed_before = False
        self._finished: float | None = None  # the worker's own count at first
        self._fed = False

    @property
    def checks(self) -> tuple[Check, ...]:
        """In the order in which they come true."""
        return self._checks

    def feed(self, snapshot: Snapshot) -> None:
        """Take one snapshot; those from before ``since`` say nothing."""
        if snapshot.at < self.since:
            return
        seconds = snapshot.at - self.since
        worker = snapshot.worker(self.worker)
        if worker is None:
            late = seconds > PATIENCE_S
            state = CheckState.FAILED if late else CheckState.WAITING
            self._checks = (Check("seen", state, f"not among the workers for {span(seconds)}"),)
            return
        others = [one for one in snapshot.pool_workers(worker.role) if one.key != worker.key]
        routers = [router.name for router in snapshot.routers]
        checks = [
            _healthy(worker.opinions, routers, seconds),
            _same(
                "model",
                _model(worker),
                self.former.model,
                [_model(one) for one in others],
            ),
            _same(
                "version",
                worker.identity.version,
                self.former.version,
                [one.identity.version for one in others],
            ),
            _breaker(worker.opinions),
            self._requests(worker, seconds, snapshot.window_s),
        ]
        if worker.role is Role.PREFILL:
            checks.append(_hit_rate(worker.hit_rate, [one.hit_rate for one in others if one.usable]))
        self._checks = tuple(checks)

    def _requests(self, worker: Worker, seconds: float, window_s: float) -> Check:
        """The first requests since it is back.

        The window may reach back to before the drain. What it counts can then only fall until new requests
        come, and failures of a time before are not held against it.
        """
        count, failing = _dispatches(worker.opinions), _failing(worker.opinions)
        if not self._fed:
            self._fed, self._failed_before = True, bool(failing)
        if self._finished is None:
            self._finished = worker.finished
        ended = worker.finished is not None and worker.finished != self._finished
        if failing and (seconds > window_s or not self._failed_before):
            return Check("requests", CheckState.FAILED, f"{percent(failing)} of its requests fail")
        if count is None:
            if ended or worker.running or worker.backlog.total:
                return Check("requests", CheckState.OK, "works on requests; no router counts them")
            return Check("requests", CheckState.WAITING, "no router counts its requests")
        self._fewest = count if self._fewest is None else min(self._fewest, count)
        new = count if seconds > window_s else count - self._fewest
        if new <= 0:
            return Check("requests", CheckState.WAITING, "no request yet")
        if failing is None and not ended:
            return Check("requests", CheckState.WAITING, f"{several(new, 'request')} sent, none ended yet")
        return Check("requests", CheckState.OK, f"{several(new, 'request')}, none failed")


def _healthy(said: Sequence[RouterOpinion], routers: Iterable[str], seconds: float) -> Check:
    """Every router has to list it as healthy; one whose list cannot be read does not say so."""
    missing = []
    for router in routers:
        states = [one.health for one in said if one.router == router and one.listed]
        if not states:
            known = any(one.router == router for one in said)
            missing.append(f"not on the list of {router}" if known else f"{router} does not say")
        for state in states:
            if state is not Health.HEALTHY:
                missing.append(f"{state or 'in an unknown state'} at {router}")
    if not said and not missing:
        return Check("healthy", CheckState.WAITING, "no router is watched")
    if not missing:
        return Check("healthy", CheckState.OK, "healthy at every router")
    late = seconds > PATIENCE_S
    return Check(
        "healthy",
        CheckState.FAILED if late else CheckState.WAITING,
        f"{'; '.join(missing)} after {span(seconds)}",
    )


def _same(name: str, now: str | None, before: str | None, others: Iterable[str | None]) -> Check:
    """As most of its pool; where nobody else tells, as it was before."""
    told = Counter(one for one in others if one is not None)
    if now is None:
        return Check(name, CheckState.WAITING, "it does not say")
    was = f", was {before}" if before is not None and before != now else ""
    if told:
        pool, votes = told.most_common(1)[0]
        if told[now] == votes:
            return Check(name, CheckState.OK, f"{now} as its pool{was}")
        return Check(name, CheckState.FAILED, f"{now}, its pool has {pool}{was}")
    if before is None:
        return Check(name, CheckState.OK, f"{now}; nothing to compare with")
    return Check(name, CheckState.FAILED if was else CheckState.OK, f"{now}{was or ' as before'}")


def _model(worker: Worker) -> str | None:
    if worker.identity.model is not None:
        return worker.identity.model
    return next((one.model for one in worker.opinions if one.model is not None), None)


def _breaker(said: Iterable[RouterOpinion]) -> Check:
    states = {one.router: one.breaker for one in said if one.listed and one.breaker is not None}
    for bad, state in ((Breaker.OPEN, CheckState.FAILED), (Breaker.HALF_OPEN, CheckState.WAITING)):
        at = [router for router, breaker in states.items() if breaker is bad]
        if at:
            return Check("breaker", state, f"{bad.value.replace('_', '-')} at {', '.join(at)}")
    if not states:
        return Check("breaker", CheckState.WAITING, "no router tells its circuit")
    return Check("breaker", CheckState.OK, "breaker closed")


def _dispatches(said: Iterable[RouterOpinion]) -> float | None:
    counts = [one.requests for one in said if one.requests is not None]
    return sum(counts) if counts else None


def _failing(said: Iterable[RouterOpinion]) -> float | None:
    """The worst router's rate."""
    return max((one.failure_rate for one in said if one.failure_rate is not None), default=None)


def _hit_rate(own: float | None, others: Iterable[float | None]) -> Check:
    """A new process has a cold cache; it is warm again when it hits about as often as the others."""
    known = [rate for rate in others if rate is not None]
    if not known:
        return Check("hit rate", CheckState.WAITING, "the pool's is not known")
    pool = median(known)
    if pool < _FEW_HITS:
        return Check("hit rate", CheckState.OK, f"the pool has hardly any ({percent(pool)})")
    if own is None:
        return Check("hit rate", CheckState.WAITING, f"not known yet, pool {percent(pool)}")
    state = CheckState.OK if own >= _WARM * pool else CheckState.WAITING
    return Check("hit rate", state, f"{percent(own)}, pool {percent(pool)}")
