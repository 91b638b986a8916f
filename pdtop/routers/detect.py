"""Which router is it: decided from what it answered, with as few requests as will do."""

from __future__ import annotations

from collections.abc import Mapping

from pdtop.cluster.readings import Answer
from pdtop.routers import legacy, pdtop_router, sglang_router, smg, vllm_router
from pdtop.routers.dialect import Dialect, read_version
from pdtop.routers.values import json_of, list_of, mapping_of

UNKNOWN = Dialect(
    engine="unknown",
    list_paths=("/workers", "/list_workers"),
    loads_path="/get_loads",
    loads_every_s=60.0,
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.engine: dialect
    for dialect in (
        sglang_router.DIALECT,
        smg.DIALECT,
        legacy.DIALECT,
        vllm_router.DIALECT,
        pdtop_router.DIALECT,
        UNKNOWN,
    )
}

#: Asked once if the worker list alone does not tell. Neither router answers it, each in its own way.
PROBE = "/list_workers"


def by_list(answer: Answer) -> Dialect | None:
    """From the answer to ``/workers``; None if it does not tell (an empty list, an old router)."""
    if answer.headers.get("server", "").lower().startswith("pdtop"):
        return pdtop_router.DIALECT
    top = mapping_of(json_of(answer.body)) if answer.status == 200 else {}
    for entry in map(mapping_of, list_of(top.get("workers"))):
        if "runtime_type" in entry or "models" in entry:
            return smg.DIALECT
        if "metadata" in entry and "status" not in entry:
            return sglang_router.DIALECT
    return None


def by_probe(answer: Answer) -> Dialect | None:
    """From the answer to :data:`PROBE`: smg's 404 is JSON, sglang-router's is empty, older ones have it."""
    if answer.failure is not None:
        return None
    top = mapping_of(json_of(answer.body))
    if answer.status == 200 and "urls" in top:
        return vllm_router.DIALECT  # its ancestor has the route too: by_metrics tells them apart
    if answer.status == 404:
        if mapping_of(top.get("error")).get("code") == "unknown_url":
            return smg.DIALECT
        if not answer.body:
            return sglang_router.DIALECT
    return None


def by_loads(answer: Answer) -> Dialect | None:
    """From the answer to ``/get_loads``, the only place where routers say their version."""
    if answer.status != 200:
        return None
    told = read_version(answer.body)
    if told is not None:
        return DIALECTS[told[0]]
    entries = list_of(mapping_of(json_of(answer.body)).get("workers"))
    return sglang_router.DIALECT if any("load" in mapping_of(entry) for entry in entries) else None


def by_metrics(family: str, known: Dialect) -> Dialect:
    """From the family of names on the metrics page; keeps what is known where the names fit it."""
    match family:
        case "sgl_router":
            return legacy.DIALECT
        case "vllm_router":
            return vllm_router.DIALECT
        case _:
            return known


def limits_of(engine: str) -> tuple[str, ...]:
    """What this kind of router is known to report wrongly or cannot do, in words."""
    dialect = DIALECTS.get(engine)
    return dialect.limits if dialect is not None else ()
