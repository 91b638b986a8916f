"""Whether a router runs anew: all ids are new, or counters that only grow have fallen; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtop.cluster.readings import ListedWorker
from pdtop.metrics.router_page import RouterNumbers


@dataclass(frozen=True, slots=True)
class RouterMark:
    """What one run of a router was last seen with. Start with an empty one.

    ``ids`` by URL; routers give a worker a new one at every start. ``requests``: taken since its start.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    requests: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """``restarted``: why this is another run, "" if it is not."""

    mark: RouterMark
    restarted: str = ""


def see_list(
    mark: RouterMark, workers: Sequence[ListedWorker], *, readded: frozenset[str] = frozenset()
) -> Seen:
    """The next worker list. ``readded``: URLs that were taken out and put in again: their ids prove nothing.

    An empty list proves nothing either: a router may begin with one. Ids are then kept for the comparison.
    """
    ids = {worker.url: worker.worker_id for worker in workers if worker.worker_id}
    if not ids:
        return Seen(mark)
    common = (mark.ids.keys() & ids.keys()) - readded
    if common and all(mark.ids[url] != ids[url] for url in common):
        # The counters of the new run have not been seen: they must not count as a second restart.
        return Seen(RouterMark(ids), "its workers have new ids")
    return Seen(replace(mark, ids=ids))


def see_page(mark: RouterMark, numbers: RouterNumbers) -> Seen:
    """The next metrics page. A series that a whole page lacks stands at 0: it comes with first use."""
    requests = numbers.requests
    if requests is None:
        requests = 0.0 if numbers.complete and numbers.family else mark.requests
    if mark.requests is not None and requests is not None and requests < mark.requests:
        return Seen(RouterMark(requests=requests), "its counters began again")
    return Seen(replace(mark, requests=requests))
