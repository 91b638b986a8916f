"""The building blocks of the worker page: headings, wrapped text, small tables, blocks beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from pdtop.tui import text
from pdtop.tui.columns import pad
from pdtop.tui.headline import clip
from pdtop.tui.lines import line_width
from pdtop.tui.text import Align
from pdtop.tui.tones import Line, Run, Tone

BLANK: Line = ()

#: Outside text longer than this many lines is cut: a page must not drown in one message.
MOST_LINES = 4


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a small table. ``optional`` ones go first when the room is short, the last one first."""

    title: str
    width: int
    align: Align = "right"
    optional: bool = False


def heading(title: str, note: str, width: int) -> Line:
    """The line that opens a part of the page."""
    line: Line = ((title, Tone.STRONG), (f"  {note}" if note else "", Tone.MUTED), (" ", Tone.MUTED))
    line = clip(line, width)
    return (*line, ("─" * max(0, width - line_width(line)), Tone.MUTED))


def faded(block: list[Line]) -> list[Line]:
    """A part of the page whose numbers are old: all but its heading in the background."""
    return [*block[:1], *(tuple((words, Tone.STALE) for words, _ in line) for line in block[1:])]


def known(words: str, tone: Tone = Tone.TEXT) -> Run:
    """``words``, in the background if they say "unknown"."""
    return words, Tone.MUTED if words == text.UNKNOWN else tone


def wrapped(words: str, width: int) -> list[str]:
    """Outside text, made harmless, in lines of at most ``width`` cells."""
    out: list[str] = []
    line = ""
    for word in text.clean(words).split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            out.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    out.append(line)
    if len(out) > MOST_LINES:
        out = [*out[: MOST_LINES - 1], out[MOST_LINES - 1] + " " + text.ELLIPSIS]
    return [text.fit(piece, width).rstrip() for piece in out]


def labelled(label: str, words: str, width: int, tone: Tone = Tone.TEXT) -> list[Line]:
    """A label and outside text beside it, wrapped; nothing if there is no text."""
    if not words.strip():
        return []
    indent = len(label)
    pieces = wrapped(words, max(1, width - indent))
    return [
        ((label if i == 0 else " " * indent, Tone.MUTED), (piece, tone)) for i, piece in enumerate(pieces)
    ]


def signed(sign: str, words: str, width: int, tone: Tone) -> list[Line]:
    """Outside text after a sign that has the same tone, wrapped below itself."""
    if not words.strip():
        return []
    indent = len(sign)
    return [
        ((sign if index == 0 else " " * indent, tone), (piece, tone))
        for index, piece in enumerate(wrapped(words, max(8, width - indent)))
    ]


def table(fields: Sequence[Field], rows: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Titles and rows; the last field takes or gives what room is left or missing."""
    kept = list(range(len(fields)))

    def needed() -> int:
        return 1 + sum(fields[i].width + 2 for i in kept) - 2

    while needed() > width and any(fields[i].optional for i in kept):
        kept.remove(next(i for i in reversed(kept) if fields[i].optional))
    last = kept[-1]
    spare = width - needed()
    stretch = last if fields[last].align == "left" else -1
    widths = {i: max(1, fields[i].width + (spare if i == stretch else 0)) for i in kept}

    def joined(cells: Sequence[Line]) -> Line:
        runs: list[Run] = [(" ", Tone.TEXT)]
        for i in kept:
            runs += [*pad(cells[i], widths[i], fields[i].align), ("  ", Tone.TEXT)]
        return clip(tuple(runs[:-1]), width)

    return [joined([((f.title, Tone.COLUMN),) for f in fields]), *(joined(row) for row in rows)]


def columns(blocks: Sequence[list[Line]], width: int, gap: int = 2) -> list[Line]:
    """``blocks`` of ``width`` cells each, beside each other."""
    out: list[Line] = []
    for rows in zip_longest(*blocks, fillvalue=BLANK):
        runs: list[Run] = []
        for index, line in enumerate(rows):
            cut = clip(line, width) if line_width(line) > width else line
            filler = 0 if index == len(rows) - 1 else width - line_width(cut) + gap
            runs += [*cut, (" " * filler, Tone.TEXT)]
        out.append(tuple(run for run in runs if run[0]))
    return out


def in_columns(lines: Sequence[Line], count: int, width: int) -> list[Line]:
    """One-line entries poured into ``count`` columns of ``width`` cells, read downwards."""
    height = -(-len(lines) // count) or 1
    return columns([list(lines[i : i + height]) for i in range(0, len(lines), height)], width)
