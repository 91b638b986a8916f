"""Frames with few bytes: only the changed cells are written, and a style only where it changes.

Textual 8.2 crops a changed span at its right end only, so a change in the last column rewrites its whole
line, and it ends every piece of text with a reset. For a table of 64 workers that made 55 KB of a frame that
needs 5: over SSH this is what one feels.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate

#: A gap between two spans of a line that is cheaper to write again than to jump over.
JUMP = 6

_ATTRIBUTES = (
    ("bold", "1"), ("dim", "2"), ("italic", "3"), ("underline", "4"), ("blink", "5"), ("reverse", "7"),
    ("conceal", "8"), ("strike", "9"), ("underline2", "21"), ("overline", "53"),
)  # fmt: skip

#: Attributes that show on a blank.
_ON_BLANKS = frozenset({"4", "7", "9", "21", "53"})


class Codes(NamedTuple):
    """A style as SGR parameters; empty: the terminal's default."""

    attributes: tuple[str, ...] = ()
    foreground: str = ""
    background: str = ""


@lru_cache(4096)
def codes(style: Style, system: ColorSystem) -> Codes:
    """The parameters of ``style`` on a terminal with ``system`` colours."""
    return Codes(
        tuple(code for name, code in _ATTRIBUTES if getattr(style, name)),
        ";".join(style.color.downgrade(system).get_ansi_codes()) if style.color else "",
        ";".join(style.bgcolor.downgrade(system).get_ansi_codes(foreground=False)) if style.bgcolor else "",
    )


class Pen:
    """Writes segments and remembers what the terminal is set to."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._system = _color_system(console)
        self._now = Codes()
        self._out: list[str] = []

    def move(self, x: int, y: int) -> None:
        self._out.append(f"\x1b[{y + 1};{x + 1}H")

    def write(self, segments: Iterable[Segment]) -> None:
        for text, style, _ in segments:
            if not text:
                continue
            if style is not None and style.link:
                self.reset()
                self._out.append(style.render(text, color_system=self._system))
                continue
            wanted = codes(style, self._system) if style is not None else Codes()
            if not self._looks_right(text, wanted):
                self._out.append(change(self._now, wanted))
                self._now = wanted
            self._out.append(text)

    def _looks_right(self, text: str, wanted: Codes) -> bool:
        """Whether ``text`` looks as wanted with the pen as it is: blanks show their background only."""
        if self._now == wanted:
            return True
        return (
            text.isspace()
            and self._now.background == wanted.background
            and _ON_BLANKS.isdisjoint((*self._now.attributes, *wanted.attributes))
        )

    def reset(self) -> None:
        self._out.append(change(self._now, Codes()))
        self._now = Codes()

    def finish(self) -> str:
        """Everything written, with the terminal back at its defaults."""
        self.reset()
        return "".join(self._out)


def change(now: Codes, wanted: Codes) -> str:
    """The shortest sequence from one style to another."""
    if now == wanted:
        return ""
    parameters: list[str] = []
    if not set(now.attributes) <= set(wanted.attributes):
        if wanted == Codes():
            return "\x1b[0m"
        now = Codes()
        parameters.append("0")
    parameters += [a for a in wanted.attributes if a not in now.attributes]
    if now.foreground != wanted.foreground:
        parameters.append(wanted.foreground or "39")
    if now.background != wanted.background:
        parameters.append(wanted.background or "49")
    return f"\x1b[{';'.join(parameters)}m"


def _color_system(console: Console) -> ColorSystem:
    names = {
        "standard": ColorSystem.STANDARD,
        "256": ColorSystem.EIGHT_BIT,
        "truecolor": ColorSystem.TRUECOLOR,
    }
    return names.get(console.color_system or "", ColorSystem.TRUECOLOR)


class TightChopsUpdate(ChopsUpdate):
    """Changed spans, written from their first cell to their last."""

    def render_segments(self, console: Console) -> str:
        pen = Pen(console)
        for y, start, end in joined(self.spans):
            at = -1  # where the cursor is in this line
            for chop_end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(x, start), min(chop_end, end)
                if strip is None or first >= last:
                    continue
                if at != first:
                    pen.move(first, y)
                pen.write(strip.crop(first - x, last - x))
                at = last
        return pen.finish()


class TightLayoutUpdate(LayoutUpdate):
    """The whole screen."""

    def render_segments(self, console: Console) -> str:
        pen = Pen(console)
        x, y = self.region.x, self.region.y
        for row, line in enumerate(self.strips):
            pen.move(x, y + row)
            for strip in line:
                pen.write(strip)
        return pen.finish()


def joined(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """``spans`` (line, first, end) with those joined that are closer than a jump of the cursor is long."""
    out: list[tuple[int, int, int]] = []
    for y, start, end in spans:
        if out and out[-1][0] == y and start - out[-1][2] <= JUMP:
            out[-1] = (y, out[-1][1], max(end, out[-1][2]))
        else:
            out.append((y, start, end))
    return out


def tight(update: RenderableType | None) -> RenderableType | None:
    """``update`` in the form that writes less; what is no frame stays as it is."""
    if type(update) is ChopsUpdate:
        return TightChopsUpdate(update.chops, update.spans, update.chop_ends)
    if type(update) is LayoutUpdate:
        return TightLayoutUpdate(update.strips, update.region)
    return update
