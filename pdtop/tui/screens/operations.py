"""Operations under way and ended: what came of each at every router, its choices, dismissing."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from pdtop.cluster.model import Snapshot
from pdtop.operations.model import Choice, Operation
from pdtop.tui import operation_lines, text
from pdtop.tui.screens.choice import ChoiceScreen
from pdtop.tui.screens.listing import ListingScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.row_list import Row

#: What an answer to a drain's deadline does.
CHOICES = {
    Choice.WAIT: "wait on: the drain goes on, and asks again later",
    Choice.STOP_ANYWAY: "stop anyway: take it for drained; what still runs there may be cut",
    Choice.CANCEL: "cancel the drain: bring the worker back",
}


class OperationsScreen(ListingScreen):
    """What needs the operator most comes first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "choose", id="operations.choose",
                tooltip="Answer what the operation asks: its deadline, or a conflict"),
        Binding("x,delete", "forget", "dismiss", id="operations.dismiss",
                tooltip="Forget the operation under the cursor, when it has ended"),
        Binding("X", "forget_all", "dismiss all", id="operations.dismiss_all",
                tooltip="Forget all operations that have ended"),
        Binding("escape,q,o", "app.back", "back", id="operations.back",
                tooltip="Back to the screen before"),
    ]  # fmt: skip

    def listed(self, snapshot: Snapshot, width: int) -> list[Row]:
        view = self.desk.view
        rows: list[Row] = [
            (o.id, operation_lines.operation_line(o, width, snapshot.at))
            for o in operation_lines.worst_first(view.operations)
        ]
        if not rows:
            words = " no operations are under way or wait to be dismissed; l shows the log"
            rows.append(("", ((words, Tone.MUTED),)))
        for drain in view.drains:
            name = text.middle(text.clean(drain.worker), 32)
            note = operation_lines.drain_note(drain, width - len(name), snapshot.at)
            rows.append(("", ((f" {name}", Tone.STRONG), *note)))
        rows += [("", ((f" ▲ {text.clean(notice)}", Tone.WARNING),)) for notice in view.notices]
        return rows

    def detailed(self, key: str, width: int) -> list[Line]:
        operation = self._operation(key)
        if operation is None:
            return []
        return operation_lines.operation_detail(operation, width, self.console_app.shown.at)

    def _operation(self, key: str) -> Operation | None:
        return next((o for o in self.desk.view.operations if o.id == key), None)

    def action_choose(self) -> None:
        operation = self._operation(self.rows.cursor_key)
        if operation is None or not self.desk.may_change():
            return
        if operation.conflicts:
            self.desk.decide(operation)
        elif operation.choices:
            entries = [(choice.value, CHOICES[choice]) for choice in operation.choices]

            def chosen(answer: str | None) -> None:
                if answer is not None:
                    self.desk.choose(operation, Choice(answer))

            self.app.push_screen(ChoiceScreen(operation_lines.what(operation), entries), chosen)

    def action_forget(self) -> None:
        operation = self._operation(self.rows.cursor_key)
        if operation is not None and operation.ended:
            self.desk.dismiss(operation.id)

    def action_forget_all(self) -> None:
        self.desk.dismiss(None)
