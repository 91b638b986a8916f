"""sgl-router before the rename (metrics ``sgl_router_*``): a list of URLs, little else."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect

DIALECT = Dialect(
    engine="sgl-router",
    list_paths=("/workers", "/list_workers"),
    limits=(
        "its worker list has no roles and no health: roles come from the config or the workers themselves",
        "single workers cannot be changed through it",
    ),
)
