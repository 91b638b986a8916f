"""The command line as scripts see it: what stands on stdout, what on stderr, and the exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from pdtop import __version__
from pdtop.cli.app import arguments
from pdtop.cli.changes import VERBS
from pdtop.cluster.export import schema
from tests.cluster.story import page
from tests.cluster.stub_server import Reply, Request, StubServer

PATIENCE_S = 30.0
PAGE = page(
    'engine_type="decode",model_name="m"',
    num_running_reqs=5,
    num_queue_reqs=0,
    num_decode_prealloc_queue_reqs=0,
    num_decode_transfer_queue_reqs=1,
)


def well(request: Request) -> Reply:
    if request.route == "/metrics":
        return Reply(200, {"content-type": "text/plain"}, PAGE.encode())
    return Reply(200) if request.route == "/ready" else Reply(404)


def locked(request: Request) -> Reply:
    return Reply(401) if request.route == "/metrics" else well(request)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of ``pdtop`` ended."""

    code: int
    out: str
    err: str


@pytest.fixture
async def stub() -> AsyncIterator[StubServer]:
    async with StubServer(well) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder to run in, with a home of its own: no config.toml of this machine is found."""
    return tmp_path


async def started(place: Path, *words: str, **more: str) -> asyncio.subprocess.Process:
    environ = {
        **os.environ,
        "HOME": str(place),
        "XDG_CONFIG_HOME": str(place / "config"),
        "XDG_STATE_HOME": str(place / "state"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "NO_COLOR": "1",
        "COLUMNS": "160",
        **more,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pdtop",
        *words,
        cwd=place,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> Ended:
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err
    return Ended(process.returncode, out.decode(), err.decode())


async def run(place: Path, *words: str, **more: str) -> Ended:
    return await ended(await started(place, *words, **more))


def once(stub: StubServer, *more: str) -> tuple[str, ...]:
    return ("snapshot", "--window", "0", "--decode", f"127.0.0.1:{stub.port}", *more)


async def test_snapshot_as_json_follows_its_schema(stub: StubServer, place: Path) -> None:
    done = await run(place, *once(stub, "--json"))
    assert done.code == 0
    assert done.err == ""
    taken = json.loads(done.out)
    jsonschema.validate(taken, schema())
    only = taken["workers"][0]
    assert (only["worker"], only["role"], only["state"], only["running"]) == (
        f"127.0.0.1:{stub.port}",
        "decode",
        "ok",
        5,
    )
    assert only["backlog"]["total"] == 1
    assert only["ttft_ms"] is None
    assert taken["pools"]["decode"]["usable"] == 1


async def test_snapshot_with_a_window_has_rates_and_tells_on_stderr_that_it_waits(
    stub: StubServer, place: Path
) -> None:
    done = await run(place, "snapshot", "--window", "0.5s", "--csv", "--decode", f"127.0.0.1:{stub.port}")
    assert done.code == 0
    assert "reading again in 0.5 s" in done.err
    assert len(done.out.splitlines()) == 2
    assert f"127.0.0.1:{stub.port}" in done.out


async def test_snapshot_as_a_table(stub: StubServer, place: Path) -> None:
    done = await run(place, *once(stub))
    assert done.code == 0
    assert f"127.0.0.1:{stub.port}" in done.out
    assert "\x1b" not in done.out


async def test_nothing_reachable_is_told_by_the_exit_code(place: Path) -> None:
    done = await run(place, "snapshot", "--json", "--window", "0", "--decode", "127.0.0.1:9")
    assert done.code == 3
    assert json.loads(done.out)["workers"][0]["state"] == "refused"


@pytest.mark.parametrize(("level", "code"), [("critical", 0), ("warning", 1), ("info", 1)])
async def test_findings_fail_a_script_that_asks_for_it(place: Path, level: str, code: int) -> None:
    async with StubServer(well) as good, StubServer(locked) as bad:
        workers = ("--decode", f"127.0.0.1:{good.port}", f"127.0.0.1:{bad.port}")
        done = await run(place, "snapshot", "--json", "--window", "0", "--fail-on", level, *workers)
    assert done.code == code
    assert {finding["kind"] for finding in json.loads(done.out)["findings"]} == {"auth"}


async def test_without_fail_on_findings_are_no_failure(place: Path) -> None:
    async with StubServer(well) as good, StubServer(locked) as bad:
        workers = ("--decode", f"127.0.0.1:{good.port}", f"127.0.0.1:{bad.port}")
        assert (await run(place, "snapshot", "--json", "--window", "0", *workers)).code == 0


async def test_watch_prints_one_object_a_line(stub: StubServer, place: Path) -> None:
    done = await run(place, "watch", "--count", "2", "--decode", f"127.0.0.1:{stub.port}")
    assert done.code == 0
    numbers = [json.loads(line)["number"] for line in done.out.splitlines()]
    assert len(numbers) == 2
    assert numbers[0] < numbers[1]


async def test_a_reader_that_goes_away_ends_it_quietly(stub: StubServer, place: Path) -> None:
    process = await started(place, "watch", "--decode", f"127.0.0.1:{stub.port}")
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]  # the pipe itself, as head does
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        err = await process.stderr.read()
        await process.wait()
    assert err == b""
    assert process.returncode == 141


@pytest.mark.parametrize("words", [("watch",), ("snapshot", "--window", "60s")])
async def test_ctrl_c_ends_it_quietly(stub: StubServer, place: Path, words: tuple[str, ...]) -> None:
    process = await started(place, *words, "--decode", f"127.0.0.1:{stub.port}")
    async with asyncio.timeout(PATIENCE_S):
        assert process.stdout is not None
        assert process.stderr is not None
        await (process.stdout if words == ("watch",) else process.stderr).readline()
    process.send_signal(signal.SIGINT)
    done = await ended(process)
    assert (done.code, done.err) == (130, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("snapshot", "--json", "--csv", "x:1"), "exclude each other"),
        (("snapshot", "--window", "soon", "x:1"), "is not a time"),
        (("snapshot", "http://router:notaport"), "port"),
        (("snapshot",), "nothing to watch"),
        (("snapshot", "gone.toml"), "missing"),
        (("snapshot", "--ca-file", "gone.pem", "x:1"), "does not exist"),
        (("demo", "--headless", "--scenario", "boring"), "there is no scenario"),
        (("config", "check", "gone.toml"), "missing"),
    ],
)
async def test_wrong_words_are_one_clear_message(place: Path, words: tuple[str, ...], said: str) -> None:
    done = await run(place, *words)
    assert done.code == 2
    assert said in done.out + done.err


async def test_a_broken_config_is_told_with_every_line(place: Path) -> None:
    (place / "config.toml").write_text('[prefill]\nworkers = 3\n[health]\ninterval_secs = "soon"\n')
    done = await run(place, "snapshot")
    assert done.code == 2
    assert "line 2" in done.err
    assert "line 4" in done.err


@pytest.mark.parametrize("words", [(), ("http://127.0.0.1:9",), ("--decode", "127.0.0.1:9"), ("demo",)])
async def test_without_a_terminal_the_console_points_to_what_works_there(
    place: Path, words: tuple[str, ...]
) -> None:
    (place / "config.toml").write_text("[decode]\nworkers = []\n")
    done = await run(place, *words)
    assert done.code == 2
    assert "snapshot" in done.err or "--headless" in done.err


async def test_a_dumb_terminal_is_refused(place: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pdtop", "--decode", "127.0.0.1:9"),
            env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=theirs,
            stdout=theirs,
            stderr=asyncio.subprocess.PIPE,
        )
        done = await ended_on_terminal(process)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.code == 2
    assert "TERM is dumb" in done.err
    assert "pdtop snapshot" in done.err


async def ended_on_terminal(process: asyncio.subprocess.Process) -> Ended:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        err = await process.stderr.read()
        code = await process.wait()
    return Ended(code, "", err.decode())


async def test_info_says_that_a_key_is_set_but_not_which(place: Path) -> None:
    done = await run(place, "info", PDTOP_API_KEY="sk-made-up-0123456789")
    assert done.code == 0
    assert __version__ in done.out
    assert "sk-made-up" not in done.out + done.err


async def test_info_says_where_the_log_is(place: Path) -> None:
    done = await run(place, "info", PDTOP_STATE_DIR=str(place / "elsewhere"))
    assert str(place / "elsewhere") in done.out


async def test_version(place: Path) -> None:
    assert (await run(place, "--version")).out == f"pdtop {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("snapshot",),
        ("watch",),
        ("info",),
        ("demo",),
        ("router",),
        ("config",),
        ("config", "init"),
        ("drain",),
    ],
)
async def test_help_of_every_verb(place: Path, words: tuple[str, ...]) -> None:
    done = await run(place, *words, "--help")
    assert done.code == 0
    assert "--help" in done.out


async def test_help_teaches_with_examples(place: Path) -> None:
    done = await run(place, "--help")
    for words in ("pdtop demo", "pdtop config.toml", "pdtop http://router:30000", "--prefill", "snapshot"):
        assert words in done.out


def test_every_verb_that_changes_something_teaches_with_an_example() -> None:
    for name, verb in VERBS.items():
        assert f"pdtop {name} " in (verb.__doc__ or "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_never_taken_for_a_target(verb: str) -> None:
    assert arguments([verb, "x"]) == [verb, "x"]


@pytest.mark.parametrize("text", ["[decode]\nworkers = []\n", "[decode\nbroken"])
async def test_the_log_of_a_cluster_where_nothing_was_changed_is_empty(place: Path, text: str) -> None:
    """That of a cluster whose file is broken can be read all the same."""
    (place / "config.toml").write_text(text)
    done = await run(place, "log")
    assert (done.code, done.out, done.err) == (0, "", "pdtop: nothing was changed from here yet\n")


@pytest.mark.parametrize("words", [("drain", "D2"), ("undo",), ("log",), ("apply",)])
async def test_a_verb_without_a_cluster_says_how_to_name_it(place: Path, words: tuple[str, ...]) -> None:
    done = await run(place, *words)
    assert done.code == 2
    assert "which cluster?" in done.err
    assert "-c FILE" in done.err


async def test_config_from_nothing(place: Path) -> None:
    assert (await run(place, "config", "init")).code == 0
    assert (await run(place, "config", "init")).code == 2  # an existing file is left alone
    check = await run(place, "config", "check")
    assert (check.code, "fine" in check.out) == (0, True)
    assert "[prefill]" in (await run(place, "config", "show")).out
    described = json.loads((await run(place, "config", "schema")).out)
    jsonschema.Draft202012Validator.check_schema(described)


async def test_the_printed_verbs_start_without_the_screen_library(stub: StubServer, place: Path) -> None:
    process = await started(place, *once(stub, "--json"), PYTHONPROFILEIMPORTTIME="1")
    async with asyncio.timeout(PATIENCE_S):
        _, err = await process.communicate()
    imported = {line.rpartition("|")[2].strip() for line in err.decode().splitlines()}
    assert process.returncode == 0
    assert "pdtop.cluster.monitor" in imported
    changing = ("pdtop.operations.operator", "pdtop.cli.verbs")
    for heavy in ("textual", "httpx", "aiohttp", "tomlkit", "rich.markdown", "watchfiles", *changing):
        assert heavy not in imported


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ([], ["console"]),
        (["http://r:1"], ["console", "http://r:1"]),
        (["snapshot", "x"], ["snapshot", "x"]),
        (["--help"], ["--help"]),
        (
            ["--prefill", "a", "b", "--decode", "c", "--no-mouse"],
            ["console", "--prefill", "a", "--prefill", "b", "--decode", "c", "--no-mouse"],
        ),
        (["r", "--decode", "c", "d"], ["console", "r", "--decode", "c", "--decode", "d"]),
        (["demo", "--prefill", "2", "--decode", "3"], ["demo", "--prefill", "2", "--decode", "3"]),
    ],
)
def test_words_as_they_are_understood(given: list[str], understood: list[str]) -> None:
    assert arguments(given) == understood
