"""A restarted router is told from one that goes on."""

from __future__ import annotations

from pdtop.cluster.model import Role
from pdtop.cluster.readings import ListedWorker
from pdtop.metrics.router_page import RouterNumbers
from pdtop.operations.router_mark import RouterMark, Seen, see_list, see_page
from tests.cluster.story import Pages


def listed(**ids: str) -> list[ListedWorker]:
    return [ListedWorker(worker_id, f"http://{name}:1", Role.DECODE) for name, worker_id in ids.items()]


def numbers(requests: float | None, other: str = "") -> RouterNumbers:
    text = "# TYPE smg_worker_cb_state gauge\n" + 'smg_worker_cb_state{worker="http://a:1"} 0\n' + other
    if requests is not None:
        text += "# TYPE smg_router_requests_total counter\n"
        text += f'smg_router_requests_total{{endpoint="chat"}} {requests}\n'
    made = Pages().router(0.0, text).numbers
    assert made is not None
    return made


def test_new_ids_of_all_known_workers_are_a_restart_told_once() -> None:
    mark = see_list(RouterMark(), listed(a="1", b="2")).mark
    mark = see_page(mark, numbers(900.0)).mark
    assert see_list(mark, listed(a="1", b="2")).restarted == ""
    assert see_list(mark, listed(a="1", b="9", c="3")).restarted == ""  # b was added again
    assert see_list(mark, listed(c="3")).restarted == ""
    seen = see_list(mark, listed(b="8", c="9"))
    assert seen.restarted == "its workers have new ids"
    assert see_list(seen.mark, listed(b="8", c="9")).restarted == ""
    assert see_page(seen.mark, numbers(3.0)) == Seen(RouterMark({"http://b:1": "8", "http://c:1": "9"}, 3.0))


def test_fallen_counters_are_a_restart_told_once() -> None:
    mark = see_page(see_list(RouterMark(), listed(a="1")).mark, numbers(900.0)).mark
    assert see_page(mark, numbers(901.0)).restarted == ""
    seen = see_page(mark, numbers(2.0))
    assert seen.restarted == "its counters began again"
    assert see_list(seen.mark, listed(a="7")).restarted == ""


def test_a_router_begins_with_an_empty_list_and_an_empty_page() -> None:
    mark = see_list(RouterMark(), listed(a="1", b="2")).mark
    empty = see_list(mark, [])
    assert empty == Seen(mark)
    assert see_list(empty.mark, listed(a="5")).restarted
    counted = see_page(RouterMark(), numbers(900.0)).mark
    assert see_page(counted, numbers(None)).restarted == "its counters began again"


def test_a_page_that_ended_early_proves_nothing() -> None:
    counted = see_page(RouterMark(), numbers(900.0)).mark
    assert see_page(counted, numbers(None, "broken {\n")) == Seen(counted)


def test_ids_that_pdtop_made_new_itself_prove_nothing() -> None:
    mark = see_list(RouterMark(), listed(a="1")).mark
    assert see_list(mark, listed(a="2"), readded=frozenset({"http://a:1"})).restarted == ""
    assert see_list(mark, listed(a="2")).restarted


def test_lists_without_ids_prove_nothing() -> None:
    mark = see_list(RouterMark(), listed(a="", b="")).mark
    assert see_list(mark, listed(a="", b="")).restarted == ""
