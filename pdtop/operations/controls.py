"""One control a router: with the cluster's keys and time limits, and the dialect that the router speaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pdtop.cluster.http import Dialler
from pdtop.cluster.monitor import Monitor
from pdtop.cluster.readings import Answer
from pdtop.cluster.targets import PollSettings, RouterTarget
from pdtop.config.schema import Config
from pdtop.routers import detect
from pdtop.routers.control import Control

#: A router that is busy answers its admin calls late; a change must not be given up as early as a poll.
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """A control is kept as long as this stays: it remembers which removals are still due."""

    target: RouterTarget
    engine: str
    control: Control


class Controls:
    """The routers of a monitored cluster. To be used on the engine's loop; close it there."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._open: tuple[PollSettings, Dialler] | None = None
        self._kept: dict[str, _Kept] = {}

    def engines(self) -> dict[str, str]:
        """The engine of every router, by name: as found out, else as the file says, else "unknown"."""
        seen = {router.name: router.engine for router in self._monitor.latest().routers}
        found = {}
        for target in self._monitor.targets.routers:
            told = {"embedded": "pdtop"}.get(target.engine or "", target.engine)
            engine = seen.get(target.name, "unknown")
            found[target.name] = told if engine == "unknown" and told else engine
        return found

    def all(self) -> dict[str, Control]:
        """A control for every router, by name."""
        engines = self.engines()
        kept = {}
        for target in self._monitor.targets.routers:
            one = self._kept.get(target.name)
            if one is None or (one.target, one.engine) != (target, engines[target.name]):
                one = _Kept(target, engines[target.name], self._control(target, engines[target.name]))
            kept[target.name] = one
        self._kept = kept
        return {name: one.control for name, one in kept.items()}

    def close(self) -> None:
        """Close the connections that wait for use."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _control(self, target: RouterTarget, engine: str) -> Control:
        config = self._monitor.config or Config()

        async def ask(method: str, path: str, content: bytes | None) -> Answer:
            settings = self._monitor.targets.settings
            return await self._dialler(settings).request(
                method,
                target.address,
                path,
                timeout_s=max(TIMEOUT_S, settings.timeout_s),
                key=settings.admin_key or settings.key,
                content=content,
            )

        return Control(
            ask,
            detect.DIALECTS.get(engine, detect.UNKNOWN),
            target.name,
            clock=asyncio.get_running_loop().time,
            api_key_env=config.server.api_key_env,
            admin_key_env=config.server.admin_key_env,
        )

    def _dialler(self, settings: PollSettings) -> Dialler:
        """The one for these settings; another one's connections are closed."""
        if self._open is None or self._open[0] != settings:
            self.close()
            dialler = Dialler(
                ca_file=settings.ca_file,
                connect_to=settings.connect_to,
                max_body_bytes=settings.max_body_bytes,
            )
            self._open = settings, dialler
        return self._open[1]
