"""The worker's own metrics page, searchable: what it says itself, before any interpretation."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from pdtop.cluster.model import Snapshot
from pdtop.tui import text
from pdtop.tui.palette import Look
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.lines_scroll import LinesScroll

#: Lines shown at most; a page may have a hundred thousand.
MAX_LINES = 2000


def matching(page: str, query: str) -> tuple[list[Line], int]:
    """The lines of ``page`` that contain every word of ``query``, up to ``MAX_LINES``, and how many there are."""
    words = query.lower().split()
    out: list[Line] = []
    found = 0
    for line in page.splitlines():
        if not line or not all(word in line.lower() for word in words):
            continue
        found += 1
        if len(out) < MAX_LINES:
            out.append(_coloured(text.clean(line, 2000)))
    return out, found


def _coloured(line: str) -> Line:
    if line.startswith("#"):
        return ((" " + line, Tone.MUTED),)
    name, brace, rest = line.partition("{")
    if not brace:
        name, _, value = line.partition(" ")
        return ((" " + name, Tone.TEXT), (" " + value, Tone.STRONG))
    labels, _, value = rest.rpartition("}")
    return ((" " + name, Tone.TEXT), ("{" + labels + "}", Tone.MUTED), (value, Tone.STRONG))


class RawScreen(ConsoleScreen):
    """Search over the newest page of one worker; the page is the one fetched when the screen opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.back", "back", id="raw.back", tooltip="Back to the worker"),
        Binding("ctrl+r", "reload", "newest page", id="raw.reload", tooltip="Take the newest page"),
    ]

    def __init__(self, look: Look, key: str, name: str) -> None:
        super().__init__(look)
        self.key = key
        self._name_shown = name
        self._page = ""
        self._found = LinesScroll(look, id="raw-lines")

    def body(self) -> ComposeResult:
        yield Static(id="raw-title")
        yield Input(placeholder="words that the line contains, e.g. transfer queue", compact=True)
        yield self._found

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.action_reload()

    def take(self, snapshot: Snapshot) -> None:
        """The page stays as it was; ``ctrl+r`` takes the newest."""

    def action_reload(self) -> None:
        self._page = self.console_app.source.raw_page(self.key) or ""
        self._search()

    def on_input_changed(self) -> None:
        self._search()

    def on_input_submitted(self) -> None:
        self._found.focus()

    def _search(self) -> None:
        lines, found = matching(self._page, self.query_one(Input).value)
        words = f" {text.clean(self._name_shown)}  "
        if not self._page:
            words += "no metrics page yet"
        else:
            words += f"{found} lines" + (f", the first {MAX_LINES} shown" if found > MAX_LINES else "")
        self.query_one("#raw-title", Static).update(Content(words))
        self._found.scroll_to(0, 0, animate=False)
        self._found.show(lines)
