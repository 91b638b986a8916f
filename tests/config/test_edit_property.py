"""Many layouts × edits: the meaning changes exactly as asked, and no other line changes."""

from __future__ import annotations

import copy
import re
import tomllib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdtop.config.changes import same
from pdtop.config.edit import Edit, apply_edits
from pdtop.config.layout import scan
from tests.config.layouts import Layout, edits, layouts

LONE_LF = re.compile(r"(?<!\r)\n")
MANY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def wanted(document: dict[str, Any], one: Edit) -> dict[str, Any]:
    """What the document must mean, said without the product's help."""
    after = copy.deepcopy(document)
    table = after
    for part in one.path[:-1]:
        table = table.setdefault(part, {})
    name = one.path[-1]
    match one.op:
        case "set":
            table[name] = one.value
        case "append":
            table[name] = [*table[name], one.value]
        case "remove":
            table[name].remove(one.value)
        case "unset":
            del table[name]
    return after


def without_empty_tables(document: dict[str, Any]) -> dict[str, Any]:
    kept = {k: without_empty_tables(v) if isinstance(v, dict) else v for k, v in document.items()}
    return {key: value for key, value in kept.items() if value != {}}


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that are gone and lines that are new, when common head and tail are taken off."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return old, new


def value_lines(text: str, one: Edit) -> int:
    """Lines that the edited value takes."""
    source = scan(text).source(one.path)
    return 1 if source is None else source.count("\n") + 1


@MANY
@given(st.data())
def test_only_what_was_asked_changes(data: st.DataObject) -> None:
    layout: Layout = data.draw(layouts())
    one = data.draw(edits(layout.document))
    after = apply_edits(layout.text, [one])
    meaning = tomllib.loads(after)
    intended = wanted(layout.document, one)
    if one.op == "unset":
        assert same(without_empty_tables(meaning), without_empty_tables(intended))
    else:
        assert same(meaning, intended)
    gone, _ = changed_lines(layout.text, after)
    if not isinstance(one.value, dict):
        assert len(gone) <= value_lines(layout.text, one) + (3 if one.op == "unset" else 1)
    if "\r\n" in layout.text:
        assert len(LONE_LF.findall(after)) == len(LONE_LF.findall(layout.text))


@MANY
@given(st.data())
def test_comments_and_blank_lines_survive_items(data: st.DataObject) -> None:
    layout: Layout = data.draw(layouts())
    one = data.draw(edits(layout.document))
    if one.op not in ("append", "remove"):
        return
    after = apply_edits(layout.text, [one])
    kept = after.splitlines()
    own_lines = [
        line for line in layout.text.splitlines() if line.lstrip().startswith("#") or not line.strip()
    ]
    for line in own_lines:
        assert kept.count(line) >= own_lines.count(line)
    lost = layout.text.count("# note") - after.count("# note")
    assert lost == 0 if one.op == "append" else lost in (0, 1)


@MANY
@given(st.data())
def test_there_and_back_is_the_same_file(data: st.DataObject) -> None:
    layout: Layout = data.draw(layouts())
    one = data.draw(edits(layout.document))
    if one.op != "append":
        return
    document: dict[str, Any] = layout.document
    items = document[one.path[0]][one.path[1]]
    if not items:
        return
    after = apply_edits(layout.text, [one, Edit("remove", one.path, one.value)])
    assert tomllib.loads(after) == layout.document or "nan" in layout.text
    assert len(after.splitlines()) == len(layout.text.splitlines())


@MANY
@given(layouts())
def test_every_value_is_found_where_it_stands(layout: Layout) -> None:
    found = scan(layout.text)
    assert not found.duplicates
    for path, node in found.nodes.items():
        value: Any = layout.document
        for part in path:
            value = value[part]
        assert same(tomllib.loads(f"v = {layout.text[node.start : node.end]}")["v"], value)
