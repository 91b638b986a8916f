"""The state folder: one for each cluster, for its user alone; what cannot be recorded is said in words."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from platformdirs import user_state_path

from pdtop.config.disk import Disk
from pdtop.operations.state import StateFolder, StateUnwritable, folder_name, state_root

CONFIG = Path("/etc/pdtop/config.toml")


def test_root_is_what_the_variable_says_else_the_systems(tmp_path: Path) -> None:
    assert state_root({"PDTOP_STATE_DIR": str(tmp_path)}) == tmp_path
    assert state_root({"PDTOP_STATE_DIR": "here"}) == Path.cwd() / "here"
    assert state_root({"PDTOP_STATE_DIR": ""}) == user_state_path("pdtop")


@pytest.mark.parametrize(
    ("cluster", "stem"),
    [
        ("prod-eu", "prod-eu"),
        ("../../etc", "etc"),
        ("a/b c\n\x1b[2J", "a-b-c-2J"),
        ("   ", "cluster"),
        ("", "cluster"),
        ("雲", "cluster"),
        ("x" * 300, "x" * 40),
    ],
)
def test_any_cluster_name_makes_a_safe_folder_name(cluster: str, stem: str) -> None:
    name = folder_name(cluster, CONFIG, "")
    assert name.rpartition("-")[0] == stem
    assert len(name) == len(stem) + 9
    assert Path(name).name == name


def test_two_links_to_one_file_are_one_cluster(tmp_path: Path) -> None:
    file, link = tmp_path / "config.toml", tmp_path / "link.toml"
    file.touch()
    link.symlink_to(file)
    assert folder_name("c", link, "") == folder_name("c", file, "")
    assert folder_name("c", tmp_path / "other.toml", "") != folder_name("c", file, "")
    assert folder_name("c", None, "http://a:1") != folder_name("c", None, "http://b:1")
    assert folder_name("c", file, "http://a:1") == folder_name("c", file, "http://b:1")


def test_a_swapped_configmap_stays_the_same_cluster(tmp_path: Path) -> None:
    names = set()
    (tmp_path / "config.toml").symlink_to("..data/config.toml")
    for version in ("..2026_01_31_02_10", "..2026_01_31_02_11"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.toml").touch()
        (tmp_path / "..new").symlink_to(version)
        (tmp_path / "..new").replace(tmp_path / "..data")
        names.add(folder_name("c", tmp_path / "config.toml", ""))
    assert len(names) == 1


def test_nothing_is_made_before_the_first_write_and_then_for_us_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        folder = StateFolder(tmp_path / "state", "prod", CONFIG)
        assert folder.read("specs/x.json") is None
        assert not (tmp_path / "state").exists()
        folder.put("specs/x.json", b"{}")
        folder.append("audit.jsonl", b"one")
    finally:
        os.umask(umask)
    assert folder.read("specs/x.json") == b"{}"
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "state" / "clusters").rglob("*")}
    assert {p.name: mode for p, mode in modes.items() if p.is_file()} == {
        "x.json": 0o600,
        "audit.jsonl": 0o600,
    }
    assert {mode for p, mode in modes.items() if p.is_dir()} == {0o700}


def test_a_folder_that_was_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "prod", CONFIG)
    folder.ready().chmod(0o755)
    assert folder.blocked is None
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_lines_are_appended_and_a_torn_one_stays_alone(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "prod", CONFIG)
    folder.append("log", b"one")
    folder.append("log", b"two")
    with (folder.path / "log").open("ab") as file:
        file.write(b"tor")
    folder.append("log", b"three")
    folder.append("log", b"four")
    assert folder.read("log") == b"one\ntwo\ntor\nthree\nfour\n"


class FailingDisk(Disk):
    """Fails at one step."""

    def __init__(self, step: str, number: int) -> None:
        self._step, self._number = step, number

    def _maybe(self, step: str) -> None:
        if step == self._step:
            raise OSError(self._number, os.strerror(self._number))

    def writable(self, path: Path) -> bool:
        return self._step != "writable"

    def append(self, path: Path) -> int:
        self._maybe("append")
        return super().append(path)

    def create(self, path: Path) -> int:
        self._maybe("create")
        return super().create(path)

    def write(self, descriptor: int, data: bytes) -> None:
        self._maybe("write")
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)


@pytest.mark.parametrize(
    ("step", "number", "mention"),
    [
        ("append", errno.EACCES, "permission denied"),
        ("write", errno.ENOSPC, "no space left"),
        ("sync", errno.EIO, "input/output error"),
        ("writable", 0, "not writable"),
    ],
)
def test_a_line_that_cannot_be_written_is_said(tmp_path: Path, step: str, number: int, mention: str) -> None:
    folder = StateFolder(tmp_path, "prod", CONFIG, disk=FailingDisk(step, number))
    with pytest.raises(StateUnwritable, match=mention):
        folder.append("log", b"one")


@pytest.mark.parametrize("step", ["create", "write", "sync"])
def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, step: str) -> None:
    StateFolder(tmp_path, "prod", CONFIG).put("file", b"old")
    folder = StateFolder(tmp_path, "prod", CONFIG, disk=FailingDisk(step, errno.ENOSPC))
    with pytest.raises(StateUnwritable, match="no space left"):
        folder.put("file", b"new")
    assert folder.read("file") == b"old"
    assert [path.name for path in folder.path.iterdir()] == ["file"]


def test_a_place_that_cannot_be_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    blocked = StateFolder(tmp_path / "file", "prod", CONFIG).blocked or ""
    assert blocked.startswith("the state folder cannot be written: not a directory")
    folder = StateFolder(tmp_path, "prod", CONFIG)
    folder.path.parent.mkdir(parents=True)
    folder.path.symlink_to(tmp_path)
    assert "no folder but a link" in (folder.blocked or "")


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, "prod", CONFIG)
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine\n")
    (folder.ready() / "log").symlink_to(victim)
    with pytest.raises(StateUnwritable):
        folder.append("log", b"one")
    assert victim.read_bytes() == b"mine\n"


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(tmp_path, "prod", CONFIG)
    folder.ready()
    monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    assert "belongs to another user" in (folder.blocked or "")
