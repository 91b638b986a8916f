"""What pdtop's own router has in force, as its ``GET /config`` says, compared with what a file says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pdtop.config.changes import flat, same
from pdtop.config.keys import join_key
from pdtop.config.masking import MASK
from pdtop.config.schema import Config
from pdtop.routers.values import json_of, mapping_of, text_of

Path = tuple[str, ...]

#: Tables of config.toml that such a router serves by.
TABLES = ("prefill", "decode", "health", "load", "topology")
_LONGEST_WORDS = 400


@dataclass(frozen=True, slots=True)
class Effective:
    """``rejected``: why it did not take its file over when it read it last, "" if it did."""

    settings: Mapping[str, object] = field(default_factory=dict)
    file: str | None = None
    rejected: str = ""


def read_effective(body: bytes) -> Effective | None:
    """None if these are no settings."""
    top = mapping_of(json_of(body))
    settings = top.get("config")
    if not isinstance(settings, dict):
        return None
    reload = mapping_of(top.get("reload"))
    rejected = text_of(reload.get("words"), _LONGEST_WORDS) if reload.get("outcome") == "rejected" else None
    return Effective(settings, text_of(top.get("file"), _LONGEST_WORDS), rejected or "")


def not_in_force(effective: Effective, config: Config) -> tuple[str, ...]:
    """Keys whose value is another one there. What only one side knows (another release) says nothing."""
    wanted = config.model_dump(mode="json")
    found: list[str] = []
    for table in TABLES:
        there = flat({table: mapping_of(effective.settings.get(table))})
        here = flat({table: wanted[table]})
        found += [
            join_key(path)
            for path, value in here.items()
            if path in there and MASK not in str(there[path]) and not _equal(there[path], value)
        ]
        found += sorted(join_key(path) for path in _own_tables(there) ^ _own_tables(here))
    return tuple(dict.fromkeys(found))


def _own_tables(values: Iterable[Path]) -> set[Path]:
    """Of single workers."""
    return {path[:3] for path in values if path[1:2] == ("worker",) and len(path) > 3}


def _equal(one: object, other: object) -> bool:
    """JSON does not tell 5 from 5.0."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isinstance(one, bool) is isinstance(other, bool) and one == other
    return same(one, other)
