"""One run of an engine with its place, its keeper and the two addresses that the hand-over joins it to."""

from __future__ import annotations

from dataclasses import dataclass

from pdtop.config.schema import Config
from pdtop.supervisor.handover import Backend
from pdtop.supervisor.keeping import Keeper
from pdtop.supervisor.launching import Launch, Place
from pdtop.supervisor.output import Tail
from pdtop.supervisor.process import EngineProcess


@dataclass(slots=True, eq=False)
class Run:
    """``config``: what it was started with; ``since``: epoch seconds; ``began``: on the injected clock."""

    process: EngineProcess
    launch: Launch
    config: Config
    flags: tuple[str, ...]
    place: Place
    keeper: Keeper
    tail: Tail
    since: float
    began: float
    main: Backend
    metrics: Backend

    @property
    def connections(self) -> int:
        return self.main.open

    def leave(self) -> None:
        """Have it end when its streams have."""
        self.main.leaving = self.metrics.leaving = True
        self.process.terminate()
