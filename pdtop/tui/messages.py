"""Messages of the screen: past-tense facts, small, the newest wins."""

from __future__ import annotations

from textual.message import Message


class SnapshotArrived(Message):
    """The source has a newer snapshot; it is fetched when the message is handled, so it cannot be old."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


class ViewArrived(Message):
    """There is news of operations; it is fetched when the message is handled."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ViewArrived)
