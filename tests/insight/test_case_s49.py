"""Case s49: a circuit goes open, then half-open, and stays."""

from __future__ import annotations

import pytest

from pdtop.cluster.board import Board
from pdtop.cluster.model import Breaker, Finding, Health, Role, Severity, State
from pdtop.cluster.router_watch import RouterWatch
from pdtop.cluster.watch import About
from pdtop.insight.levels import DEFAULT_LEVELS
from tests.cluster.story import Pages, health, page
from tests.insight.case import case
from tests.insight.scenes import one, opinion, scene, worker

KEY = "p1:30000"


def router_page(cb_state: int, healthy: int) -> str:
    labels = f'{{worker="http://{KEY}",worker_type="prefill"}}'
    return (
        f"# TYPE smg_worker_cb_state gauge\nsmg_worker_cb_state{labels} {cb_state}\n"
        f"# TYPE smg_worker_health gauge\nsmg_worker_health{labels} {healthy}\n"
    )


def test_half_open_for_two_time_outs() -> None:
    given, expect = case("s49-half-open-for-ever")
    assert given["breaker_timeout_s"] == DEFAULT_LEVELS.breaker_timeout_s
    board, pages, router_pages = Board(), Pages(), Pages()
    board.add_router(RouterWatch("router"))
    board.add_worker(About(KEY, given["worker"], Role.PREFILL))
    states: dict[str, str] = {}
    told: dict[float, Finding] = {}
    usable: dict[float, bool | None] = {}
    for poll in given["polls"]:
        t = float(poll["t"])
        board.router_metrics("router", router_pages.router(t, router_page(poll["cb_state"], poll["health"])))
        board.metrics(KEY, pages.read(t, page(num_running_reqs=0, num_queue_reqs=0)))
        board.health(KEY, health(t, True))
        snapshot = board.snapshot(t, 0.0, 60.0)
        found = snapshot.worker(KEY)
        assert found is not None
        breaker = found.opinions[0].breaker
        assert breaker is not None
        states[str(poll["t"])] = breaker.value.replace("_", "-")
        usable[t] = found.usable
        told.update(
            (t, finding)
            for finding in snapshot.findings
            if finding.kind == "breaker_half_open" and finding.severity is Severity.WARNING
        )
    assert states == expect["at"]
    assert list(told) == [210.0, 330.0]
    assert min(told) == expect["must_flag"]["first_shown_at"]
    first = told[210.0]
    assert (first.worker, given["worker"]) == (KEY, expect["must_flag"]["node"])
    assert expect["must_flag"]["reason"] in first.text
    assert "remove it from the router and add it again" in first.fix
    assert usable[0.0] is True
    assert usable[330.0] is expect["usable_at_330"]


@pytest.mark.parametrize(
    ("since", "health", "state", "severity"),
    [
        (119.0, Health.HEALTHY, State.OK, Severity.INFO),
        (120.0, Health.HEALTHY, State.OK, Severity.WARNING),
        (120.0, None, State.OK, Severity.WARNING),
        (120.0, Health.UNHEALTHY, State.OK, Severity.INFO),  # then it is right to keep it out
        (120.0, Health.HEALTHY, State.AUTH, Severity.INFO),
    ],
)
def test_only_a_worker_that_is_well_ought_to_be_back(
    since: float, health: Health | None, state: State, severity: Severity
) -> None:
    said = opinion(health, Breaker.HALF_OPEN, breaker_since_s=since)
    snapshot = scene(worker(opinions=(said,), state=state), worker("d2"))
    assert one(snapshot, "breaker_half_open").severity is severity
