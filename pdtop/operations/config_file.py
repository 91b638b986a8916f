"""Write config.toml for an operation: a backup first, then the change, or the bytes of a backup."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pdtop.config.disk import ChangedMeanwhile, Disk, Unwritable, replace_file
from pdtop.config.load import Loaded, load, load_bytes
from pdtop.config.save import Conflict, EditSession, Result
from pdtop.config.save import Outcome as Saved
from pdtop.operations.backups import Backups
from pdtop.operations.model import FileChange
from pdtop.operations.undoing import file_change


@dataclass(frozen=True, slots=True)
class Written:
    """The file before and after. ``change`` None: it said so already."""

    before: Loaded
    after: Loaded
    change: FileChange | None


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Why nothing was written. ``failed``: it was tried, or cannot work; else the situation must change."""

    words: str
    failed: bool = False
    conflicts: tuple[Conflict, ...] = ()
    moved: bool = False  # somebody else changed the file: look again


class ConfigFile:
    """One config.toml, with the backups of it. All calls block for a moment: not for an event loop."""

    def __init__(self, path: Path, backups: Backups, *, disk: Disk | None = None) -> None:
        self.path = path
        self._backups = backups
        self._disk = disk if disk is not None else Disk()

    def read(self) -> Loaded:
        return load(self.path, self._disk.read)

    def session(self) -> EditSession:
        """A place to stage edits on the file as it is now."""
        return EditSession(self.path, disk=self._disk)

    def backup(self, loaded: Loaded) -> str:
        """Keep these bytes; the backup's name. Raises StateUnwritable."""
        return self._backups.keep(loaded.raw, loaded.digest)

    def write(self, session: EditSession, *, overrule: bool, ours: str = "") -> Written | NotWritten:
        """Write what is staged. Raises StateUnwritable if no backup can be kept: then nothing is written.

        ``ours``: digest of a content in which nobody else has changed anything since the session was begun.
        """
        before = session.base
        on_conflict: Literal["ask", "mine"] = "mine" if overrule else "ask"
        result = session.save(on_conflict=on_conflict)
        for _ in range(3):  # each time somebody else was quicker
            if result.outcome is not Saved.ASKS:
                break
            before = self.read()
            if (result.other_changes or result.conflicts) and not overrule and before.digest != ours:
                return NotWritten(result.reason, conflicts=result.conflicts, moved=True)
            self.backup(before)
            result = session.confirm()
        match result.outcome:
            case Saved.WRITTEN if result.loaded is not None:
                before = result.base or before
                return Written(before, result.loaded, file_change(before, result.loaded, self.backup(before)))
            case Saved.UNCHANGED:
                now = result.loaded or before
                return Written(now, now, None)
            case _:
                return _not_written(result)

    def restore(self, raw: bytes, expected: Loaded) -> Written | NotWritten:
        """Write these bytes over ``expected``; refused if the file holds something else by now."""
        return self._replace(raw, expected, self.backup(expected))

    def put_back(self, written: Written) -> Written | NotWritten:
        """The bytes from before a write of ours; without a backup, as nothing is lost but our own."""
        return self._replace(written.before.raw, written.after, "")

    def _replace(self, raw: bytes, expected: Loaded, backup: str) -> Written | NotWritten:
        try:
            replace_file(self.path, raw, expected.raw, self._disk)
        except Unwritable as error:
            return NotWritten(str(error), failed=True)
        except ChangedMeanwhile:
            return NotWritten("somebody else changed the file meanwhile", moved=True)
        after = load_bytes(self.path, raw)
        return Written(expected, after, file_change(expected, after, backup))


def _not_written(result: Result) -> NotWritten:
    words = "; ".join([result.reason, *(problem.text for problem in result.problems)])
    failed = result.outcome is Saved.FAILED
    return NotWritten(words, failed, result.conflicts, moved=bool(result.conflicts or result.other_changes))
