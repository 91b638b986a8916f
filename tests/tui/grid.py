"""A very small terminal: takes what the console writes and keeps what stands in each cell, with its style."""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(r"\x1b\[(?P<params>[\d;]*)(?P<final>[Hm])|\x1b\[\?2026[hl]|(?P<text>[^\x1b]+)", re.DOTALL)

#: SGR parameters in force: attributes, foreground, background.
Style = tuple[frozenset[str], str, str]
PLAIN: Style = (frozenset(), "", "")

#: Attributes and foreground do not show on a blank, unless it is underlined, reversed or struck.
_ON_BLANKS = frozenset({"4", "7", "9"})


class Grid:
    """Cells by (line, column). Anything but text, SGR and cursor positions is refused."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells: list[list[tuple[str, Style]]] = [[(" ", PLAIN)] * width for _ in range(height)]
        self._x = self._y = 0
        self._style: Style = PLAIN

    def feed(self, data: str) -> None:
        at = 0
        for match in _TOKEN.finditer(data):
            assert match.start() == at, f"not understood: {data[at : at + 20]!r}"
            at = match.end()
            if match["text"]:
                self._print(match["text"])
            elif match["final"] == "H":
                row, column = (int(p) for p in match["params"].split(";"))
                self._x, self._y = column - 1, row - 1
            elif match["final"] == "m":
                self._sgr(match["params"].split(";"))
        assert at == len(data)

    def _print(self, text: str) -> None:
        for character in text:
            width = cell_len(character)
            if width == 0:
                continue
            assert 0 <= self._x <= self.width - width, "written beyond the right edge"
            self.cells[self._y][self._x] = (character, self._style)
            for extra in range(1, width):
                self.cells[self._y][self._x + extra] = ("", self._style)
            self._x += width

    def _sgr(self, parameters: list[str]) -> None:
        attributes, foreground, background = self._style
        rest = list(parameters)
        while rest:
            code = rest.pop(0)
            if code in ("", "0"):
                attributes, foreground, background = PLAIN
            elif code in ("38", "48"):
                count = 2 if rest[0] == "5" else 4
                color = ";".join([code, *(rest.pop(0) for _ in range(count))])
                if code == "38":
                    foreground = color
                else:
                    background = color
            elif code == "39" or (code.isdigit() and (30 <= int(code) <= 37 or 90 <= int(code) <= 97)):
                foreground = "" if code == "39" else code
            elif code == "49" or (code.isdigit() and (40 <= int(code) <= 47 or 100 <= int(code) <= 107)):
                background = "" if code == "49" else code
            else:
                attributes = attributes | {code}
        self._style = (attributes, foreground, background)

    def looks(self) -> list[list[tuple[str, Style]]]:
        """The cells with what cannot be seen left out of their style."""
        return [[_seen(cell) for cell in row] for row in self.cells]

    def text(self) -> list[str]:
        return ["".join(c for c, _ in row) for row in self.cells]


def _seen(cell: tuple[str, Style]) -> tuple[str, Style]:
    character, (attributes, foreground, background) = cell
    if character.strip():
        return cell
    on_blank = attributes & _ON_BLANKS
    return character, (on_blank, foreground if on_blank else "", background)
