"""One change from the command line: show the plan, ask, carry it out, follow it, end with a code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from queue import Empty, SimpleQueue

from pdtop.cli.printed import (
    USAGE,
    drain_words,
    essence,
    outcome_lines,
    what_is_asked,
)
from pdtop.cli.terminal import Signals, Terminal, Told
from pdtop.cluster.model import Drift
from pdtop.operations.gate import Gate
from pdtop.operations.model import (
    Choice,
    Drain,
    DrainProgress,
    DrainState,
    Guard,
    Operation,
    Outcome,
    Phase,
    Plan,
    Request,
    Undo,
    Undrain,
    View,
)

#: So often the clock is looked at while nothing is heard.
_LOOK_S = 1.0
#: The gate says that a deadline has passed, or has its log say that a worker is drained; if it does not, this
#: much later it is so all the same.
_GRACE_S = 3.0
_WAITING = (Phase.DRAINING, Phase.DEADLINE)
#: Drift that tells that a drain or its end is not in force at a router.
_MEMBERSHIP = ("drain", "not_in_router")


class Code(IntEnum):
    """How a verb ends."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DEADLINE = 3
    REFUSED = 4
    NOT_APPLIED = 5
    PARTLY = 6


_CODES = {
    Outcome.DONE: Code.DONE,
    Outcome.FAILED: Code.FAILED,
    Outcome.TIMED_OUT: Code.DEADLINE,
    Outcome.REFUSED: Code.REFUSED,
    Outcome.CANCELLED: Code.REFUSED,
    Outcome.ACCEPTED_NOT_APPLIED: Code.NOT_APPLIED,
    Outcome.PARTLY_DONE: Code.PARTLY,
}


@dataclass(frozen=True, slots=True)
class How:
    """The options that all verbs share.

    ``read_only``: why nothing may be changed from here, else None; then the verb arms the gate for as long as
    it changes something. ``wait_s``: wait for a drain's end for so long; None: until no new work comes.
    """

    yes: bool = False
    dry_run: bool = False
    typed: tuple[str, ...] = ()
    overrule: bool = False
    read_only: Guard | None = None
    wait_s: float | None = None


class Verb:
    """Carries one request out. ``name_of`` gives a worker's name for its key; ``drift`` is of now."""

    def __init__(
        self,
        gate: Gate,
        terminal: Terminal,
        how: How,
        *,
        name_of: Callable[[str], str] = str,
        drift: Sequence[Drift] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gate = gate
        self._terminal = terminal
        self._how = how
        self._name_of = name_of
        self._drift = drift
        self._clock = clock
        self._events: SimpleQueue[object] = SimpleQueue()
        self._signals = Signals(self._events)
        self._leaving: Told | None = None  # a signal that came while a change was finished

    def run(self, request: Request) -> int:
        """The exit code."""
        plan = self.plan(request)
        if self._how.dry_run:
            self._terminal.plan_asked_for(plan)
            return _refused(plan) or Code.DONE
        if plan.nothing_to_do:
            return self._nothing_to_do(plan)
        typed = self.confirmed(plan)
        if isinstance(typed, Code):
            return typed
        leave = self._gate.subscribe(self._events.put)
        try:
            with self._signals:
                return self._carry_out(plan, typed)
        finally:
            leave()

    def plan(self, request: Request) -> Plan:
        """The plan as it is for this verb: not armed yet is no objection where it may arm."""
        plan = self._gate.plan(request)
        guards = tuple(guard for guard in plan.guards if guard.kind != "read_only")
        if self._how.read_only is not None:
            guards = (self._how.read_only, *guards)
        return replace(plan, guards=guards)

    def confirmed(self, plan: Plan) -> tuple[str, ...] | Code:
        """Show the plan and ask; the words that were typed, or how it ends."""
        terminal, how = self._terminal, self._how
        terminal.plan(plan)
        if (code := _refused(plan)) is not None:
            return code
        missing = [word for word in plan.overrides if word not in how.typed]
        if not terminal.interactive and (missing or not how.yes):
            if missing:
                terminal.answer([f"refused: this needs --type {' '.join(missing)}"])
                return Code.REFUSED
            terminal.answer(["refused: there is no terminal to ask on: add --yes"])
            return Code.USAGE
        try:
            for word in missing:
                if not terminal.typed(word):
                    terminal.answer([f"refused: {word} was not typed; nothing was changed"])
                    return Code.REFUSED
            if not missing and not how.yes and not terminal.yes(what_is_asked(plan)):
                terminal.answer(["cancelled: nothing was changed"])
                return Code.REFUSED
        except KeyboardInterrupt:
            terminal.answer(["cancelled: nothing was changed"])
            raise
        return (*how.typed, *missing)

    def _nothing_to_do(self, plan: Plan) -> int:
        """The file says so already; that routers do is another question."""
        request = plan.request
        behind = [one.text for one in self._drift if one.worker in plan.targets and one.kind in _MEMBERSHIP]
        words = "; but ".join([plan.nothing_to_do, *behind])
        if isinstance(request, Drain) and self._how.wait_s is not None:
            self._terminal.say(words)
            leave = self._gate.subscribe(self._events.put)
            self._events.put(self._gate.view())
            try:
                with self._signals:
                    return self._wait(request.workers, None)
            finally:
                leave()
        if behind:
            self._terminal.answer([f"partly done: {words}", "next: pdtop apply brings the routers to it"])
            return Code.PARTLY
        if isinstance(request, Undo):
            self._terminal.answer([f"refused: {words}"])
            return Code.REFUSED
        self._terminal.answer([f"nothing to do: {words}"])
        return Code.DONE

    def _carry_out(self, plan: Plan, typed: tuple[str, ...]) -> int:
        if why_not := self._gate.arm():
            self._terminal.answer([f"refused: {why_not}"])
            return Code.REFUSED
        begun = self._gate.start(plan, typed=typed, overrule=self._how.overrule)
        settled = begun if begun.ended else self._settled(begun)
        if isinstance(settled, Told):
            return settled.code
        if settled.ended:
            return self.ended(settled)
        request = plan.request
        if isinstance(request, Drain) and self._how.wait_s is not None:
            self._gate.disarm()  # while it only waits, others may operate
            for one in settled.routers:
                if one.outcome is not Outcome.DONE:
                    fix = f"; {one.fix}" if one.fix else ""
                    self._terminal.say(f"{one.router}: {one.outcome.value}: {one.words}{fix}")
            if self._leaving is not None:
                return self._left(request.workers, self._leaving)
            return self._wait(request.workers, settled)
        return self._no_new_work(settled)

    def ended(self, operation: Operation) -> Code:
        self._terminal.answer(outcome_lines(operation))
        return _CODES.get(operation.outcome or Outcome.FAILED, Code.FAILED)

    def _settled(self, begun: Operation) -> Operation | Told:
        """Wait until it has ended, or a drain goes on by itself. A second signal does not wait for that."""
        phase = begun.phase
        while True:
            event = self._events.get()
            if isinstance(event, Told):
                if self._leaving is not None:
                    self._terminal.answer(["left; `pdtop log` says what became of it"])
                    return event
                self._leaving = event
                self._terminal.say("what was begun is finished first; once more leaves at once")
            operation = _operation(event, begun.id)
            if operation is None:
                continue
            if operation.ended or operation.phase in _WAITING:
                return operation
            if operation.phase is not phase and operation.words:
                phase = operation.phase
                self._terminal.progress(operation.words, worth_a_line=True)

    def _no_new_work(self, operation: Operation) -> Code:
        """A drain that is not waited for."""
        bad = [one.outcome for one in operation.routers if one.outcome is not Outcome.DONE]
        if not bad and not operation.words:
            done = replace(operation, outcome=Outcome.DONE, words="no new work comes; what runs is finished")
            self.ended(replace(done, next_step=_watch_it(operation.plan.targets)))
            return Code.DONE
        everywhere = len(bad) == len(operation.routers) and len(set(bad)) == 1
        return self.ended(replace(operation, outcome=bad[0] if bad and everywhere else Outcome.PARTLY_DONE))

    # Waiting for a drain

    def _wait(self, workers: Sequence[str], operation: Operation | None) -> int:
        timeout = self._how.wait_s or 0.0
        deadline = self._clock() + timeout
        seen: set[str] = set()
        shown: object = None
        progress: list[DrainProgress] = []
        drained_at: float | None = None
        while True:
            event = self._next()
            if isinstance(event, Told):
                return self._left(workers, event)
            if isinstance(event, View):
                found = {key: event.drain_of(key) for key in workers}
                progress = [one for one in found.values() if one is not None]
                if operation is not None and (now := _operation(event, operation.id)) is not None:
                    operation = now
                gone = [key for key, one in found.items() if one is None and key in seen]
                if gone or (operation is not None and operation.outcome is Outcome.CANCELLED):
                    return self._brought_back(gone or list(workers))
                seen |= {one.worker for one in progress}
                drained = len(progress) == len(workers) and all(one.safe_to_stop for one in progress)
                if drained and not _logs_it(event, workers):
                    return self._drained(workers)
                drained_at = (drained_at or self._clock()) if drained else None
                essences = [essence(one) for one in progress]
                if progress:
                    words = " · ".join(drain_words(one, self._name_of(one.worker)) for one in progress)
                    self._terminal.progress(words, worth_a_line=essences != shown)
                shown = essences
                self._assert_where_needed(progress)
            if drained_at is not None and self._clock() >= drained_at + _GRACE_S:
                return self._drained(workers)
            asks = operation is not None and operation.phase is Phase.DEADLINE
            if asks or self._clock() >= deadline + (_GRACE_S if operation is not None else 0.0):
                code = self._deadline(workers, operation, progress)
                if code is not None:
                    return code
                deadline = self._clock() + timeout
                operation = replace(operation, phase=Phase.DRAINING) if operation is not None else None

    def _next(self) -> object:
        try:
            return self._events.get(timeout=_LOOK_S)
        except Empty:
            return None

    def _assert_where_needed(self, progress: Sequence[DrainProgress]) -> None:
        """A router that has taken the worker back is told again, for which the gate must be armed.

        Beside a service it is the service that does.
        """
        view = self._gate.view()
        served = view.holder is not None and view.holder.service
        needed = not served and any(one.state is DrainState.PARTLY_DRAINED for one in progress)
        if needed == view.read_only:
            if needed:
                self._gate.arm()
            else:
                self._gate.disarm()

    def _drained(self, workers: Sequence[str]) -> Code:
        names = self._names(workers)
        self._terminal.answer([f"drained: {names} safe to stop", f"next: {_undrain(workers)}"])
        return Code.DONE

    def _brought_back(self, keys: Sequence[str]) -> Code:
        who = ", ".join(map(self._name_of, keys))
        self._terminal.answer([f"cancelled: config.toml no longer says that {who} is to be drained"])
        return Code.REFUSED

    def _left(self, workers: Sequence[str], told: Told) -> int:
        """Somebody wants to leave: the drain stays."""
        self._terminal.answer(
            [
                f"not drained yet: the drain of {', '.join(map(self._name_of, workers))} stays in force",
                f"next: {_watch_it(workers)}; {_undrain(workers)}",
            ]
        )
        return told.code

    def _deadline(
        self, workers: Sequence[str], operation: Operation | None, progress: Sequence[DrainProgress]
    ) -> int | None:
        """The time is over: None to wait on."""
        id_ = operation.id if operation is not None else ""
        told = "; ".join(drain_words(one, self._name_of(one.worker)) for one in progress) or "not read yet"
        if not self._terminal.interactive:
            self._terminal.answer(
                [
                    f"not drained in time: {told}",
                    f"nothing was aborted, the drain stays in force; next: {_watch_it(workers)}; "
                    + _undrain(workers),
                ]
            )
            return Code.DEADLINE
        self._terminal.say(f"the deadline has passed: {told}")
        answer = self._asked()
        if isinstance(answer, Told):
            return self._left(workers, answer)
        if answer == "w":
            self._gate.choose(id_, Choice.WAIT)
            return None
        if answer == "c":
            return self._cancelled(workers)
        self._gate.choose(id_, Choice.STOP_ANYWAY)
        self._terminal.answer([f"not drained: {told}", "what is left is cut when the worker is stopped"])
        return Code.DEADLINE

    def _asked(self) -> str | Told:
        choices = {
            "w": "wait as long again",
            "s": "stop waiting: what is left is cut when you stop the worker",
            "c": "cancel the drain: bring it back",
        }
        try:
            with self._signals.raised():
                while not (answer := self._terminal.choice("nothing was aborted; what now?", choices)):
                    pass
        except Told as told:
            return told
        return answer

    def _cancelled(self, workers: Sequence[str]) -> Code:
        """Bring it back; not drained all the same, so no code that lets a script stop it."""
        if why_not := self._gate.arm():
            self._terminal.answer([f"refused: {why_not}"])
            return Code.REFUSED
        plan = self._gate.plan(Undrain(tuple(workers)))
        begun = self._gate.start(plan, typed=self._how.typed)
        settled = begun if begun.ended else self._settled(begun)
        if not isinstance(settled, Told):
            self._terminal.answer(["the drain was cancelled", *outcome_lines(settled)])
        return Code.REFUSED

    def _names(self, workers: Sequence[str]) -> str:
        names = ", ".join(map(self._name_of, workers))
        return f"{names} {'is' if len(workers) == 1 else 'are'}"


def _refused(plan: Plan) -> Code | None:
    """How it ends if it is refused whatever is typed; what was typed wrongly is a matter of usage."""
    if plan.refusal is None:
        return None
    return Code.USAGE if plan.refusal.kind in USAGE else Code.REFUSED


def _operation(event: object, operation_id: str) -> Operation | None:
    if not isinstance(event, View):
        return None
    return next((one for one in event.operations if one.id == operation_id), None)


def _logs_it(view: View, workers: Sequence[str]) -> bool:
    """Whether the gate still waits for a drain of these: what has ended is in its log before it is told."""
    return any(
        isinstance(one.plan.request, Drain) and one.phase in _WAITING and set(one.plan.targets) & set(workers)
        for one in view.operations
    )


def _watch_it(workers: Sequence[str]) -> str:
    return f"pdtop drain {' '.join(workers)} --wait watches it"


def _undrain(workers: Sequence[str]) -> str:
    return f"pdtop undrain {' '.join(workers)} brings it back"
