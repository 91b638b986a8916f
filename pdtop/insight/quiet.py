"""Whether a worker has become empty: enough polls in a row without work and without progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from pdtop.cluster.model import Role, Worker


@dataclass(frozen=True, slots=True)
class Poll:
    """What one reading says of the work on a worker. ``work`` adds running, backlog and what is being sent.

    ``progress`` is what was generated, computed or finished since the reading before. None = not known, and
    work that is not known is never quiet.
    """

    work: float | None
    progress: float | None = None


def poll_of(worker: Worker) -> Poll:
    """A worker as one poll; its rates are to be over the time since the poll before."""
    rates = (worker.prompt_tokens_per_s, worker.generated_tokens_per_s, worker.requests_per_s)
    known = [rate for rate in rates if rate is not None]
    return Poll(work_of(worker), sum(known) if known else None)


def work_of(worker: Worker) -> float | None:
    """Requests on a worker. Old numbers, an unknown queue part or a silent rank could all hide one: None."""
    if worker.stale or worker.incomplete or worker.backlog.lower_bound:
        return None
    parts = [worker.running, worker.backlog.total]
    if worker.role is Role.PREFILL:
        parts.append(worker.inflight)
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def row_after(row: int, poll: Poll) -> int:
    """Quiet polls in a row with this one, after ``row`` of them.

    The poll that first sees the work gone is the first quiet one. Progress does not count against it: the
    last tokens of the last request fall between it and the poll before. Later, progress means that work came
    and went between two polls: not quiet.
    """
    worked = poll.work is None or poll.work > 0 or (row > 0 and bool(poll.progress))
    return 0 if worked else row + 1


def quiet_polls(polls: Iterable[Poll]) -> int:
    """Quiet polls in a row at the end."""
    return reduce(row_after, polls, 0)


def drained(polls: Iterable[Poll], needed: int) -> bool:
    """Whether the newest ``needed`` polls in a row were quiet."""
    return quiet_polls(polls) >= needed
