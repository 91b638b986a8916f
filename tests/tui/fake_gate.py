"""A gate the test drives: scripted plans, operations and views; it notes what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdtop.cluster.model import Role
from pdtop.operations.model import (
    Choice,
    Drain,
    DrainProgress,
    DrainState,
    Guard,
    LogEntry,
    Operation,
    Outcome,
    Phase,
    Plan,
    PoolEffect,
    Request,
    Step,
    View,
)
from tests.tui import fakes

if TYPE_CHECKING:
    from pdtop.operations.fields import Field

STALLED = "10.0.2.22:30001"
DRAINING = "10.0.2.24:30001"

DIFF = """\
--- config.toml (now)
+++ config.toml (new)
@@ -28,4 +28,6 @@
 policy = "power_of_two"
  # routes by load
+[decode.worker."10.0.2.22:30001"]
+drain = true
 [health]
 interval_secs = 5"""


def drain_plan(**changes: object) -> Plan:
    """Drain the stalled decode worker."""
    base = Plan(
        request=Drain((STALLED,)),
        title="Drain decode worker 10.0.2.22:30001",
        cluster="prod-a",
        rows=(
            ("Now", "14 running, 13 waiting for KV"),
            ("How", "smg: DELETE /workers/7f3a, then wait here until it is empty"),
            ("Returns", "any time with U"),
        ),
        effects=(PoolEffect(Role.DECODE, 4, 3, 2, 0.56, 0.81, 16.0, 24.5),),
        guards=(
            Guard("capacity", "the fullest of the rest comes to 92 % of its KV memory", "drain later", False),
        ),
        diff=DIFF,
        steps=(
            Step("config.toml", "[decode.worker.\"10.0.2.22:30001\"] drain = true"),
            Step("router-0", "DELETE /workers/7f3a, then read back"),
        ),
        digest="d1",
        targets=(STALLED,),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def last_of_pool() -> Plan:
    """The same where the name must be typed."""
    guard = Guard("last_of_pool", "no usable decode worker would be left: every request fails",
                  "bring another one back first", True, STALLED)  # fmt: skip
    return drain_plan(guards=(guard,), effects=(PoolEffect(Role.DECODE, 4, 1, 0),))


def refused() -> Plan:
    guard = Guard("locked", "anna@jump-1 (pid 4711) since 14:02 operates on this cluster",
                  "wait for anna, or end that pdtop")  # fmt: skip
    return drain_plan(guards=(guard,))


def operation(plan: Plan | None = None, **changes: object) -> Operation:
    base = Operation("op1", plan or drain_plan(), Phase.APPLYING, started=fakes.NOW + 60)
    return replace(base, **changes)  # type: ignore[arg-type]


def draining(**changes: object) -> DrainProgress:
    base = DrainProgress(
        DRAINING, DrainState.DRAINING, left=13, eta_s=180, since=fakes.NOW - 30, by="anna@jump-1",
        deadline=fakes.NOW + 1770,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


class FakeGate:
    """``plans`` answers by the type of the request, else with ``drain_plan``; ``set`` publishes a view."""

    def __init__(self, view: View | None = None, *, armed: bool = True) -> None:
        self.current = view or View(read_only=not armed)
        self.plans: dict[type[object], Plan] = {}
        self.asked: list[Request] = []
        self.started: list[tuple[Plan, tuple[str, ...], bool]] = []
        self.chosen: list[tuple[str, Choice]] = []
        self.dismissed: list[str | None] = []
        self.why_not_arm = ""
        self.answer: Operation | None = None
        self.entries: tuple[LogEntry, ...] = ()
        self.tunable: tuple[Field, ...] = ()
        self.callbacks: list[Callable[[View], object]] = []

    def set(self, **changes: object) -> None:
        self.current = replace(self.current, **changes)  # type: ignore[arg-type]
        for callback in list(self.callbacks):
            callback(self.current)

    def plan(self, request: Request) -> Plan:
        self.asked.append(request)
        found = self.plans.get(type(request), drain_plan())
        return replace(found, request=request)

    def start(self, plan: Plan, *, typed: Sequence[str] = (), overrule: bool = False) -> Operation:
        self.started.append((plan, tuple(typed), overrule))
        begun = self.answer or operation(plan)
        self.set(operations=(*self.current.operations, begun))
        return begun

    def view(self) -> View:
        return self.current

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def choose(self, operation_id: str, choice: Choice) -> None:
        self.chosen.append((operation_id, choice))

    def dismiss(self, operation_id: str | None = None) -> None:
        self.dismissed.append(operation_id)
        kept = (o for o in self.current.operations if not o.ended or operation_id not in (None, o.id))
        self.set(operations=tuple(kept))

    def arm(self) -> str:
        if not self.why_not_arm:
            self.set(read_only=False, armed_by="this console")
        return self.why_not_arm

    def disarm(self) -> None:
        self.set(read_only=True, armed_by="")

    def log(self, limit: int = 200) -> tuple[LogEntry, ...]:
        return self.entries[:limit]

    def fields(self) -> tuple[Field, ...]:
        return self.tunable

    def wait(self, operation_id: str, timeout_s: float | None = None) -> Operation:
        return next(o for o in self.current.operations if o.id == operation_id)


ENDED = operation(
    phase=Phase.ENDED, outcome=Outcome.PARTLY_DONE, words="router-1 does not answer", seconds=12.0,
    next_step="a applies again",
)  # fmt: skip
