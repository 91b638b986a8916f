"""Change values in a TOML text and nothing else: built by bytes, then proved by meaning.

Every edit replaces or inserts the few characters it is about. Afterwards the new text is parsed and compared
with the intended document key by key, and every line that the edit had no business with must still be there,
in order. Anything else is refused with the reason; nothing is ever written on a guess.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdtop.config.arrays import insert_item, remove_item
from pdtop.config.changes import same
from pdtop.config.keys import join_key, split_key
from pdtop.config.layout import Layout, LayoutError, Node, scan
from pdtop.config.masking import MASK, Masker, find_secrets
from pdtop.config.render import toml_text
from pdtop.config.splice import CannotEdit, Splice, spliced
from pdtop.config.tables import insert_table, insert_value, remove_key

Op = Literal["set", "append", "remove", "unset"]
Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change. ``set`` adds or replaces, ``append`` and ``remove`` are for items of an array (an absent
    array is made), ``unset`` takes a key or table out. ``spelling`` is the value as typed, if it was.
    """

    op: Op
    path: tuple[str, ...]
    value: object = None
    spelling: str | None = None

    @property
    def key(self) -> str:
        return join_key(self.path)

    @property
    def text(self) -> str:
        """The edit in words."""
        shown = MASK if _has_secret(self.path[-1], self.value) else self.spelling or _shown(self.value)
        match self.op:
            case "set":
                return f"set {self.key} = {shown}"
            case "unset":
                return f"take {self.key} out"
            case "append":
                return f"add {shown} to {self.key}"
            case "remove":
                return f"remove {shown} from {self.key}"


def _shown(value: object) -> str:
    return "null" if value is None else toml_text(value)


def _has_secret(name: str, value: object) -> bool:
    return any(find_secrets({name: value}))


def edit(op: Op, key: str | Sequence[str], value: object = None) -> Edit:
    """An edit of a dotted name, or of a path where names hold dots.

    Raises:
        CannotEdit: the name cannot be read.
    """
    return Edit(op, _path(key), value)


def typed_edit(op: Op, key: str | Sequence[str], toml: str) -> Edit:
    """An edit whose value is TOML text as an operator typed it; its spelling is kept.

    Raises:
        CannotEdit: the name or the text is not TOML.
    """
    spelling = toml.strip()
    try:
        document = tomllib.loads(f"value = {spelling}")
    except tomllib.TOMLDecodeError:
        shown = Masker()(spelling)
        raise CannotEdit(f'{shown} is not a TOML value; text needs quotes: "{shown}"') from None
    if set(document) != {"value"}:
        raise CannotEdit("more than one value is given")
    return Edit(op, _path(key), document["value"], spelling)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made, in order, each checked.

    Raises:
        CannotEdit: one is not possible, or would change anything else; the text stays as it is.
    """
    for one in edits:
        text = _apply(text, one)
    return text


def intended(document: Mapping[str, object], one: Edit) -> Document:
    """What the document must mean after the edit.

    Raises:
        CannotEdit: the edit makes no sense here.
    """
    after: Document = copy.deepcopy(dict(document))
    table = after
    for depth, part in enumerate(one.path[:-1]):
        inner = table.setdefault(part, {}) if one.op in ("set", "append") else table.get(part)
        if inner is None:
            raise CannotEdit(f"{one.key} is not in the file")
        if not isinstance(inner, dict):
            raise CannotEdit(f"{join_key(one.path[: depth + 1])} is not a table")
        table = inner
    _change(table, one.path[-1], one)
    return after


def _change(table: Document, name: str, one: Edit) -> None:
    old = table.get(name)
    match one.op:
        case "set":
            if isinstance(old, dict) and not isinstance(one.value, dict):
                raise CannotEdit(f"{one.key} is a table: set a value inside it")
            table[name] = copy.deepcopy(one.value)
        case "unset":
            if name not in table:
                raise CannotEdit(f"{one.key} is not in the file")
            del table[name]
        case "append":
            items = table.setdefault(name, [])
            if not isinstance(items, list):
                raise CannotEdit(f"{one.key} is not an array")
            items.append(copy.deepcopy(one.value))
        case "remove":
            if not isinstance(old, list):
                raise CannotEdit(f"{one.key} is not an array")
            del old[_index_of(old, one)]


def _index_of(items: list[object], one: Edit) -> int:
    for index, item in enumerate(items):
        if same(item, one.value):
            return index
    raise CannotEdit(f"cannot {one.text}: it is not there")


def _path(key: str | Sequence[str]) -> tuple[str, ...]:
    try:
        path = split_key(key) if isinstance(key, str) else tuple(key)
    except ValueError as error:
        raise CannotEdit(str(error)) from None
    if not path:
        raise CannotEdit("no key is given")
    return path


def _parse(text: str) -> Document:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(f"the file is not valid TOML: {error}") from None


def _scan(text: str) -> Layout:
    try:
        return scan(text)
    except LayoutError as error:
        raise CannotEdit(f"the file is not valid TOML: {error}") from None


def _apply(text: str, one: Edit) -> str:
    document = _parse(text)
    wanted = intended(document, one)
    if same(document, wanted):
        return text
    if one.op == "set" and isinstance(one.value, dict):
        return _set_table(text, one, one.value)
    layout = _scan(text)
    if one.op == "set" and isinstance(one.value, list) and one.spelling is None:
        node = layout.nodes.get(one.path)
        if node is not None and node.kind == "array":
            return _set_array(text, _items(document, one.path), one, one.value)
    splices = _splices(layout, document, one)
    after = spliced(text, splices)
    _prove(text, after, splices, wanted, one)
    return after


def _splices(layout: Layout, document: Document, one: Edit) -> list[Splice]:
    node = layout.nodes.get(one.path)
    match one.op:
        case "unset":
            return remove_key(layout, one.path)
        case "remove":
            return remove_item(layout, _array(node, one), _index_of(_items(document, one.path), one))
        case "append" if one.path in layout.key_offsets:
            array = _array(node, one)
            like = layout.text[array.items[-1].node.start :] if array.items else None
            item = one.spelling or toml_text(one.value, like)
            return insert_item(layout, array, len(array.items) - 1, item)
        case "append":
            return insert_value(layout, one.path, f"[{one.spelling or toml_text(one.value)}]")
        case _ if node is None:
            return insert_value(layout, one.path, one.spelling or toml_text(one.value))
        case _:
            new = one.spelling or toml_text(one.value, layout.text[node.start : node.end])
            return [Splice(node.start, node.end, new)]


def _array(node: Node | None, one: Edit) -> Node:
    if node is None or node.kind != "array":
        raise CannotEdit(f"{one.key} is an array of tables: edit it by hand")
    return node


def _items(document: Document, path: tuple[str, ...]) -> list[object]:
    value: object = document
    for part in path:
        value = value[part] if isinstance(value, dict) else None
    return value if isinstance(value, list) else []


def _set_table(text: str, one: Edit, value: Mapping[str, object]) -> str:
    """A whole table, key by key: what is not in the new one goes, what is the same stays untouched."""
    document, layout = _parse(text), _scan(text)
    if not value and one.path not in layout.key_offsets:
        splices = insert_table(layout, one.path)
        after = spliced(text, splices)
        _prove(text, after, splices, intended(document, one), one)
        return after
    gone = [Edit("unset", (*one.path, key)) for key in _table(document, one.path) if key not in value]
    new = [Edit("set", (*one.path, key), inner) for key, inner in value.items()]
    return apply_edits(text, [*new, *gone])


def _table(document: Document, path: tuple[str, ...]) -> Document:
    value: object = document
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _set_array(text: str, old: list[object], one: Edit, new: list[object]) -> str:
    """A whole array as removals and additions, so that comments and layout of what stays are kept."""
    kept: list[int] = []
    for item in new:
        found = next((i for i in range(kept[-1] + 1 if kept else 0, len(old)) if same(old[i], item)), None)
        if found is None:
            break
        kept.append(found)
    items = list(old)
    for index in sorted(set(range(len(old))) - set(kept), reverse=True):
        layout = _scan(text)
        splices = remove_item(layout, _array(layout.nodes.get(one.path), one), index)
        del items[index]
        after = spliced(text, splices)
        step = Edit("set", one.path, list(items))
        _prove(text, after, splices, intended(_parse(text), step), one)
        text = after
    return apply_edits(text, [Edit("append", one.path, item) for item in new[len(kept) :]])


def _prove(before: str, after: str, splices: Sequence[Splice], wanted: Document, one: Edit) -> None:
    """Raise unless the new text means exactly what is wanted and keeps every line it had to keep."""
    try:
        meaning = tomllib.loads(after)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(f"cannot {one.text} in this layout: the result would be broken ({error})") from None
    emptied = one.op == "unset" and same(meaning, _without_empty(wanted, one.path[:-1]))
    if not same(meaning, wanted) and not emptied:
        raise CannotEdit(f"cannot {one.text} in this layout: something else would change, too")
    kept = iter(after.splitlines())
    for line in _untouched(before, splices):
        if line not in kept:  # consumes: the order is checked with it
            raise CannotEdit(f"cannot {one.text} in this layout: another line would change")


def _without_empty(document: Mapping[str, object], path: tuple[str, ...]) -> Document:
    """Without the tables on ``path`` that hold nothing: with its last key an implied table is gone, too."""
    after = dict(document)
    if path and isinstance(inner := after.get(path[0]), dict):
        after[path[0]] = inner = _without_empty(inner, path[1:])
        if not inner:
            del after[path[0]]
    return after


def _untouched(text: str, splices: Sequence[Splice]) -> list[str]:
    """Lines that no replacement reaches into."""
    lines, offset = [], 0
    for line in text.splitlines(keepends=True):
        content = line.rstrip("\r\n")
        if not any(_touches(s, offset, offset + len(content), offset + len(line)) for s in splices):
            lines.append(content)
        offset += len(line)
    return lines


def _touches(splice: Splice, start: int, content_end: int, end: int) -> bool:
    if splice.start != splice.end:
        return splice.start < end and start < splice.end
    return start < splice.start <= content_end or (splice.start == start and not splice.new.endswith("\n"))
