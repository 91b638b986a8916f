"""The restart plan in words, and running the configured command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pdtop.config.changes import config_changes
from pdtop.config.schema import Config
from pdtop.operations.model import Outcome, RestartPlan
from pdtop.operations.restarting import restart_plan, run_command
from pdtop.routers.flags import RESTART_LOSES

SMG = {"r": "smg"}


def config(**tables: Any) -> Config:
    return Config.model_validate(
        {"prefill": {"workers": ["p:1", "p:2"]}, "decode": {"workers": ["d:1", "d:2"]}, **tables}
    )


def plan(file: Config, engines: dict[str, str] = SMG, base: tuple[str, ...] = ()) -> RestartPlan:
    made = restart_plan(config_changes(config(), file), file, engines, base=base)
    assert made is not None
    return made


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_without_changes_there_is_no_plan() -> None:
    assert restart_plan((), config(), SMG) is None


def test_a_plan_says_what_changes_how_and_at_what_cost() -> None:
    file = config(
        decode={"workers": ["d:1", "d:2"], "policy": "round_robin"},
        server={"restart_command": ["systemctl", "restart", "smg"]},
    )
    made = plan(file, base=("smg", "launch", "--api-key", "s3cret", "--decode-policy", "random"))
    assert "decode.policy" in [change.key for change in made.changes]
    assert made.command[:2] == ("smg", "launch")
    at = made.command.index("--decode-policy")
    assert made.command[at + 1] == "round_robin"
    assert "s3cret" not in str(made)
    assert made.lost == RESTART_LOSES
    assert "streams end" in made.gap or "stream ends" in made.gap
    assert made.restart_command == ("systemctl", "restart", "smg")
    assert any("systemd unit" in words for words in made.warnings)


def test_the_trap_of_power_of_two_is_told_first() -> None:
    file = config(
        decode={"workers": ["d:1", "d:2"], "policy": "power_of_two", "worker": {"d:1": {"drain": True}}}
    )
    assert "refuses to start with power_of_two" in plan(file).warnings[0]


def test_without_a_command_and_with_several_routers() -> None:
    file = config(decode={"workers": ["d:1", "d:2"], "policy": "random"})
    warnings = plan(file, {"a": "smg", "b": "smg"}).warnings
    assert any("by hand" in words for words in warnings)
    assert any("one at a time" in words for words in warnings)


def test_a_router_that_reads_the_file_has_no_command_line() -> None:
    made = plan(config(server={"port": 30001}), {"r": "pdtop"})
    assert (made.command, made.lost) == ((), ())


async def test_a_command_that_ends_well() -> None:
    ran = await run_command(python("print('one'); print('two')"))
    assert (ran.outcome, ran.code, ran.output) == (Outcome.DONE, 0, ("one", "two"))


async def test_a_command_that_fails_shows_the_end_of_its_output_without_secrets_or_control_characters() -> (
    None
):
    code = (
        "import sys\n"
        "print('x' * 50_000)\n"
        "for n in range(100): print('line', n)\n"
        "print('key is s3cret and sk-abcdef123456')\n"
        "sys.stderr.write('\\x1b[31mbad\\n')\n"
        "sys.exit(3)"
    )
    ran = await run_command(python(code), secrets=["s3cret"])
    assert (ran.outcome, ran.code) == (Outcome.FAILED, 3)
    assert ran.words.endswith("ended with code 3")
    assert len(ran.output) == 20
    text = "\n".join(ran.output)
    assert "s3cret" not in text
    assert "abcdef123456" not in text
    assert "\x1b" not in text
    assert "bad" in text


async def test_no_shell_sees_it(tmp_path: Path) -> None:
    made = tmp_path / "made"
    ran = await run_command([*python("import sys; print(sys.argv[1])"), f"$HOME; touch {made}"])
    assert ran.output == (f"$HOME; touch {made}",)
    assert not made.exists()


@pytest.mark.parametrize("command", [[], ["/no/such/program"], ["bad\0word"]])
async def test_what_cannot_be_started(command: list[str]) -> None:
    ran = await run_command(command)
    assert (ran.outcome, ran.code) == (Outcome.FAILED, None)


async def test_killed_by_a_signal() -> None:
    ran = await run_command(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ran.words.endswith("by signal 9")


async def test_what_does_not_end_in_time_is_left_running(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += 100.0

    code = f"open({str(gate)!r}).read(); import pathlib; pathlib.Path({str(tmp_path / 'ended')!r}).touch()"
    ran = await run_command(python(code), timeout_s=250.0, clock=lambda: now, sleep=sleep)
    assert (ran.outcome, ran.code, ran.seconds) == (Outcome.TIMED_OUT, None, 300.0)
    assert "left running (pid " in ran.words
    pid = int(ran.words.rpartition("pid ")[2].rstrip(")"))
    with gate.open("w"):  # blocks until it reads
        os.kill(pid, 0)


async def test_what_it_leaves_running_keeps_nobody_waiting(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = f"open({str(gate)!r}).read()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print('started')"
    ran = await run_command(python(code))
    assert (ran.outcome, ran.output) == (Outcome.DONE, ("started",))
    with gate.open("w"):
        pass
