"""Writing for an operation: a backup first, and nothing over what somebody else has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pdtop.config.disk import Disk
from pdtop.config.edit import Edit, edit
from pdtop.operations.backups import Backups
from pdtop.operations.config_file import ConfigFile, NotWritten, Written
from pdtop.operations.state import StateFolder, StateUnwritable
from tests.operations.scenes import CONFIG

THRESHOLD = edit("set", ("prefill", "cache_aware_threshold"), 0.45)


class Interrupting(Disk):
    """Somebody else writes the file, ``times`` times, right before ours is put in place."""

    def __init__(self, times: int, text: Callable[[int], str]) -> None:
        self._left, self._text = times, text

    def create(self, path: Path) -> int:
        if self._left and path.name.startswith(".config.toml.pdtop-"):
            self._left -= 1
            (path.parent / "config.toml").write_text(self._text(self._left))
        return super().create(path)


def opened(folder: Path, disk: Disk | None = None) -> tuple[ConfigFile, Backups]:
    path = folder / "config.toml"
    path.write_text(CONFIG)
    backups = Backups(StateFolder(folder / "state", "prod", path))
    return ConfigFile(path, backups, disk=disk), backups


def write(file: ConfigFile, *edits: Edit, overrule: bool = False, ours: str = "") -> Written | NotWritten:
    session = file.session()
    session.stage(edits)
    return file.write(session, overrule=overrule, ours=ours)


def test_what_was_there_is_kept_and_the_change_told(tmp_path: Path) -> None:
    file, backups = opened(tmp_path)
    written = write(file, THRESHOLD)
    assert isinstance(written, Written)
    assert written.change is not None
    assert backups.read(written.change.backup) == CONFIG.encode()
    assert (written.before.text, written.after.text) == (CONFIG, CONFIG.replace("0.30", "0.45"))
    assert [(key.before, key.after) for key in written.change.keys] == [("0.30", "0.45")]
    same = write(file, THRESHOLD)
    assert isinstance(same, Written)
    assert same.change is None


def test_who_is_quicker_is_not_overwritten(tmp_path: Path) -> None:
    theirs = CONFIG.replace("power_of_two", "random")
    file, _ = opened(tmp_path, Interrupting(1, lambda _: theirs))
    refused = write(file, THRESHOLD)
    assert isinstance(refused, NotWritten)
    assert (refused.moved, refused.failed, refused.conflicts) == (True, False, ())
    assert file.path.read_text() == theirs


def test_overruling_is_told_from_the_version_right_before_the_write(tmp_path: Path) -> None:
    theirs, last = (CONFIG.replace("power_of_two", policy) for policy in ("random", "round_robin"))
    file, backups = opened(tmp_path, Interrupting(1, lambda _: last))
    session = file.session()
    session.stage([THRESHOLD])
    file.path.write_text(theirs)
    written = file.write(session, overrule=True)
    assert isinstance(written, Written)
    assert written.change is not None
    assert [(key.before, key.after) for key in written.change.keys] == [("0.30", "0.45")]
    assert backups.read(written.change.backup) == last.encode()
    assert file.path.read_text() == last.replace("0.30", "0.45")


def test_a_value_that_nobody_has_seen_is_not_overruled(tmp_path: Path) -> None:
    theirs = CONFIG.replace("0.30", "0.35")
    file, _ = opened(tmp_path, Interrupting(1, lambda _: theirs))
    refused = write(file, THRESHOLD, overrule=True)
    assert isinstance(refused, NotWritten)
    assert [(one.theirs, one.mine) for one in refused.conflicts] == [(0.35, 0.45)]
    assert file.path.read_text() == theirs


def test_a_file_that_never_stands_still_is_given_up(tmp_path: Path) -> None:
    file, _ = opened(tmp_path, Interrupting(9, lambda left: CONFIG.replace("0.30", f"0.3{left}")))
    refused = write(file, THRESHOLD, overrule=True)
    assert isinstance(refused, NotWritten)
    assert "0.45" not in file.path.read_text()


def test_our_own_change_of_another_key_is_no_reason_to_ask(tmp_path: Path) -> None:
    file, _ = opened(tmp_path)
    session = file.session()
    session.stage([THRESHOLD])
    first = write(file, edit("set", ("slo", "ttft_p99_ms"), 700.0))
    assert isinstance(first, Written)
    second = file.write(session, overrule=False, ours=first.after.digest)
    assert isinstance(second, Written)
    assert "0.45" in file.path.read_text()
    assert "700" in file.path.read_text()


def test_bytes_come_back_only_over_what_was_expected(tmp_path: Path) -> None:
    file, _ = opened(tmp_path)
    written = write(file, THRESHOLD)
    assert isinstance(written, Written)
    file.path.write_text("# theirs\n")
    refused = file.restore(written.before.raw, written.after)
    assert refused == NotWritten("somebody else changed the file meanwhile", moved=True)
    file.path.write_bytes(written.after.raw)
    back = file.restore(written.before.raw, written.after)
    assert isinstance(back, Written)
    assert file.path.read_text() == CONFIG


def test_without_a_backup_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = opened(tmp_path)

    def full(self: StateFolder, name: str, data: bytes) -> None:
        raise StateUnwritable("the state folder cannot be written: no space left on device")

    monkeypatch.setattr(StateFolder, "put", full)
    with pytest.raises(StateUnwritable):
        file.backup(file.read())
    assert file.path.read_text() == CONFIG
