"""Arming this console: which cluster, and what becomes possible; no is under the cursor."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from pdtop.tui.text import clean

BECOMES_POSSIBLE = """\
From then on keys of this console change the cluster, each after a question of its own:
drain and undrain workers, weights, thresholds and other settings in config.toml,
what the routers are told, the router's restart, undo.

W again makes it read-only at once."""


class ArmScreen(ModalScreen[bool]):
    """Answers whether to arm."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "cancel", "cancel", id="arm.no", tooltip="Stay read-only"),
        Binding("left,right", "app.focus_next", "Other button", show=False, id="arm.other",
                tooltip="Go to the other button"),
    ]  # fmt: skip

    AUTO_FOCUS = "#no"

    def __init__(self, cluster: str) -> None:
        super().__init__(classes="question")
        self._cluster = clean(cluster, 60)

    def compose(self) -> ComposeResult:
        yield Static(Content(f"Arm this console for cluster {self._cluster}"), classes="dialog-title")
        yield Static(Content(BECOMES_POSSIBLE), classes="dialog-text")
        with Horizontal(classes="buttons"):
            yield Button(Content("Cancel"), id="no", compact=True)
            yield Button(Content(f"Arm {self._cluster}"), id="yes", compact=True)

    @on(Button.Pressed)
    def _answered(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_cancel(self) -> None:
        self.dismiss(False)
