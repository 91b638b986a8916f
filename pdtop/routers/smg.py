"""smg 1.13.0: worker states with draining, loads from its own polls, PD histograms in its metrics."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect
from pdtop.routers.values import json_of, text_of

DIALECT = Dialect(
    engine="smg",
    loads_path="/get_loads",
    loads_every_s=10.0,  # answered from the last polls, and those are 10 s apart
    update_methods=("PATCH",),
    limits=(
        "it knows no weights: priority and cost are stored, not used",
        "a worker can be ready and get nothing: overload protection leaves it out",
        "thresholds and policies change only at a restart",
    ),
)

_PREFIX = "smg-"


def version_of(loads_body: bytes) -> str | None:
    """The release, which only ``/get_loads`` tells; None if these are not smg's loads."""
    top = json_of(loads_body)
    text = text_of(top.get("version"), 40) if isinstance(top, dict) else None
    return text.removeprefix(_PREFIX) if text is not None and text.startswith(_PREFIX) else None
