"""One operator at a time: who has it, since when, and free again however the holder ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pdtop.operations.lock import BESIDE, OperatorLock
from pdtop.operations.model import LockHolder
from pdtop.operations.origin import origin
from pdtop.operations.state import StateFolder, StateUnwritable

HOLD = """
import sys
from pathlib import Path
from pdtop.operations.lock import OperatorLock
from pdtop.operations.state import StateFolder
lock = OperatorLock(StateFolder(Path(sys.argv[1]), "prod", router="http://r:1"), clock=lambda: 1000.5)
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path, "prod", router="http://r:1")


def lock_of(folder: StateFolder, at: float = 2000.0) -> OperatorLock:
    return OperatorLock(folder, clock=lambda: at, environ={})


@contextmanager
def another(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "None\n"
            yield process
        finally:
            process.kill()


def test_the_holder_is_told_to_others(folder: StateFolder) -> None:
    mine, other = lock_of(folder), lock_of(folder, 3000.0)
    assert other.holder() is None
    assert not folder.path.exists()  # looking makes nothing
    assert mine.acquire() is None
    who = origin({})
    holder = LockHolder(who.user, who.host, os.getpid(), 2000.0)
    assert mine.held
    assert mine.acquire() is None
    assert other.acquire() == holder
    assert (mine.holder(), other.holder()) == (holder, holder)
    assert not other.held
    other.release()
    assert other.holder() == holder
    mine.release()
    assert (mine.held, mine.holder(), other.holder()) == (False, None, None)
    assert other.acquire() is None
    assert mine.holder() == LockHolder(who.user, who.host, os.getpid(), 3000.0)
    other.release()
    other.release()


def test_a_killed_holder_leaves_it_free_and_its_words_do_not_count(
    folder: StateFolder, tmp_path: Path
) -> None:
    lock = lock_of(folder)
    with another(tmp_path) as process:
        found = lock.acquire()
        assert found is not None
        assert (found.pid, found.since) == (process.pid, 1000.5)
        assert lock.holder() == found
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder.path / "lock").read_text().find(f'"pid": {process.pid}') > 0
        assert lock.holder() is None
        assert lock.acquire() is None
        mine = lock.holder()
        assert mine is not None
        assert (mine.pid, mine.since) == (os.getpid(), 2000.0)
    lock.release()


def test_a_service_says_that_it_is_one_and_those_beside_it_have_a_lock_of_their_own(
    folder: StateFolder,
) -> None:
    service = OperatorLock(folder, service=True, clock=lambda: 1000.0, environ={})
    beside = OperatorLock(folder, name=BESIDE, clock=lambda: 2000.0, environ={})
    assert (service.acquire(), beside.acquire()) == (None, None)
    who = origin({})
    assert lock_of(folder).acquire() == LockHolder(who.user, who.host, os.getpid(), 1000.0, service=True)
    assert OperatorLock(folder, name=BESIDE).acquire() == LockHolder(who.user, who.host, os.getpid(), 2000.0)
    (folder.path / "lock").write_text('{"user": "u", "host": "h", "pid": 1, "since": 5}')  # by an older pdtop
    assert lock_of(folder).holder() == LockHolder("u", "h", 1, 5.0, service=False)
    service.release()
    beside.release()


def test_a_child_of_the_holder_does_not_keep_it(folder: StateFolder) -> None:
    lock = lock_of(folder)
    assert lock.acquire() is None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        assert lock_of(folder).acquire() is None
        child.communicate()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 4096,
        b"\xff\xfe",
        b'{"user": "u"}',
        b'{"user": "u", "host": "h", "pid": 1, "since": NaN}',
        b'{"user": "u", "host": "h", "pid": 1, "since": "noon"}',
        b'{"user": "u", "host": "h", "pid": 1, "since": "noon", "service": "yes"}',
    ],
)
def test_what_a_damaged_lock_file_says_does_not_matter(folder: StateFolder, content: bytes) -> None:
    mine, other = lock_of(folder), lock_of(folder)
    assert mine.acquire() is None
    path = folder.path / "lock"
    path.write_bytes(content)
    os.utime(path, (500.0, 500.0))
    holder = other.acquire()
    assert holder is not None
    assert holder.since == 500.0
    assert holder.text
    assert not holder.service
    mine.release()
    path.write_bytes(content)
    assert other.holder() is None
    assert other.acquire() is None
    other.release()


def test_a_lock_that_cannot_be_taken_refuses(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.ready() / "lock").mkdir()
    with pytest.raises(StateUnwritable, match="the lock of this cluster cannot be taken: is a directory"):
        lock_of(folder).acquire()


def test_a_file_system_without_locks_refuses(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    lock = lock_of(folder)
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StateUnwritable, match="operation not supported"):
        lock.acquire()
    assert (lock.held, lock.holder()) == (False, None)
