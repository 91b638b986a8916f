"""Dotted names of config.toml: split, join, and look a value up by one.

Dots separate tables; a part that itself holds dots is quoted as in TOML:
``prefill.worker."10.0.1.11:30001".weight``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^."'\s]+))\s*(\.|\Z)""")
_ESCAPE = re.compile(r"\\(.)")


def split_key(name: str) -> tuple[str, ...]:
    """Parts of a dotted name.

    Raises:
        ValueError: the name is empty or a quote is not closed.
    """
    parts: list[str] = []
    at, separator = 0, "."
    while separator == ".":
        found = _PART.match(name, at)
        if found is None:
            raise ValueError(f"not a dotted name: {name!r}")
        double, single, bare, separator = found.groups()
        parts.append(_ESCAPE.sub(r"\1", double) if double is not None else (single or bare or ""))
        at = found.end()
    return tuple(parts)


def quote_part(part: str | int) -> str:
    """One part as it stands in a TOML key: bare if it can be, else quoted."""
    text = str(part)
    if _BARE.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'


def join_key(path: Sequence[str | int]) -> str:
    """A path as a dotted name; items of arrays as ``[n]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + quote_part(part)
    return text


def look_up(document: object, path: Sequence[str | int]) -> object:
    """Value at ``path`` in nested tables, arrays and models.

    Raises:
        KeyError: there is no such key.
    """
    value: object = document
    for part in path:
        if isinstance(value, BaseModel):
            extra = value.model_extra or {}
            if part in type(value).model_fields:
                value = getattr(value, str(part))
            elif part in extra:
                value = extra[str(part)]
            else:
                raise KeyError(join_key(path))
        elif isinstance(value, Mapping):
            if part not in value:
                raise KeyError(join_key(path))
            value = value[part]
        elif isinstance(value, list | tuple) and isinstance(part, int) and 0 <= part < len(value):
            value = value[part]
        else:
            raise KeyError(join_key(path))
    return value


def value_at(document: object, name: str) -> object:
    """Effective value by dotted name, defaults included when ``document`` is a ``Config``.

    Raises:
        KeyError: there is no such key.
    """
    return look_up(document, split_key(name))
