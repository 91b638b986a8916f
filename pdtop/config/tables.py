"""Find the right place for a new key or table in a TOML text, and take one out again.

A new key goes where its neighbours are: into their inline table, behind their dotted lines, or behind the
last key of their ``[table]``. A new table goes behind the last one of its family, else at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pdtop.config.arrays import remove_pair
from pdtop.config.keys import Path, join_key, quote_part
from pdtop.config.layout import Header, Layout, Node, Pair, Statement
from pdtop.config.splice import CannotEdit, Splice, indent_at, insert_line, line_end, line_start, newline_near

Parts = tuple[str, ...]


def insert_value(layout: Layout, path: Parts, value: str) -> list[Splice]:
    """Add ``path = value`` (TOML text); the key must be new.

    Raises:
        CannotEdit: something on the way is not a table.
    """
    for length in range(len(path) - 1, -1, -1):
        table, rest = path[:length], path[length:]
        node = layout.nodes.get(table) if table else None
        if node is not None:
            return [_into_inline(node, table, rest, value)]
        dotted = _last_dotted(layout, table)
        if dotted is not None and not (len(rest) == 1 and _header_of(layout, table)):
            return [_behind_dotted(layout, dotted, length, rest, value)]
        if len(rest) == 1 and (place := _in_section(layout, table, rest, value)):
            return [place]
        if _known(layout, table) and len(rest) > 1:
            return insert_table(layout, path[:-1], f"{quote_part(path[-1])} = {value}")
    raise CannotEdit(f"no place for {join_key(path)}")  # pragma: no cover - the root always takes it


def insert_table(layout: Layout, path: Parts, line: str | None = None) -> list[Splice]:
    """Add a ``[table]``, with one line in it if given, behind its family."""
    text = layout.text
    family = next(
        (path[:length] for length in range(len(path) - 1, 0, -1) if _members(layout, path[:length])), ()
    )
    below = [s for s in _members(layout, path) if isinstance(s, Header)]
    name = ".".join(quote_part(part) for part in path)
    if below:
        return [_before_header(layout, below[0], name, line)]
    members = _members(layout, family) if family else list(layout.statements)
    if not members:
        newline = newline_near(text, len(text))
        head = "" if not text or text.endswith("\n") else newline
        return [Splice(len(text), len(text), head + _block(f"[{name}]", line, newline, ""))]
    last = members[-1]
    blank_lines = _blank_before_headers(layout)
    if not family or last is layout.statements[-1]:
        at = len(text)  # behind closing comments, too

        blank_lines = blank_lines and not text.endswith(("\n\n", "\n\r\n"))
    else:
        at = _behind_comments(text, line_start(text, _end(last)))
    newline = newline_near(text, at)
    blank = newline if blank_lines else ""
    return [_insert_block(text, at, blank + _block(f"[{name}]", line, newline, ""), newline)]


def remove_key(layout: Layout, path: Parts) -> list[Splice]:
    """Take a key, or a table with all that is in it, out.

    Raises:
        CannotEdit: it is not in the file.
    """
    for length in range(len(path) - 1, 0, -1):
        node = layout.nodes.get(path[:length])
        if node is not None and node.kind == "inline":
            return _out_of_inline(layout, node, path[length:])
    members = _members(layout, path)
    if not members:
        raise CannotEdit(f"{join_key(path)} is not in the file")
    text = layout.text
    splices = []
    for group in _neighbours(layout, members):
        start, end = line_start(text, _start(group[0])), line_end(text, _end(group[-1]))
        if isinstance(group[0], Header):
            start = _blank_lines_above(text, start, end)
        splices.append(Splice(start, end, ""))
    return splices


def _into_inline(node: Node, table: Parts, rest: Parts, value: str) -> Splice:
    if node.kind != "inline":
        raise CannotEdit(f"{join_key(table)} is not a table")
    pair = f"{'.'.join(quote_part(part) for part in rest)} = {value}"
    if not node.pairs:
        return Splice(node.start + 1, node.end - 1, f" {pair} ")
    dotted = [p for p in node.pairs if p.key.parts[:1] == rest[:1]]
    last = (dotted or node.pairs)[-1]
    return Splice(last.node.end, last.node.end, f", {pair}")


def _behind_dotted(layout: Layout, pair: Pair, length: int, rest: Parts, value: str) -> Splice:
    """Behind a line such as ``prefill.policy = ...``, with the same beginning."""
    known = length - len(pair.table)
    prefix = [layout.text[pair.key.start : pair.key.spans[known - 1][1]]] if known else []
    name = ".".join((*prefix, *(quote_part(part) for part in rest)))
    indent = indent_at(layout.text, pair.key.start)
    return insert_line(layout.text, pair.node.end, f"{indent}{name} = {value}")


def _in_section(layout: Layout, table: Parts, rest: Parts, value: str) -> Splice | None:
    """Into ``[table]``, or among the root keys; None if there is no such section."""
    text, line = layout.text, f"{quote_part(rest[0])} = {value}"
    section = [p for p in layout.pairs() if p.table == table]
    if section:
        last = section[-1]
        return insert_line(text, last.node.end, indent_at(text, last.key.start) + line)
    header = _header_of(layout, table)
    if header is not None:
        return insert_line(text, header.end, indent_at(text, header.start) + line)
    if table:
        below = [s for s in _members(layout, table) if isinstance(s, Header)]
        return _before_header(layout, below[0], join_key(table), line) if below else None
    first = next(iter(layout.statements), None)
    newline = newline_near(text, 0)
    if first is None:
        head = "" if not text or text.endswith("\n") else newline
        return Splice(len(text), len(text), head + line + newline)
    at = _above_comments(text, line_start(text, _start(first)))
    return Splice(at, at, line + newline + newline)


def _before_header(layout: Layout, header: Header, name: str, line: str | None) -> Splice:
    text = layout.text
    at = _above_comments(text, line_start(text, header.start))
    newline = newline_near(text, header.start)
    blank = newline if _blank_before_headers(layout) else ""
    return Splice(at, at, _block(f"[{name}]", line, newline, indent_at(text, header.start)) + blank)


def _insert_block(text: str, at: int, block: str, newline: str) -> Splice:
    """Lines behind the line at ``at``; at the end of a text without last line end the text stays without."""
    end = at if at == len(text) else line_end(text, at)
    if text[:end].endswith("\n"):
        return Splice(end, end, block)
    return Splice(end, end, newline + block.removesuffix(newline))


def _block(header: str, line: str | None, newline: str, indent: str) -> str:
    lines = [header] if line is None else [header, line]
    return "".join(indent + one + newline for one in lines)


def _last_dotted(layout: Layout, table: Parts) -> Pair | None:
    """The last line that names ``table`` inside a dotted key; for the root, in files without headers."""
    if not table:
        pairs = [] if any(layout.headers()) else list(layout.pairs())
        only_dotted = all(len(p.key.parts) > 1 or p.node.kind == "inline" for p in pairs)
        return pairs[-1] if pairs and only_dotted else None
    length = len(table)
    found = [p for p in layout.pairs() if p.path[:length] == table and len(p.table) < length < len(p.path)]
    return found[-1] if found else None


def _header_of(layout: Layout, table: Parts) -> Header | None:
    return next((h for h in layout.headers() if h.path == table and not h.array), None) if table else None


def _known(layout: Layout, table: Parts) -> bool:
    return not table or bool(_members(layout, table))


def _path(statement: Statement) -> Path:
    return statement.path


def _start(statement: Statement) -> int:
    return statement.start if isinstance(statement, Header) else statement.key.start


def _end(statement: Statement) -> int:
    return statement.end if isinstance(statement, Header) else statement.node.end


def _members(layout: Layout, table: Parts) -> list[Statement]:
    """Statements that belong to a table: its header and keys, and everything below."""
    return [s for s in layout.statements if _path(s)[: len(table)] == table]


def _neighbours(layout: Layout, members: Sequence[Statement]) -> list[list[Statement]]:
    """Members in runs that follow one another in the file."""
    numbers = {id(s): number for number, s in enumerate(layout.statements)}
    groups = [[members[0]]]
    for one, following in pairwise(members):
        if numbers[id(following)] == numbers[id(one)] + 1:
            groups[-1].append(following)
        else:
            groups.append([following])
    return groups


def _out_of_inline(layout: Layout, node: Node, rest: Parts) -> list[Splice]:
    for index, pair in enumerate(node.pairs):
        if pair.key.parts == rest:
            return [remove_pair(node, index)]
        if pair.key.parts == rest[: len(pair.key.parts)] and pair.node.kind == "inline":
            return _out_of_inline(layout, pair.node, rest[len(pair.key.parts) :])
    raise CannotEdit(f"{join_key(rest)} stands in a dotted inline table: edit it by hand")


def _blank_before_headers(layout: Layout) -> bool:
    """The file separates its tables by blank lines (or has too few tables to tell)."""
    starts = [line_start(layout.text, h.start) for h in list(layout.headers())[1:]]
    return not starts or any(
        not layout.text[line_start(layout.text, at - 1) : at].strip()
        for at in (_above_comments(layout.text, start) for start in starts)
        if at
    )


def _above_comments(text: str, at: int) -> int:
    """Start of the comment lines that stand directly above the line at ``at``."""
    while at and text[line_start(text, at - 1) : at].lstrip().startswith("#"):
        at = line_start(text, at - 1)
    return at


def _behind_comments(text: str, at: int) -> int:
    """The last of the comment lines directly below the line at ``at``, unless they head a table."""
    below = end = line_end(text, at)
    while end < len(text) and text[end : line_end(text, end)].lstrip().startswith("#"):
        end = line_end(text, end)
    if end == below or text[end : line_end(text, end)].strip():
        return at
    return line_start(text, end - 1)


def _blank_lines_above(text: str, start: int, end: int) -> int:
    """Where to cut so that removing a table leaves no double blank line behind."""
    if text[end : line_end(text, end)].strip():
        return start
    while start and not text[line_start(text, start - 1) : start].strip():
        start = line_start(text, start - 1)
    return start
