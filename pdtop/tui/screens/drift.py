"""Drift: where config.toml, routers and workers differ, the restart plan, and the keys for both."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from pdtop.cluster.model import Snapshot
from pdtop.operations.model import Apply, Restart
from pdtop.tui import drift_lines
from pdtop.tui.palette import Look
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.tones import Tone
from pdtop.tui.widgets.line_page import LinePage


class DriftScreen(OperatingScreen):
    """A page that scrolls."""

    DEFAULT_CSS = "DriftScreen LinePage { margin: 1 0 0 0; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "apply(False)", "apply", id="drift.apply",
                tooltip="Bring the routers to what config.toml says"),
        Binding("A", "apply(True)", "apply, prune", id="drift.prune",
                tooltip="The same, and take out workers that no file ever named"),
        Binding("R", "restart", "restart", id="drift.restart",
                tooltip="Carry the restart plan out with the configured command"),
        Binding("escape,q,c", "app.back", "back", id="drift.back", tooltip="Back to the screen before"),
    ]  # fmt: skip

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._page = LinePage(look)

    def body(self) -> ComposeResult:
        yield self._page

    def on_mount(self) -> None:
        self._page.focus()

    def take(self, snapshot: Snapshot) -> None:
        if self.size.width:
            lines = drift_lines.page(snapshot, self.desk.view.restart, self.size.width - 3)
            self._page.show([((" ", Tone.TEXT), *line) if line else line for line in lines])

    def action_apply(self, prune: bool) -> None:
        self.desk.ask(Apply(prune))

    def action_restart(self) -> None:
        self.desk.ask(Restart())
