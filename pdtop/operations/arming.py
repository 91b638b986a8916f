"""Whether changes are allowed: not unless the command line, the cluster's file or the operator says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdtop.config.load import Loaded, load


@dataclass(frozen=True, slots=True)
class Arming:
    """``read_only`` and who decided: ``--write``, ``--read-only``, a file's name, or "" for the default."""

    read_only: bool
    by: str = ""


def arming_of(flag: bool | None, loaded: Loaded | None, user_config: Path | None) -> Arming:
    """The first that says something: the flag, the cluster's file, the user's own config.toml."""
    if flag is not None:
        return Arming(not flag, "--write" if flag else "--read-only")
    for one in (loaded, load(user_config) if user_config is not None and user_config.is_file() else None):
        said = _said(one)
        if said is not None and one is not None:
            return Arming(said, one.path.name)
    return Arming(True)


def arming_of_verb(flag: bool | None, loaded: Loaded | None, user_config: Path | None) -> Arming:
    """The same for a verb that changes something: typing it is deliberate; only a word against it counts."""
    found = arming_of(flag, loaded, user_config)
    return found if found.by else Arming(False, "command line")


def _said(loaded: Loaded | None) -> bool | None:
    console = loaded.document.get("console") if loaded is not None and loaded.ok else None
    said = console.get("read_only") if isinstance(console, Mapping) else None
    return said if isinstance(said, bool) else None
