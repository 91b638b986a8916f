"""The service of ``apply --watch``: its lines, its start and its end, with a scripted gate."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

from pdtop.cli.headless import Events, keep_true
from pdtop.cluster.model import Snapshot
from pdtop.config.changes import Change
from pdtop.operations.model import Apply, Drain, DrainState, Outcome, Phase, Plan, RestartPlan, View
from tests.cli.scripted_gate import D2, ScriptedGate, drain_plan, draining, ended, operation

PLAN = replace(drain_plan(), title="Bring the routers to what config.toml says", request=Apply())


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def nobody(callback: Callable[[Snapshot], object]) -> Callable[[], None]:
    return lambda: None


def served(gate: ScriptedGate, plan: Plan = PLAN) -> tuple[int, list[str]]:
    """The code and the lines without their time."""
    lines: list[str] = []
    code = keep_true(gate, plan, nobody, lines.append, clock=lambda: 0.0)
    return code, [line.partition(" ")[2] for line in lines]


def test_it_applies_tells_every_event_once_and_ends_with_0() -> None:
    applying = View(operations=(operation(Phase.APPLYING, plan=PLAN, source="apply --watch"),))
    done = ended(Outcome.DONE, "2 changes read back", plan=PLAN)
    gate = ScriptedGate(PLAN, [applying, applying, done, done, terminated])
    code, lines = served(gate)
    assert code == 0
    assert lines == [
        "prod-a: config.toml is kept true at the routers until SIGTERM",
        "Bring the routers to what config.toml says (apply --watch)",
        "Bring the routers to what config.toml says: done: 2 changes read back",
        "ended: the routers stay as they are",
    ]
    assert gate.calls == ["arm", "start Apply", "disarm"]


def test_with_nothing_to_do_it_only_watches() -> None:
    gate = ScriptedGate(PLAN)
    gate.callbacks.append(lambda _: None)
    plan = replace(PLAN, nothing_to_do="the routers are as config.toml says")

    def subscribe(callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        terminated()
        return lambda: None

    assert keep_true(gate, plan, subscribe, lambda _: None) == 0
    assert gate.calls == ["arm", "disarm"]


def test_it_leaves_the_cluster_to_who_operates_on_it() -> None:
    gate = ScriptedGate(PLAN)
    gate.why_not_arm = "anna operates on this cluster"
    assert served(gate) == (4, ["refused: anna operates on this cluster"])


def test_drains_are_told_by_their_state() -> None:
    events = Events()
    bare = [replace(draining(left), operations=()) for left in (3, 2)]
    drained = replace(draining(0, DrainState.DRAINED), operations=())
    lines = [line for view in (*bare, drained, View()) for line in events.of_view(view)]
    assert lines == [f"{D2}: 3 left", f"{D2}: drained, safe to stop", f"{D2}: no longer to be drained"]


def test_who_edited_is_said_once_and_no_key_is_a_next_step_in_a_journal() -> None:
    plan = replace(PLAN, title="config.toml edited: decode.policy: a → b", request=Drain((D2,)))
    source = "config.toml edited"
    begun = View(operations=(operation(Phase.APPLYING, plan=plan, source=source),))
    done = ended(Outcome.DONE, "read back", plan=plan, next_step="U brings it back")
    events = Events()
    assert [line for view in (begun, done) for line in events.of_view(view)] == [
        plan.title,
        f"{plan.title}: done: read back; next: pdtop undrain {D2} brings it back",
    ]


def test_notices_restarts_and_a_broken_file_are_told_once() -> None:
    events = Events()
    restart = RestartPlan((Change("decode.policy", "a", "b"),), (), (), "")
    view = View(notices=("pdtop was killed",), restart=restart)
    assert list(events.of_view(view)) == [
        "pdtop was killed",
        "counts only after a restart of the router: decode.policy; pdtop restart shows the plan",
    ]
    assert list(events.of_view(view)) == []
    bad = Snapshot(1, "prod-a", 0.0, 10.0, 2.0, config_error="line 3: no")
    assert list(events.of_snapshot(bad)) == ["broken: line 3: no"]
    assert list(events.of_snapshot(bad)) == []
    assert list(events.of_snapshot(replace(bad, config_error=""))) == ["config.toml: in order again"]
