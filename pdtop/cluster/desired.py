"""The workers that a config file names, by canonical key: what routers and workers are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import Role
from pdtop.config.schema import Config, WorkerTable


@dataclass(frozen=True, slots=True)
class Desired:
    """One worker as the file has it. ``address`` has no rank: ranks are parts of one worker."""

    key: str
    role: Role
    address: Address
    table: WorkerTable

    @property
    def bootstrap_port(self) -> int | None:
        """Of a prefill worker, if the file says it; decode workers have none."""
        return self.table.bootstrap_port if self.role is Role.PREFILL else None


#: The last settings and their workers: they are asked for with every snapshot, and settings are frozen.
_KEPT = 4
_kept: tuple[tuple[Config, Mapping[str, Desired]], ...] = ()


def desired(config: Config) -> Mapping[str, Desired]:
    """Prefill workers, then decode workers, in the order of the file.

    The first entry of a key counts; addresses that cannot be read are left out (loading has said so).
    """
    global _kept
    for known, workers in _kept:
        if known is config:
            return workers
    found = _workers_of(config)
    _kept = ((config, found), *_kept[: _KEPT - 1])
    return found


def _workers_of(config: Config) -> Mapping[str, Desired]:
    found: dict[str, Desired] = {}
    for role, pool in ((Role.PREFILL, config.prefill), (Role.DECODE, config.decode)):
        for written in pool.workers:
            try:
                address = Address.parse(written)
            except AddressError:
                continue
            entry = Desired(address.key, role, replace(address, rank=None), pool.settings_of(written))
            found.setdefault(entry.key, entry)
    return found
