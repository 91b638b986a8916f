"""Whether changes may be made from here: armed, and nobody else operates. Decided nowhere else.

Who has the lock, and nobody else, tells the routers. Beside a service, which has it for ever, others may
change config.toml, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pdtop.operations.lock import OperatorLock
from pdtop.operations.model import Guard, LockHolder
from pdtop.operations.state import StateUnwritable


class Permission:
    """Read-only until :meth:`arm`. ``told`` is called when any of it has changed.

    A lock is kept as long as something is under way (:meth:`begin`, :meth:`end`), also when disarmed.
    ``beside`` is the lock of those who change the file beside a service; None: this one is a service.
    """

    def __init__(
        self,
        lock: OperatorLock,
        beside: OperatorLock | None,
        *,
        can_change: bool,
        told: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._beside = beside
        self._can_change = can_change
        self._told = told
        self._under_way: set[str] = set()
        self.read_only = True
        self.by = ""
        self.holder: LockHolder | None = None
        self._deciding = threading.RLock()  # arming comes from any thread; ``told`` is called without it

    @property
    def operates(self) -> bool:
        """Whether the lock is ours, so that we tell the routers."""
        return self._lock.held

    @property
    def service(self) -> LockHolder | None:
        """The service that tells the routers instead of us."""
        holder = None if self._lock.held else self._lock.holder()
        return holder if holder is not None and self._may_stand_beside(holder) else None

    def arm(self, by: str) -> str:
        """Allow changes from now on; "" or why that cannot be."""
        if not self._can_change:
            return "there is no config.toml: changes would have nowhere to last"
        try:
            with self._deciding:
                problem = self._take(by)
        except StateUnwritable as error:
            return str(error)
        self._told()
        return problem

    def _take(self, by: str) -> str:
        holder = self._lock.acquire()
        other = holder
        if self._beside is not None:
            if holder is None:
                self._beside.release()
            elif holder.service:
                other = self._beside.acquire()
        if other is not None:
            self.holder = other
            return other.words
        self.read_only, self.holder = False, holder
        self.by = by if holder is None else f"{by}; {holder.words}"
        return ""

    def disarm(self) -> None:
        """Read-only from now on. What is under way goes on."""
        with self._deciding:
            self.read_only, self.by = True, ""
            self._give_back()
        self._told()

    def close(self) -> None:
        """Give the locks back whatever is under way: nothing of it will go on."""
        self._release()

    def look(self) -> str:
        """See who operates instead of this one; what is to be said if that disarms it."""
        with self._deciding:
            holder, before, said = self._who(), self.holder, ""
            if self._alone(holder):
                gone = f"{before.user}@{before.host}'s" if before is not None else "the"
                said = f"{gone} service has ended, so that nobody tells the routers; "
                said += "W arms this console to do it"
                self.read_only, self.by = True, ""
                self._give_back()
            changed = bool(said) or holder != before
            self.holder = holder
        if changed:
            self._told()
        return said

    def guards(self) -> tuple[Guard, ...]:
        """What speaks against any change."""
        with self._deciding:
            return self._guards()

    def _guards(self) -> tuple[Guard, ...]:
        holder = self._who()
        if self._alone(holder):
            text = "the service that told the routers has ended"
            return (Guard("locked", text, "arm again (W), or start the service again"),)
        if not self.read_only:
            return ()
        if holder is not None and not self._may_stand_beside(holder):
            return (Guard("locked", holder.words, "ask them, or wait until they have left or disarmed"),)
        text = "read-only: nothing can be changed from here"
        return (Guard("read_only", text, "in the console: W; on the command line: --write"),)

    def _who(self) -> LockHolder | None:
        """Who operates instead of this one: somebody beside a service comes before the service."""
        holder = None if self._lock.held else self._lock.holder()
        if holder is None or not self._may_stand_beside(holder) or self._beside is None or self._beside.held:
            return holder
        return self._beside.holder() or holder

    def _alone(self, holder: LockHolder | None) -> bool:
        """Whether this one is armed, but neither has the lock nor stands beside a service."""
        armed = not self.read_only and not self._lock.held
        return armed and (holder is None or not self._may_stand_beside(holder))

    def _may_stand_beside(self, holder: LockHolder) -> bool:
        return holder.service and self._beside is not None

    def begin(self, operation_id: str) -> None:
        with self._deciding:
            self._under_way.add(operation_id)

    def end(self, operation_id: str) -> None:
        with self._deciding:
            self._under_way.discard(operation_id)
            self._give_back()

    def _give_back(self) -> None:
        if self.read_only and not self._under_way:
            self._release()

    def _release(self) -> None:
        self._lock.release()
        if self._beside is not None:
            self._beside.release()
