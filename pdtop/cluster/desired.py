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


def desired(config: Config) -> Mapping[str, Desired]:
    """Prefill workers, then decode workers, in the order of the file.

    The first entry of a key counts; addresses that cannot be read are left out (loading has said so).
    """
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
