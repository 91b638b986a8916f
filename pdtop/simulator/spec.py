"""What a simulated worker is: role, size, speed, place and faults, as data that travels as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pdtop.simulator.decode import DecodeModel
from pdtop.simulator.engine import LinkModel, Role, Site
from pdtop.simulator.prefill import PrefillModel

FaultKind = Literal["slow", "hang", "resume", "transfer_slow", "transfer_fail", "die"]

MODEL_NAME = "demo-llama-70b"


@dataclass(frozen=True, slots=True)
class Fault:
    """Trouble, ``at`` seconds after the worker's start.

    ``slow``: forward passes or steps take ``value`` times as long. ``hang``: the scheduler stands still,
    HTTP goes on; ``resume`` ends it. ``transfer_slow``: KV transfers take ``value`` times as long.
    ``transfer_fail``: that share of the transfers is lost. ``die``: the process is killed.
    """

    kind: FaultKind
    at: float = 0.0
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Port 0 takes a free one; ``fd`` and ``bootstrap_fd`` are listening sockets to take over instead."""

    role: Role
    host: str = "127.0.0.1"
    port: int = 0
    bootstrap_port: int = 0
    fd: int | None = None
    bootstrap_fd: int | None = None
    model_name: str = MODEL_NAME
    dp: int = 1
    tp: int = 1
    seed: int = 0
    stream_interval: int = 1
    enable_metrics: bool = True
    health_s: float = 1.0
    health_timeout_s: float = 20.0
    max_running: int = 64
    prefill: PrefillModel = field(default_factory=PrefillModel)
    decode: DecodeModel = field(default_factory=DecodeModel)
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        data: dict[str, Any] = json.loads(text)
        for key, model in (("prefill", PrefillModel), ("decode", DecodeModel)):
            if key not in data:
                continue
            parts = dict(data[key])
            if "site" in parts:
                parts["site"] = Site(**parts["site"])
            if "link" in parts:
                parts["link"] = LinkModel(**parts["link"])
            data[key] = model(**parts)
        data["faults"] = tuple(Fault(**fault) for fault in data.get("faults", ()))
        return cls(**data)
