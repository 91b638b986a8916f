"""What every full screen has: the top line, the key line, and a way to take a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.events import ScreenResume
from textual.screen import Screen

from pdtop.cluster.model import Snapshot, Worker
from pdtop.tui.headline import top_line
from pdtop.tui.palette import Look
from pdtop.tui.tones import Tone
from pdtop.tui.widgets.key_bar import KeyBar
from pdtop.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from pdtop.tui.app import ConsoleApp


class ConsoleScreen(Screen[None]):
    """A full screen: top line, body, key line."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self._top = LineView(look, ground=Tone.HEADER, id="top")

    @property
    def console_app(self) -> ConsoleApp:
        """The app, by its own type."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        yield self._top
        yield from self.body()
        yield KeyBar(self.look, wanted=self.key_shown, note=self.key_note, id="keys")

    def body(self) -> ComposeResult:
        """The widgets between top line and key line."""
        yield from ()

    def take(self, snapshot: Snapshot) -> None:
        """Show ``snapshot``."""

    def show_top(self) -> None:
        """Write the top line again: new numbers, or an older age."""
        app = self.console_app
        self._top.show([top_line(app.shown, app.status(), app.options, self.size.width)])

    def retake(self) -> None:
        """Show what is to be shown now: after a resize, a new theme, another screen on top gone."""
        self.show_top()
        self.take(self.console_app.shown)

    @on(ScreenResume)
    def _resumed(self) -> None:
        self.retake()

    def on_resize(self) -> None:
        self.call_after_refresh(self.retake)

    def key_note(self) -> str:
        """What the key line says before the keys."""
        return ""

    def key_shown(self, binding_id: str | None) -> bool:
        """Whether the key line is to show a binding that is active."""
        return True

    def selected_worker(self) -> Worker | None:
        """The worker that keys such as copy are about."""
        return None
