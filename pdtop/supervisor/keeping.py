"""Keeps one run of an engine as config.toml says: workers, drains and health settings, each read back.

The pure rules of ``operations.reconcile`` with a control of the engine's own port, and not the operator of
the console: that one polls every worker, and holds the lock under which a console works on this cluster.
What smg's own file brings (additions, removals) is left to it; the API does what a file cannot: health
settings, workers with a key of their own, and whatever is still otherwise after a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pdtop.cluster.address import Address
from pdtop.cluster.desired import desired
from pdtop.cluster.http import BearerKey, Dialler
from pdtop.cluster.model import Health, Role
from pdtop.cluster.readings import Answer, ListedWorker
from pdtop.config.schema import Config
from pdtop.operations.reconcile import Action, Add, Change, Remove, actions
from pdtop.routers.change import Ask, Result
from pdtop.routers.control import Control, Controlled, WorkerSpec
from pdtop.routers.detect import DIALECTS
from pdtop.supervisor.engines import Engine
from pdtop.supervisor.launching import Place, key_of_its_own

#: smg takes a change of its file over within 0.2 s: what is otherwise for longer is not its file's doing.
_FILE_TAKES_S = 3.0
#: The same action again: no more often than this.
_AGAIN_S = (10.0, 30.0, 60.0, 300.0)
_ASK_S = 5.0
_NAME = "router"


def asker(dialler: Dialler, place: Place, key: str | None) -> Ask:
    """Asks one run of the engine."""
    address = Address.parse(f"http://{place.host}:{place.port}")
    bearer = BearerKey(key) if key is not None else None

    async def ask(method: str, path: str, content: bytes | None) -> Answer:
        return await dialler.request(method, address, path, timeout_s=_ASK_S, key=bearer, content=content)

    return ask


@dataclass(frozen=True, slots=True)
class Usable:
    """Workers that a run would send work to, by pool."""

    prefill: int = 0
    decode: int = 0

    @classmethod
    def of(cls, listed: tuple[ListedWorker, ...]) -> Usable:
        takes = [one.role for one in listed if one.health in (None, Health.HEALTHY)]
        return cls(takes.count(Role.PREFILL), takes.count(Role.DECODE))

    @property
    def serves(self) -> bool:
        return self.prefill > 0 and self.decode > 0

    def covers(self, goal: Usable) -> bool:
        return self.prefill >= goal.prefill and self.decode >= goal.decode


@dataclass(slots=True)
class _Seen:
    since: float
    times: int = 0
    not_before: float = 0.0


class Keeper:
    """One run of an engine. ``started_with``: the settings in its flags. ``taken_out``: workers, by key."""

    def __init__(
        self,
        engine: Engine,
        ask: Ask,
        started_with: Config,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._control = Control(ask, DIALECTS[engine.name], _NAME, clock=clock, sleep=sleep)
        self._asserted = started_with
        self._environ = environ
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._seen: dict[tuple[str, str], _Seen] = {}
        self.taken_out: set[str] = set()

    async def usable(self) -> Usable | None:
        """None: its list cannot be read now."""
        listed = await self._list()
        return Usable.of(listed) if not isinstance(listed, str) else None

    async def keep(self, config: Config, *, first: bool = False) -> tuple[str, ...]:
        """Do what is to be done; what was done, or could not be, in words.

        ``first``: nothing has reached this run yet; take out what is drained, and leave the rest for later.
        """
        self._known |= desired(config).keys()
        listed = await self._list()
        if isinstance(listed, str):
            return (listed,)
        todo = actions(
            config,
            {_NAME: listed},
            engines={_NAME: self._engine.name},
            before=self._asserted,
            known=self._known,
            confirmed=self._known,  # whoever wrote the file has decided; it is said when a pool runs empty
        ).by_router[_NAME]
        if first:
            todo = tuple(action for action in todo if isinstance(action, Remove))
        left = {id(action) for action in todo if isinstance(action, Change)}
        told = []
        for action in todo if first else self._due(config, todo):
            done, words = await self._carry_out(config, action)
            told.append(words)
            if done:
                left.discard(id(action))
                self.taken_out |= {action.key} if isinstance(action, Remove) else set()
        if not left and not first:
            self._asserted = config
        return tuple(told)

    async def _list(self) -> tuple[ListedWorker, ...] | str:
        raws = await self._control.list()
        return raws.words if isinstance(raws, Controlled) else tuple(raw.listed for raw in raws)

    def _due(self, config: Config, todo: tuple[Action, ...]) -> list[Action]:
        now, due = self._clock(), []
        keys = {(type(action).__name__, action.key) for action in todo}
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
        for action in todo:
            seen = self._seen.setdefault((type(action).__name__, action.key), _Seen(now))
            if self._engine.reads_manifest:
                if isinstance(action, Add) and not self._own_key(config, action.key):
                    continue  # its file names it
                if isinstance(action, Remove) and now < seen.since + _FILE_TAKES_S:
                    continue
            if now >= seen.not_before:
                seen.not_before = now + _AGAIN_S[min(seen.times, len(_AGAIN_S) - 1)]
                seen.times += 1
                due.append(action)
        return due

    async def _carry_out(self, config: Config, action: Action) -> tuple[bool, str]:
        if isinstance(action, Add):
            spec = WorkerSpec(action.url, action.role, action.bootstrap_port, health=action.health)
            key = self._own_key(config, action.key) or self._environ.get(config.server.api_key_env) or None
            did, done = "added", await self._control.add(spec, api_key=key)
        elif isinstance(action, Remove):
            did, done = "taken out", await self._control.remove(action.worker_id, action.url)
        else:
            did, done = "changed", await self._control.change(action.worker_id, action.fields)
        if done.result is Result.DONE:
            return True, f"{action.key} {did}: {action.why}"
        fix = f"; {done.fix}" if done.fix else ""
        return False, f"{action.key} not {did} ({action.why}): {done.words}{fix}"

    def _own_key(self, config: Config, key: str) -> str | None:
        entry = desired(config).get(key)
        return key_of_its_own(config, entry, self._environ) if entry is not None else None
