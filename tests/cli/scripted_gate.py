"""A gate that plays a script: what it publishes once a plan is started; it notes what it was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pdtop.operations.fields import Field
from pdtop.operations.model import (
    Choice,
    Drain,
    DrainProgress,
    DrainState,
    LogEntry,
    Operation,
    Outcome,
    Phase,
    Plan,
    Request,
    RouterOutcome,
    View,
)

#: A view to publish, or something to do at that moment.
Step = View | Callable[[], object]
ID = "op"
D2 = "10.0.2.22:30001"


class ScriptedGate:
    """``plan`` gives ``made`` with the request in it; ``start`` plays ``script``, or ends as ``refused``."""

    def __init__(self, made: Plan, script: Sequence[Step] = (), *, refused: Operation | None = None) -> None:
        self.made = made
        self.script = list(script)
        self.refused = refused
        self.why_not_arm = ""
        self.current = View()
        self.calls: list[str] = []
        self.typed: tuple[str, ...] = ()
        self.overruled = False
        self.callbacks: list[Callable[[View], object]] = []

    def plan(self, request: Request) -> Plan:
        return replace(self.made, request=request)

    def start(self, plan: Plan, *, typed: Sequence[str] = (), overrule: bool = False) -> Operation:
        self.calls.append(f"start {type(plan.request).__name__}")
        self.typed, self.overruled = tuple(typed), overrule
        if self.refused is not None:
            return self.refused
        self.play()
        return Operation(ID, plan, Phase.WAITING)

    def play(self) -> None:
        for step in self.script:
            if isinstance(step, View):
                self.publish(step)
            else:
                step()

    def publish(self, view: View) -> None:
        self.current = replace(view, read_only=self.current.read_only)
        for callback in list(self.callbacks):
            callback(self.current)

    def view(self) -> View:
        return self.current

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def choose(self, operation_id: str, choice: Choice) -> None:
        self.calls.append(f"choose {choice.value}")

    def dismiss(self, operation_id: str | None = None) -> None:
        raise AssertionError("nothing is dismissed on the command line")

    def arm(self) -> str:
        self.calls.append("arm")
        if not self.why_not_arm:
            self.current = replace(self.current, read_only=False)
        return self.why_not_arm

    def disarm(self) -> None:
        self.calls.append("disarm")
        self.current = replace(self.current, read_only=True)

    def log(self, limit: int = 200) -> tuple[LogEntry, ...]:
        return ()

    def fields(self) -> tuple[Field, ...]:
        return ()

    def wait(self, operation_id: str, timeout_s: float | None = None) -> Operation:
        raise AssertionError("the command line follows the views")


def drain_plan(**changes: object) -> Plan:
    base = Plan(
        Drain((D2,)), f"Drain decode worker {D2}", "prod-a", targets=(D2,), rows=(("Now", "3 running"),)
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def operation(phase: Phase, **changes: object) -> Operation:
    return replace(Operation(ID, drain_plan(), phase), **changes)  # type: ignore[arg-type]


def ended(outcome: Outcome, words: str = "", **changes: object) -> View:
    return View(operations=(operation(Phase.ENDED, outcome=outcome, words=words, **changes),))


def draining(
    left: float | None = 3,
    state: DrainState = DrainState.DRAINING,
    phase: Phase = Phase.DRAINING,
    **changes: object,
) -> View:
    """The drain goes on at its worker."""
    progress = replace(DrainProgress(D2, state, left), **changes)  # type: ignore[arg-type]
    return View(operations=(operation(phase),), drains=(progress,))


DRAINED = replace(draining(0, DrainState.DRAINED), operations=(operation(Phase.ENDED, outcome=Outcome.DONE),))


def no_new_work(*routers: RouterOutcome, words: str = "") -> View:
    return View(operations=(operation(Phase.DRAINING, routers=routers, words=words),))
