"""Where the screen meets the gate: the view in force, questions, what is started, what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.notifications import SeverityLevel
from textual.screen import ModalScreen

from pdtop.operations.model import EMPTY_VIEW, Choice, Operation, Outcome, Plan, Request, View
from pdtop.tui.messages import ViewArrived
from pdtop.tui.operation_lines import TONES, what
from pdtop.tui.screens.arm import ArmScreen
from pdtop.tui.screens.question import Answer, QuestionScreen
from pdtop.tui.text import clean
from pdtop.tui.tones import Tone

if TYPE_CHECKING:
    from pdtop.operations.gate import Gate
    from pdtop.tui.app import ConsoleApp

NO_GATE = "this console only shows: it was started without operations"


class Desk:
    """One for the app. Without a gate everything is read-only and says so."""

    def __init__(self, app: ConsoleApp, gate: Gate | None) -> None:
        self._app = app
        self.gate = gate
        self.view: View = gate.view() if gate is not None else EMPTY_VIEW
        self._arrived = False
        self._unsubscribe: Callable[[], None] | None = None
        self._noticed: frozenset[str] = frozenset()
        self._begun: set[str] = set()  # operations asked for here whose end was not told yet

    # Views -------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self.gate is not None:
            self._unsubscribe = self.gate.subscribe(self._published)
            self.take()

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _published(self, view: View) -> None:
        """From the engine's thread: at most one message waits, whatever the screen is doing."""
        if not self._arrived:
            self._arrived = True
            self._app.post_message(ViewArrived())

    def take(self) -> None:
        """Take the newest view and show it."""
        self._arrived = False
        if self.gate is None:
            return
        before, self.view = self.view, self.gate.view()
        for notice in self.view.notices:
            if notice not in self._noticed:
                self._app.say(notice, "warning")
        self._noticed = frozenset(self.view.notices)
        for operation in self.view.operations:
            if operation.ended and operation.id in self._begun:
                self._tell_end(operation)
        self._app.show_view(armed_changed=before.read_only != self.view.read_only)

    # Arming ------------------------------------------------------------------------------------------

    def ask_to_arm(self) -> None:
        if self.gate is None:
            self._app.say(NO_GATE, "warning")
        else:
            self._app.push_screen(ArmScreen(self._app.shown.cluster), self._arm)

    def disarm(self) -> None:
        if self.gate is not None:
            self.gate.disarm()
            self.take()

    def _arm(self, answer: bool | None) -> None:
        if answer and self.gate is not None:
            if why_not := self.gate.arm():
                self._app.say(f"still read-only: {why_not}", "error")
            self.take()

    def may_change(self) -> bool:
        """Whether a key that changes something may go on; if not, it is said what would let it."""
        if self.gate is None:
            self._app.say(NO_GATE, "warning")
        elif self.view.read_only and self.view.holder is not None and not self.view.holder.service:
            self._app.say(f"read-only: {self.view.holder.words}", "warning")
        elif self.view.read_only:
            self._app.say("read-only: W arms this console (or start it with --write)", "warning")
        return self.gate is not None and not self.view.read_only

    # Changing ----------------------------------------------------------------------------------------

    def ask(self, subject: Request | Plan, started: Callable[[], object] | None = None) -> None:
        """Ask the question for a request; yes starts it, and then ``started`` is called."""
        gate = self.gate
        if not self.may_change() or gate is None:
            return

        def answered(answer: Answer | None) -> None:
            if answer is not None:
                self._start(answer)
                if started is not None:
                    started()

        app = self._app
        app.push_screen(QuestionScreen(app.look, subject, gate.plan, app.source.latest()), answered)

    def _start(self, answer: Answer) -> None:
        if self.gate is None:
            return
        operation = self.gate.start(answer.plan, typed=answer.typed, overrule=answer.overrule)
        self._begun.add(operation.id)
        self.take()
        if operation.ended and operation.id in self._begun:
            self._tell_end(operation)

    def _tell_end(self, operation: Operation) -> None:
        """Not every screen shows operations: what did not go well is said, a conflict is asked about."""
        self._begun.discard(operation.id)
        if operation.conflicts and not isinstance(self._app.screen, ModalScreen):
            self.decide(operation)
        elif operation.outcome not in (None, Outcome.DONE):
            self._app.say(ended_words(operation), _severity(operation.outcome))

    def decide(self, operation: Operation) -> None:
        """Ask again with the conflict in sight: theirs or mine."""
        self.ask(replace(operation.plan, conflicts=operation.conflicts))

    def choose(self, operation: Operation, choice: Choice) -> None:
        if self.gate is not None and self.may_change():
            self.gate.choose(operation.id, choice)
            self.take()

    def dismiss(self, operation_id: str | None) -> None:
        """Forget one operation that has ended, or all of them."""
        if self.gate is not None:
            self.gate.dismiss(operation_id)
            self.take()


def ended_words(operation: Operation) -> str:
    """What came of it, for a toast."""
    words = f"{what(operation)}: {operation.outcome or 'ended'}"
    return clean(f"{words}: {operation.words}" if operation.words else words)


def _severity(outcome: Outcome | None) -> SeverityLevel:
    tone = TONES[outcome] if outcome is not None else Tone.TEXT
    return "error" if tone is Tone.CRITICAL else "warning" if tone is Tone.WARNING else "information"
