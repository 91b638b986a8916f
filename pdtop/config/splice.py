"""Small replacements in a text, and what an edit needs to know about the lines around them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_REST = re.compile(r"[ \t]*(?:#[^\r\n]*)?(\r?\n|\Z)")
_LEAD = re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Splice:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


class CannotEdit(Exception):
    """The edit is not possible; the message says why in words for the operator."""


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """All replacements made; they must not overlap."""
    for splice in sorted(splices, key=lambda s: (s.start, s.end), reverse=True):
        text = text[: splice.start] + splice.new + text[splice.end :]
    return text


def line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def line_end(text: str, offset: int) -> int:
    """Offset behind the line end of the line around ``offset``."""
    found = text.find("\n", offset)
    return len(text) if found < 0 else found + 1


def indent_at(text: str, offset: int) -> str:
    """Blanks at the start of the line around ``offset``."""
    found = _LEAD.match(text, line_start(text, offset))
    return found.group() if found else ""


def before_on_line(text: str, offset: int) -> str:
    return text[line_start(text, offset) : offset]


def nothing_follows(text: str, offset: int) -> bool:
    """Only blanks and a comment stand between ``offset`` and the end of its line."""
    return _REST.match(text, offset) is not None


def newline_near(text: str, offset: int) -> str:
    """Line end of the line around ``offset``; that of the line before at the end of the text."""
    end = line_end(text, offset)
    if not text[:end].endswith("\n"):
        end = line_start(text, offset)
    if not end:
        return "\n"
    return "\r\n" if text[:end].endswith("\r\n") else "\n"


def insert_line(text: str, offset: int, line: str) -> Splice:
    """A new line behind the line around ``offset``. Without a last line end the text stays without one."""
    end, newline = line_end(text, offset), newline_near(text, offset)
    if end and not text[:end].endswith("\n"):
        return Splice(end, end, newline + line)
    return Splice(end, end, line + newline)
