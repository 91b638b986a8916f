"""Tables for what the supervisor decides: engine, flags, keys, restarts, readiness, waits, what is shown."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pdtop.config.schema import Config
from pdtop.supervisor.backoff import Backoff
from pdtop.supervisor.engines import SGLANG_ROUTER, SMG, CannotRun, Engine, engine_of, interpreter
from pdtop.supervisor.keeping import Usable
from pdtop.supervisor.launching import (
    Launch,
    Place,
    argv,
    launch,
    listed_at_start,
    manifest,
    not_honoured,
    refusal,
    restart_reasons,
    warnings,
)
from pdtop.supervisor.manifest import Manifest
from pdtop.supervisor.output import Output, Tail
from pdtop.supervisor.starting import good_enough, wanted

P1, P2, D1, D2 = "10.0.0.1:30001", "10.0.0.2:30001", "10.0.1.1:30001", "10.0.1.2:30001"
PLACE = Place(4000, 4001)


def config(**tables: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {
        "prefill": {"workers": [P1, P2], "worker": {P1: {"bootstrap_port": 8998}}},
        "decode": {"workers": [D1, D2]},
    }
    return Config.model_validate({**base, **{k: {**base.get(k, {}), **v} for k, v in tables.items()}})


def made(config: Config, engine: Engine, *further: str, environ: dict[str, str] | None = None) -> Launch:
    return launch(config, engine, "python3", further, environ or {})


def flags(config: Config, engine: Engine, *further: str) -> list[str]:
    path = "/run/workers.json" if engine.reads_manifest else None
    return list(argv(config, made(config, engine, *further), PLACE, manifest=path, environ={}))


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, None), ("embedded", None), ("smg", SMG), ("sglang-router", SGLANG_ROUTER)],
)
def test_the_engine_that_the_file_names(name: str | None, expected: Engine | None) -> None:
    assert engine_of(config(server={"engine": name})) is expected


def test_somebody_elses_router_is_not_run() -> None:
    with pytest.raises(CannotRun, match="somebody else runs that router"):
        engine_of(config(server={"engine": "external"}))


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ({}, {}, sys.executable),
        ({}, {"PDTOP_ROUTERS_PYTHON": "/r/python"}, "/r/python"),
        ({"engine_python": "/f/python"}, {"PDTOP_ROUTERS_PYTHON": "/r/python"}, "/f/python"),
    ],
)
def test_the_interpreter(server: dict[str, str], environ: dict[str, str], expected: str) -> None:
    assert interpreter(config(server=server), SMG, environ, has=lambda *_: True) == expected


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({}, r"smg is not installed: pip install 'pdtop\[smg\]'; or name an interpreter that has it"),
        (
            {"engine_python": "/f/python"},
            r"smg is not installed for /f/python \(\[server\] engine_python\): /f/python -m pip install smg",
        ),
    ],
)
def test_a_missing_engine_is_said_with_its_remedy(server: dict[str, str], words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        interpreter(config(server=server), SMG, {}, has=lambda *_: False)


def test_an_interpreter_is_really_asked(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    missing = Engine("smg", "no_such_package_at_all.launch", 0.0, False)
    with pytest.raises(CannotRun):
        interpreter(config(server={"engine_python": str(link)}), missing, {})
    present = Engine("smg", "json.tool", 0.0, False)
    assert interpreter(config(server={"engine_python": str(link)}), present, {}) == str(link)


def test_the_command_line_of_sglang_router() -> None:
    given = config(
        server={"host": "0.0.0.0", "port": 30000, "request_timeout_secs": 60},  # noqa: S104
        prefill={"policy": "random"},
        health={"interval_secs": 3},
    )
    assert flags(given, SGLANG_ROUTER, "--log-level", "warn") == [
        *("--host", "127.0.0.1", "--port", "4000", "--pd-disaggregation"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "4001"),
        *("--shutdown-grace-period-secs", "61"),
        *("--prefill", f"http://{P1}", "8998", "--prefill", f"http://{P2}"),
        *("--decode", f"http://{D1}", "--decode", f"http://{D2}"),
        *("--log-level", "warn", "--request-timeout-secs", "60"),
        *("--prefill-policy", "random", "--decode-policy", "cache_aware"),
        *("--health-check-interval-secs", "3"),
    ]


def test_smg_gets_its_workers_from_a_file() -> None:
    words = flags(config(decode={"worker": {D2: {"drain": True}}}), SMG)
    assert not {"--prefill", "--decode"} & set(words)
    assert words[words.index("--discovery-file") + 1] == "/run/workers.json"
    assert "--no-remove-unhealthy-workers" in words
    assert manifest(config(decode={"worker": {D2: {"drain": True}}}), {}) == {
        "version": 1,
        "workers": [
            {"url": f"http://{P1}", "worker_type": "prefill", "bootstrap_port": 8998},
            {"url": f"http://{P2}", "worker_type": "prefill"},
            {"url": f"http://{D1}", "worker_type": "decode"},
        ],
    }


def test_a_worker_with_another_key_is_left_to_the_api() -> None:
    given = config(decode={"worker": {D2: {"api_key_env": "OWN"}}})
    for environ, keys in (
        ({}, {P1, P2, D1, D2}),
        ({"OWN": "k", "PDTOP_API_KEY": "k"}, {P1, P2, D1, D2}),
        ({"OWN": "k", "PDTOP_API_KEY": "other"}, {P1, P2, D1}),
    ):
        assert {one.key for one in listed_at_start(given, environ)} == keys
        workers = manifest(given, environ)["workers"]
        assert isinstance(workers, list)
        assert {one["url"].removeprefix("http://") for one in workers} == keys


@pytest.mark.parametrize(
    ("policy", "drained", "listed"),
    [
        ("random", (), {D1, D2}),
        ("random", (D2,), {D1}),
        ("power_of_two", (D2,), {D1, D2}),
        ("power_of_two", (D1, D2), {D1, D2}),
    ],
)
def test_drained_workers_make_up_what_power_of_two_wants_to_start(
    policy: str, drained: tuple[str, ...], listed: set[str]
) -> None:
    given = config(decode={"policy": policy, "worker": {one: {"drain": True} for one in drained}})
    assert {one.key for one in listed_at_start(given, {}) if one.role == "decode"} == listed
    assert refusal(given, SGLANG_ROUTER, {}) is None


def test_what_an_engine_would_not_start_with() -> None:
    alone = config(decode={"workers": [D1], "policy": "power_of_two"})
    assert "fewer than 2 decode workers" in str(refusal(alone, SGLANG_ROUTER, {}))
    assert refusal(alone, SMG, {}) is None
    pairs = config(decode={"policy": "pair_aware"})
    for engine in (SMG, SGLANG_ROUTER):
        assert str(refusal(pairs, engine, {})).startswith(f"{engine.name} has no decode policy pair_aware")


@pytest.mark.parametrize("flag", ["--port", "--host=1.2.3.4", "--api-key", "--prefill", "--discovery-file"])
def test_what_the_file_says_is_not_given_twice(flag: str) -> None:
    with pytest.raises(CannotRun, match="is not to be given: pdtop makes it from"):
        made(config(), SMG, flag, "x")


KEYS = {"PDTOP_API_KEY": "data-key", "PDTOP_ADMIN_KEY": "admin-key"}


def test_keys_stand_apart_from_flags_and_are_never_shown() -> None:
    found = made(config(), SMG, environ=KEYS)
    assert found.keys == (
        *("--api-key", "data-key"),
        *("--control-plane-api-keys", "pdtop:pdtop:admin:admin-key"),
    )
    assert made(config(), SMG, environ={"PDTOP_ADMIN_KEY": "k", "PDTOP_API_KEY": "k"}).keys == (
        "--api-key",
        "k",
    )
    shown = " ".join(found.shown(("--port", "1", "--tenant-api-key", "t:data-key")))
    assert "admin-key" not in shown + repr(found)
    assert "data-key" not in shown + repr(found)
    assert "python3 -m smg.launch_router --port 1" in shown


@pytest.mark.parametrize(
    ("engine", "tables", "reasons"),
    [
        (SMG, {"decode": {"policy": "random"}}, ("decode.policy",)),
        (SGLANG_ROUTER, {"decode": {"policy": "random"}}, ("decode.policy",)),
        (SMG, {"prefill": {"cache_match_threshold": 0.5}}, ("prefill.cache_match_threshold",)),
        (SGLANG_ROUTER, {"prefill": {"cache_match_threshold": 0.5}}, ()),  # without effect there
        (SMG, {"health": {"interval_secs": 9}}, ()),  # live
        (SGLANG_ROUTER, {"health": {"interval_secs": 9}}, ("health.interval_secs",)),
        (SMG, {"decode": {"workers": [D1]}}, ()),
        (SGLANG_ROUTER, {"decode": {"workers": [D1]}}, ()),
        (SMG, {"decode": {"worker": {D1: {"drain": True, "weight": 2.0}}}}, ()),
        (SMG, {"server": {"port": 1234, "host": "127.0.0.1"}}, ()),  # held by pdtop
        (SMG, {"slo": {"ttft_p99_ms": 100.0}}, ()),
        (SMG, {"server": {"port": 1, "request_timeout_secs": 5.0}}, ("server.request_timeout_secs",)),
    ],
)
def test_what_needs_a_restart(engine: Engine, tables: dict[str, Any], reasons: tuple[str, ...]) -> None:
    before, after = config(), config(**tables)
    found = restart_reasons(made(before, engine), before, made(after, engine), after)
    assert tuple(words.partition(":")[0] for words in found) == reasons


def test_another_engine_or_key_needs_a_restart() -> None:
    before, after = config(server={"engine": "smg"}), config(server={"engine": "sglang-router"})
    found = restart_reasons(made(before, SMG), before, made(after, SGLANG_ROUTER), after)
    assert found == ('server.engine: "smg" → "sglang-router"',)
    keyed = made(before, SMG, environ=KEYS)
    assert restart_reasons(made(before, SMG), before, keyed, before) == ("another key",)


def test_what_is_not_honoured_is_listed_once() -> None:
    given = config(
        prefill={"cache_aware_threshold": 0.5, "load_balance_threshold": 0.8},
        decode={"worker": {D1: {"weight": 0.5}, D2: {"drain": True}}},
    )
    for engine in (SMG, SGLANG_ROUTER):
        found = not_honoured(given, engine)
        starts = [words.partition(":")[0] for words in found]
        assert sum(one.startswith("[prefill] load_balance_threshold") for one in starts) == 1
        assert any("weights are left out" in words for words in found)
        assert not any(words.startswith("left out because they are drained") for words in found)
    nobody = config(decode={"worker": {D1: {"drain": True}, D2: {"drain": True}}})
    assert "[decode] every worker is drained: requests are refused" in not_honoured(nobody, SMG)


def test_warnings_at_the_start() -> None:
    everywhere = config(server={"host": "0.0.0.0"})  # noqa: S104
    assert "no key is set: whoever reaches 0.0.0.0:30000" in warnings(everywhere, {}, ())[0]
    assert warnings(everywhere, KEYS, ()) == ()
    assert warnings(config(server={"host": "127.0.0.1"}), {}, ()) == ()
    (words,) = warnings(everywhere, KEYS, ("--tenant-api-key", "t:k"))
    assert words == "every user of this machine sees the command line (ps), and so --tenant-api-key"


@pytest.mark.parametrize(
    ("usable", "before", "waited", "expected"),
    [
        (None, None, 0.0, False),
        (None, None, 5.0, True),  # it says itself what is missing
        (Usable(2, 2), None, 0.0, True),
        (Usable(1, 1), None, 1.9, False),
        (Usable(1, 1), None, 2.0, True),
        (Usable(2, 0), None, 4.9, False),
        (Usable(2, 1), Usable(2, 1), 0.0, True),
        (Usable(1, 2), Usable(2, 2), 14.0, False),
        (Usable(2, 2), Usable(9, 9), 0.0, True),  # the file wants no more
        (None, Usable(2, 2), 14.0, False),
        (Usable(), Usable(), 0.0, True),
    ],
)
def test_when_requests_may_go_to_a_new_run(
    usable: Usable | None, before: Usable | None, waited: float, expected: bool
) -> None:
    assert good_enough(usable, Usable(2, 2), before, waited) is expected


def test_drained_workers_are_not_waited_for() -> None:
    assert wanted(config(decode={"worker": {D2: {"drain": True}}})) == Usable(2, 1)


def test_waits_grow_and_are_forgotten_after_a_good_run() -> None:
    backoff = Backoff(lambda: 0.5, first_s=1.0, longest_s=5.0, calm_s=60.0)
    assert [backoff.failed(1.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.failed(60.0) == 1.0
    assert Backoff(lambda: 0.0).failed() < Backoff(lambda: 1.0).failed()


def test_the_list_of_workers_is_replaced_as_a_whole(tmp_path: Path) -> None:
    made = Manifest(tmp_path)
    assert made.write({"version": 1, "workers": []})
    inode = made.path.stat().st_ino
    assert not made.write({"version": 1, "workers": []})
    assert made.write({"version": 1, "workers": [{"url": "http://x:1"}]})
    assert made.path.stat().st_ino != inode
    assert json.loads(made.path.read_text())["workers"] == [{"url": "http://x:1"}]
    assert [one.name for one in tmp_path.iterdir()] == ["workers.json"]


def test_lines_are_harmless_and_without_keys() -> None:
    stream = io.StringIO()
    output = Output(stream, ["my-key"], clock=lambda: 0.0)
    assert output.passed_on("smg", "\x1b[32m INFO\x1b[0m key my-key\x07\x1b]0;x\x07") == (
        " INFO key ••••••\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}]0;x\N{REPLACEMENT CHARACTER}"
    )
    output.say("started")
    output.close()
    first, second = stream.getvalue().splitlines()
    assert first.startswith("smg |  INFO key ••••••")
    assert second.endswith(" pdtop | started")


class Stuck(io.StringIO):
    """A terminal that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_nobody_waits_for_a_terminal_that_stands_still() -> None:
    stream = Stuck()
    output = Output(stream, waiting=3)
    for number in range(20):
        output.passed_on("smg", f"line {number}")
    stream.go.set()
    output.close(5.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "smg | line 0"
    assert len(lines) < 20
    assert "line 19" not in stream.getvalue()


def test_the_line_that_says_why() -> None:
    tail = Tail()
    for line in ("Error: port is taken", "", "2026-11-29 WARN no tokenizer: request error", "  at main"):
        tail.add(line)
    assert (tail.error, tail.last) == ("Error: port is taken", "  at main")
    assert (Tail().error, Tail().last) == ("", "")
