"""Whether changes may be made from here: armed, and nobody else operates. Decided nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from pdtop.operations.lock import OperatorLock
from pdtop.operations.model import Guard, LockHolder
from pdtop.operations.state import StateUnwritable


class Permission:
    """Read-only until :meth:`arm`. ``told`` is called when any of it has changed.

    The lock is kept as long as something is under way (:meth:`begin`, :meth:`end`), also when disarmed.
    """

    def __init__(self, lock: OperatorLock, *, can_change: bool, told: Callable[[], None]) -> None:
        self._lock = lock
        self._can_change = can_change
        self._told = told
        self._under_way: set[str] = set()
        self.read_only = True
        self.by = ""
        self.holder: LockHolder | None = None

    @property
    def operates(self) -> bool:
        """Whether the lock is ours."""
        return self._lock.held

    def arm(self, by: str) -> str:
        """Allow changes from now on; "" or why that cannot be."""
        if not self._can_change:
            return "there is no config.toml: changes would have nowhere to last"
        try:
            holder = self._lock.acquire()
        except StateUnwritable as error:
            return str(error)
        if holder is not None:
            self.holder = holder
            self._told()
            return f"{holder.text} operates on this cluster"
        self.read_only, self.by, self.holder = False, by, None
        self._told()
        return ""

    def disarm(self) -> None:
        """Read-only from now on. What is under way goes on."""
        self.read_only, self.by = True, ""
        self._give_back()
        self._told()

    def close(self) -> None:
        """Give the lock back whatever is under way: nothing of it will go on."""
        self._lock.release()

    def look(self) -> None:
        """See who operates instead of this one."""
        holder = None if self._lock.held else self._lock.holder()
        if holder != self.holder:
            self.holder = holder
            self._told()

    def guards(self) -> tuple[Guard, ...]:
        """What speaks against any change."""
        if not self.read_only:
            return ()
        holder = None if self._lock.held else self._lock.holder()
        if holder is not None:
            text = f"{holder.text} operates on this cluster"
            return (Guard("locked", text, "ask them, or wait until they have left or disarmed"),)
        text = "read-only: nothing can be changed from here"
        return (Guard("read_only", text, "in the console: W; on the command line: --write"),)

    def begin(self, operation_id: str) -> None:
        self._under_way.add(operation_id)

    def end(self, operation_id: str) -> None:
        self._under_way.discard(operation_id)
        self._give_back()

    def _give_back(self) -> None:
        if self.read_only and not self._under_way:
            self._lock.release()
