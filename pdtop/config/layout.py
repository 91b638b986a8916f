"""Where everything stands in a TOML text: a scanner that gives the span of every key, value, item and header.

``tomllib`` decides what a text means; this decides where. It keeps offsets into the untouched text (line ends
included), so that an error can name its line and an edit can replace exactly the bytes of one value. It also
names keys given twice with both lines, which ``tomllib`` does not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pdtop.config.keys import Path, join_key

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_TRIVIA = re.compile(r"(?:[ \t\n]|\r\n|#[^\n]*)*")
_COMMENT = re.compile(r"[ \t]*(?:#[^\r\n]*)?")
_NEWLINE = re.compile(r"\r?\n|\Z")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^"\\]|\\.|"(?!"")|""(?!"))*"{3,5}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''(?:[^']|'(?!'')|''(?!'))*'{3,5}", re.DOTALL)
_TOKEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|(.))")

Kind = Literal["scalar", "array", "inline"]


class LayoutError(Exception):
    """The text is not TOML from ``line`` on. ``hint`` is what to do."""

    def __init__(self, rule: str, line: int, hint: str = "") -> None:
        super().__init__(f"line {line}: {rule}")
        self.rule, self.line, self.hint = rule, line, hint


@dataclass(frozen=True, slots=True)
class Key:
    """A dotted key as written; ``spans`` are those of its parts."""

    parts: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.spans[0][0]

    @property
    def end(self) -> int:
        return self.spans[-1][1]


@dataclass(frozen=True, slots=True)
class Node:
    """A value from ``start`` to ``end``; ``items`` of an array, ``pairs`` of an inline table."""

    start: int
    end: int
    kind: Kind
    items: tuple[Item, ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an array; ``comma`` is the offset of the comma behind it."""

    node: Node
    comma: int | None


@dataclass(frozen=True, slots=True)
class Pair:
    """``key = value``. ``table`` is where it stands (header, or path of the inline table)."""

    key: Key
    node: Node
    table: Path
    comma: int | None = None

    @property
    def path(self) -> Path:
        return (*self.table, *self.key.parts)


@dataclass(frozen=True, slots=True)
class Header:
    """``[table]`` or ``[[array of tables]]``; in ``path`` an item of such an array has its number."""

    key: Key
    path: Path
    array: bool
    start: int
    end: int


Statement = Header | Pair


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A name given twice."""

    path: Path
    first_line: int
    line: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All statements of a text in order, an index of values by path, and the names given twice."""

    text: str
    statements: tuple[Statement, ...]
    duplicates: tuple[Duplicate, ...] = ()
    nodes: dict[Path, Node] = field(default_factory=dict)
    key_offsets: dict[Path, int] = field(default_factory=dict)
    line_starts: tuple[int, ...] = ()

    def line_at(self, offset: int) -> int:
        """Line number, from 1."""
        return bisect_right(self.line_starts, offset)

    def line_of(self, path: Path) -> int | None:
        """Line of the key at ``path``, or of the nearest table around it that stands in the file."""
        for length in range(len(path), 0, -1):
            offset = self.key_offsets.get(path[:length])
            if offset is not None:
                return self.line_at(offset)
        return None

    def source(self, path: Path) -> str | None:
        """A value as typed."""
        node = self.nodes.get(path)
        return None if node is None else self.text[node.start : node.end]

    def headers(self) -> Iterator[Header]:
        return (s for s in self.statements if isinstance(s, Header))

    def pairs(self) -> Iterator[Pair]:
        return (s for s in self.statements if isinstance(s, Pair))


def scan(text: str) -> Layout:
    """Layout of a text without byte order mark.

    Raises:
        LayoutError: the text is not TOML; ``tomllib`` may find errors that this does not.
    """
    return _Scanner(text).scan()


def unescape(body: str) -> str:
    """Undo the escapes of a one-line basic string (without its quotes)."""

    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"
        return _ESCAPES.get(found[4], found[4])

    return _ESCAPE.sub(one, body)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_starts = (0, *(m.end() for m in re.finditer("\n", text)))
        self.statements: list[Statement] = []
        self.duplicates: list[Duplicate] = []
        self.nodes: dict[Path, Node] = {}
        self.key_offsets: dict[Path, int] = {}
        self.headers: dict[Path, int] = {}
        self.array_tables: dict[Path, int] = {}

    def scan(self) -> Layout:
        table: Path = ()
        while True:
            self.skip(_TRIVIA)
            if self.at >= len(self.text):
                break
            if self.text[self.at] == "[":
                table = self.header()
            else:
                pair = self.pair(table)
                self.statements.append(pair)
                self.index(pair)
            self.end_of_statement()
        return Layout(
            self.text,
            tuple(self.statements),
            tuple(self.duplicates),
            self.nodes,
            self.key_offsets,
            self.line_starts,
        )

    def fail(self, rule: str, at: int | None = None, hint: str = "") -> LayoutError:
        return LayoutError(rule, bisect_right(self.line_starts, self.at if at is None else at), hint)

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def end_of_statement(self) -> None:
        self.skip(_COMMENT)
        if _NEWLINE.match(self.text, self.at) is None:
            raise self.fail(
                "something follows on the same line", hint="one key on each line; comments begin with #"
            )

    def header(self) -> Path:
        start = self.at
        array = self.text.startswith("[[", start)
        close = "]]" if array else "]"
        self.at += len(close)
        key = self.key("a table name")
        if not self.text.startswith(close, self.at):
            raise self.fail(f"the table header is not closed with {close}", start)
        self.at += len(close)
        path = self.resolve(key.parts, array=array)
        if not array and (path in self.headers or path in self.nodes):
            self.duplicate(path, self.headers.get(path, self.key_offsets.get(path, start)), start)
        self.headers.setdefault(path, start)
        for length in range(1, len(path) + 1):
            self.key_offsets.setdefault(path[:length], start)
        self.statements.append(Header(key, path, array, start, self.at))
        return path

    def resolve(self, parts: tuple[str, ...], *, array: bool) -> Path:
        """Path of a header: names of arrays of tables are followed by the number of their newest item."""
        path: Path = ()
        for index, part in enumerate(parts):
            path = (*path, part)
            if array and index == len(parts) - 1:
                self.array_tables[path] = self.array_tables.get(path, -1) + 1
            if path in self.array_tables:
                path = (*path, self.array_tables[path])
        return path

    def duplicate(self, path: Path, first: int, again: int) -> None:
        lines = (bisect_right(self.line_starts, first), bisect_right(self.line_starts, again))
        self.duplicates.append(Duplicate(path, *lines))

    def key(self, what: str = "a key") -> Key:
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        while True:
            self.skip(_BLANK)
            start = self.at
            if found := _BARE_KEY.match(self.text, start):
                parts.append(found.group())
            elif found := _BASIC.match(self.text, start):
                parts.append(unescape(found.group()[1:-1]))
            elif found := _LITERAL.match(self.text, start):
                parts.append(found.group()[1:-1])
            else:
                found_here = f", found {self.peek()!a}" if self.peek() else ""
                raise self.fail(f"expected {what}{found_here}", hint="names with other signs need quotes")
            self.at = found.end()
            spans.append((start, self.at))
            self.skip(_BLANK)
            if self.peek() != ".":
                return Key(tuple(parts), tuple(spans))
            self.at += 1

    def pair(self, table: Path) -> Pair:
        key = self.key()
        name = join_key(key.parts)
        if self.peek() != "=":
            hint = "the file may be half written" if self.at >= len(self.text) else "write: name = value"
            raise self.fail(f"expected = after {name}", key.start, hint)
        self.at += 1
        self.skip(_BLANK)
        return Pair(key, self.value(name), table)

    def index(self, pair: Pair) -> None:
        """Enter a pair, and what is inside its value, by path."""
        for length in range(len(pair.table) + 1, len(pair.path)):
            self.key_offsets.setdefault(pair.path[:length], pair.key.start)
        path = pair.path
        if path in self.key_offsets:
            self.duplicate(path, self.key_offsets[path], pair.key.start)
            return
        self.key_offsets.setdefault(path, pair.key.start)
        self.index_node(path, pair.node)

    def index_node(self, path: Path, node: Node) -> None:
        self.nodes[path] = node
        for number, item in enumerate(node.items):
            self.key_offsets[(*path, number)] = item.node.start
            self.index_node((*path, number), item.node)
        for inner in node.pairs:
            self.index(Pair(inner.key, inner.node, path, inner.comma))

    def value(self, name: str) -> Node:
        start = self.at
        first = self.peek()
        if first == "[":
            return self.array(name)
        if first == "{":
            return self.inline(name)
        if first in {'"', "'"}:
            return self.string(name)
        found = _TOKEN.match(self.text, start)
        if found is None:
            raise self.fail(f"{name} has no value", hint="the file may be half written" if not first else "")
        self.at = found.end()
        return Node(start, self.at, "scalar")

    def string(self, name: str) -> Node:
        start = self.at
        quote = self.text[start]
        if self.text.startswith(quote * 3, start):
            found = (_LONG_BASIC if quote == '"' else _LONG_LITERAL).match(self.text, start)
        else:
            found = (_BASIC if quote == '"' else _LITERAL).match(self.text, start)
        if found is None:
            raise self.fail(f"the text of {name} is not closed", start, f"add the missing {quote}")
        self.at = found.end()
        return Node(start, self.at, "scalar")

    def array(self, name: str) -> Node:
        start = self.at
        self.at += 1
        items: list[Item] = []
        while True:
            self.skip(_TRIVIA)
            if self.peek() == "]":
                self.at += 1
                return Node(start, self.at, "array", tuple(items))
            if items and items[-1].comma is None:
                raise self.unclosed(name, start, "]")
            if not self.peek() or self.peek() in {"=", ",", "}"}:
                raise self.unclosed(name, start, "]")
            node = self.value(name)
            self.skip(_TRIVIA)
            items.append(Item(node, self.comma()))

    def inline(self, name: str) -> Node:
        start = self.at
        self.at += 1
        pairs: list[Pair] = []
        while True:
            self.skip(_TRIVIA)
            if self.peek() == "}":
                self.at += 1
                return Node(start, self.at, "inline", pairs=tuple(pairs))
            if (pairs and pairs[-1].comma is None) or not self.peek():
                raise self.unclosed(name, start, "}")
            pair = self.pair(())
            self.skip(_TRIVIA)
            pairs.append(Pair(pair.key, pair.node, (), self.comma()))

    def comma(self) -> int | None:
        if self.peek() != ",":
            return None
        self.at += 1
        return self.at - 1

    def unclosed(self, name: str, start: int, bracket: str) -> LayoutError:
        opened = bisect_right(self.line_starts, start)
        what = "array" if bracket == "]" else "inline table"
        return self.fail(
            f"the {what} {name}, opened on line {opened}, is not closed or lacks a comma",
            hint=f"add the missing {bracket} or comma",
        )
