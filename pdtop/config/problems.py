"""One thing wrong in a config file: where, which rule, what to do; pydantic's errors in these words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

from pydantic import ValidationError

from pdtop.config.keys import Path, join_key

ProblemSeverity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """``kind`` is a stable word for scripts. ``value`` is shown as typed, masked if it may be a secret."""

    severity: ProblemSeverity
    kind: str
    rule: str
    file: str = "config.toml"
    line: int | None = None
    key: str = ""
    value: str | None = None
    suggestion: str | None = None
    fix: str = ""

    @property
    def text(self) -> str:
        """The whole problem as one line."""
        where = FilePath(self.file).name + (f" line {self.line}" if self.line is not None else "")
        what = self.key + (f" = {self.value}" if self.value is not None else "")
        text = f"{where}: {what}: {self.rule}" if what else f"{where}: {self.rule}"
        if self.suggestion is not None:
            text += f"; did you mean {self.suggestion}?"
        return f"{text} ({self.fix})" if self.fix else text


def errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(p for p in problems if p.severity == "error")


def warnings(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(p for p in problems if p.severity == "warning")


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid spelling that ``word`` most likely stands for."""
    candidates = list(valid)
    plain = word.lower().replace("-", "_")
    for candidate in candidates:
        if candidate.lower().replace("-", "_") == plain:
            return candidate
    found = difflib.get_close_matches(plain, candidates, n=1, cutoff=0.6)
    return found[0] if found else None


def from_validation(error: ValidationError) -> list[tuple[Path, Problem]]:
    """Path and problem of every error pydantic found; the caller adds file, line and the shown value."""
    found = []
    for item in error.errors(include_url=False):
        path = tuple(part for part in item["loc"] if part not in ("function-before[_as_tuple()", "[key]"))
        rule, suggestion = _in_words(item["type"], item.get("ctx", {}), item["input"], item["msg"])
        found.append((path, Problem("error", item["type"], rule, key=join_key(path), suggestion=suggestion)))
    return found


def _in_words(kind: str, context: dict[str, Any], value: object, message: str) -> tuple[str, str | None]:
    """Rule in words and nearest valid spelling."""
    match kind:
        case "less_than_equal" | "greater_than_equal" if isinstance(value, int | float):
            return _range_words(kind, context, value)
        case "greater_than":
            return f"must be above {context['gt']:g}", None
        case "finite_number":
            return "must be a finite number (not nan or inf)", None
        case "float_type" | "int_type" | "int_from_float":
            wanted = "a number" if kind == "float_type" else "a whole number"
            return f"must be {wanted}, not {type_name(value)}", _number_in(value)
        case "bool_type":
            return f"must be true or false, not {type_name(value)}", _bool_in(value)
        case "string_type":
            return f"must be text in quotes, not {type_name(value)}", None
        case "tuple_type":
            return f"must be an array, not {type_name(value)}", None
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a table, not {type_name(value)}", None
        case "literal_error":
            expected = str(context["expected"])
            words = [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]
            return f"must be one of {expected}", nearest(value, words) if isinstance(value, str) else None
        case "value_error":
            return message.removeprefix("Value error, "), None
        case "missing":
            return "is missing", None
        case _:
            return message[:1].lower() + message[1:], None


def _range_words(kind: str, context: dict[str, Any], value: float) -> tuple[str, str | None]:
    if kind == "less_than_equal" and context["le"] == 1:
        suggestion = f"{value / 100:.2f}" if 2 <= value <= 100 else None
        return "must be between 0 and 1 (a share)", suggestion
    if kind == "less_than_equal":
        return f"must be {context['le']:g} or less", None
    return f"must be {context['ge']:g} or more", None


def type_name(value: object) -> str:
    """TOML's word for a parsed value."""
    if isinstance(value, bool):
        return "a bool"
    names: Sequence[tuple[type | tuple[type, ...], str]] = (
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (str, "text"),
        ((list, tuple), "an array"),
        (dict, "a table"),
    )
    return next((name for types, name in names if isinstance(value, types)), "a date or time")


def _number_in(value: object) -> str | None:
    if isinstance(value, str):
        text = value.strip()
        try:
            float(text)
        except ValueError:
            return None
        return text
    return f"{int(value)}" if isinstance(value, float) and value.is_integer() else None


def _bool_in(value: object) -> str | None:
    words = {"true": "true", "yes": "true", "on": "true", "1": "true"}
    words |= {"false": "false", "no": "false", "off": "false", "0": "false"}
    return words.get(str(value).strip().lower())
