"""Follows config.toml: a good file is put in force at once, a bad one changes nothing and stays said."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from pdtop.config.schema import Config
from pdtop.config.watch import Accepted, ConfigWatch, Rejected, Restored
from pdtop.gateway.fleet import CannotServe

log = logging.getLogger(__name__)

Outcome = Literal["accepted", "rejected", "restored"]
OUTCOMES: tuple[Outcome, ...] = ("accepted", "rejected", "restored")


@dataclass(frozen=True, slots=True)
class Reload:
    """How the newest reading of the file ended, at epoch seconds ``at``: changes, or what is wrong."""

    outcome: Outcome
    at: float
    words: str

    @property
    def ok(self) -> bool:
        return self.outcome != "rejected"


def restart_needed(started: Config, now: Config) -> tuple[str, ...]:
    """Keys whose new value counts only after a restart: the listening address, and who routes."""
    old, new = (
        {"host": s.host, "port": s.port, "engine": s.engine or "embedded"}
        for s in (started.server, now.server)
    )
    return tuple(f"server.{key}" for key in old if old[key] != new[key])


async def follow(watch: ConfigWatch, apply: Callable[[Config], None], note: Callable[[Reload], None]) -> None:
    """Put each new content of the file in force, for ever. ``note`` is told of every decision."""
    async with aclosing(watch.events()) as events:
        async for event in events:
            reload = _decide(event, apply)
            log.log(logging.INFO if reload.ok else logging.ERROR, "%s", reload.words)
            note(reload)


def _decide(event: Accepted | Rejected | Restored, apply: Callable[[Config], None]) -> Reload:
    now = time.time()
    match event:
        case Rejected():
            return Reload("rejected", now, event.text)
        case Restored():
            outcome: Outcome = "restored"
        case Accepted():
            outcome = "accepted"
    if event.loaded.config is None:  # the watch only accepts what has one
        return Reload("rejected", now, event.text)
    try:
        apply(event.loaded.config)
    except CannotServe as reason:
        return Reload("rejected", now, f"{reason}\nthe last good settings stay in force")
    except Exception as failure:  # noqa: BLE001 - following the file must not end unnoticed
        words = f"internal error, these settings are not in force: {type(failure).__name__}: {failure}"
        return Reload("rejected", now, words)
    return Reload(outcome, now, event.text)
