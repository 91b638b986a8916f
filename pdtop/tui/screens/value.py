"""Typing one value: what it is, what is valid, plus and minus by step; enter answers with the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from pdtop.tui.lines import to_content
from pdtop.tui.palette import Look
from pdtop.tui.text import clean
from pdtop.tui.tones import Line

Step = Callable[[str, int], str | None]


class StepInput(Input):
    """An input in which plus and minus move the value."""

    def __init__(self, value: str, step: Step) -> None:
        super().__init__(value, compact=True)
        self._step = step

    def on_key(self, event: events.Key) -> None:
        sign = {"plus": 1, "equals_sign": 1, "minus": -1}.get(event.key)
        if sign is not None and (moved := self._step(self.value.strip(), sign)) is not None:
            event.prevent_default()
            event.stop()
            self.value = moved
            self.cursor_position = len(moved)


class ValueScreen(ModalScreen[str | None]):
    """Answers with what was typed, or None. Whether it is valid is for the plan to say."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="value.cancel", tooltip="Leave the value as it is"),
    ]

    def __init__(self, look: Look, title: str, value: str, lines: Sequence[Line], step: Step) -> None:
        super().__init__(classes="question")
        self._look = look
        self._title = title
        self._value = value
        self._about = lines
        self._step = step

    def compose(self) -> ComposeResult:
        yield Static(Content(clean(self._title)), classes="dialog-title")
        about = Content("\n").join(to_content(line, self._look.palette) for line in self._about)
        yield Static(about, classes="dialog-text")
        with Vertical(classes="dialog-input"):
            yield StepInput(clean(self._value), self._step)
        yield Static(Content("⏎ asks   + − step   esc cancels"), classes="dialog-keys")

    def on_mount(self) -> None:
        field = self.query_one(StepInput)
        field.focus()
        field.cursor_position = len(field.value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        self.dismiss(None)
