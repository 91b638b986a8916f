"""Take a change of config.toml back: its bytes if nobody wrote since, else its keys while they are ours."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from pdtop.config.changes import masked, same
from pdtop.config.edit import Edit, apply_edits
from pdtop.config.keys import Path, join_key, look_up
from pdtop.config.layout import scan
from pdtop.config.load import Loaded
from pdtop.config.masking import find_secrets
from pdtop.config.render import toml_text
from pdtop.config.splice import CannotEdit
from pdtop.operations.backups import Backups
from pdtop.operations.model import FileChange, KeyChange, LogEntry, Outcome

Document = Mapping[str, object]
_TOLD = 3  # keys that are named in one sentence
_UNREADABLE = object()


@dataclass(frozen=True, slots=True)
class Undone:
    """How a change is taken back: ``raw`` for the whole file, or ``edits`` on top of what others changed."""

    kind: Literal["bytes", "edits", "refused"]
    words: str
    raw: bytes | None = None
    edits: tuple[Edit, ...] = ()


def file_change(before: Loaded, after: Loaded, backup: str = "") -> FileChange:
    """What a write of ours did, from the file right before it and right after. Arrays are told as a whole."""
    made: list[tuple[str, ...]] = []
    keys = tuple(_key_changes(before, after, made))
    return FileChange(before.digest, after.digest, backup, keys, tuple(made))


def last_undoable(entries: Iterable[LogEntry]) -> LogEntry | None:
    """Of entries newest first, the one that undo takes back: each time one step further."""
    return next((entry for entry in entries if entry.undoable), None)


def undoable_title(entries: Iterable[LogEntry]) -> str:
    """What undo would take back, in words; "" if nothing."""
    entry = last_undoable(entries)
    return "" if entry is None else entry.extra.get("title", f"{entry.operation} {entry.target}")


def undo(loaded: Loaded, entry: LogEntry, backups: Backups) -> Undone:
    """How ``entry`` can be taken back in the file as it is now."""
    change = entry.change
    if change is None or not entry.undoable:
        return Undone("refused", _not_undoable(entry))
    if loaded.digest == change.digest_after and (raw := backups.read(change.backup)) is not None:
        return Undone("bytes", _told(change), raw=raw)
    if not loaded.document and loaded.problems and change.keys:
        return Undone("refused", f"config.toml must be put right first: {loaded.problems[0].text}")
    return _by_keys(loaded, change)


def aftermath(entry: LogEntry, loaded: Loaded | None) -> tuple[Outcome, str, FileChange | None]:
    """What can be said of an entry whose pdtop was killed: how to end it, and what it did to the file."""
    change = entry.change
    killed = "pdtop was killed before this had ended"
    if change is None or loaded is None or loaded.digest == change.digest_before:
        return Outcome.FAILED, f"{killed}; config.toml was not changed by it", None
    if loaded.digest == change.digest_after or _all_ours(loaded.document, change):
        return Outcome.PARTLY_DONE, f"{killed}; config.toml holds the change, routers may not", change
    return Outcome.FAILED, f"{killed}; config.toml does not hold the change", None


def _not_undoable(entry: LogEntry) -> str:
    if entry.undone_by:
        return "it was taken back already"
    return "it did not change config.toml" if entry.change is None else "it cannot be taken back"


def _key_changes(before: Loaded, after: Loaded, made: list[tuple[str, ...]]) -> Iterator[KeyChange]:
    """Keys that differ, those of new and gone tables one by one; new tables are put into ``made``."""
    typed_before, typed_after = _typed(before), _typed(after)

    def compare(old: Document, new: Document, above: tuple[str, ...]) -> Iterator[KeyChange]:
        for name in [*old, *(name for name in new if name not in old)]:
            path, was, now = (*above, name), old.get(name), new.get(name)
            if same(was, now):
                continue
            if _table(was) and _table(now) and (was or now):
                if was is None:
                    made.append(path)
                yield from compare(was or {}, now or {}, path)
            elif _secret(path, was) or _secret(path, now):
                yield KeyChange(path, hidden=True)
            else:
                yield KeyChange(path, _text(path, was, typed_before), _text(path, now, typed_after))

    yield from compare(before.document, after.document, ())


def _table(value: object) -> TypeGuard[Document | None]:
    return value is None or isinstance(value, Mapping)


def _typed(loaded: Loaded) -> Mapping[Path, str]:
    """Plain values as they stand in the file, so that undo brings ``0.30`` back and not ``0.3``."""
    nodes = scan(loaded.text).nodes
    return {path: loaded.text[n.start : n.end] for path, n in nodes.items() if n.kind == "scalar"}


def _text(path: tuple[str, ...], value: object, typed: Mapping[Path, str]) -> str | None:
    return None if value is None else typed.get(path) or toml_text(value)


def _secret(path: tuple[str, ...], value: object) -> bool:
    nested = value
    for part in reversed(path):
        nested = {part: nested}
    return any(find_secrets(nested))


def _by_keys(loaded: Loaded, change: FileChange) -> Undone:
    edits: list[Edit] = []
    for key in change.keys:
        inverse = _inverse(loaded.document, key)
        if isinstance(inverse, str):
            return Undone("refused", f"{inverse}; nothing taken back")
        edits += inverse
    try:
        edits += _emptied(apply_edits(loaded.text, edits), change.made)
    except CannotEdit as error:
        return Undone("refused", f"{error}; nothing taken back")
    if not edits:
        return Undone("refused", f"config.toml is as it was before already: {_told(change)}")
    return Undone("edits", f"{_told(change)}; what others changed since stays", edits=tuple(edits))


def _inverse(document: Document, key: KeyChange) -> list[Edit] | str:
    """Edits that take one key back, none if it is back already; else what speaks against it."""
    name = join_key(key.path)
    if key.hidden:
        return f"{name} holds a secret, which the log does not keep"
    now, was, ours = _value(document, key.path), _parsed(key.before), _parsed(key.after)
    if same(now, was):
        return []
    if isinstance(now, list) and isinstance(was, list) and isinstance(ours, list):
        added, removed = _without(ours, was), _without(was, ours)
        if added or removed:
            return _items_back(key.path, now, added, removed)
    if not same(now, ours):
        told = "not set" if now is None else toml_text(masked(key.path, now))
        return f"{name} is {told} now, changed by somebody else after"
    if key.before is None:
        return [Edit("unset", key.path)]
    return [Edit("set", key.path, was, None if isinstance(was, dict | list) else key.before)]


def _items_back(
    path: tuple[str, ...], now: list[object], added: list[object], removed: list[object]
) -> list[Edit]:
    """Item by item, so that what others added or removed stays; what comes back comes at the end."""
    gone = [Edit("remove", path, item) for item in added if not _without([item], now)]
    return gone + [Edit("append", path, item) for item in removed if _without([item], now)]


def _without(items: list[object], others: list[object]) -> list[object]:
    """Items that are not among the others, each of which stands for one."""
    left, found = list(others), []
    for item in items:
        index = next((i for i, other in enumerate(left) if same(item, other)), None)
        if index is None:
            found.append(item)
        else:
            del left[index]
    return found


def _emptied(text: str, made: Iterable[tuple[str, ...]]) -> list[Edit]:
    """Tables that our change made and in which nothing is left, the inner ones first."""
    edits: list[Edit] = []
    for path in sorted(made, key=len, reverse=True):
        if same(_value(tomllib.loads(text), path), {}):
            edits.append(Edit("unset", path))
            text = apply_edits(text, edits[-1:])
    return edits


def _all_ours(document: Document, change: FileChange) -> bool:
    return all(isinstance(edits := _inverse(document, key), list) and edits for key in change.keys)


def _value(document: Document, path: tuple[str, ...]) -> object:
    try:
        return look_up(document, path)
    except KeyError:
        return None


def _parsed(spelling: str | None) -> object:
    """The value of TOML text; a text that is none equals no value."""
    try:
        return None if spelling is None else tomllib.loads(f"value = {spelling}")["value"]
    except tomllib.TOMLDecodeError:
        return _UNREADABLE


def _told(change: FileChange) -> str:
    """What comes back, in words."""
    told = []
    for key in change.keys[:_TOLD]:
        was, ours = _parsed(key.before), _parsed(key.after)
        if isinstance(was, list) and isinstance(ours, list):
            signs = [f"+ {toml_text(item)}" for item in _without(was, ours)]
            signs += [f"- {toml_text(item)}" for item in _without(ours, was)]
            told.append(f"{join_key(key.path)} {', '.join(signs) or 'in its former order'}")
        elif key.hidden:
            told.append(f"{join_key(key.path)} as before")
        else:
            told.append(f"{join_key(key.path)} {key.after or 'not set'} → {key.before or 'not set'}")
    more = len(change.keys) - _TOLD
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
