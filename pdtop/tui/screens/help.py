"""The keys, as declared: what each does, and the id under which it can be given another key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pdtop.tui.keys import KeyRow
from pdtop.tui.text import fit

FILTER_HELP = (
    ("21", "workers with 21 in their name"),
    ("role:d  state:!ok", "decode workers that are not ok"),
    ("wait>10  kv>80", "more than 10 waiting, more than 80 % KV use"),
    ("ttft>800ms  tok<2k", "latency p99 and rates, with units"),
    ("!name~21", "! turns a term round"),
)


class HelpScreen(ModalScreen[None]):
    """A list of keys; any of its own keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "leave", "close", id="help.leave", tooltip="Close the help"),
    ]

    def __init__(self, rows: Sequence[KeyRow]) -> None:
        super().__init__(classes="large")
        self._rows = rows

    def compose(self) -> ComposeResult:
        yield Static(Content("Keys, and what [keymap] in config.toml calls them"), classes="dialog-title")
        with VerticalScroll():
            yield Static(help_text(self._rows))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        self.dismiss(None)


def help_text(rows: Sequence[KeyRow]) -> Content:
    """All of the help as one text."""
    lines: list[Content] = []
    for group, members in groupby(rows, key=lambda row: row.group):
        lines += [Content.styled(group, "bold")]
        lines += [
            Content.assemble(("  " + fit(row.keys, 14), "bold"), row.what, ("  " + row.id, "dim"))
            for row in members
        ]
        lines.append(Content(""))
    lines.append(Content.styled("Filter", "bold"))
    lines += [
        Content.assemble(("  " + fit(example, 22), "bold"), meaning) for example, meaning in FILTER_HELP
    ]
    lines += [
        Content(""),
        Content.styled("Signs", "bold"),
        Content(
            "  ✖ critical   ▲ warning   ◌ deliberate   – not known   ≥ at least   … ago: numbers are old\n"
            "  ● marked   └ how far its drain is   ↻ needs a restart   ○ no effect with this router"
        ),
    ]
    return Content("\n").join(lines)
