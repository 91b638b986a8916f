"""A value as TOML text, spelled like its neighbours where that is possible."""

from __future__ import annotations

from collections.abc import Mapping

from pdtop.config.splice import CannotEdit


def toml_text(value: object, like: str | None = None) -> str:
    """TOML for a value; ``like`` is a text whose quoting is followed.

    Raises:
        CannotEdit: TOML has no such value (null).
    """
    import tomlkit  # writing is rare: reading must start fast
    from tomlkit.exceptions import TOMLKitError

    if value is None:
        raise CannotEdit("TOML has no null: remove the key instead")
    if isinstance(value, str):
        return _quoted(value, like)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_text(item, like) for item in value)}]"
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update(value)
        return table.as_string()
    try:
        return tomlkit.item(value).as_string()
    except (TOMLKitError, ValueError) as error:
        raise CannotEdit(f"this value cannot be written in TOML: {error}") from None


def _quoted(value: str, like: str | None) -> str:
    literal = like is not None and like.startswith("'") and not like.startswith("'''")
    if literal and "'" not in value and value.isprintable():
        return f"'{value}'"
    from tomlkit import string

    return string(value).as_string()
