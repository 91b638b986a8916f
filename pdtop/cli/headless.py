"""``pdtop apply --watch``: keeps the routers as config.toml says, without a screen, a line an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from pdtop.cli.printed import drain_words, next_step
from pdtop.cli.terminal import Signals, Told
from pdtop.cluster.model import Snapshot
from pdtop.cluster.words import clean
from pdtop.operations.gate import Gate
from pdtop.operations.model import DrainState, Operation, Plan, View


class Events:
    """From views and snapshots to the lines that are new in them."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[object, object]] = {}
        self._drains: dict[str, DrainState] = {}
        self._notices: tuple[str, ...] = ()
        self._error = ""
        self._restart: object = None

    def of_view(self, view: View) -> Iterator[str]:
        present = {operation.id for operation in view.operations}
        for operation in view.operations:
            yield from self._of_operation(operation)
        self._phases = {key: seen for key, seen in self._phases.items() if key in present}
        for drain in view.drains:
            if self._drains.get(drain.worker) is not drain.state:
                self._drains[drain.worker] = drain.state
                yield drain_words(drain, drain.worker)
        for worker in self._drains.keys() - {drain.worker for drain in view.drains}:
            del self._drains[worker]
            yield f"{worker}: no longer to be drained"
        yield from (notice for notice in view.notices if notice not in self._notices)
        self._notices = view.notices
        if view.restart is not None and view.restart.changes != self._restart:
            keys = ", ".join(change.key for change in view.restart.changes)
            yield f"counts only after a restart of the router: {keys}; pdtop restart shows the plan"
        self._restart = view.restart.changes if view.restart is not None else None

    def of_snapshot(self, snapshot: Snapshot) -> Iterator[str]:
        if snapshot.config_error != self._error:
            self._error = snapshot.config_error
            yield f"broken: {self._error}" if self._error else "config.toml: in order again"

    def _of_operation(self, operation: Operation) -> Iterator[str]:
        now = (operation.phase if operation.ended else None, operation.outcome)
        if self._phases.get(operation.id) == now:
            return
        first = operation.id not in self._phases
        self._phases[operation.id] = now
        if operation.ended:
            outcome = operation.outcome.value if operation.outcome is not None else "ended"
            words = f": {operation.words}" if operation.words not in ("", outcome) else ""
            step = f"; next: {step}" if (step := next_step(operation)) else ""
            yield f"{operation.plan.title}: {outcome}{words}{step}"
        elif first:
            source = "" if operation.plan.title.startswith(operation.source) else f" ({operation.source})"
            yield f"{operation.plan.title}{source}"


def keep_true(
    gate: Gate,
    plan: Plan,
    subscribe: Callable[[Callable[[Snapshot], object]], Callable[[], None]],
    write: Callable[[str], object],
    *,
    clock: Callable[[], float] = time.time,
) -> int:
    """Carry ``plan`` out, then go on until a signal says to end; the gate asserts the file by itself.

    ``subscribe`` is the monitor's. 0 when it was told to end, 4 when somebody else operates on the cluster.
    """
    queue: SimpleQueue[object] = SimpleQueue()
    events = Events()

    def say(words: str) -> None:
        write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z', time.localtime(clock()))} {clean(words)}")

    with Signals(queue):
        leave = gate.subscribe(queue.put), subscribe(queue.put)
        try:
            if why_not := gate.arm():
                say(f"refused: {why_not}")
                return 4
            say(f"{plan.cluster}: config.toml is kept true at the routers until SIGTERM")
            if not plan.nothing_to_do:
                gate.start(plan)
            while not isinstance(event := queue.get(), Told):
                lines = events.of_view(event) if isinstance(event, View) else ()
                for line in events.of_snapshot(event) if isinstance(event, Snapshot) else lines:
                    say(line)
        finally:
            for one in leave:
                one()
            gate.disarm()
    say("ended: the routers stay as they are")
    return 0
