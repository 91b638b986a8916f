"""The console as a Textual app: one source, one shown snapshot, the screens that take it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from platformdirs import user_state_path
from textual.app import App
from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel

from pdtop.cluster.model import Snapshot
from pdtop.tui.headline import Status
from pdtop.tui.messages import SnapshotArrived
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.palette import Look
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.screens.overview import OverviewScreen
from pdtop.tui.source import SnapshotSource
from pdtop.tui.themes import DEFAULT, MONO, load_themes, shipped_folder


class ConsoleApp(App[int]):
    """Shows the snapshots of one source."""

    TITLE = "pdtop"
    CSS_PATH = "app.tcss"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit", id="app.quit", tooltip="Leave pdtop"),
        Binding("space", "pause", "pause", id="app.pause", tooltip="Freeze the picture; polling goes on"),
    ]

    def __init__(
        self,
        source: SnapshotSource,
        options: ConsoleOptions,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.source = source
        self.options = options
        self.look = Look()
        self.shown: Snapshot = source.latest()
        self.paused = False
        self._clock = clock
        self._environ = environ or {}
        self._arrived = False
        self._shelf = load_themes([shipped_folder(), *([options.themes_dir] if options.themes_dir else [])])
        for theme in self._shelf.themes.values():
            self.register_theme(theme.theme)
        self.animation_level = "none"
        self.use_theme(options.theme or DEFAULT)

    def use_theme(self, name: str) -> bool:
        """Take the theme ``name``; False if there is none of that name."""
        theme = self._shelf.themes.get(name)
        if theme is None:
            return False
        self.look.palette = theme.palette
        self.theme = theme.name
        return True

    def on_mount(self) -> None:
        self.push_screen(OverviewScreen(self.look))
        self.source.subscribe(self._snapshot_published)
        self.set_interval(1.0, self._tick)

    def _snapshot_published(self, snapshot: Snapshot) -> None:
        """From the engine's thread: at most one message waits, whatever the screen is doing."""
        if not self._arrived:
            self._arrived = True
            self.post_message(SnapshotArrived())

    def on_snapshot_arrived(self) -> None:
        self._arrived = False
        if not self.paused:
            self.shown = self.source.latest()
            self._take()

    def _take(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.show_top()
                screen.take(self.shown)

    def _tick(self) -> None:
        if isinstance(self.screen, ConsoleScreen):
            self.screen.show_top()

    def status(self) -> Status:
        """Live or paused, how old, how often."""
        now = self._clock()
        behind = max(0.0, now - self.shown.at)
        ages = [w.age_s for w in self.shown.workers if w.age_s is not None]
        return Status(
            paused_s=behind if self.paused else None,
            age_s=behind + min(ages) if ages else None,
            interval_s=self.shown.interval_s,
            read_only=self.options.read_only,
        )

    def action_pause(self) -> None:
        self.paused = not self.paused
        if not self.paused:
            self.shown = self.source.latest()
        self._take()
