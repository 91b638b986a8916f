"""A full screen with a list above and what the row under the cursor says in full below."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from pdtop.cluster.model import Snapshot
from pdtop.tui.palette import Look
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.line_page import LinePage
from pdtop.tui.widgets.row_list import Row, RowList


class ListingScreen(OperatingScreen):
    """What is listed comes from :meth:`listed`, the rest from :meth:`detailed`."""

    DEFAULT_CSS = """
    ListingScreen RowList { height: 1fr; margin: 1 0 0 0; }
    ListingScreen .detail { height: 45%; margin: 1 0 0 0; }
    """

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self.rows = RowList(look)
        self.detail = LinePage(look)
        self.detail.add_class("detail")

    def body(self) -> ComposeResult:
        yield self.rows
        yield self.detail

    def on_mount(self) -> None:
        self.rows.focus()

    def listed(self, snapshot: Snapshot, width: int) -> list[Row]:
        """The rows; a key of "" is a heading."""
        raise NotImplementedError

    def detailed(self, key: str, width: int) -> list[Line]:
        """All about the row ``key``; "" if there is none."""
        raise NotImplementedError

    def take(self, snapshot: Snapshot) -> None:
        if self.size.width:
            self.rows.show(self.listed(snapshot, self.size.width - 1))
            self.show_detail()

    @on(RowList.Moved)
    def show_detail(self) -> None:
        """Say all about the row under the cursor."""
        width = self.size.width - 3
        lines = self.detailed(self.rows.cursor_key, width)
        self.detail.show([((" ", Tone.TEXT), *line) if line else line for line in lines])
