"""The shipped cases of kind ``ops``, read as plain tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

CASES = Path(__file__).parent.parent / "fixtures" / "cases"


def case(name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(input, expect) of one case."""
    whole = json.loads((CASES / name / "case.json").read_text(encoding="utf-8"))
    return cast(Mapping[str, Any], whole["input"]), cast(Mapping[str, Any], whole["expect"])
