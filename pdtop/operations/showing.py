"""The view of all operations: changed from any thread, told to its subscribers on the engine's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pdtop.operations.model import EMPTY_VIEW, Operation, Phase, View

log = logging.getLogger(__name__)

#: Operations that have ended and were not dismissed; the oldest go first.
ENDED_KEPT = 20


class Showing:
    """Keeps the newest view. ``deliver`` has its argument called on the engine's thread, now or soon."""

    def __init__(self, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._deliver = deliver
        self._changed = threading.Condition()
        self._view = EMPTY_VIEW
        self._operations: dict[str, Operation] = {}
        self._subscribers: tuple[Callable[[View], object], ...] = ()

    @property
    def view(self) -> View:
        return self._view

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations.values())

    def operation(self, id_: str) -> Operation | None:
        return self._operations.get(id_)

    def tell(self, operation: Operation) -> None:
        """Show an operation as it is now."""
        with self._changed:
            self._operations[operation.id] = operation
            ended = [id_ for id_, one in self._operations.items() if one.ended]
            for id_ in ended[:-ENDED_KEPT]:
                del self._operations[id_]
            self.show(operations=self.operations)

    def dismiss(self, id_: str | None) -> None:
        """Show one that has ended no longer; None: all of them."""
        with self._changed:
            for known, operation in tuple(self._operations.items()):
                if operation.ended and id_ in (None, known):
                    del self._operations[known]
            self.show(operations=self.operations)

    def show(self, **changes: Any) -> None:
        """Show the view with these fields of it."""
        with self._changed:
            view = replace(self._view, **changes)
            if view == self._view:
                return
            self._view = view
            self._changed.notify_all()
        if self._subscribers:
            self._deliver(self._publish)

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        self._subscribers = (*self._subscribers, callback)

        def leave() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return leave

    def wait(self, id_: str, timeout_s: float | None) -> Operation | None:
        """The operation once it has ended or asks something, or as it is when time is up."""

        def settled() -> bool:
            one = self._operations.get(id_)
            return one is None or one.ended or one.phase is Phase.DEADLINE

        with self._changed:
            self._changed.wait_for(settled, timeout_s)
            return self._operations.get(id_)

    def _publish(self) -> None:
        """The newest view: of several changes in between the last."""
        view = self._view
        for callback in self._subscribers:
            try:
                callback(view)
            except Exception:
                log.exception("a subscriber failed")
