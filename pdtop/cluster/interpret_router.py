"""What a router's answers mean: worker list, readiness, loads, metrics page."""

from __future__ import annotations

from collections.abc import Mapping

from pdtop.cluster.answers import KeyUse, line_words, status_words, trouble
from pdtop.cluster.model import Role, State
from pdtop.cluster.readings import Answer, ListedWorker, RouterMetricsReading, RouterReading
from pdtop.metrics.router_page import RouterNumbers, RouterPageReader
from pdtop.routers.dialect import Dialect

NO_ROUTE = frozenset({404, 405, 501})
#: Workers of one router that are watched; each takes four requests at a time and some 50 KB.
MOST_WORKERS = 1024


def router_reading(
    listed: Answer,
    ready: Answer | None,
    *,
    alive: bool | None,
    dialect: Dialect,
    keys: KeyUse,
    loads: Mapping[str, float | None] | None = None,
    version: str | None = None,
) -> RouterReading:
    """One round on a router's main port. ``alive``: its health route answered 200; None: not asked.

    A router without a worker list that is otherwise well is ``ok``: it can be watched, not changed. The
    workers that its loads name are then all that is known.
    """
    readiness = dialect.readiness(ready.status, ready.body) if ready is not None else None
    state, reason, fix = State.OK, "", ""
    workers = dialect.workers(listed.body) if listed.status == 200 and listed.failure is None else None
    found = trouble(listed, keys)
    if workers is not None:
        if len(workers) > MOST_WORKERS:
            reason = f"it lists {len(workers)} workers; the first {MOST_WORKERS} are watched"
            workers = workers[:MOST_WORKERS]
    elif listed.status in NO_ROUTE and (alive or loads is not None):
        reason = f"{status_words(listed.status)}: it has no worker list"
        if loads is not None:
            workers = tuple(ListedWorker("", url, Role.UNKNOWN) for url in loads)[:MOST_WORKERS]
    elif found is not None:
        state, reason, fix = found.state, found.reason, found.fix
    else:
        state = listed.failure or State.HTTP_ERROR
        reason = listed.detail or "200, but no worker list"
        fix = "see whether this is the router's main port"
    return RouterReading(
        at=listed.at,
        state=state,
        status=listed.status,
        reason=reason,
        fix=fix,
        engine=dialect.engine,
        version=version,
        workers=workers,
        loads=loads,
        ready=readiness.ready if readiness else None,
        ready_reason=readiness.reason if readiness else "",
        alive=alive,
        control=dialect.control and bool(workers) and all(worker.worker_id for worker in workers or ()),
    )


def router_metrics_reading(answer: Answer, reader: RouterPageReader, keys: KeyUse) -> RouterMetricsReading:
    """A router's metrics page. ``reader`` is that router's own: it remembers the page's layout."""

    def reading(
        state: State, reason: str = "", fix: str = "", numbers: RouterNumbers | None = None
    ) -> RouterMetricsReading:
        return RouterMetricsReading(answer.at, state, answer.status, reason, fix, numbers)

    found = trouble(answer, keys)
    if found is not None:
        if answer.status == 404 and found.state is State.HTTP_ERROR:
            return reading(State.METRICS_DISABLED, f"{status_words(404)}: no metrics there", METRICS_FIX)
        return reading(found.state, found.reason, found.fix)
    numbers = reader.read(answer.body, answer.at, truncated=answer.truncated)
    if not numbers.family:
        # An idle sglang-router without workers has an empty page, and it is a good one.
        if not numbers.bad_lines and answer.failure is None:
            return reading(State.OK, "no series yet", "", numbers)
        return reading(State.NOT_METRICS, "200, but no router's metrics", METRICS_FIX)
    if answer.failure is not None:
        return reading(State.PARTIAL, f"{answer.detail}; {numbers.lines} lines were read", "", numbers)
    if numbers.bad_lines or numbers.duplicates:
        return reading(State.OK_WITH_WARNINGS, line_words(numbers), "", numbers)
    return reading(State.OK, "", "", numbers)


METRICS_FIX = "name its metrics page: metrics_url in [server], or --metrics-url (it has a port of its own)"
