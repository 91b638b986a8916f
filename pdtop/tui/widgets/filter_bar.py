"""The line above the keys: where a filter is typed, and what is filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from pdtop.tui import text
from pdtop.tui.filtering import Filter, FilterError, parse
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.line_view import LineView


class FilterBar(Horizontal):
    """Takes a filter while it is typed; shows the one in force. ``filter`` is always a valid one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="filter.cancel", tooltip="Leave the filter as it was"),
    ]

    @dataclass
    class Changed(Message):
        """Another filter is in force; ``done`` when the typing has ended."""

        filter: Filter
        done: bool

    def __init__(self, look: Look) -> None:
        super().__init__(id="filter")
        self._note = LineView(look, id="filter-note")
        self._before = Filter()
        self._error = ""
        self.filter = Filter()
        self.display = False

    def compose(self) -> ComposeResult:
        yield Input(placeholder="name, role:d, state:!ok, wait>10, kv>80, ttft>800ms", compact=True)
        yield self._note

    @property
    def typing(self) -> bool:
        return bool(self.query_one(Input).display) and self.display

    def open(self) -> None:
        """Begin typing, from the filter in force."""
        self._before = self.filter
        field = self.query_one(Input)
        field.display = self.display = True
        field.value = self.filter.text
        field.cursor_position = len(field.value)
        self.screen.set_focus(field)  # at once: the next key is no binding any more

    def clear(self) -> None:
        """Show everyone again."""
        self._close(Filter())

    def describe(self, shown: int, total: int, hidden_marks: int) -> None:
        """Say what the filter does: how many of how many are shown, and which marks it hides."""
        counts: Line = ((f" {shown} of {total} workers", Tone.MUTED),)
        if hidden_marks:
            counts = (*counts, (f"  {hidden_marks} marked are hidden", Tone.WARNING))
        if self._error:
            self._note.show([((f" ✖ {text.clean(self._error)}", Tone.CRITICAL),)])
        elif self.typing:
            self._note.show([counts])
        else:
            chip = f" / {text.clean(self.filter.text, 60)} "
            self._note.show([((" ", Tone.TEXT), (chip, Tone.PAUSED), *counts, ("   esc", Tone.KEY),
                              (" show all", Tone.MUTED))])  # fmt: skip

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            self.filter = parse(event.value)
            self._error = ""
        except FilterError as error:
            self._error = str(error)
        self.post_message(self.Changed(self.filter, done=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not self._error:
            self._close(self.filter)

    def action_cancel(self) -> None:
        self._close(self._before)

    def _close(self, chosen: Filter) -> None:
        self._error = ""
        self.filter = chosen
        self.query_one(Input).display = False
        self.display = bool(chosen)
        self.post_message(self.Changed(chosen, done=True))
