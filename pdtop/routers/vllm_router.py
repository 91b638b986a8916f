"""vllm-router 0.1.17, a fork of an old sgl-router: read only, its readiness counts by role."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect, Readiness, read_readiness
from pdtop.routers.values import json_of, mapping_of, whole_of


def readiness(status: int | None, body: bytes) -> Readiness:
    """``{"status", "prefill": {"healthy", "total"}, "decode": {...}}``: names the pool that is empty."""
    found = read_readiness(status, body)
    if found.ready is not False:
        return found
    top = mapping_of(json_of(body))
    empty = [
        role for role in ("prefill", "decode") if whole_of(mapping_of(top.get(role)).get("healthy")) == 0
    ]
    return Readiness(False, f"no healthy {' and no healthy '.join(empty)} worker" if empty else found.reason)


DIALECT = Dialect(
    engine="vllm-router",
    list_paths=("/workers", "/list_workers"),
    readiness=readiness,
    limits=("single workers cannot be changed through it in prefill/decode mode",),
)
