"""Tuning: every setting with what it means, does here and acts on; a change goes through the question."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from pdtop.cluster.model import Snapshot
from pdtop.operations.model import SetValue, UnsetValue, View
from pdtop.tui import tuning_lines
from pdtop.tui.palette import Look
from pdtop.tui.screens.choice import ChoiceScreen
from pdtop.tui.screens.listing import ListingScreen
from pdtop.tui.screens.value import ValueScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.tuning_lines import key_of
from pdtop.tui.widgets.row_list import Row
from pdtop.tui.worker_lines import BLANK

if TYPE_CHECKING:
    from pdtop.operations.fields import Field


class TuningScreen(ListingScreen):
    """Settings by group; below them the one under the cursor, and before and after the last change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "step(1)", "more", key_display="+", id="tuning.more",
                tooltip="The value one step up, or the next choice; nothing is changed yet"),
        Binding("minus", "step(-1)", "less", key_display="−", id="tuning.less",
                tooltip="The value one step down, or the choice before"),
        Binding("enter", "set", "set", id="tuning.set",
                tooltip="Ask to set the changed value; without one: type it, or choose"),
        Binding("e", "edit", "type", id="tuning.edit", tooltip="Type the value exactly"),
        Binding("x", "unset", "default", id="tuning.unset",
                tooltip="Ask to take the setting out of config.toml: its default counts"),
        Binding("escape", "forget", "back", id="tuning.back",
                tooltip="Forget the changed value; then back to the screen before"),
        Binding("q", "app.back", "back", show=False, id="tuning.leave", tooltip="Back to the screen before"),
    ]  # fmt: skip

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._fields: dict[str, Field] = {}
        self._pending: dict[str, str] = {}

    def on_mount(self) -> None:
        self._load()

    def take_view(self, view: View) -> None:
        super().take_view(view)
        if self.operations_moved():
            self._load()

    def _load(self) -> None:
        self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        gate = self.desk.gate
        found = await asyncio.to_thread(gate.fields) if gate is not None else ()
        self._fields = {key_of(field): field for field in found}
        written = {key: value for key, value in self._pending.items() if key in self._fields}
        self._pending = {k: v for k, v in written.items() if not _same(self._fields[k].value, v)}
        self.take(self.console_app.shown)

    # Showing -----------------------------------------------------------------------------------------

    def listed(self, snapshot: Snapshot, width: int) -> list[Row]:
        return tuning_lines.rows(list(self._fields.values()), self._pending, snapshot, width)

    def detailed(self, key: str, width: int) -> list[Line]:
        field, pending = self._fields.get(key), self._pending.get(key)
        out = tuning_lines.detail(field, pending, width) if field is not None else []
        comparison = self.desk.view.comparison
        if comparison is None:
            return out
        compared = tuning_lines.comparison_lines(comparison, width)
        # Of the setting that was changed last one wants to see what came of it.
        first = pending is None and key in comparison.title
        return [*compared, BLANK, *out] if first else [*out, BLANK, *compared]

    # Changing ----------------------------------------------------------------------------------------

    @property
    def _field(self) -> Field | None:
        return self._fields.get(self.rows.cursor_key)

    def action_step(self, step: int) -> None:
        field = self._field
        if field is None or not self.desk.may_change():
            return
        key = key_of(field)
        moved = tuning_lines.stepped(field, self._pending.get(key, field.value), step)
        if moved is None:
            self.action_edit()
        elif _same(field.value, moved):
            self._pending.pop(key, None)
        else:
            self._pending[key] = moved
        self.take(self.console_app.shown)

    def action_set(self) -> None:
        field = self._field
        if field is not None and (value := self._pending.get(key_of(field))) is not None:
            self._set(field, value)
        else:
            self.action_edit()

    def action_edit(self) -> None:
        """Type the value, or take it from the list of what there is."""
        field = self._field
        if field is None or not self.desk.may_change():
            return
        now = self._pending.get(key_of(field), field.value)

        def answered(value: str | None) -> None:
            if value is not None and not _same(field.value, value):
                self._set(field, value)

        app = self.console_app
        if field.choices:
            entries = [(choice, choice) for choice in field.choices]
            app.push_screen(ChoiceScreen(field.title, entries, current=now.strip("\"'")), answered)
            return
        width = min(92, self.size.width) - 8
        about = [
            *tuning_lines.detail(field, None, width)[1:],
            ((f"now      {field.value}", Tone.MUTED),),
        ]
        start = "" if now == tuning_lines.NOT_SET else now
        step = lambda value, sign: tuning_lines.stepped(field, value or field.value, sign)  # noqa: E731
        app.push_screen(ValueScreen(self.look, key_of(field), start, about, step), answered)

    def _set(self, field: Field, value: str) -> None:
        self.desk.ask(SetValue(field.path, value), lambda: self._pending.pop(key_of(field), None))

    def action_unset(self) -> None:
        if (field := self._field) is not None:
            self.desk.ask(UnsetValue(field.path))

    def action_forget(self) -> None:
        if self._pending:
            self._pending.clear()
            self.take(self.console_app.shown)
        else:
            self.app.pop_screen()


def _same(written: str, typed: str) -> bool:
    return written.strip("\"'") == typed.strip("\"'")
