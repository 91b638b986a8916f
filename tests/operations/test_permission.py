"""Armed is armed with the lock, whoever arms and disarms at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

from pdtop.operations.lock import OperatorLock
from pdtop.operations.permission import Permission
from pdtop.operations.state import StateFolder

#: For another thread to get as far as it can.
A_MOMENT_S = 0.2


class HeldUp(OperatorLock):
    """About to give the lock back, it waits."""

    def __init__(self, folder: StateFolder) -> None:
        super().__init__(folder)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def release(self) -> None:
        self.reached.set()
        assert self.go_on.wait(10.0)
        super().release()


def test_arming_while_the_lock_is_being_given_back(tmp_path: Path) -> None:
    lock = HeldUp(StateFolder(tmp_path, "c"))
    permission = Permission(lock, None, can_change=True, told=lambda: None)
    assert permission.arm("this console") == ""
    disarming = threading.Thread(target=permission.disarm)
    disarming.start()
    assert lock.reached.wait(10.0)
    problems: list[str] = []
    arming = threading.Thread(target=lambda: problems.append(permission.arm("this console")))
    arming.start()
    arming.join(A_MOMENT_S)
    lock.go_on.set()
    for thread in (disarming, arming):
        thread.join()
    assert problems == [""]
    assert (permission.read_only, permission.operates, permission.guards()) == (False, True, ())
    permission.close()
