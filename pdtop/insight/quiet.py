"""Whether a worker has become empty: enough polls in a row without work and without progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pdtop.cluster.model import Role, Worker


@dataclass(frozen=True, slots=True)
class Poll:
    """What one reading says of the work on a worker. ``work`` adds running, backlog and what is being sent.

    ``progress`` is what was generated or computed since the reading before. None = not known, and not
    known is never quiet.
    """

    work: float | None
    progress: float | None = None


def poll_of(worker: Worker) -> Poll:
    """A worker as one poll; its rates are to be over the time since the poll before.

    Old numbers, an unknown queue part or a rank that does not report could all hide a request.
    """
    if worker.stale or worker.incomplete or worker.backlog.lower_bound:
        return Poll(None)
    parts = [worker.running, worker.backlog.total]
    if worker.role is Role.PREFILL:
        parts.append(worker.inflight)
    rates = (worker.prompt_tokens_per_s, worker.generated_tokens_per_s, worker.requests_per_s)
    known = [rate for rate in rates if rate is not None]
    work = [part for part in parts if part is not None]
    return Poll(sum(work) if len(work) == len(parts) else None, sum(known) if known else None)


def quiet_polls(polls: Iterable[Poll]) -> int:
    """Quiet polls in a row at the end; the poll that first sees the work gone is the first of them.

    Progress since the poll before does not count against that first poll: the last tokens of the last
    request fall between the two. Later, progress means that work came and went between two polls: not quiet.
    """
    row = 0
    for poll in polls:
        worked = poll.work is None or poll.work > 0 or (row > 0 and bool(poll.progress))
        row = 0 if worked else row + 1
    return row


def drained(polls: Iterable[Poll], needed: int) -> bool:
    """Whether the newest ``needed`` polls in a row were quiet."""
    return quiet_polls(polls) >= needed
