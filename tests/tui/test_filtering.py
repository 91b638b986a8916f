"""What can be typed after ``/``, whom it lets through, and what it answers to nonsense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtop.cluster.model import Backlog, State, Worker
from pdtop.tui.filtering import FilterError, parse
from pdtop.tui.pool_view import findings_by_worker
from tests.tui import fakes

MOMENT = fakes.moment()
ALL = tuple(w.key.split(":")[0].removeprefix("10.0.") for w in MOMENT.workers)
P1, P2, P3, D1, D2, D3, D4 = ALL


def kept(source: str, workers: tuple[Worker, ...] = MOMENT.workers) -> tuple[str, ...]:
    found = findings_by_worker(MOMENT)
    wanted = parse(source)
    return tuple(
        w.key.split(":")[0].removeprefix("10.0.") for w in workers if wanted.matches(w, found.get(w.key, ()))
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ALL),
        ("   ", ALL),
        ("0.2.2", (D1, D2, D3, D4)),
        ("1.11:30001", (P1,)),
        ("!0.2.2", (P1, P2, P3)),
        ("name~21", (D1,)),
        ("role:d", (D1, D2, D3, D4)),
        ("role:prefill", (P1, P2, P3)),
        ("role:!d", (P1, P2, P3)),
        ("role!=d", (P1, P2, P3)),
        ("ROLE:D", (D1, D2, D3, D4)),
        ("state:ok", (P2, P3, D1, D3)),
        ("state:!ok", (P1, D2, D4)),
        ("state:stall", (D2,)),
        ("state:transfer_stalled", (D2,)),
        ("state~drain", (D4,)),
        ("usable:no", (D4,)),
        ("router:drain", (D4,)),
        ("wait>10", (P1, D2)),
        ("backlog>=12", (P1, D2)),
        ("wait=1", (P2, P3, D3, D4)),
        ("run<4", (P2, P3)),
        ("infl>1", (P1,)),
        ("kv>60", (P1, D2)),
        ("kv>60%", (P1, D2)),
        ("hit<20", (P2, P3)),
        ("share>50", (P1,)),
        ("tok>9k", (P1,)),
        ("ttft>800ms", (P1, D2)),
        ("ttft>0.8s", (P1, D2)),
        ("tpot>50", (D2,)),
        ("queue>1s", (P1,)),
        ("role:d wait>10", (D2,)),
        ("role:d !wait>10", (D1, D3, D4)),
        ("role:d state:!ok wait>10 kv>70 name~22", (D2,)),
        ('name~"2.22"', (D2,)),
        ("model~deepseek", ALL),
        ("version:0.5.23", ALL),
        ("age>1h", ()),
    ],
)
def test_who_is_let_through(source: str, expected: tuple[str, ...]) -> None:
    assert kept(source) == expected


@pytest.mark.parametrize("source", ["wait>0", "wait<1", "!wait>0", "wait!=5", "kv<50", "!kv<50", "ttft>1"])
def test_a_condition_on_an_unknown_number_is_not_met_and_neither_is_its_opposite(source: str) -> None:
    nothing = replace(MOMENT.workers[3], backlog=Backlog(None), kv_use=None, kv_use_worst=None, ttft=None)
    assert kept(source, (nothing,)) == ()


def test_a_dead_worker_is_found_as_down_and_by_its_state() -> None:
    dead = replace(MOMENT.workers[1], state=State.TIMEOUT, stale=True)
    for source in ("state:down", "state:timeout", "state:stale", "state:!ok"):
        assert kept(source, (dead,)) == (P2,)
    assert kept("state:ok", (dead,)) == ()


def test_names_may_hold_markup_and_addresses_may_hold_colons() -> None:
    odd = replace(MOMENT.workers[0], name="[/qwen] [red]x", key="[2001:db8::1]:30000")
    assert len(kept("[red]", (odd,))) == 1
    assert len(kept("[2001:db8::1]:30000", (odd,))) == 1
    assert len(kept('"[/qwen] [red]"', (odd,))) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("rol:d", "did you mean role?"),
        ("colour:red", "no field colour"),
        ("wait>many", "many is not a number"),
        ("wait>", "a value is missing"),
        ("role:", "a value is missing"),
        ("role:x", "role is one of p, prefill"),
        ("role>p", "role is a word"),
        ("kv~8", "kv is a number"),
        ("ttft>5h", "unit h does not fit"),
        ("!", "! needs something after it"),
        ('name~"2', 'a " has no partner'),
        ("usable:maybe", "usable is one of yes"),
    ],
)
def test_errors_say_which_term_and_why(source: str, words: str) -> None:
    with pytest.raises(FilterError, match=r".") as caught:
        parse(source)
    assert words in str(caught.value)


def test_only_a_filter_with_terms_counts_as_one() -> None:
    assert not parse("  ")
    assert parse("x")
    assert parse(" role:d ").text == "role:d"
