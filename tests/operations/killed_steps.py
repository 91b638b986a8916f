"""Kill a process at every step on the disk: ``python -m tests.operations.killed_steps ROOT`` tells of each.

Each action runs in children of its own, killed before, in the middle of (writes) or after the first step on
the disk, the second, and so on. Each child has a folder of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pdtop.cluster.model import Role
from pdtop.config.disk import Disk
from pdtop.config.load import digest_of
from pdtop.operations.audit import Attempt, AuditLog
from pdtop.operations.backups import Backups
from pdtop.operations.model import Outcome
from pdtop.operations.specs import Specs
from pdtop.operations.state import StateFolder
from pdtop.routers.spec import WorkerSpec

STEPS = 7  # more than any action has
WRITE = 1  # the second step of each
BEFORE, HALF, AFTER = "before", "half", "after"
VERSIONS = (b"a = 1\n", b"a = 2\n", b"a = 3\n")
OLD_SPEC = WorkerSpec("http://10.0.1.11:30001", Role.PREFILL, bootstrap_port=8998)
NEW_SPEC = WorkerSpec("http://10.0.1.11:30001", Role.PREFILL, bootstrap_port=8999)
FIRST = Attempt("set", "prefill.cache_aware_threshold", "0.3", "0.4")
KILLED = Attempt("drain", "10.0.2.21:30001")


class KillingDisk(Disk):
    """Kills its process at the step of this number; 0 is the first."""

    def __init__(self, at: int, when: str) -> None:
        self._left, self._when = at, when

    def append(self, path: Path) -> int:
        self._maybe(BEFORE)
        descriptor = super().append(path)
        self._maybe(AFTER)
        return descriptor

    def create(self, path: Path) -> int:
        self._maybe(BEFORE)
        descriptor = super().create(path)
        self._maybe(AFTER)
        return descriptor

    def write(self, descriptor: int, data: bytes) -> None:
        self._maybe(BEFORE)
        if self._due(HALF):
            super().write(descriptor, data[: len(data) // 2])
            self._maybe(HALF)
        super().write(descriptor, data)
        self._maybe(AFTER)

    def sync(self, descriptor: int) -> None:
        self._maybe(BEFORE)
        super().sync(descriptor)
        self._maybe(AFTER)

    def replace(self, new: Path, old: Path) -> None:
        self._maybe(BEFORE)
        super().replace(new, old)
        self._maybe(AFTER)

    def unlink(self, path: Path) -> None:
        self._maybe(BEFORE)
        super().unlink(path)
        self._maybe(AFTER)

    def _due(self, when: str) -> bool:
        return self._left == 0 and self._when == when

    def _maybe(self, when: str) -> None:
        if self._due(when):
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= when == AFTER


def folder_of(root: Path, disk: Disk | None = None) -> StateFolder:
    return StateFolder(root, "prod", router="http://127.0.0.1:30000", disk=disk)


def prepare(root: Path) -> str:
    """What is there before: an ended entry, one that is begun, two backups, a spec. The begun one's id."""
    folder = folder_of(root)
    log = AuditLog(folder)
    log.end(log.begin(FIRST), Outcome.DONE)
    backups = Backups(folder, keep=2)
    for raw in VERSIONS[:2]:
        backups.keep(raw, digest_of(raw))
    Specs(folder).remember("R1", "10.0.1.11:30001", OLD_SPEC)
    return log.begin(KILLED)


def begin(folder: StateFolder, begun: str) -> None:
    AuditLog(folder).begin(KILLED)


def end(folder: StateFolder, begun: str) -> None:
    AuditLog(folder).end(begun, Outcome.DONE, "drained")


def keep(folder: StateFolder, begun: str) -> None:
    Backups(folder, keep=2).keep(VERSIONS[2], digest_of(VERSIONS[2]))


def remember(folder: StateFolder, begun: str) -> None:
    Specs(folder).remember("R1", "10.0.1.11:30001", NEW_SPEC)


ACTIONS: tuple[Callable[[StateFolder, str], None], ...] = (begin, end, keep, remember)


def main(root: Path) -> None:
    done = []
    moments = [(WRITE, HALF), *itertools.product(range(STEPS), (BEFORE, AFTER))]
    for action, (at, when) in itertools.product(ACTIONS, moments):
        place = root / f"{action.__name__}-{at}-{when}"
        done.append((action.__name__, at, when, str(place), killed_at(place, action, at, when)))
    print(json.dumps(done))


def killed_at(place: Path, action: Callable[[StateFolder, str], None], at: int, when: str) -> bool:
    """Run an action in a child that dies at this step; False if it has no such step."""
    child = os.fork()
    if child == 0:
        begun = prepare(place)
        action(folder_of(place, KillingDisk(at, when)), begun)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"{action.__name__} failed at {place}")
    return os.WIFSIGNALED(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
