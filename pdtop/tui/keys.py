"""Every key of the console, gathered from the declared bindings: for the help and for the README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from pdtop.tui.widgets.key_bar import key_name


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One binding in words."""

    group: str
    id: str
    keys: str
    what: str


def rows(group: str, bindings: Iterable[BindingType], keymap: Mapping[str, str]) -> list[KeyRow]:
    """The bindings of one class under ``group``, with the keys that ``keymap`` gives them."""
    out = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.id:
            keys = keymap.get(binding.id, binding.key).split(",")
            out.append(
                KeyRow(group, binding.id, " ".join(key_name(k.strip()) for k in keys), binding.tooltip)
            )
    return out


def nearest_first(
    found: Iterable[KeyRow], owners: Iterable[tuple[str, type[DOMNode]]], screen: DOMNode
) -> list[KeyRow]:
    """First the keys of the screen itself, then those that count on it, then those of other screens."""
    parts = (screen, *screen.walk_children(), screen.app)
    rank = {
        group: 0 if owner is type(screen) else 1 if any(isinstance(one, owner) for one in parts) else 2
        for group, owner in owners
    }
    return sorted(found, key=lambda row: rank[row.group])


def of_classes(classes: Iterable[tuple[str, type[DOMNode]]], keymap: Mapping[str, str]) -> list[KeyRow]:
    """The bindings that each class itself declares."""
    return [
        row for group, owner in classes for row in rows(group, owner.__dict__.get("BINDINGS", ()), keymap)
    ]
