"""The raw series of one worker: what its metrics page says, with a search over names and labels."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from pdtop.cluster.model import Snapshot
from pdtop.tui import text
from pdtop.tui.palette import Look
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.line_view import LineView
from pdtop.tui.widgets.series_list import SeriesList
from pdtop.tui.worker_lines import wrapped
from pdtop.tui.worker_raw import RawPage

#: A page larger than this is not read again with every snapshot, but by key.
LIVE_BYTES = 1_000_000


class RawSeriesScreen(ConsoleScreen):
    """Search above, series in the middle, the whole of the series under the cursor below."""

    DEFAULT_CSS = """
    RawSeriesScreen #raw-search { background: $surface; padding: 0 1; }
    RawSeriesScreen #raw-note { height: 2; }
    RawSeriesScreen #raw-detail { height: 4; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", id="series.search", tooltip="Search in names and labels"),
        Binding("r", "read", "read again", id="series.read", tooltip="Take the newest page"),
        Binding(
            "escape", "leave", "back", id="series.back", tooltip="Empty the search; then back to the worker"
        ),
        Binding("q", "app.back", "back", show=False, id="series.leave", tooltip="Back to the worker"),
        Binding(
            "enter,down", "rows", "rows", show=False, id="series.rows", tooltip="From the search to the rows"
        ),
    ]

    def __init__(self, look: Look, key: str, name: str) -> None:
        super().__init__(look)
        self.key = key
        self._worker_name = name
        self._text: str | None = None
        self._wanted = False  # the operator asked for a newer page than this
        self._raw = RawPage("")
        self._rows: list[int] = []
        self._input = Input(placeholder="part of a name or label; several words must all match", compact=True,
                            id="raw-search")  # fmt: skip
        self._note = LineView(look, id="raw-note")
        self._list = SeriesList(look, id="raw-list")
        self._detail = LineView(look, id="raw-detail")

    def body(self) -> ComposeResult:
        yield self._input
        yield self._note
        yield self._list
        yield self._detail

    def on_mount(self) -> None:
        self._input.focus()
        self.action_read()

    def take(self, snapshot: Snapshot) -> None:
        live = not self.console_app.paused and self._raw.size <= LIVE_BYTES
        if live or self._wanted:
            self._read()
        self._tell()

    def action_read(self) -> None:
        """Take the newest page; the source may need until a later snapshot to fetch it."""
        self._wanted = True
        self._read()
        self._tell()

    def _read(self) -> None:
        page = self.console_app.source.raw_page(self.key)
        if page is not None and page != self._text:  # without a page the last one stays
            self._text, self._raw, self._wanted = page, RawPage(page), False
            self._search()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._search(top=True)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._list.focus()

    @on(SeriesList.CursorMoved)
    def _moved(self) -> None:
        self._tell()

    def _search(self, *, top: bool = False) -> None:
        self._rows = self._raw.search(self._input.value)
        self._list.show(self._raw, self._rows, top=top)
        self._tell()

    def _tell(self) -> None:
        self._note.show([self._summary()])
        self._detail.show([(), *self._whole(self.size.width)])

    def _summary(self) -> Line:
        name = text.middle(text.clean(self._worker_name), 32)
        if self._text is None:
            return ((f" {name}", Tone.STRONG), ("   no metrics page yet", Tone.MUTED))
        still = "   large page: r reads it again" if self._raw.size > LIVE_BYTES else ""
        return (
            (f" {name}", Tone.STRONG),
            (f"   {len(self._rows)} of {len(self._raw)} series", Tone.TEXT),
            (f"   {text.si(self._raw.size)}B", Tone.MUTED),
            (still, Tone.MUTED),
        )

    def _whole(self, width: int) -> list[Line]:
        series = self._list.selected
        if series is None:
            words = "nothing matches" if len(self._raw) else ""
            return [((f" {words}", Tone.MUTED),)]
        if series.bad:
            head: Line = ((" ▲ not readable", Tone.WARNING),)
        else:
            head = ((f" {series.name} ", Tone.STRONG), (series.value, Tone.STRONG))
        return [head, *(((f" {part}", Tone.MUTED),) for part in wrapped(series.labels, width - 2)[:2])]

    def action_search(self) -> None:
        self._input.focus()

    def action_rows(self) -> None:
        self._list.focus()

    def action_leave(self) -> None:
        if self._input.value:
            self._input.value = ""
            self._input.focus()
        else:
            self.app.pop_screen()
