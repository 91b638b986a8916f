"""Saving: whole or not at all, whatever fails; nobody's change is lost."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pdtop.config import disk as disk_module
from pdtop.config.disk import Disk, Unwritable, replace_file
from pdtop.config.edit import edit, typed_edit
from pdtop.config.save import DIFF_COPY, EditSession, Outcome
from tests.config.story import StoryDisk, listing

OLD = b'# note\n[health]\ninterval_secs = 5\ntimeout_secs = 2\n\n[decode]\nworkers = ["a:1", "b:1"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_bytes(OLD)
    file.chmod(0o640)
    return file


def started(path: Path, disk: Disk | None = None) -> EditSession:
    """A session with one pending edit."""
    session = EditSession(path, disk=disk)
    assert session.stage([edit("set", "health.interval_secs", 6)]).outcome is Outcome.STAGED
    return session


def test_a_save_writes_the_edit_and_keeps_the_mode(path: Path) -> None:
    session = started(path)
    result = session.save()
    assert result.outcome is Outcome.WRITTEN
    assert path.read_bytes() == OLD.replace(b"= 5", b"= 6")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert listing(path.parent) == {"config.toml"}
    assert "-interval_secs = 5\n+interval_secs = 6" in result.diff
    assert session.save().outcome is Outcome.UNCHANGED
    assert session.stage([edit("set", "health.interval_secs", 6)]).diff == ""
    assert session.save().outcome is Outcome.UNCHANGED


def test_a_link_stays_a_link(path: Path) -> None:
    folder = path.parent / "etc"
    folder.mkdir()
    link = folder / "config.toml"
    link.symlink_to("../config.toml")
    assert started(link).save().outcome is Outcome.WRITTEN
    assert link.is_symlink()
    assert b"= 6" in path.read_bytes()
    assert listing(path.parent) == {"config.toml", "etc/config.toml"}


def test_a_new_file_is_made_as_the_umask_says(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        replace_file(tmp_path / "new.toml", b"a = 1\n", None, Disk())
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.toml").stat().st_mode) == 0o640


class FailingDisk(Disk):
    """Fails at one step."""

    def __init__(self, step: str, error: BaseException) -> None:
        self.step, self.error = step, error

    def _maybe(self, step: str) -> None:
        if step == self.step:
            raise self.error

    def create(self, path: Path) -> int:
        self._maybe("create")
        return super().create(path)

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data[:10])
        self._maybe("write")
        super().write(descriptor, data[10:])

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)

    def replace(self, new: Path, old: Path) -> None:
        self._maybe("replace")
        super().replace(new, old)


@pytest.mark.parametrize("step", ["create", "write", "sync", "replace"])
@pytest.mark.parametrize(
    ("number", "mention"),
    [(errno.ENOSPC, "no space left"), (errno.EACCES, "permission"), (errno.EPERM, "permission")],
)
def test_any_step_may_fail_and_the_old_file_stays(path: Path, step: str, number: int, mention: str) -> None:
    session = started(path, FailingDisk(step, OSError(number, os.strerror(number))))
    result = session.save()
    assert result.outcome is Outcome.FAILED
    assert mention in result.reason
    assert result.offers == (DIFF_COPY,)
    assert "+interval_secs = 6" in result.diff
    assert path.read_bytes() == OLD
    assert listing(path.parent) == {"config.toml"}


@pytest.mark.parametrize("step", ["create", "write", "sync", "replace"])
def test_an_interrupt_leaves_nothing_behind(path: Path, step: str) -> None:
    session = started(path, FailingDisk(step, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        session.save()
    assert path.read_bytes() == OLD
    assert listing(path.parent) == {"config.toml"}


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from pdtop.config.disk import Disk
from pdtop.config.edit import edit
from pdtop.config.save import EditSession

class Killed(Disk):
    pass

def die(self, *rest):
    if sys.argv[3] == "after":
        getattr(Disk, sys.argv[2])(self, *rest)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(Killed, sys.argv[2], die)
session = EditSession(Path(sys.argv[1]), disk=Killed())
session.stage([edit("set", "health.interval_secs", 6)])
session.save()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["create", "write", "sync", "replace"])
def test_killed_at_any_step_the_file_is_whole(path: Path, step: str, when: str) -> None:
    command = [sys.executable, "-c", KILLED_AT, str(path), step, when]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() in (OLD, OLD.replace(b"= 5", b"= 6"))
    assert (path.read_bytes() != OLD) == (step == "replace" and when == "after")


def test_what_a_killed_save_left_is_cleaned_up_by_the_next(path: Path) -> None:
    stale = path.parent / ".config.toml.pdtop-1.abcd"
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    fresh = path.parent / ".config.toml.pdtop-2.abcd"
    fresh.write_bytes(b"another save at work")
    assert started(path).save().outcome is Outcome.WRITTEN
    assert listing(path.parent) == {"config.toml", fresh.name}


@pytest.mark.parametrize("target", ["folder", "file"])
def test_a_read_only_place_is_said_before_anything_is_typed(path: Path, target: str) -> None:
    place = path.parent if target == "folder" else path
    mode = stat.S_IMODE(place.stat().st_mode)
    place.chmod(mode & ~0o222)
    try:
        session = EditSession(path, disk=StoryDisk(path))
        assert "permission denied" in (session.blocked or "")
        staged = session.stage([edit("set", "health.interval_secs", 6)])
        assert (staged.outcome, staged.offers) == (Outcome.STAGED, (DIFF_COPY,))
        result = session.save()
        assert (result.outcome, result.offers) == (Outcome.FAILED, (DIFF_COPY,))
        assert "permission denied" in result.reason
        assert path.read_bytes() == OLD
    finally:
        place.chmod(mode)


def test_an_owner_that_cannot_be_kept_is_a_reason_not_to_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "fstat", lambda _: SimpleNamespace(st_uid=12345, st_gid=12345))
    with pytest.raises(Unwritable, match="owner"):
        replace_file(path, b"a = 1\n", OLD, Disk())
    monkeypatch.undo()
    assert path.read_bytes() == OLD
    assert listing(path.parent) == {"config.toml"}


def test_another_key_changed_meanwhile_is_kept_after_asking(path: Path) -> None:
    session = started(path)
    path.write_bytes(OLD.replace(b"timeout_secs = 2", b"timeout_secs = 3"))
    asked = session.save()
    assert asked.outcome is Outcome.ASKS
    assert [change.key for change in asked.other_changes] == ["health.timeout_secs"]
    assert b"= 6" not in path.read_bytes()
    assert session.confirm().outcome is Outcome.WRITTEN
    assert path.read_bytes() == OLD.replace(b"= 5", b"= 6").replace(b"= 2", b"= 3")


def test_the_same_key_changed_meanwhile_is_the_operators_decision(path: Path) -> None:
    session = started(path)
    theirs = OLD.replace(b"= 5", b"= 9")
    path.write_bytes(theirs)
    refused = session.save()
    assert refused.outcome is Outcome.REFUSED
    assert [(c.key, c.base, c.theirs, c.mine) for c in refused.conflicts] == [
        ("health.interval_secs", 5, 9, 6)
    ]
    assert session.confirm().outcome is Outcome.REFUSED
    assert path.read_bytes() == theirs
    assert session.save(on_conflict="mine").outcome is Outcome.ASKS
    assert session.confirm().outcome is Outcome.WRITTEN
    assert b"interval_secs = 6" in path.read_bytes()


def test_the_same_change_by_someone_else_is_no_conflict(path: Path) -> None:
    session = started(path)
    path.write_bytes(OLD.replace(b"= 5", b"= 6"))
    assert session.save().outcome is Outcome.UNCHANGED
    session = started(path)
    session.discard()
    assert session.edits == ()


def test_a_change_between_question_and_answer_asks_again(path: Path) -> None:
    session = started(path)
    path.write_bytes(OLD + b"# one\n")
    assert session.save().outcome is Outcome.ASKS
    path.write_bytes(OLD + b"# two\n")
    assert session.confirm().outcome is Outcome.ASKS
    assert session.confirm().outcome is Outcome.WRITTEN
    assert path.read_bytes().endswith(b"# two\n")


@pytest.mark.parametrize("raw", [b"", b"[health\n", None])
def test_a_file_that_is_gone_or_broken_meanwhile_is_left_alone(path: Path, raw: bytes | None) -> None:
    session = started(path)
    if raw is None:
        path.unlink()
    else:
        path.write_bytes(raw)
    result = session.save()
    assert result.outcome is Outcome.REFUSED
    assert "changed meanwhile" in result.reason
    assert (path.read_bytes() if path.exists() else None) == raw


@pytest.mark.parametrize(
    ("key", "toml", "mention"),
    [
        ("prefill.cache_aware_threshold", "30", "0.30"),
        ("prefill.cache_aware_threshold", "nan", "finite"),
        ("health.unhealthy_threshold", "0", "1 or more"),
        ("health.timeout_secs", "true", "bool"),
        ("decode.worker.'a:1'.weight", "-1", "0 or more"),
        ("health", "3", "is a table"),
        ("health.timeout_secs.x", "3", "not a table"),
    ],
)
def test_bad_values_are_refused_before_anything_is_written(
    path: Path, key: str, toml: str, mention: str
) -> None:
    session = EditSession(path)
    result = session.stage([typed_edit("set", key, toml)])
    assert result.outcome is Outcome.REFUSED
    assert mention in result.text
    assert session.edits == ()
    assert path.read_bytes() == OLD


def test_new_warnings_ask_and_old_ones_do_not(path: Path) -> None:
    path.write_bytes(OLD + b"[limits]\nx = 1\n")
    assert started(path).save().outcome is Outcome.WRITTEN
    session = EditSession(path)
    session.stage([edit("append", "decode.workers", "a:1")])
    asked = session.save()
    assert asked.outcome is Outcome.ASKS
    assert [problem.kind for problem in asked.problems] == ["duplicate_worker"]
    assert session.confirm().outcome is Outcome.WRITTEN


def test_one_of_two_errors_may_be_fixed_after_asking(path: Path) -> None:
    path.write_bytes(b"[health]\ninterval_secs = 0\ntimeout_secs = 0\n")
    session = EditSession(path)
    assert session.stage([edit("set", "health.interval_secs", -1)]).outcome is Outcome.REFUSED
    assert session.stage([edit("set", "health.interval_secs", 5)]).outcome is Outcome.STAGED
    assert session.save().outcome is Outcome.ASKS
    assert session.confirm().outcome is Outcome.WRITTEN
    session.stage([edit("set", "health.timeout_secs", 2)])
    assert session.save().outcome is Outcome.WRITTEN


def test_a_broken_or_missing_file_cannot_be_edited(path: Path) -> None:
    path.write_bytes(b"[health\n")
    session = EditSession(path)
    result = session.stage([edit("set", "health.timeout_secs", 2)])
    assert result.outcome is Outcome.REFUSED
    assert "line 1" in result.reason
    assert "missing" in (EditSession(path.parent / "no.toml").broken or "")


def test_secrets_stay_out_of_diffs_and_words(path: Path) -> None:
    secret = "sk-demo-0123456789"
    path.write_bytes(OLD + f'[server]\napi_key = "{secret}"\n'.encode())
    session = EditSession(path)
    staged = session.stage([edit("set", "server.api_key", "Zx9-other"), edit("set", "server.port", 1)])
    path.write_bytes(OLD + b'[server]\napi_key = "Zx9-third"\n')
    refused = session.save()
    said = staged.text + staged.diff + refused.text + repr(refused.conflicts) + session.edits[0].text
    assert refused.conflicts
    for text in (secret, "Zx9-other", "Zx9-third"):
        assert text not in said


class TooLate(Disk):
    """Somebody else saves right before the rename, after all has been looked at."""

    theirs = OLD + b"# theirs\n"

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path

    def replace(self, new: Path, old: Path) -> None:
        if self.path is not None:
            beside = self.path.with_name("theirs")
            beside.write_bytes(self.theirs)
            beside.replace(self.path)
            self.path = None
        super().replace(new, old)


def test_an_edit_of_the_last_instant_is_not_lost(path: Path) -> None:
    session = started(path, TooLate(path))
    assert session.save().outcome is Outcome.ASKS
    assert path.read_bytes() == TooLate.theirs
    assert listing(path.parent) == {"config.toml"}
    assert session.confirm().outcome is Outcome.WRITTEN
    assert path.read_bytes().endswith(b"# theirs\n")


def test_where_files_cannot_change_places_one_is_renamed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_exchanged", lambda one, other: False)
    assert started(path, Disk()).save().outcome is Outcome.WRITTEN
    assert listing(path.parent) == {"config.toml"}
