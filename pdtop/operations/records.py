"""Lines of the audit log: written without secrets or control characters, read without trust.

A line is one JSON object in ASCII. ``event`` is ``begin`` or ``end`` (one id for both), or ``attempt`` where
one line says it all (refused before anything was begun).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime

from pdtop.operations.model import FileChange, KeyChange, LogEntry
from pdtop.routers.control import Call

Clean = Callable[[str], str]
_LONGEST = 2000  # characters of a text; a router's words may be anything


def line_of(event: str, id_: str, at: float, fields: Mapping[str, object]) -> bytes:
    """One line, without its line end."""
    data = {"event": event, "id": id_, "time": _iso(at), **fields}
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


def short(text: str, clean: Clean) -> str:
    """A text as it is logged."""
    text = clean(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def calls_out(calls: Iterable[Call], clean: Clean) -> list[dict[str, object]]:
    return [
        {
            "router": short(call.router, clean),
            "method": short(call.method, clean),
            "path": short(call.path, clean),
            "status": call.status,
            "words": short(call.words, clean),
            "seconds": seconds_out(call.seconds),
        }
        for call in calls
    ]


def seconds_out(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 3)


def change_out(change: FileChange | None, clean: Clean) -> dict[str, object] | None:
    """Where a secret is in the values or the name of a key, neither value is told."""
    if change is None:
        return None
    keys = tuple(_key_out(key, clean) for key in change.keys)
    made = tuple(tuple(map(clean, path)) for path in change.made)
    return asdict(replace(change, keys=keys, made=made))


def _key_out(key: KeyChange, clean: Clean) -> KeyChange:
    path = tuple(map(clean, key.path))
    before, after = (None if text is None else clean(text) for text in (key.before, key.after))
    if key.hidden or (path, before, after) != (key.path, key.before, key.after):
        return KeyChange(path, hidden=True)
    return key


def record_of(line: bytes) -> dict[str, object] | None:
    """What a line says; None if it is torn or no line of ours."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _text(found, "id"):
        return None
    if found.get("event") not in ("begin", "end", "attempt") or _at(found) is None:
        return None
    return found


def entry_of(begin: Mapping[str, object], end: Mapping[str, object] | None) -> LogEntry:
    """One attempt from its line, and from the line of its end if there is one."""
    last = begin if end is None else end
    planned = end is None and begin["event"] == "begin"
    pid = begin.get("pid")
    extra = begin.get("extra")
    return LogEntry(
        id=_text(begin, "id"),
        at=_at(begin) or 0.0,
        user=_text(begin, "user"),
        host=_text(begin, "host"),
        ssh_client=_text(begin, "ssh_client"),
        cluster=_text(begin, "cluster"),
        operation=_text(begin, "operation"),
        target=_text(begin, "target"),
        before=_text(begin, "before"),
        after=_text(begin, "after"),
        outcome=_text(last, "outcome"),
        words=_text(last, "words"),
        source=_text(begin, "source"),
        seconds=_number(last.get("seconds")),
        calls=_calls_in(last.get("calls")),
        undoes=_text(begin, "undoes"),
        change=_change_in((begin if planned else last).get("change")),
        pid=pid if isinstance(pid, int) and not isinstance(pid, bool) else 0,
        process=_text(begin, "process"),
        extra={str(k): str(v) for k, v in extra.items()} if isinstance(extra, dict) else {},
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _at(record: Mapping[str, object]) -> float | None:
    try:
        return datetime.fromisoformat(_text(record, "time")).timestamp()
    except (ValueError, OverflowError):
        return None


def _text(record: Mapping[str, object], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


def _calls_in(found: object) -> tuple[Call, ...]:
    calls = []
    for call in found if isinstance(found, list) else []:
        if isinstance(call, dict):
            status = call.get("status")
            calls.append(
                Call(
                    _text(call, "router"),
                    _text(call, "method"),
                    _text(call, "path"),
                    status if isinstance(status, int) else None,
                    _text(call, "words"),
                    _number(call.get("seconds")) or 0.0,
                )
            )
    return tuple(calls)


def _change_in(found: object) -> FileChange | None:
    """None also if any part of it cannot be read: half a change must not be taken back."""
    if not isinstance(found, dict):
        return None
    keys, made = found.get("keys"), found.get("made")
    if not isinstance(keys, list) or not isinstance(made, list):
        return None
    changes = [_key_in(key) for key in keys]
    tables = [_path_in(path) for path in made]
    if None in changes or None in tables:
        return None
    return FileChange(
        _text(found, "digest_before"),
        _text(found, "digest_after"),
        _text(found, "backup"),
        tuple(change for change in changes if change is not None),
        tuple(table for table in tables if table is not None),
    )


def _key_in(found: object) -> KeyChange | None:
    path = _path_in(found.get("path")) if isinstance(found, dict) else None
    if path is None or not isinstance(found, dict):
        return None
    before, after = found.get("before"), found.get("after")
    if not isinstance(before, str | None) or not isinstance(after, str | None):
        return None
    return KeyChange(path, before, after, found.get("hidden") is True)


def _path_in(found: object) -> tuple[str, ...] | None:
    if not isinstance(found, list) or not found or not all(isinstance(part, str) for part in found):
        return None
    return tuple(found)
