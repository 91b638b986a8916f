"""Hypothesis strategies: TOML files as people lay them out, and edits of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from hypothesis import strategies as st

from pdtop.config.edit import Edit, edit

SCALARS = (
    *("3", "1_000_000", "0xFF", "+1.50", "3e-1", "0.70", "true", "false", "-0.0", "nan", "inf"),
    *('"text"', "'C:\\raw\\path'", '"with # hash"', '"a \\"quoted\\" word"', '"ünïcode"', '""'),
    *("2026-01-31T08:00:00+08:00", "2026-01-31 08:00:00", "1979-05-27", "07:32:00"),
    '"""\nlong [text]\n# no comment"""',
)
NEW_VALUES: tuple[object, ...] = (
    0.45,
    7,
    True,
    "plain",
    'it\'s "quoted"\n',
    "10.0.9.9:30001",
    [],
    ["a", "b"],
)
TABLES = ("server", "prefill", "decode", "health", "odd name", "10.0.1.11:30001")
KEYS = ("alpha", "beta", "gamma", "d.e", "weight")


@dataclass(frozen=True)
class Layout:
    """One file: its text and what it means."""

    text: str

    @property
    def document(self) -> dict[str, object]:
        return tomllib.loads(self.text)


def quoted(name: str) -> str:
    return name if name.replace("_", "").isalnum() else f'"{name}"'


@st.composite
def arrays(draw: st.DrawFn, *, one_line: bool = False) -> str:
    """An array of addresses in one of the layouts that are seen in the field."""
    count = draw(st.integers(0, 4))
    quote = draw(st.sampled_from(("'", '"')))
    items = [f"{quote}10.0.1.{n}:30001{quote}" for n in range(count)]
    style = "line" if one_line else draw(st.sampled_from(("line", "lines", "first", "several", "hanging")))
    comma = draw(st.sampled_from((", ", ",")))
    trailing = draw(st.booleans()) and count > 0
    if style == "line":
        pad = draw(st.sampled_from(("", " ")))
        return f"[{pad}{comma.join(items)}{',' if trailing else ''}{pad}]"
    note = draw(st.sampled_from(("", "   # note, with comma", " # ]")))
    alone = draw(st.sampled_from(("", "    # a line of its own\n", "\n")))
    if style == "lines":
        lines = [
            f"    {item}{',' if n < count - 1 or trailing else ''}{note}\n" for n, item in enumerate(items)
        ]
        return "[\n" + alone.join(["", *lines]) + alone + "]"
    if style == "first":
        lines = [f"    {' ' if n == 0 else ','} {item}{note}\n" for n, item in enumerate(items)]
        return "[\n" + "".join(lines) + alone + "]"
    if style == "several":
        lines = [", ".join(items[n : n + 2]) for n in range(0, count, 2)]
        return "[\n" + "".join(f"  {line},{note}\n" for line in lines) + "]"
    return "[" + ",\n      ".join(items) + ("," if trailing else "") + "]"


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A whole file: dotted keys, inline tables and headers, comments, blank lines, either line end."""
    names = draw(st.permutations(TABLES))[: draw(st.integers(0, 4))]
    styles = {name: draw(st.sampled_from(("header", "dotted", "inline"))) for name in names}
    blocks: list[str] = []
    heading = draw(st.sampled_from(("", "# heading\n", "# heading\n\n")))
    blank = draw(st.sampled_from(("", "\n")))
    for name in sorted(names, key=lambda n: styles[n] == "header"):
        style = styles[name]
        pairs = [
            (quoted(key), draw(arrays(one_line=style == "inline") | _scalars(one_line=style == "inline")))
            for key in draw(st.permutations(KEYS))[: draw(st.integers(0, 4))]
        ]
        note = draw(st.sampled_from(("", "  # why")))
        if style == "inline":
            inside = ", ".join(f"{key} = {value}" for key, value in pairs)
            blocks.append(f"{quoted(name)} = {{ {inside} }}{note}\n" if pairs else f"{quoted(name)} = {{}}\n")
        elif style == "dotted":
            blocks.append("".join(f"{quoted(name)}.{key} = {value}{note}\n" for key, value in pairs))
        else:
            indent = draw(st.sampled_from(("", "  ")))
            lead = draw(st.sampled_from(("", "# about it\n")))
            lines = "".join(f"{indent}{key} = {value}{note}\n" for key, value in pairs)
            below = ""
            if draw(st.booleans()):
                below = f'{blank}[{quoted(name)}.worker."10.0.1.1:30001"]\nweight = 1.0\n'
            blocks.append(f"{blank}{lead}[{quoted(name)}]{note}\n{lines}{below}")
    text = heading + "".join(blocks) + draw(st.sampled_from(("", "# the end\n", "\n")))
    if draw(st.booleans()):
        text = text.rstrip("\n")
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return Layout(text)


def _scalars(*, one_line: bool) -> st.SearchStrategy[str]:
    return st.sampled_from([value for value in SCALARS if not (one_line and "\n" in value)])


@st.composite
def edits(draw: st.DrawFn, document: dict[str, object]) -> Edit:
    """An edit that makes sense in this document."""
    places = [
        (table, key) for table, inside in document.items() if isinstance(inside, dict) for key in inside
    ]
    lists = [(t, k) for t, k in places if isinstance(_at(document, t, k), list)]
    full = [(t, k) for t, k in lists if _at(document, t, k)]
    ops = ["new", *(["set", "unset"] if places else []), *(["append"] * 2 if lists else [])]
    match draw(st.sampled_from([*ops, *(["remove"] * 2 if full else [])])):
        case "set":
            table, key = draw(st.sampled_from(places))
            value = draw(st.sampled_from(NEW_VALUES))
            if isinstance(_at(document, table, key), dict):
                return edit("set", [table, key], {"10.0.1.1:30001": {"weight": 2.0, "drain": True}})
            return edit("set", [table, key], value)
        case "unset":
            return edit("unset", list(draw(st.sampled_from(places))))
        case "append":
            return edit("append", list(draw(st.sampled_from(lists))), "10.0.9.9:30001")
        case "remove":
            table, key = draw(st.sampled_from(full))
            items = _at(document, table, key)
            assert isinstance(items, list)
            return edit("remove", [table, key], draw(st.sampled_from(items)))
        case _:
            path = [draw(st.sampled_from((*TABLES, "slo"))), draw(st.sampled_from(("new", "n w")))]
            if draw(st.booleans()):
                path = [path[0], "worker", "10.0.2.21:30001", "drain"]
            return edit("set", path, draw(st.sampled_from(NEW_VALUES)))


def _at(document: dict[str, object], table: str, key: str) -> object:
    inside = document[table]
    assert isinstance(inside, dict)
    return inside[key]
