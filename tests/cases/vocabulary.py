"""The whole vocabulary of the case files: every table, its keys and their types, and a strict validator.

The tables are those of FORMAT.md beside the cases, as data. A key that is not listed, or a value of another
type, makes the case fail: nothing of a case is ever skipped in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

KINDS = ("metrics", "http", "config", "ops", "terminal")

#: Kinds that are free form: each case of them is a test of its own.
OWN_TEST = ("ops", "terminal")

FINDING_KINDS = (
    "kv_pressure",
    "bootstrap_backlog",
    "running_without_progress",
    "restart",
    "hot_worker",
    "failing_requests",
    "no_engine_metrics",
    "loads_unknown",
    "no_workers",
    "secret_in_file",
)

#: Table name to type to the keys of that type (as in FORMAT.md: "list of x", "map of x", "x or y").
_KEYS_BY_TYPE: dict[str, dict[str, str]] = {
    "case": {"text": "id group kind title why", "any": "sources input expect"},
    "metrics input": {
        "list of scrape": "scrapes",
        "text": "generate",
        "list of target": "targets",
        "drain input": "drain",
    },
    "scrape": {
        "number": "t status content_length",
        "text": "worker router role role_source file content_type",
    },
    "target": {"number": "ttft_s tpot_s"},
    "drain input": {"text": "worker", "number": "started_at quiet_polls_needed"},
    "checked expect": {
        "list of check": "checks",
        "list of call": "calls",
        "limits": "limits",
        "bool": "no_crash",
        "list of text": "by_hand",
    },
    "check": {
        "number": "at after_poll",
        "text": "run window",
        "map of worker": "workers",
        "map of pool": "pools",
        "map of router": "routers",
        "cluster": "cluster",
        "list of finding": "findings no_findings",
        "list of request rule": "requests",
        "list of text": "hosts_dialled",
        "map of drain plan": "drain",
        "console settings": "settings",
        "bool": "ui_blocked export_without_nan",
        "list of mention": "hint_mentions",
        "list of check": "any_of",
    },
    "worker": {
        "value": (
            "state role running backlog transferring retracted token_usage_max token_usage_mean "
            "rank_count ranks_expected fwd_occupancy spec_accept_rate tok_per_s prompt_tok_per_s "
            "req_per_s prompt_tokens_total resets model_name model_name_shown_lines page_lines "
            "parse_errors duplicates share failure_rate router_inflight router_load tokens source "
            "status stale_polls flaps"
        ),
        "bool": "backlog_is_lower_bound negative_rate_ever drained partial counted_as_down marked_stale",
        "backlog parts": "backlog_parts",
        "list of text": "ranks ranks_used series_not_listed",
        "rank": "hot_rank",
        "map of value": "increase",
        "latency": "ttft tpot",
        "list of within": "within",
        "map of text": "shown",
        "list of mention": "hint_mentions",
        "number": "updated_every_s_at_most shown_within_s",
    },
    "backlog parts": {"value": "queue bootstrap prealloc transfer"},
    "rank": {"value": "dp_rank running backlog token_usage"},
    "latency": {
        "value": "count p50 p90 p95 p98 p99 mean source",
        "map of value": "share_above",
        "bool": "approximate",
        "text": "sparkline",
    },
    "within": {
        "number": "ttft_s tpot_s interpolated",
        "value": "share good_req_per_s",
        "bool": "exact",
        "list of number": "share_range",
    },
    "pool": {
        "value": "running backlog fwd_occupancy_mean spec_accept_rate_mean gen_throughput_sum",
        "latency": "ttft",
    },
    "router": {
        "value": (
            "state health control metrics active_workers engine_series requests max_over_mean load_sum rows"
        ),
        "latency": "duration",
        "bool": "list_stale",
        "list of mention": "hint_mentions error_mentions",
        "verdict": "check",
        "change result": "change",
    },
    "verdict": {"bool": "ok", "text": "text text_so_far", "list of mention": "mentions"},
    "change result": {
        "value": "method result worker_state",
        "text": "done_after",
        "number": "shown_within_s",
    },
    "cluster": {"latency": "ttft", "ttft parts": "ttft_parts"},
    "ttft parts": {"latency": "prefill decode"},
    "finding": {"text": "kind worker router", "list of mention": "mentions"},
    "limits": {"number": "read_page_s key_answer_s"},
    "http input": {
        "text": "action",
        "list of server": "servers",
        "map of any": "change",
        "number": "poll_interval_s run_for_s",
        "text or bool or null": "key",
        "list of run": "runs",
    },
    "run": {
        "text": "name ca_file",
        "list of text": "servers",
        "text or bool or null": "key",
        "map of text or bool": "env",
    },
    "server": {
        "text": "name role url_written",
        "number": "port",
        "list of route": "routes",
        "tls or null": "tls",
    },
    "tls": {"text": "cert cn"},
    "route": {
        "text": "method path body body_file encode",
        "number": "status delay_s chunk_bytes",
        "map of text": "headers",
        "when": "when",
        "list of number": "polls",
        "bool": "hang chunked",
        "drip": "drip",
        "effect": "effect",
    },
    "when": {"text": "authorization authorization_is authorization_is_not"},
    "drip": {"number": "chunks over_s"},
    "effect": {"number or null": "applies_after_s"},
    "request rule": {
        "text": "to",
        "number": "count per_poll retries_per_poll open_max",
        "map of text": "never_header",
    },
    "drain plan": {"list of text": "worker_ids"},
    "console settings": {"number": "poll_interval_s timeout_s"},
    "call": {
        "text": "fn in url key same_node_as shown_as",
        "bool": "warn basic_auth failed_worker refused",
        "text or null": "metrics_url rank",
        "list of mention": "mentions",
    },
    "config input": {"text": "file settings", "list of step": "setup steps", "list of try": "tries"},
    "try": {"list of edit": "edits", "text": "why"},
    "step": {
        "number": "at",
        "text": "do path from to mode how",
        "bool": "keep_mtime",
        "list of edit": "edits",
    },
    "edit": {"text": "op key value_toml", "list of text": "path", "any": "value"},
    "config expect": {
        "bool": (
            "loads written_only_after_confirm file_unchanged file_never_empty "
            "starts_with_original_bytes valid_toml runtime_change_sent defaults_ever_active "
            "error_shown_until_fixed no_crash"
        ),
        "text": "edit save confirm file_equals reload",
        "list of mention": "edit_mentions error_mentions",
        "conflict": "shown",
        "list of try result": "tries",
        "number": "changed_lines lf_only_lines bom_count reloads seen_within_s error_shown_polls_max",
        "map of any": "parsed active",
        "list of text": (
            "contains lines_kept headers_in_order leftover_files offers secret_never_in_output rows by_hand"
        ),
        "map of file expect": "files",
        "map of active": "active_at active_during",
        "map of notice": "notice_at",
        "list of finding": "findings",
    },
    "conflict": {"list of text": "other_changes", "any": "base theirs mine"},
    "try result": {"text": "result", "list of mention": "hint_mentions"},
    "file expect": {"text": "equals mode", "bool": "is_symlink"},
}

#: Table name to key to type.
TABLES: dict[str, dict[str, str]] = {
    table: {key: kind for kind, keys in by_type.items() for key in keys.split()}
    for table, by_type in _KEYS_BY_TYPE.items()
}

VALUE_KEYS = frozenset({"at_least", "between", "one_of", "equals", "not"})

#: What ``input`` and ``expect`` hold, by kind.
BODIES = {
    "metrics": ("metrics input", "checked expect"),
    "http": ("http input", "checked expect"),
    "config": ("config input", "config expect"),
}

#: Keys whose texts are words from a closed list.
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("case", "kind"): KINDS,
    ("finding", "kind"): FINDING_KINDS,
    ("scrape", "role"): ("prefill", "decode"),
    ("scrape", "role_source"): ("config", "router"),
    ("http input", "action"): ("poll", "request_check", "change_worker", "call"),
    ("server", "role"): ("prefill", "decode", "router", "router-metrics"),
    ("tls", "cert"): ("self_signed",),
    ("route", "encode"): ("gzip",),
    ("when", "authorization"): ("missing_or_wrong",),
    ("latency", "sparkline"): ("gap",),
    ("change result", "done_after"): ("read_back",),
    ("call", "fn"): ("chat_url", "worker_address"),
    ("step", "do"): (
        *("mkdir", "put", "symlink", "chmod", "umask", "disk_full", "no_events"),
        *("write", "truncate", "rename", "remove", "edit", "save", "confirm"),
    ),
    ("step", "how"): ("in_place", "rename", "backup"),
    ("edit", "op"): ("set", "set_path", "append", "remove"),
    ("config expect", "edit"): ("refused", "read_only"),
    ("config expect", "save"): ("written", "asks", "refused", "failed"),
    ("config expect", "confirm"): ("written",),
    ("config expect", "reload"): ("rejected",),
    ("try result", "result"): ("refused", "warned"),
}

#: Lists of words from a closed list.
LIST_WORDS: dict[tuple[str, str], tuple[str, ...]] = {("config expect", "offers"): ("diff_copy",)}


class BadCase(AssertionError):
    """The case itself is not written in the form."""


def load_case(folder: Path) -> dict[str, object]:
    """Read and check one ``case.json``.

    Raises:
        BadCase: it is not JSON, or not in the form; all reasons are in the message.
    """
    try:
        case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCase(f"{folder.name}: case.json cannot be read: {error}") from None
    wrong = list(validate(case))
    if wrong:
        raise BadCase(f"{folder.name}: " + "; ".join(wrong))
    assert isinstance(case, dict)
    return case


def validate(case: object) -> Iterator[str]:
    """What is wrong with the form of a case, one sentence each; nothing for a good one."""
    yield from _table("case", case, "case")
    if not isinstance(case, dict):
        return
    for key in ("id", "kind", "input", "expect"):
        if key not in case:
            yield f"case.{key} is missing"
    bodies = BODIES.get(str(case.get("kind")))
    if bodies is not None:
        for key, name in zip(("input", "expect"), bodies, strict=True):
            if key in case:
                yield from _table(name, case[key], key)


def _table(name: str, value: object, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must be an object ({name})"
        return
    known = TABLES[name]
    for key, inner in value.items():
        here = f"{where}.{key}"
        if key not in known:
            yield f"unknown key {here} (table {name})"
            continue
        yield from _typed(known[key], inner, here)
        words = WORDS.get((name, key))
        if words is not None and isinstance(inner, str) and inner not in words:
            yield f"{here}: unknown word {inner!r}"
        words = LIST_WORDS.get((name, key))
        if words is not None and isinstance(inner, list):
            yield from (f"{here}: unknown word {word!r}" for word in inner if word not in words)


def _typed(kind: str, value: object, where: str) -> Iterator[str]:
    if kind.startswith("list of "):
        if not isinstance(value, list):
            yield f"{where} must be a list"
            return
        for index, item in enumerate(value):
            yield from _typed(kind.removeprefix("list of "), item, f"{where}[{index}]")
    elif kind.startswith("map of "):
        if not isinstance(value, dict):
            yield f"{where} must be an object"
            return
        for key, item in value.items():
            yield from _typed(kind.removeprefix("map of "), item, f"{where}.{key}")
    elif " or " in kind:
        results = [list(_typed(part, value, where)) for part in kind.split(" or ")]
        if all(results):
            yield from min(results, key=len)
    else:
        yield from _single(kind, value, where)


def _single(kind: str, value: object, where: str) -> Iterator[str]:
    match kind:
        case "any" | "active":
            good = kind == "any" or isinstance(value, dict)
        case "text":
            good = isinstance(value, str)
        case "bool":
            good = isinstance(value, bool)
        case "null":
            good = value is None
        case "number":
            good = is_number(value)
        case "mention":
            texts = value if isinstance(value, list) else [value]
            good = bool(texts) and all(isinstance(text, str) for text in texts)
        case "notice":
            yield from _typed("list of mention", value, where)
            return
        case "value":
            yield from _value(value, where)
            return
        case _:
            yield from _table(kind, value, where)
            return
    if not good:
        yield f"{where} must be {kind}, not {value!r}"


def _value(value: object, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        if isinstance(value, list):
            yield f"{where} must be a value, not a list"
        return
    unknown = sorted(set(value) - VALUE_KEYS)
    yield from (f"unknown key {where}.{key} (a value)" for key in unknown)
    if not value:
        yield f"{where}: empty value"
    forms = [key for key in ("at_least", "between", "one_of", "equals") if key in value]
    if len(forms) > 1:
        yield f"{where}: {' and '.join(forms)} together"
    if "at_least" in value and not is_number(value["at_least"]):
        yield f"{where}.at_least must be a number"
    span = value.get("between", [0, 0])
    if not (isinstance(span, list) and len(span) == 2 and all(is_number(edge) for edge in span)):
        yield f"{where}.between must be two numbers"
    for key in ("one_of", "not"):
        if key in value and not isinstance(value[key], list):
            yield f"{where}.{key} must be a list"


def is_number(value: object) -> bool:
    """A JSON number (a bool is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
