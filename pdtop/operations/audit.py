"""Who changed what, when, from where, and what came of it: an append-only log that outlives a kill -9.

Every attempt is begun in the log before anything is done and ended with its outcome; what is refused has one
line. Each line is one write, on disk before the next step. Lines that somebody was killed over are passed by.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pdtop.config.keys import join_key, split_key
from pdtop.config.masking import MASK, Masker, find_secrets, secret_parts
from pdtop.operations.model import FileChange, LogEntry, Outcome
from pdtop.operations.origin import lives, origin
from pdtop.operations.records import calls_out, change_out, entry_of, line_of, record_of, seconds_out, short
from pdtop.operations.state import StateFolder
from pdtop.routers.control import Call

NAME = "audit.jsonl"
_NOT_SET = "not set"
_BLOCK = 1 << 16
_LONGEST_LINE = 1 << 24  # bytes; what is longer is damage, and no line of ours
_DAMAGE = b"?"
_SHORTEST_SECRET = 4  # masking shorter ones everywhere would leave no text
_RECENT = 1000  # entries in which somebody may still be at work
_OTHER_HOST_S = 86_400.0  # another host's process cannot be asked; after a day it is taken for gone


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is about to be done. Without ``before`` and ``after`` those of ``change`` are told."""

    operation: str
    target: str
    before: str = ""
    after: str = ""
    source: str = "console"
    change: FileChange | None = None  # of config.toml, as planned
    undoes: str = ""  # id of the entry that it takes back
    extra: Mapping[str, str] = field(default_factory=dict)


class AuditLog:
    """The log of one cluster. Writing and reading may be done from any thread."""

    def __init__(
        self,
        folder: StateFolder,
        *,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder, self._clock, self._environ = folder, clock, environ
        self._secrets: frozenset[str] = frozenset()
        self._mask = Masker()
        self._last = 0  # microseconds
        self.skipped = 0  # lines that the last reading could not use

    def hide(self, *documents: object) -> None:
        """From now on keep out what is a secret in these (a parsed file, ``{"api_key": ...}``), too."""
        found = {text for document in documents for _, text in find_secrets(document)}
        self._secrets |= {text for text in found if len(text) >= _SHORTEST_SECRET}
        self._mask = Masker([{"secret": sorted(self._secrets)}])

    def begin(self, attempt: Attempt) -> str:
        """Say what will be done now; the id to end it with.

        Raises:
            StateUnwritable: it could not be recorded, so it must not be done.
        """
        id_, at = self._new_id()
        change = change_out(attempt.change, self._mask)
        self._append("begin", id_, at, {**self._what(attempt), "change": change})
        return id_

    def end(
        self,
        id_: str,
        outcome: Outcome,
        words: str = "",
        calls: Iterable[Call] = (),
        seconds: float | None = None,
        *,
        change: FileChange | None = None,
    ) -> None:
        """Say what came of it. ``change``: what was really done to config.toml; None = nothing was.

        Raises:
            StateUnwritable: it could not be recorded; the log still says that it was begun.
        """
        self._append("end", id_, self._clock(), self._result(outcome, words, calls, seconds, change))

    def record(
        self,
        attempt: Attempt,
        outcome: Outcome,
        words: str = "",
        calls: Iterable[Call] = (),
        seconds: float | None = None,
    ) -> str:
        """Begin and end in one line, for what was refused and changed nothing; its id.

        Raises:
            StateUnwritable: it could not be recorded.
        """
        id_, at = self._new_id()
        result = self._result(outcome, words, calls, seconds, None)
        self._append("attempt", id_, at, self._what(attempt) | result)
        return id_

    def entries(self, limit: int | None = None) -> tuple[LogEntry, ...]:
        """Attempts, newest first; unusable lines are counted in ``skipped``."""
        entries, self.skipped = _folded(_lines_backwards(self._folder.path / NAME), limit)
        return entries

    def in_flight(self) -> tuple[LogEntry, ...]:
        """What was begun and never ended, and whose process is gone; newest first."""
        return tuple(e for e in self.entries(_RECENT) if not e.outcome and self._gone(e))

    def _gone(self, entry: LogEntry) -> bool:
        if entry.host == short(socket.gethostname(), self._mask):
            return not lives(entry.pid, entry.process)
        return self._clock() - entry.at > _OTHER_HOST_S

    def _new_id(self) -> tuple[str, float]:
        """Time first, so that ids sort as they were given out; chance, so that no other process has it."""
        self._last = max(round(self._clock() * 1e6), self._last + 1)
        moment = datetime.fromtimestamp(self._last // 1_000_000, UTC)
        id_ = f"{moment:%Y%m%dT%H%M%S}.{self._last % 1_000_000:06}-{secrets.token_hex(3)}"
        return id_, self._last / 1e6

    def _append(self, event: str, id_: str, at: float, fields: Mapping[str, object]) -> None:
        self._folder.append(NAME, line_of(event, id_, at, fields))

    def _what(self, attempt: Attempt) -> dict[str, object]:
        mask, who = self._mask, origin(self._environ)
        before, after = _told(attempt)
        return {
            "user": short(who.user, mask),
            "host": short(who.host, mask),
            "ssh_client": short(who.ssh_client, mask) or None,
            "cluster": short(self._folder.cluster, mask),
            "operation": attempt.operation,
            "target": short(attempt.target, mask),
            "before": short(_without_secret(attempt.target, before), mask),
            "after": short(_without_secret(attempt.target, after), mask),
            "source": short(attempt.source, mask),
            "pid": who.pid,
            "process": who.process,
            "undoes": attempt.undoes or None,
            "extra": {short(key, mask): short(text, mask) for key, text in attempt.extra.items()},
        }

    def _result(
        self,
        outcome: Outcome,
        words: str,
        calls: Iterable[Call],
        seconds: float | None,
        change: FileChange | None,
    ) -> dict[str, object]:
        return {
            "outcome": outcome.value,
            "words": short(words, self._mask),
            "seconds": seconds_out(seconds),
            "calls": calls_out(calls, self._mask),
            "change": change_out(change, self._mask),
        }


def _told(attempt: Attempt) -> tuple[str, str]:
    """Before and after in words; those of the changed keys, unless the attempt says something better."""
    if attempt.before or attempt.after or attempt.change is None:
        return attempt.before, attempt.after
    keys = attempt.change.keys
    named = len(keys) > 1 or join_key(keys[0].path) != attempt.target if keys else False
    sides = []
    for side in ("before", "after"):
        told = []
        for key in keys:
            value = "secret" if key.hidden else getattr(key, side) or _NOT_SET
            told.append(f"{join_key(key.path)} = {value}" if named else value)
        sides.append(", ".join(told))
    return sides[0], sides[1]


def _without_secret(target: str, text: str) -> str:
    """A value of the key ``target`` as it may be logged; TOML text, so maybe in quotes."""
    try:
        name = split_key(target)[-1]
    except ValueError:
        return text  # a worker, a router
    return MASK if text != _NOT_SET and secret_parts(name, text.strip("\"'")) else text


def _folded(lines: Iterable[bytes], limit: int | None) -> tuple[tuple[LogEntry, ...], int]:
    """Entries from lines, both newest first, and how many lines were of no use."""
    entries: list[LogEntry] = []
    ends: dict[str, dict[str, object]] = {}
    undone_by: dict[str, str] = {}
    skipped = 0
    for line in lines:
        if limit is not None and len(entries) >= limit:
            return tuple(entries), skipped
        record = record_of(line)
        if record is None:
            skipped += 1
            continue
        id_ = str(record["id"])
        if record["event"] == "end":
            ends.setdefault(id_, record)
            continue
        entry = entry_of(record, ends.pop(id_, None))
        written = _wrote(entry)
        if written and entry.undoes:
            undone_by[entry.undoes] = id_
        undone = undone_by.get(id_, "")
        entries.append(replace(entry, undone_by=undone, undoable=written and not entry.undoes and not undone))
    return tuple(entries), skipped + len(ends)


def _wrote(entry: LogEntry) -> bool:
    """Whether it left config.toml other than it found it, as far as is known."""
    change = entry.change
    if change is None or entry.outcome in ("", Outcome.REFUSED):
        return False
    return change.digest_before != change.digest_after


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Lines of a file from the last to the first, without empty ones; read in blocks, for the last few.

    What is damaged so that no line ends in it for long is passed by without being held.
    """
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        end, rest, held = file.seek(0, os.SEEK_END), [b""], 0
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            first, *lines = file.read(end - start).split(b"\n")
            if lines:
                lines[-1] += b"".join(reversed(rest))
                yield from (line for line in reversed(lines) if line.strip())
                rest, held = [], 0
            elif held > _LONGEST_LINE:
                rest, held = [_DAMAGE], 0
            rest.append(first)
            end, held = start, held + len(first)
        if (line := b"".join(reversed(rest))).strip():
            yield line
