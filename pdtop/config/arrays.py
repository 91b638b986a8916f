"""Insert and remove items of a TOML array in place, in the array's own layout.

One line, one item a line, several a line, comma first, trailing comma, comments between: the new item looks
like its neighbours, a removed one takes its own line along, and no other line changes. A comma is put behind
the value it belongs to, never behind a comment.
"""

from __future__ import annotations

from pdtop.config.layout import Layout, Node
from pdtop.config.splice import (
    Splice,
    before_on_line,
    indent_at,
    insert_line,
    line_end,
    line_start,
    newline_near,
    nothing_follows,
)


def insert_item(layout: Layout, array: Node, after: int, item: str) -> list[Splice]:
    """Put ``item`` (TOML text) behind item number ``after``; -1 = at the front."""
    text = layout.text
    if not array.items:
        return _insert_first(text, array, item)
    if after < 0:
        return _insert_front(text, array, item)
    node, comma = array.items[after].node, array.items[after].comma
    prefix = _comma_first_prefix(text, array)
    if prefix is not None:
        if nothing_follows(text, node.end):
            return [insert_line(text, node.end, prefix + item)]
        return [Splice(node.end, node.end, newline_near(text, array.start) + prefix + item)]
    last_on_line = comma + 1 if comma is not None else node.end
    if not _many_lines(text, array) or not nothing_follows(text, last_on_line):
        separator = _separator(text, array)
        if comma is None and not before_on_line(text, node.start).strip():
            separator = "," + newline_near(text, array.start) + indent_at(text, node.start)
        return [Splice(node.end, node.end, separator + item)]
    line = indent_at(text, node.start) + item
    if before_on_line(text, array.start).strip() and line_start(text, node.start) <= array.start:
        line = " " * (node.start - line_start(text, node.start)) + item  # hangs behind the opening bracket
    if comma is not None:
        return [insert_line(text, comma, line + ",")]
    return [Splice(node.end, node.end, ","), insert_line(text, node.end, line)]


def remove_item(layout: Layout, array: Node, index: int) -> list[Splice]:
    """Take item number ``index`` out: its whole line if nothing else stands there, else just itself."""
    text = layout.text
    node, comma = array.items[index].node, array.items[index].comma
    previous = array.items[index - 1].comma if index else None
    start, end = line_start(text, node.start), line_end(text, node.end)
    before = before_on_line(text, node.start).strip()
    near = comma is not None and comma < end
    if nothing_follows(text, comma + 1 if near and comma is not None else node.end):
        if not before:
            splices = [Splice(start, end, "")]
            if comma is not None and not near:
                splices.append(_drop_far_comma(text, array, index, comma))
            return splices
        if before == "," and previous is not None and previous >= start and not near:
            return [Splice(start, end, "")]
    return _remove_within_line(text, array, index)


def remove_pair(table: Node, index: int) -> Splice:
    """Take pair number ``index`` out of an inline table."""
    pair = table.pairs[index]
    if len(table.pairs) == 1:
        return Splice(table.start + 1, table.end - 1, "")
    if index + 1 < len(table.pairs):
        return Splice(pair.key.start, table.pairs[index + 1].key.start, "")
    return Splice(table.pairs[index - 1].node.end, pair.node.end, "")


def _insert_first(text: str, array: Node, item: str) -> list[Splice]:
    inside = text[array.start + 1 : array.end - 1]
    closing = line_start(text, array.end - 1)
    if "\n" not in inside or text[closing : array.end - 1].strip():
        if "#" in inside:  # a comment line ends with the line that holds the bracket
            return [Splice(array.end - 1, array.end - 1, item)]
        return [Splice(array.start + 1, array.end - 1, item)]
    lines = inside.split("\n")[1:-1]
    written = next((line for line in lines if line.strip()), None)
    indent = indent_at(text, array.start) + "    "
    if written is not None:
        indent = written[: len(written) - len(written.lstrip())]
    return [Splice(closing, closing, f"{indent}{item},{newline_near(text, array.start)}")]


def _insert_front(text: str, array: Node, item: str) -> list[Splice]:
    first = array.items[0].node
    if before_on_line(text, first.start).strip() or _comma_first_prefix(text, array) is not None:
        return [Splice(first.start, first.start, item + _separator(text, array))]
    line = indent_at(text, first.start) + item + "," + newline_near(text, first.start)
    return [Splice(line_start(text, first.start), line_start(text, first.start), line)]


def _comma_first_prefix(text: str, array: Node) -> str | None:
    """What stands before an item in a comma-first array, such as ``"  , "``; None for other layouts."""
    for item in reversed(array.items[1:]):
        before = before_on_line(text, item.node.start)
        if before.strip() == ",":
            return before
    return None


def _many_lines(text: str, array: Node) -> bool:
    """An item, or the closing bracket, begins on a line of its own."""
    edges = [array.start, *(item.node.end for item in array.items)]
    starts = [*(item.node.start for item in array.items), array.end]
    return any("\n" in text[edge:start] for edge, start in zip(edges, starts, strict=True))


def _separator(text: str, array: Node) -> str:
    """Comma and blanks as between the items of this array."""
    if len(array.items) > 1:
        comma, following = array.items[-2].comma, array.items[-1].node.start
        if comma is not None and not text[comma + 1 : following].strip(" \t"):
            return text[comma:following]
    return ", "


def _drop_far_comma(text: str, array: Node, index: int, comma: int) -> Splice:
    """The comma of a removed item that stands on a later line: a blank keeps the next item in its column."""
    if index + 1 < len(array.items):
        return Splice(comma, comma + 1, " ")
    if text[line_start(text, comma) : line_end(text, comma)].strip() == ",":
        return Splice(line_start(text, comma), line_end(text, comma), "")
    return Splice(comma, comma + 1, "")


def _remove_within_line(text: str, array: Node, index: int) -> list[Splice]:
    node, comma = array.items[index].node, array.items[index].comma
    previous = array.items[index - 1].comma if index else None
    following = array.items[index + 1].node.start if index + 1 < len(array.items) else None
    if len(array.items) == 1 and not _rich(
        text[array.start + 1 : node.start] + text[node.end : array.end - 1]
    ):
        return [Splice(array.start + 1, array.end - 1, "")]
    if comma is None:
        if previous is not None and "#" not in text[previous : node.start]:
            return [Splice(previous, node.end, "")]
        return [Splice(node.start, node.end, "")]
    if _rich(text[node.end : comma]):
        return [Splice(node.start, node.end, ""), Splice(comma, comma + 1, "")]
    if following is not None and not _rich(text[comma + 1 : following]):
        return [Splice(node.start, following, "")]
    if previous is not None and not _rich(text[previous + 1 : node.start]):
        return [Splice(previous + 1, comma + 1, "")]
    return [Splice(node.start, comma + 1, "")]


def _rich(text: str) -> bool:
    """More than blanks and commas on one line."""
    return "\n" in text or "#" in text
