"""The gate as front ends see it: plan, start, look, choose. Only what stands behind it changes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pdtop.operations.fields import Field
from pdtop.operations.model import Choice, LogEntry, Operation, Plan, Request, View


class Gate(Protocol):
    """Every call returns at once and may be made from any thread, unless it says otherwise."""

    def plan(self, request: Request) -> Plan:
        """What would happen. Reads the file (so not on a screen's loop) and sends nothing."""

    def start(self, plan: Plan, *, typed: Sequence[str] = (), overrule: bool = False) -> Operation:
        """Carry a plan out; a refused one comes back ended.

        ``typed``: the words that overrides ask for. ``overrule``: in a conflict over the same key our value
        goes over somebody else's, which the operator has seen.
        """

    def view(self) -> View:
        """The newest view."""

    def subscribe(self, callback: Callable[[View], object]) -> Callable[[], None]:
        """Have ``callback`` called on the engine's thread whenever the view changes; returns the way out."""

    def choose(self, operation_id: str, choice: Choice) -> None:
        """Answer an operation's choices."""

    def dismiss(self, operation_id: str | None = None) -> None:
        """Forget an operation that has ended; None: all of them."""

    def arm(self) -> str:
        """Allow changes from now on; "" or why that cannot be."""

    def disarm(self) -> None:
        """Read-only from now on."""

    def log(self, limit: int = 200) -> tuple[LogEntry, ...]:
        """The audit log of this cluster, newest first. Reads a file."""

    def fields(self) -> tuple[Field, ...]:
        """What can be tuned, with present values. Reads the file."""

    def wait(self, operation_id: str, timeout_s: float | None = None) -> Operation:
        """Wait until the operation has ended or asks something, at most ``timeout_s``."""
