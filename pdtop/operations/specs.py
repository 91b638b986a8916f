"""What a router was told of a worker before it was drained or removed, so that it comes back exactly so.

One small file for each router and worker: a damaged one costs one spec, and is as if it was not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json

from pdtop.config.masking import find_secrets
from pdtop.operations.state import StateFolder
from pdtop.routers.spec import WorkerSpec, spec_from_dict, spec_to_dict

_FOLDER = "specs"


class Specs:
    """Remembered specs of one cluster, by router name and worker key."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def remember(self, router: str, worker: str, spec: WorkerSpec) -> bool:
        """Keep a spec over one of before. False: it holds a secret, so it is not kept.

        Raises:
            StateUnwritable: it could not be kept; what was there stays.
        """
        data = {"router": router, "worker": worker, "spec": spec_to_dict(spec)}
        if any(find_secrets(data)):
            return False
        self._folder.put(_file(router, worker), json.dumps(data, indent=1).encode() + b"\n")
        return True

    def recall(self, router: str, worker: str) -> WorkerSpec | None:
        """The spec as it was kept; None if there is none that can be read."""
        found = self._read(_file(router, worker))
        return found[2] if found is not None and found[:2] == (router, worker) else None

    def of_router(self, router: str) -> dict[str, WorkerSpec]:
        """All specs of one router, by worker key."""
        folder = self._folder.path / _FOLDER
        found = (self._read(f"{_FOLDER}/{path.name}") for path in sorted(folder.glob("*.json")))
        return {one[1]: one[2] for one in found if one is not None and one[0] == router}

    def forget(self, router: str, worker: str) -> None:
        """Drop a spec that is of no use any more."""
        with contextlib.suppress(OSError):
            self._folder.disk.unlink(self._folder.path / _file(router, worker))

    def _read(self, name: str) -> tuple[str, str, WorkerSpec] | None:
        try:
            data = json.loads(self._folder.read(name) or b"")
        except (ValueError, RecursionError):
            return None
        spec = spec_from_dict(data.get("spec")) if isinstance(data, dict) else None
        return None if spec is None else (str(data.get("router")), str(data.get("worker")), spec)


def _file(router: str, worker: str) -> str:
    """Names from the network make no file name."""
    both = json.dumps([router, worker]).encode()
    return f"{_FOLDER}/{hashlib.sha256(both).hexdigest()[:24]}.json"
