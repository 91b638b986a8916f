"""Beside a service: what is left to it alone, and whose change it is that the service finds in config.toml.

The service (``pdtop apply --watch``) tells the routers. Consoles and verbs write the file and read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pdtop.config.schema import Config
from pdtop.operations.applying import Applied, Applier, Scope
from pdtop.operations.model import (
    Apply,
    Guard,
    LockHolder,
    LogEntry,
    Outcome,
    Request,
    Restart,
    RouterOutcome,
)
from pdtop.operations.permission import Permission
from pdtop.operations.reconcile import Actions, Add, Change, Remove, restart_changes

#: A service takes a change of the file over within a second or two, and reads back for up to five.
SERVICE_S = 15.0
_LOOK_S = 0.5
_TOLD = 3  # differences in one sentence
#: In the log: the workers whose names were typed to go over a guard.
CONFIRMED = "confirmed"
#: A change is found within seconds; an older entry is of another time when the file was so.
_FOUND_S = 60.0


class Witness:
    """Sends nothing: sees whether the routers come to show what config.toml says. On the engine's loop.

    ``engines``: of every router, by its name.
    """

    def __init__(
        self, applier: Applier, engines: Callable[[], Mapping[str, str]], permission: Permission
    ) -> None:
        self._applier = applier
        self._engines = engines
        self._permission = permission

    @property
    def needed(self) -> bool:
        """Whether somebody else tells the routers: who has the lock does, and nobody else."""
        return not self._permission.operates

    async def see(self, after: Config, before: Config | None, scope: Scope) -> Applied:
        """Wait at every router until it is done there."""
        todo, unread = await self._applier.plan(after, before, scope)
        engines = self._engines()
        names = [name for name in engines if scope.routers is None or name in scope.routers]
        done = await asyncio.gather(*(self._see_at(name, todo, after, scope) for name in names))
        untold = tuple(guard for guard in todo.guards if not guard.blocks and not unread)
        restart = restart_changes(before, after, engines) if before is not None else ()
        return Applied(tuple(done), untold=untold, restart=restart, left_alone=todo.left_alone)

    async def _see_at(self, router: str, todo: Actions, after: Config, scope: Scope) -> RouterOutcome:
        scope = replace(scope, routers=frozenset({router}))
        if router in todo.expect:  # it reads the file itself, whoever has written it
            return (await self._applier.apply(after, after, scope)).routers[0]
        words = "the router shows what the file says"
        if any(isinstance(action, Change) for action in todo.by_router.get(router, ())):
            words += "; health settings cannot be seen there"
        clock = asyncio.get_running_loop().time
        deadline = clock() + SERVICE_S
        while True:
            # From the file to itself: what is left to do is what the router's list does not show.
            left, unread = await self._applier.plan(after, after, scope)
            missing = [one.words for one in unread.values()] or _left(left, router)
            if not missing:
                return RouterOutcome(router, Outcome.DONE, words)
            if clock() + _LOOK_S > deadline:
                return _not_done(router, missing, served=self._permission.service is not None)
            await asyncio.sleep(_LOOK_S)


def _left(todo: Actions, router: str) -> list[str]:
    found = [guard.text for guard in todo.guards if guard.blocks]
    for action in todo.by_router.get(router, ()):
        if isinstance(action, Add):
            found.append(f"{action.key} is not there as {action.role.value} worker")
        elif isinstance(action, Remove):
            found.append(f"{action.key} is still there")
    return found


def _not_done(router: str, missing: Sequence[str], *, served: bool) -> RouterOutcome:
    told = "; ".join(missing[:_TOLD]) + (f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else "")
    words = f"the service has not brought it to the file after {SERVICE_S:g} s: {told}"
    fix = "see whether the service runs, its journal, and pdtop log"
    if not served:
        words = f"the service has ended before it brought it to the file: {told}"
        fix = "start the service again; or arm (W): then pdtop apply does it"
    return RouterOutcome(router, Outcome.ACCEPTED_NOT_APPLIED, words, fix)


def guards_beside(request: Request, service: LockHolder | None) -> tuple[Guard, ...]:
    """What cannot be done beside a service: all that is no change of the file."""
    match request:
        case Restart() if service is not None:
            text = f"a router is restarted from here only by who tells it: {service.words}"
            fix = "restart it by its own means, the service tells it everything again; or stop the service"
            return (Guard("locked", text, fix),)
        case Apply(prune=True) if service is not None:
            text = f"--prune is only for who tells the routers: {service.words}"
            return (Guard("locked", text, "stop the service first, or take those workers out by hand"),)
        case _:
            return ()


def change_found(entries: Sequence[LogEntry], digest: str, now: float) -> LogEntry | None:
    """The entry, newest first, of the pdtop that has just written the file with this digest."""
    newest = next((entry for entry in entries if entry.change is not None), None)
    if newest is None or newest.change is None or newest.change.digest_after != digest:
        return None
    return newest if now - newest.at < _FOUND_S else None


def confirmed_in(entry: LogEntry | None) -> frozenset[str]:
    """The workers that may leave their pool without a usable one, by the word of who made the change."""
    return frozenset(filter(None, entry.extra.get(CONFIRMED, "").split(", "))) if entry else frozenset()
