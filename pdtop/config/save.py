"""An editing session on config.toml: stage edits, show the diff, save if nobody else was there, ask if so.

The session starts from the bytes it read. If the file has other bytes when it is saved, edits of other keys
are built again on the new file and shown first; a key that someone else changed, too, is the operator's
decision. New errors refuse an edit, new warnings ask. Nothing here talks to a router.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pdtop.config.changes import Change, masked, same, table_changes
from pdtop.config.disk import ChangedMeanwhile, Disk, Unwritable, replace_file, why_not_writable
from pdtop.config.edit import Edit, apply_edits
from pdtop.config.encoding import encode
from pdtop.config.keys import join_key, look_up
from pdtop.config.load import Loaded, load_bytes, unreadable
from pdtop.config.masking import Masker
from pdtop.config.problems import Problem, errors
from pdtop.config.splice import CannotEdit

DIFF_COPY = "diff_copy"  # the offer to save or print the diff instead


class Outcome(StrEnum):
    STAGED = "staged"
    WRITTEN = "written"
    UNCHANGED = "unchanged"  # nothing to write
    ASKS = "asks"  # nothing written; ``confirm`` writes
    REFUSED = "refused"  # nothing written; the edit or the situation must change
    FAILED = "failed"  # tried, or known to be impossible; nothing changed


@dataclass(frozen=True, slots=True)
class Conflict:
    """One key that was changed in the file and is being changed here. None = not set; secrets masked."""

    key: str
    base: object
    theirs: object
    mine: object


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a step. ``reason`` is for the operator, ``diff`` is masked, ``loaded`` is the file now.

    ``base``: of a file that was written, what it held right before.
    """

    outcome: Outcome
    reason: str = ""
    problems: tuple[Problem, ...] = ()
    other_changes: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    diff: str = ""
    offers: tuple[str, ...] = ()
    loaded: Loaded | None = None
    base: Loaded | None = None

    @property
    def text(self) -> str:
        """All of it in words, one line each."""
        lines = [f"{self.outcome}: {self.reason}" if self.reason else str(self.outcome)]
        lines += [problem.text for problem in self.problems]
        lines += [f"changed by someone else: {change.text}" for change in self.other_changes]
        lines += [f"{c.key}: was {c.base}, now {c.theirs} in the file, {c.mine} here" for c in self.conflicts]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """New content on top of some version of the file."""

    base: Loaded
    new: Loaded


class EditSession:
    """Edits of one file by one operator. Only :meth:`save` and :meth:`confirm` write."""

    def __init__(self, path: Path, *, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk if disk is not None else Disk()
        self.base = self._read()
        self.edits: tuple[Edit, ...] = ()
        self._asked: _Candidate | None = None

    @property
    def blocked(self) -> str | None:
        """Why nothing can be saved here, to be said before the operator types; None if it can."""
        return why_not_writable(self.path, self._disk)

    @property
    def broken(self) -> str | None:
        """Why the file cannot be edited at all: it is no TOML. None if it can."""
        if self.base.document or not self.base.problems or self.base.problems[0].kind == "empty":
            return None
        return f"the file must be put right first: {self.base.problems[0].text}"

    def stage(self, edits: Iterable[Edit]) -> Result:
        """Add edits to the pending ones; refused ones leave the pending ones as they were."""
        if self.broken is not None:
            return Result(Outcome.REFUSED, self.broken)
        pending = (*self.edits, *edits)
        candidate = self._build(self.base, pending)
        if isinstance(candidate, Result):
            return candidate
        self.edits, self._asked = pending, None
        offers = () if self.blocked is None else (DIFF_COPY,)
        fresh = _new_problems(candidate, pending)
        return Result(Outcome.STAGED, self.blocked or "", fresh, diff=_diff(candidate), offers=offers)

    def discard(self) -> None:
        """Forget all pending edits and start again from the file."""
        self.base, self.edits, self._asked = self._read(), (), None

    def save(self, *, on_conflict: Literal["ask", "mine"] = "ask") -> Result:
        """Write the pending edits. ``mine``: the operator has seen the conflicts and overrules them."""
        if not self.edits:
            return Result(Outcome.UNCHANGED, "nothing to save")
        current = self._read()
        if current.digest != self.base.digest:
            return self._rebase(current, on_conflict)
        candidate = self._build(current, self.edits)
        if isinstance(candidate, Result):
            return candidate
        doubts = _new_problems(candidate, self.edits)
        remaining = errors(candidate.new.problems)
        if doubts or remaining:
            reason = "saved like this the file is rejected still" if remaining else "there are warnings"
            return self._ask(candidate, reason, problems=(*remaining, *doubts))
        return self._write(candidate)

    def confirm(self) -> Result:
        """Yes to what :meth:`save` asked; asks again if the file has changed since."""
        asked, self._asked = self._asked, None
        if asked is None:
            return Result(Outcome.REFUSED, "nothing was asked")
        return self._write(asked)

    def _read(self) -> Loaded:
        try:
            return load_bytes(self.path, self._disk.read(self.path))
        except OSError as error:
            return Loaded(self.path, None, (unreadable(self.path, error),), "")

    def _build(self, base: Loaded, edits: Sequence[Edit]) -> _Candidate | Result:
        """The edits on top of ``base``; a refusal if they are impossible or make an error."""
        try:
            text = apply_edits(base.text, edits)
        except CannotEdit as refused:
            return Result(Outcome.REFUSED, str(refused))
        candidate = _Candidate(base, load_bytes(self.path, encode(text, bom=base.bom)))
        bad = errors(_new_problems(candidate, edits))
        if bad:
            return Result(Outcome.REFUSED, "the value is not valid", bad, diff=_diff(candidate))
        return candidate

    def _rebase(self, current: Loaded, on_conflict: Literal["ask", "mine"]) -> Result:
        if not current.document and self.base.document:
            reason = current.problems[0].text if current.problems else "it is empty"
            return Result(
                Outcome.REFUSED, f"the file was changed meanwhile and cannot be edited now: {reason}"
            )
        conflicts = _conflicts(self.base, current, self.edits)
        keys = {conflict.key for conflict in conflicts}
        others = tuple(c for c in table_changes(self.base.document, current.document) if c.key not in keys)
        if conflicts and on_conflict == "ask":
            reason = "someone else changed the same key meanwhile: decide whose value stays"
            return Result(Outcome.REFUSED, reason, other_changes=others, conflicts=conflicts)
        candidate = self._build(current, self.edits)
        if isinstance(candidate, Result):
            return replace(candidate, other_changes=others)
        if candidate.new.raw == current.raw:
            self.base, self.edits = current, ()
            return Result(Outcome.UNCHANGED, "the file says so already", other_changes=others, loaded=current)
        reason = "someone else changed the file meanwhile; this is the change on top of theirs"
        fresh = _new_problems(candidate, self.edits)
        return self._ask(candidate, reason, problems=fresh, other_changes=others, conflicts=conflicts)

    def _ask(
        self,
        candidate: _Candidate,
        reason: str,
        *,
        problems: tuple[Problem, ...],
        other_changes: tuple[Change, ...] = (),
        conflicts: tuple[Conflict, ...] = (),
    ) -> Result:
        if (blocked := self.blocked) is not None:
            return Result(Outcome.FAILED, blocked, diff=_diff(candidate), offers=(DIFF_COPY,))
        self._asked = candidate
        return Result(Outcome.ASKS, reason, problems, other_changes, conflicts, _diff(candidate))

    def _write(self, candidate: _Candidate) -> Result:
        diff = _diff(candidate)
        if candidate.new.raw == candidate.base.raw:
            self.base, self.edits = candidate.base, ()
            return Result(Outcome.UNCHANGED, "the file says so already", loaded=candidate.base)
        expected = candidate.base.raw if candidate.base.digest else None
        try:
            replace_file(self.path, candidate.new.raw, expected, self._disk)
        except Unwritable as error:
            return Result(Outcome.FAILED, str(error), diff=diff, offers=(DIFF_COPY,))
        except ChangedMeanwhile:
            return self.save()
        self.base, self.edits = candidate.new, ()
        return Result(Outcome.WRITTEN, diff=diff, loaded=candidate.new, base=candidate.base)


def _new_problems(candidate: _Candidate, edits: Sequence[Edit]) -> tuple[Problem, ...]:
    """Problems that the edits bring: those that were not there before, and all at an edited key."""
    before = {(p.kind, p.key) for p in candidate.base.problems}
    edited = {edit.key for edit in edits}
    unchanged = candidate.new.digest == candidate.base.digest
    return tuple(
        p
        for p in candidate.new.problems
        if not unchanged and ((p.kind, p.key) not in before or p.key in edited)
    )


def _conflicts(base: Loaded, theirs: Loaded, edits: Sequence[Edit]) -> tuple[Conflict, ...]:
    """Edited keys whose value in the file has become something else than the operator began with or wants."""
    mine = load_bytes(base.path, encode(apply_edits(base.text, edits), bom=base.bom))
    found: dict[str, Conflict] = {}
    for path in dict.fromkeys(edit.path for edit in edits):
        values = [_value(side.document, path) for side in (base, theirs, mine)]
        if not same(values[0], values[1]) and not same(values[1], values[2]):
            found[join_key(path)] = Conflict(join_key(path), *(masked(path, value) for value in values))
    return tuple(found.values())


def _value(document: Mapping[str, object], path: tuple[str, ...]) -> object:
    try:
        return look_up(document, path)
    except KeyError:
        return None


def _diff(candidate: _Candidate) -> str:
    return line_diff(candidate.base, candidate.new)


def line_diff(before: Loaded, after: Loaded) -> str:
    """Changed lines with two lines around them, secrets masked."""
    mask = Masker([before.document, after.document])
    name = before.path.name
    lines = difflib.unified_diff(
        before.text.splitlines(),
        after.text.splitlines(),
        f"{name} (now)",
        f"{name} (new)",
        n=2,
        lineterm="",
    )
    return mask("\n".join(lines))
