"""Bring the routers to what config.toml says, each action read back, all routers at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdtop.cluster.desired import desired
from pdtop.cluster.model import Health
from pdtop.cluster.monitor import Monitor
from pdtop.cluster.readings import ListedWorker
from pdtop.cluster.router_watch import key_of
from pdtop.config.changes import Change as FileChanged
from pdtop.config.changes import config_changes
from pdtop.config.keys import split_key
from pdtop.config.schema import Config
from pdtop.operations.controls import Controls
from pdtop.operations.model import Guard, Outcome, RouterOutcome
from pdtop.operations.reconcile import Actions, Add, Change, LeftAlone, Remove, actions
from pdtop.operations.specs import Specs
from pdtop.operations.state import StateUnwritable
from pdtop.routers.change import Result
from pdtop.routers.control import Control, Controlled, WorkerSpec
from pdtop.routers.effective import Effective, not_in_force
from pdtop.routers.flags import effect

#: A router that reads the file itself takes a change over when the file has stood still for half a second.
FILE_TAKEN_S = 5.0
_LOOK_S = 0.2
_TOLD = 3  # differences in one sentence


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be touched, and how far. ``workers``, ``routers`` None: all. The rest as in ``reconcile``."""

    workers: frozenset[str] | None = None
    routers: frozenset[str] | None = None
    prune: bool = False
    confirmed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of it. ``blocked``: what was held back; ``untold``: what a router cannot be told.

    ``restart``: what waits for a router's restart.
    """

    routers: tuple[RouterOutcome, ...] = ()
    blocked: tuple[Guard, ...] = ()
    untold: tuple[Guard, ...] = ()
    restart: tuple[FileChanged, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()

    @property
    def refused_everywhere(self) -> bool:
        """No router did anything: each said no, or it was held back from it."""
        said_no = bool(self.routers) and all(one.outcome is Outcome.REFUSED for one in self.routers)
        return said_no or (bool(self.blocked) and not any(one.changed for one in self.routers))


class Applier:
    """Speaks to the routers of one monitored cluster. To be used on the engine's loop.

    ``named``: workers that the file has named at any time. ``readded`` is told router and key of a worker
    that was registered.
    """

    def __init__(
        self,
        monitor: Monitor,
        controls: Controls,
        specs: Specs,
        named: Callable[[], frozenset[str]],
        readded: Callable[[str, str], None],
    ) -> None:
        self._monitor = monitor
        self._controls = controls
        self._specs = specs
        self._named = named
        self._readded = readded
        self._removing: dict[str, asyncio.Lock] = {}  # by router

    def concerns_routers(self, before: Config | None, after: Config) -> bool:
        """Whether a router is told of this change, or takes it over, while it runs."""
        if before is None or changed_workers(before, after):
            return True
        engines = frozenset(self._controls.engines().values())
        changes = config_changes(before, after)
        return any(
            effect(engine, split_key(change.key)).kind == "live" for change in changes for engine in engines
        )

    async def lists(self, scope: Scope) -> dict[str, tuple[ListedWorker, ...] | Controlled]:
        """What the routers list now, or why that is not known."""
        controls = self._within(scope)
        found = await asyncio.gather(*(control.list() for control in controls.values()))
        return {
            name: one if isinstance(one, Controlled) else tuple(raw.listed for raw in one)
            for name, one in zip(controls, found, strict=True)
        }

    async def plan(
        self, after: Config, before: Config | None, scope: Scope
    ) -> tuple[Actions, Mapping[str, Controlled]]:
        """What is to be done, and the routers that could not be asked."""
        lists = await self.lists(scope)
        unread = {name: one for name, one in lists.items() if isinstance(one, Controlled)}
        return self._actions(after, before, scope, lists), unread

    def _actions(
        self,
        after: Config,
        before: Config | None,
        scope: Scope,
        lists: Mapping[str, tuple[ListedWorker, ...] | Controlled],
    ) -> Actions:
        listed = {name: one for name, one in lists.items() if not isinstance(one, Controlled)}
        snapshot = self._monitor.latest()
        return actions(
            after,
            listed,
            engines={name: engine for name, engine in self._controls.engines().items() if name in lists},
            before=before,
            scope=scope.workers,
            known=self._named(),
            same=self._monitor.aliases,
            prune=scope.prune,
            confirmed=scope.confirmed,
            usable={worker.key: worker.usable for worker in snapshot.workers},
            routers={target.name: target.address for target in self._monitor.targets.routers},
            ports={
                worker.key: worker.identity.bootstrap_port
                for worker in snapshot.workers
                if worker.identity.bootstrap_port is not None
            },
        )

    async def apply(self, after: Config, before: Config | None, scope: Scope) -> Applied:
        """Do it at every router."""
        todo, unread = await self.plan(after, before, scope)
        controls = self._within(scope)
        done = await asyncio.gather(
            *(
                self._at_router(name, control, todo, unread.get(name), after, before, scope)
                for name, control in controls.items()
            )
        )
        blocked = tuple(guard for guard in todo.guards if guard.blocks)
        # A router that could not be asked is told by its own outcome.
        untold = tuple(guard for guard in todo.guards if not guard.blocks and not unread)
        return Applied(tuple(done), blocked, untold, todo.restart, todo.left_alone)

    def _within(self, scope: Scope) -> dict[str, Control]:
        return {
            name: control
            for name, control in self._controls.all().items()
            if scope.routers is None or name in scope.routers
        }

    async def _at_router(
        self,
        name: str,
        control: Control,
        todo: Actions,
        unread: Controlled | None,
        after: Config,
        before: Config | None,
        scope: Scope,
    ) -> RouterOutcome:
        if unread is not None:
            return _outcome(name, [unread])
        if name in todo.expect:
            expected = {
                key: state
                for key, state in todo.expect[name].items()
                if scope.workers is None or key in scope.workers
            }
            return await self._expect(name, control, expected, after)
        done: list[Controlled] = []
        added: set[str] = set()
        for action in todo.by_router.get(name, ()):
            if isinstance(action, Remove) and action.after_any and not added & set(action.after_any):
                words = "not taken out: what was to take its place has not come up"
                done.append(Controlled(Result.FAILED, words, problem="refused"))
                continue
            try:
                if isinstance(action, Remove):
                    async with self._removing.setdefault(name, asyncio.Lock()):
                        one = await self._take_out(name, control, action, after, before, scope)
                else:
                    one = await self._carry_out(name, control, action)
            except StateUnwritable as error:  # not sent: what the router knew of the worker would be lost
                one = Controlled(Result.FAILED, str(error), "mend the state folder", problem="refused")
            done.append(one)
            if one.result is Result.DONE and isinstance(action, Add):
                added.add(action.key)
            elif one.result is not Result.DONE and one.problem in ("auth", "unreachable"):
                break  # the rest would end the same way
        return _outcome(name, done)

    async def _take_out(
        self,
        router: str,
        control: Control,
        action: Remove,
        after: Config,
        before: Config | None,
        scope: Scope,
    ) -> Controlled:
        """One at a time at each router, and only if it is still right: another operation, on another worker,
        may have taken the rest of the pool out meanwhile."""
        raws = await control.list()
        if isinstance(raws, Controlled):
            return raws
        now = self._actions(after, before, scope, {router: tuple(raw.listed for raw in raws)})
        held = next((guard for guard in now.guards if guard.override == action.key), None)
        if held is not None:
            return Controlled(Result.FAILED, held.text, held.to_change, problem="refused")
        for raw in raws:
            if raw.url == action.url and raw.spec is not None:
                self._specs.remember(router, action.key, raw.spec)
        return await control.remove(action.worker_id, action.url)

    async def _carry_out(self, router: str, control: Control, action: Add | Change) -> Controlled:
        if isinstance(action, Add):
            spec = self._spec(router, action)
            done = await control.add(spec, api_key=os.environ.get(action.key_variable) or None)
            if done.result is Result.DONE:
                self._readded(router, action.key)
                self._specs.forget(router, action.key)
            return done
        return await control.change(action.worker_id, action.fields)

    def _spec(self, router: str, action: Add) -> WorkerSpec:
        """As the router knew it, with what the file says now."""
        spec = WorkerSpec(action.url, action.role, action.bootstrap_port, health=action.health)
        known = self._specs.recall(router, action.key)
        if known is None or known.role is not action.role:
            return spec
        port = action.bootstrap_port if action.bootstrap_port is not None else known.bootstrap_port
        return replace(known, url=action.url, bootstrap_port=port, health={**known.health, **action.health})

    async def _expect(
        self, name: str, control: Control, expected: Mapping[str, str], config: Config
    ) -> RouterOutcome:
        """Wait until a router that reads the file itself shows what the file says."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + FILE_TAKEN_S
        address = next((t.address for t in self._monitor.targets.routers if t.name == name), None)
        while True:
            seen, effective = await control.list(), await control.effective()
            if isinstance(seen, Controlled):
                return _outcome(name, [seen])
            if isinstance(effective, Controlled):
                return _outcome(name, [effective])
            there = {key_of(raw.url, address): raw.listed for raw in seen}
            missing = _missing(there, expected, config)
            if effective is not None:
                missing += [f"{key} is another there" for key in not_in_force(effective, config)]
            if not missing:
                return RouterOutcome(name, Outcome.DONE, "the router shows what the file says")
            if clock() + _LOOK_S > deadline:
                return _not_taken(name, missing, effective)
            await asyncio.sleep(_LOOK_S)


def changed_workers(before: Config | None, after: Config | None) -> frozenset[str] | None:
    """Keys of which the two say something else; None: all, as it is not known what was before."""
    if before is None or after is None:
        return None
    was, now = desired(before), desired(after)
    return frozenset(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))


def _not_taken(router: str, missing: Sequence[str], effective: Effective | None) -> RouterOutcome:
    told = "; ".join(missing[:_TOLD]) + (f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else "")
    words = f"it has not taken the file over after {FILE_TAKEN_S:g} s: {told}"
    fix = "see the router's log; a file with an error leaves its last good one in force"
    if effective is not None and effective.rejected:
        words = f"it has rejected the file: {effective.rejected}"
        fix = "put that right in config.toml; until then its last good settings stay in force"
    elif effective is not None and effective.file is None:
        words, fix = f"{words}; it follows no file", "restart it with this config.toml"
    elif effective is not None:
        fix = f"it follows {effective.file}: see whether that is this file; else see the router's log"
    return RouterOutcome(router, Outcome.ACCEPTED_NOT_APPLIED, words, fix)


def _missing(there: Mapping[str, ListedWorker], expected: Mapping[str, str], config: Config) -> list[str]:
    """What a list does not show yet; for workers that are to be there also their weight."""
    wanted = desired(config)
    found = []
    for key, state in expected.items():
        worker = there.get(key)
        draining = worker is not None and worker.health is Health.DRAINING
        if state == "absent":
            if worker is not None and not draining:
                found.append(f"{key} is still there")
        elif worker is None:
            if state == "ready":
                found.append(f"{key} is not there")
        elif draining is not (state == "draining"):
            found.append(f"{key} is {'draining' if draining else 'not draining'}")
        elif worker.weight is not None and key in wanted and worker.weight != wanted[key].table.weight:
            found.append(f"{key} has weight {worker.weight:g}")
    return found


def _outcome(router: str, done: Sequence[Controlled]) -> RouterOutcome:
    """The outcomes of all actions at a router as one: the first that failed speaks for all."""
    calls = tuple(call for one in done for call in one.calls)
    if not done:
        return RouterOutcome(router, Outcome.DONE, "nothing to do there")
    bad = [one for one in done if one.result is not Result.DONE]
    if not bad:
        words = done[-1].words if len(done) == 1 else f"{len(done)} changes read back"
        return RouterOutcome(router, Outcome.DONE, words, calls=calls)
    first = bad[0]
    if len(bad) < len(done):
        words = f"{len(done) - len(bad)} of {len(done)} done; {first.words}"
        return RouterOutcome(router, Outcome.PARTLY_DONE, words, first.fix, calls)
    outcome = {
        "auth": Outcome.REFUSED,
        "refused": Outcome.REFUSED,
        "no_power": Outcome.REFUSED,
        "unreachable": Outcome.TIMED_OUT,
        "timed_out": Outcome.TIMED_OUT,
    }.get(first.problem, Outcome.FAILED)
    if first.result is Result.ACCEPTED_NOT_APPLIED:
        outcome = Outcome.ACCEPTED_NOT_APPLIED
    return RouterOutcome(router, outcome, first.words, first.fix, calls)
