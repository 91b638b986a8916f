"""The console as a Textual app: one source, one shown snapshot, the screens that take it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from platformdirs import user_state_path
from rich.console import RenderableType
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.filter import Monochrome, NoColor
from textual.notifications import SeverityLevel
from textual.screen import Screen

from pdtop.cluster.export import to_dict
from pdtop.cluster.model import Snapshot
from pdtop.tui import keys, lifecycle, text
from pdtop.tui.clipboard import osc52
from pdtop.tui.commands import ConsoleProvider
from pdtop.tui.desk import Desk
from pdtop.tui.driver import ConsoleDriver
from pdtop.tui.frames import tight
from pdtop.tui.headline import Status
from pdtop.tui.messages import SnapshotArrived, ViewArrived
from pdtop.tui.options import INTERVALS, ConsoleOptions
from pdtop.tui.palette import Look
from pdtop.tui.screens.arm import ArmScreen
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.screens.choice import ChoiceScreen
from pdtop.tui.screens.drift import DriftScreen
from pdtop.tui.screens.findings import FindingsScreen
from pdtop.tui.screens.help import HelpScreen
from pdtop.tui.screens.log import LogScreen
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.screens.operations import OperationsScreen
from pdtop.tui.screens.overview import OverviewScreen
from pdtop.tui.screens.question import QuestionScreen
from pdtop.tui.screens.raw_series import RawSeriesScreen
from pdtop.tui.screens.tuning import TuningScreen
from pdtop.tui.screens.value import ValueScreen
from pdtop.tui.screens.worker import WorkerScreen
from pdtop.tui.source import SnapshotSource
from pdtop.tui.themes import DEFAULT, MONO, load_themes, shipped_folder
from pdtop.tui.widgets.filter_bar import FilterBar
from pdtop.tui.widgets.line_page import LinePage
from pdtop.tui.widgets.row_list import RowList
from pdtop.tui.widgets.series_list import SeriesList
from pdtop.tui.widgets.worker_table import WorkerTable

if TYPE_CHECKING:
    from pdtop.operations.gate import Gate

#: How soon a snapshot is tried again that the terminal was not ready for, seconds.
RETRY = 0.25


class ConsoleApp(App[None]):
    """Shows the snapshots of one source."""

    TITLE = "pdtop"
    CSS_PATH = Path(__file__).with_name("app.tcss")
    COMMANDS: ClassVar = {ConsoleProvider}

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", id="app.pause", tooltip="Freeze the picture; polling goes on"),
        Binding("f", "findings", "findings", id="app.findings", tooltip="All findings with evidence"),
        Binding("plus,equals_sign", "interval(1)", "Slower", show=False, id="app.slower",
                tooltip="Poll less often"),
        Binding("minus", "interval(-1)", "Faster", show=False, id="app.faster", tooltip="Poll more often"),
        Binding("y", "copy_name", "Copy", show=False, id="app.copy", tooltip="Copy the worker's address"),
        Binding("Y", "copy_json", "Copy JSON", show=False, id="app.copy_json",
                tooltip="Copy all numbers of the worker as JSON"),
        Binding("ctrl+s,f8", "screenshot_file", "Screenshot", show=False, id="app.screenshot",
                tooltip="Save the screen as an SVG file"),
        Binding("T", "themes", "Theme", show=False, id="app.theme", tooltip="Choose a theme"),
        Binding("colon,ctrl+p", "command_palette", "commands", id="app.palette",
                tooltip="Find a worker, screen, theme or column set by name"),
        Binding("q", "leave", "quit", id="app.quit", tooltip="Leave pdtop"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True, id="app.interrupt",
                tooltip="Leave pdtop at once, from anywhere"),
        Binding("question_mark", "help", "keys", id="app.help", tooltip="This help"),
    ]  # fmt: skip

    def __init__(
        self,
        source: SnapshotSource,
        options: ConsoleOptions,
        gate: Gate | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.source = source
        self.options = options
        self.look = Look()
        self.shown: Snapshot = source.latest()
        self.desk = Desk(self, gate)
        self.paused = False
        self.columns_preset = ""  # "": by width
        self.guard: lifecycle.Guard | None = None
        self.state_dir = options.state_dir or user_state_path("pdtop")
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._arrived = False
        self._unsubscribe: Callable[[], None] | None = None
        # Textual answers NO_COLOR with shades of grey, and with black on black in its ANSI themes; the mono
        # theme does what is asked for.
        self._filters = [f for f in self._filters if not isinstance(f, (Monochrome, NoColor))]
        self.animation_level = "none"
        self._shelf = load_themes([shipped_folder(), *([options.themes_dir] if options.themes_dir else [])])
        for theme in self._shelf.themes.values():
            self.register_theme(theme.theme)
        self._wanted_theme = MONO if self._environ.get("NO_COLOR") else options.theme or DEFAULT
        if not self.use_theme(self._wanted_theme):
            self.use_theme(DEFAULT if DEFAULT in self._shelf.themes else next(iter(self._shelf.themes)))

    def get_driver_class(self) -> type[ConsoleDriver]:
        return ConsoleDriver

    # Snapshots ---------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.push_screen(OverviewScreen(self.look))
        if self.options.keymap:
            self.set_keymap(self.options.keymap)
        self._unsubscribe = self.source.subscribe(self._snapshot_published)
        self.desk.open()
        self.set_interval(1.0, self._tick)
        self._report_setup()

    def on_unmount(self) -> None:
        self.desk.close()
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _snapshot_published(self, snapshot: Snapshot) -> None:
        """From the engine's thread: at most one message waits, whatever the screen is doing."""
        if not self._arrived:
            self._arrived = True
            self.post_message(SnapshotArrived())

    def on_snapshot_arrived(self) -> None:
        if self._behind():
            self.set_timer(RETRY, lambda: self.post_message(SnapshotArrived()))
            return
        self._arrived = False
        if not self.paused:
            self.shown = self.source.latest()
            self._take()

    def on_view_arrived(self) -> None:
        if self._behind():
            self.set_timer(RETRY, lambda: self.post_message(ViewArrived()))
        else:
            self.desk.take()

    def show_view(self, *, armed_changed: bool) -> None:
        """Show what is new of operations, also while the numbers are paused."""
        for screen in self.screen_stack:
            if not screen.is_mounted:
                continue  # it shows all of it when it is
            if isinstance(screen, ConsoleScreen):
                screen.show_top()
            if isinstance(screen, OperatingScreen):
                screen.take_view(self.desk.view)
                if armed_changed:
                    screen.refresh_bindings()

    def _behind(self) -> bool:
        """Whether the terminal has not taken the last frames: then the newest snapshot waits."""
        return isinstance(self._driver, ConsoleDriver) and self._driver.behind

    def _take(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.show_top()
                screen.take(self.shown)
            elif isinstance(screen, QuestionScreen):
                screen.take(self.source.latest())

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, tight(renderable))

    def _tick(self) -> None:
        for screen in self.screen_stack[-1:]:  # none at the very end
            if isinstance(screen, ConsoleScreen) and not self._behind():
                screen.show_top()

    def status(self) -> Status:
        """Live or paused, how old, how often."""
        behind = max(0.0, self._clock() - self.shown.at)
        ages = [w.age_s for w in self.shown.workers if w.age_s is not None]
        return Status(
            paused_s=behind if self.paused else None,
            age_s=behind + min(ages) if ages else None,
            interval_s=self.shown.interval_s,
            read_only=self.desk.view.read_only,
        )

    # Setting up --------------------------------------------------------------------------------------

    def _report_setup(self) -> None:
        """What of the configuration could not be used; each a toast, none fatal."""
        for problem in self._shelf.problems:
            self.say(f"theme {problem}", "warning")
        if self._wanted_theme not in self._shelf.themes:
            known = ", ".join(sorted(self._shelf.themes))
            self.say(f"no theme {self._wanted_theme}; there are {known}", "warning")
        known_ids = {row.id for row in self.key_rows()}
        for binding_id in self.options.keymap:
            if binding_id not in known_ids:
                self.say(f"keymap: no action {binding_id}; press ? for the list", "warning")

    def use_theme(self, name: str) -> bool:
        """Take the theme ``name``; False if there is none of that name."""
        theme = self._shelf.themes.get(name)
        if theme is None:
            return False
        self.look.palette = theme.palette
        self.theme = theme.name
        self._refresh_truecolor_filter(self.ansi_theme)
        if self.is_running:
            for screen in self.screen_stack:
                for widget in screen.query("LineView, WorkerTable, LinePage, SeriesList, RowList"):
                    widget.refresh()
        return True

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Variables that Textual's own styles need from a theme of the terminal's colours."""
        return {"ansi-background": "ansi_default", "ansi-foreground": "ansi_default"}

    def theme_list(self) -> list[tuple[str, str]]:
        """Names and descriptions of the themes."""
        return [(t.name, t.description) for t in sorted(self._shelf.themes.values(), key=lambda t: t.name)]

    def use_columns(self, preset: str) -> None:
        """Take a column preset whatever the width; "" goes by width again."""
        self.columns_preset = preset
        self._take()

    def key_rows(self) -> list[keys.KeyRow]:
        """Every declared key."""
        return keys.of_classes(KEY_OWNERS, self.options.keymap)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Textual's own commands are left out: those that make sense here have their own names."""
        return ()

    # Talking -----------------------------------------------------------------------------------------

    def say(self, words: str, severity: SeverityLevel = "information") -> None:
        """A toast. What it says may come from outside: it is never markup."""
        self.notify("\n".join(text.clean(line) for line in words.splitlines()), severity=severity)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)

    # Actions -----------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.paused = not self.paused
        if not self.paused:
            self.shown = self.source.latest()
        self._take()

    def action_interval(self, step: int) -> None:
        now = self.shown.interval_s
        slower = [i for i in INTERVALS if i > now]
        faster = [i for i in INTERVALS if i < now]
        wanted = (slower[:1] if step > 0 else faster[-1:]) or [now]
        self.source.set_interval(wanted[0])
        self.say(f"polling every {text.interval(wanted[0])}")

    def action_overview(self) -> None:
        while len(self.screen_stack) > 2:
            self.pop_screen()

    def action_findings(self) -> None:
        if not isinstance(self.screen, FindingsScreen):
            self.push_screen(FindingsScreen(self.look))

    def open_screen(self, name: str) -> None:
        """Show one of the screens of operations; one that is open is not opened twice."""
        kind = OPERATIONS_SCREENS[name]
        if not isinstance(self.screen, kind):
            self.push_screen(kind(self.look))

    def open_worker(self, key: str) -> None:
        """Show one worker; an open worker screen is left for it."""
        if isinstance(self.screen, WorkerScreen):
            self.switch_screen(WorkerScreen(self.look, key))
        else:
            self.push_screen(WorkerScreen(self.look, key))

    def action_help(self) -> None:
        self.push_screen(HelpScreen(keys.nearest_first(self.key_rows(), KEY_OWNERS, self.screen)))

    def action_themes(self) -> None:
        before = self.theme
        entries = [(name, f"{name:<10} {description}") for name, description in self.theme_list()]

        def chosen(answer: str | None) -> None:
            self.use_theme(answer or before)

        self.push_screen(ChoiceScreen("Theme", entries, current=before, preview=self.use_theme), chosen)

    def action_screenshot_file(self) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._clock()))
        folder = self.state_dir / "screenshots"
        path = folder / f"pdtop-{stamp}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self.export_screenshot(title="pdtop"), encoding="utf-8")
        except OSError as error:
            self.say(f"no screenshot: {error.strerror}: {folder}", "error")
        else:
            self.say(f"screenshot: {path}")

    def action_copy_name(self) -> None:
        if isinstance(self.screen, ConsoleScreen) and (worker := self.screen.selected_worker()):
            self.copy(worker.name, worker.name)

    def action_copy_json(self) -> None:
        if isinstance(self.screen, ConsoleScreen) and (worker := self.screen.selected_worker()):
            entry = to_dict(replace(self.shown, workers=(worker,)))["workers"][0]
            self.copy(json.dumps(entry, indent=1), f"{worker.name} as JSON")

    def copy(self, content: str, what: str) -> None:
        """Copy ``content`` and say so; the terminal may ignore it, so what can be read off is shown."""
        self._clipboard = content
        sequence = osc52(content, self._environ)
        if sequence is None:
            self.say(f"too long for the terminal's clipboard: {what}", "warning")
        else:
            if self._driver is not None:
                self._driver.write(sequence)
            self.say(f"copied: {what}")

    # Ending ------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def action_interrupt(self) -> None:
        if self.guard is not None:
            self.guard.end(lifecycle.Ending(130))
        self.exit()

    def leave_from_thread(self) -> None:
        """Ask the app to end, from any thread, whatever it is doing."""
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self.exit)

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        if self.guard is not None:
            self.guard.wake()
        super().exit(result, return_code, message)

    def _handle_exception(self, error: Exception) -> None:
        if self.guard is not None:
            self.guard.fail(error)
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # The traceback goes to the log, not over the operator's shell.
        self._close_messages_no_wait()

    def panic(self, *renderables: RenderableType) -> None:
        if self.guard is not None:
            self.guard.fail(sys.exception() or RuntimeError("the terminal's input failed"))
        self._close_messages_no_wait()


#: Screens that :meth:`ConsoleApp.open_screen` knows.
OPERATIONS_SCREENS: dict[str, type[ConsoleScreen]] = {
    "tuning": TuningScreen,
    "drift": DriftScreen,
    "log": LogScreen,
    "operations": OperationsScreen,
}

#: Who declares keys, in the order of the help.
KEY_OWNERS: tuple[tuple[str, type[DOMNode]], ...] = (
    ("Anywhere", ConsoleApp),
    ("Operations", OperatingScreen),
    ("Overview", OverviewScreen),
    ("Tables", WorkerTable),
    ("Worker", WorkerScreen),
    ("Worker page", LinePage),
    ("Raw series", RawSeriesScreen),
    ("Series", SeriesList),
    ("Findings", FindingsScreen),
    ("Tuning", TuningScreen),
    ("Drift", DriftScreen),
    ("Log", LogScreen),
    ("Operations under way", OperationsScreen),
    ("Their lists", RowList),
    ("Filter", FilterBar),
    ("Lists", ChoiceScreen),
    ("Questions", QuestionScreen),
    ("Arming", ArmScreen),
    ("Values", ValueScreen),
    ("Help", HelpScreen),
)


def run(source: SnapshotSource, options: ConsoleOptions, gate: Gate | None = None) -> int:
    """Show the console until the operator leaves; gives the exit code and stops the source.

    Without a ``gate`` there are no operations: their keys say so.
    """
    interactive = bool(sys.__stdin__ and sys.__stdin__.isatty() and lifecycle.output())
    if problem := lifecycle.terminal_problem(os.environ, interactive):
        print(problem, file=sys.stderr)
        return 2
    app = ConsoleApp(source, options, gate)
    with lifecycle.Guard(app.leave_from_thread, app.state_dir) as guard:
        app.guard = guard
        try:
            app.run(mouse=options.mouse)
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator gets one line and a log
            guard.fail(error)
        lifecycle.say(lifecycle.MODES_OFF)
        source.stop()
    ending = guard.ending or lifecycle.Ending(0)
    if ending.line:
        lifecycle.say(ending.line + "\n")
    return ending.code
