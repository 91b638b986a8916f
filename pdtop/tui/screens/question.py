"""A question about one worker; it closes by itself, answered with no, when that worker is gone."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from pdtop.cluster.model import Snapshot
from pdtop.tui.text import clean


class QuestionScreen(ModalScreen[bool]):
    """Yes or no, with no under the cursor. It holds the worker's key, never its row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "cancel", id="question.no", tooltip="Do nothing"),
        Binding("left,right", "app.focus_next", "Other button", show=False, id="question.other",
                tooltip="Go to the other button"),
    ]  # fmt: skip

    AUTO_FOCUS = "#no"

    def __init__(self, title: str, text: str, *, worker: str, yes: str) -> None:
        super().__init__(classes="small")
        self._title = title
        self._text = text
        self.worker = worker
        self._yes = yes

    def compose(self) -> ComposeResult:
        yield Static(Content(clean(self._title)), classes="dialog-title")
        yield Static(Content("\n".join(clean(line) for line in self._text.splitlines())))
        with Horizontal(classes="buttons"):
            yield Button(Content("Cancel"), id="no")
            yield Button(Content(clean(self._yes)), id="yes")

    def take(self, snapshot: Snapshot) -> None:
        """Close with a notice if the worker has vanished."""
        if snapshot.worker(self.worker) is None and self.is_current:
            self.app.notify(f"{clean(self.worker)} is gone from the cluster; nothing was done", markup=False)
            self.dismiss(False)

    @on(Button.Pressed, "#yes")
    def _confirmed(self) -> None:
        self.dismiss(True)

    @on(Button.Pressed, "#no")
    def _cancelled(self) -> None:
        self.dismiss(False)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
