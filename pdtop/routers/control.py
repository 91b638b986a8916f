"""Add a worker to a router and take one out of it, each read back; 202 means "queued", not "done"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a router, for the audit log: never a body, never a key."""

    router: str
    method: str
    path: str
    status: int | None
    words: str = ""
    seconds: float = 0.0
