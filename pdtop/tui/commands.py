"""The command palette: workers, screens, themes, column presets, and every key's action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import FuzzySearch

from pdtop.cluster.model import Role
from pdtop.operations.model import Apply, Restart
from pdtop.tui.columns import PRESETS
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.text import clean

if TYPE_CHECKING:
    from pdtop.tui.app import ConsoleApp

#: What the palette runs: words, help, what to do.
Command = tuple[str, str, Callable[[], object]]


class ConsoleProvider(Provider):
    """Everything the palette knows. Names are content, never markup."""

    async def discover(self) -> Hits:
        for name, help, run in commands(cast("ConsoleApp", self.app)):
            yield DiscoveryHit(Content(name), run, text=name, help=help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, help, run in commands(cast("ConsoleApp", self.app)):
            if (score := matcher.match(name)) > 0:
                yield Hit(score, self._highlighted(name, query), run, text=name, help=help)

    def _highlighted(self, name: str, query: str) -> Content:
        """``name`` with the matching letters marked. Textual's own highlighter would read it as markup."""
        content = Content(name)
        _, offsets = FuzzySearch().match(query, name)
        for offset in offsets:
            content = content.stylize(self.match_style or "bold", offset, offset + 1)
        return content


def operations(app: ConsoleApp) -> Iterator[Command]:
    """What the keys of operations do on the screen below the palette, and what needs no worker."""
    screen = next((s for s in reversed(app.screen_stack) if isinstance(s, OperatingScreen)), None)
    if screen is None or app.desk.gate is None:
        return
    for binding in OperatingScreen.BINDINGS:
        if isinstance(binding, Binding) and screen.check_action(binding.action, ()):
            yield binding.description, binding.tooltip, getattr(screen, f"action_{binding.action}")
    yield "apply", "bring the routers to what config.toml says", partial(app.desk.ask, Apply())
    yield "restart", "carry out the restart plan", partial(app.desk.ask, Restart())


def commands(app: ConsoleApp) -> Iterator[Command]:
    """What the keys do by name, then column presets, themes and workers."""
    yield "overview", "the two pools", app.action_overview
    yield "findings", "all findings with evidence", app.action_findings
    yield "keys", "every key, and how to filter", app.action_help
    yield "resume" if app.paused else "pause", "polling goes on", app.action_pause
    yield from operations(app)
    yield "screenshot", "the screen as an SVG file", app.action_screenshot_file
    yield "quit", "leave pdtop", app.action_leave
    yield "columns auto", "by the width of the terminal", partial(app.use_columns, "")
    for preset in PRESETS:
        yield f"columns {preset}", "whatever the width; ← → scroll", partial(app.use_columns, preset)
    for name, description in app.theme_list():
        yield f"theme {name}", description, partial(app.use_theme, name)
    letters = {Role.PREFILL: "P", Role.DECODE: "D"}
    for worker in app.shown.workers:
        name = f"worker {letters.get(worker.role, '?')} {clean(worker.name, 80)}"
        yield name, "its charts, queues, ranks and stages", partial(app.open_worker, worker.key)
