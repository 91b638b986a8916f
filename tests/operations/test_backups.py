"""Versions of config.toml: byte for byte, the last ones, for this user alone."""

from __future__ import annotations

import stat
from itertools import count
from pathlib import Path

import pytest

from pdtop.config.load import digest_of
from pdtop.operations.backups import Backups
from pdtop.operations.state import StateFolder

RAW = b"\xef\xbb\xbf# note\r\n[health]\r\ninterval_secs = 0_5\r\n\x00"


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path, "prod", router="http://r:1")


def backups_of(folder: StateFolder, keep: int = 20) -> Backups:
    ticks = count(1000)
    return Backups(folder, keep, clock=lambda: float(next(ticks)))


def kept(backups: Backups, raw: bytes) -> str:
    return backups.keep(raw, digest_of(raw))


def names(folder: StateFolder) -> set[str]:
    return {path.name for path in (folder.path / "backups").iterdir()}


def test_bytes_come_back_as_they_were(folder: StateFolder) -> None:
    backups = backups_of(folder)
    for raw in (RAW, b""):
        assert backups.read(kept(backups, raw)) == raw
    for path in (folder.path / "backups").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder.path / "backups").stat().st_mode) == 0o700


def test_the_last_ones_stay_and_the_same_bytes_are_kept_once(folder: StateFolder) -> None:
    backups = backups_of(folder, keep=3)
    first = kept(backups, b"1")
    second, third = kept(backups, b"2"), kept(backups, b"3")
    assert kept(backups, b"1") == first
    assert names(folder) == {first, second, third}
    fourth = kept(backups, b"4")  # the second is the oldest now
    assert names(folder) == {first, third, fourth}
    assert backups.read(second) is None


def test_twenty_are_kept(folder: StateFolder) -> None:
    backups = backups_of(folder)
    all_names = [kept(backups, str(n).encode()) for n in range(25)]
    assert names(folder) == set(all_names[5:])


def test_only_what_is_ours_is_deleted(folder: StateFolder) -> None:
    foreign = folder.ready("backups")
    link, config = foreign / f"config.{'0' * 16}.toml", foreign.parent / "config.toml"
    config.write_bytes(b"x")
    link.symlink_to(config)
    (foreign / f"config.{'1' * 16}.toml").mkdir()
    for name in ("config.toml", "config.0123.toml", "notes", f"config.{'a' * 16}.toml.bak"):
        (foreign / name).touch()
    before = names(folder)
    backups = backups_of(folder, keep=1)
    kept(backups, b"1")
    last = kept(backups, b"2")
    assert names(folder) == before | {last}


@pytest.mark.parametrize("name", ["", "../audit.jsonl", "/etc/passwd", "config.toml", "config.0.toml"])
def test_no_other_file_is_read(folder: StateFolder, name: str) -> None:
    folder.append("audit.jsonl", b"line")
    kept(backups_of(folder), RAW)
    assert backups_of(folder).read(name) is None


def test_a_damaged_one_is_none_and_is_kept_anew(folder: StateFolder) -> None:
    backups = backups_of(folder)
    name = kept(backups, RAW)
    (folder.path / "backups" / name).write_bytes(RAW[:-1])
    assert backups.read(name) is None
    assert kept(backups, RAW) == name
    assert backups.read(name) == RAW
