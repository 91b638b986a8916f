"""What differs between two versions of the settings, value by value, safe to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdtop.config.keys import join_key
from pdtop.config.masking import MASK, secret_parts
from pdtop.config.schema import Config


@dataclass(frozen=True, slots=True)
class Change:
    """One value before and after; None = not set. Secrets are masked. ``key`` is a dotted name."""

    key: str
    before: object
    after: object

    @property
    def text(self) -> str:
        return f"{self.key}: {_shown(self.before)} → {_shown(self.after)}"


def config_changes(before: Config, after: Config) -> tuple[Change, ...]:
    """Differences of effective settings, defaults included, in the order of the file's schema.

    A table that comes or goes brings keys that are not set in it: those are no difference.
    """
    found = table_changes(before.model_dump(), after.model_dump())
    return tuple(change for change in found if not _unset(change.before) or not _unset(change.after))


def _unset(value: object) -> bool:
    return value is None or value == {}


def table_changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[Change, ...]:
    """Differences of two parsed documents; arrays are compared as a whole."""
    old, new = flat(before), flat(after)
    return tuple(
        Change(join_key(path), masked(path, old.get(path)), masked(path, new.get(path)))
        for path in [*old, *(path for path in new if path not in old)]
        if not same(old.get(path, _ABSENT), new.get(path, _ABSENT))
    )


def flat(table: Mapping[str, object], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    """Every value that is not a table by its path; an empty table counts as a value."""
    found: dict[tuple[str, ...], object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, (*prefix, key))
        else:
            found[(*prefix, key)] = value
    return found


def same(one: object, other: object) -> bool:
    """Equal in value and in kind: ``1`` and ``true`` differ, ``1`` and ``1.0`` do, a NaN equals a NaN."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other
    return type(one) is type(other) and one == other


_ABSENT = object()


def masked(path: tuple[str, ...], value: object) -> object:
    """A value as it may be shown."""
    if isinstance(value, str) and secret_parts(path[-1], value):
        return MASK
    if isinstance(value, list | tuple):
        return [masked(path, item) for item in value]
    if isinstance(value, Mapping):
        return {key: masked((*path, key), inner) for key, inner in value.items()}
    return value


def _shown(value: object) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case float():
            return repr(value).removesuffix(".0")
        case list() | tuple():
            return f"[{', '.join(_shown(item) for item in value)}]"
        case _:
            return str(value)
