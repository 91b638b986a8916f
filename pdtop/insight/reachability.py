"""Whether a worker counts as there, calmly: some failed reads in a row to go down, some good ones to return.

The same damping as in the routers' own probes (three failures, two successes), so that one slow worker that
misses every second read does not go up and down all the time. That it misses some is told apart: flaky.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

FAIL_AFTER = 3
RECOVER_AFTER = 2
#: Reads that are remembered to tell a flaky worker by.
REMEMBERED = 20
#: So many separate failures among them make it flaky: a restart is one, a second restart another.
FLAKY_FALLS = 3


class Reachability:
    """Feed it the outcome of every read in order. The first one decides alone: there is no past to weigh.

    ``fail_after`` and ``recover_after`` may change at any time.
    """

    __slots__ = ("_answered", "_recent", "_row", "changes", "fail_after", "recover_after", "up")

    def __init__(self, fail_after: int = FAIL_AFTER, recover_after: int = RECOVER_AFTER) -> None:
        self.fail_after = fail_after
        self.recover_after = recover_after
        self.up: bool | None = None  # None: never asked
        self.changes = 0  # from up to down or back
        self._answered = False  # ever
        self._row = 0  # outcomes in a row that speak against ``up``
        self._recent: deque[bool] = deque(maxlen=REMEMBERED)

    def note(self, answered: bool) -> None:
        """One read."""
        first, self._answered = answered and not self._answered, self._answered or answered
        self._recent.append(answered)
        if self.up is None or first:  # a first answer is no return
            self.changes += self.up is not None
            self.up, self._row = answered, 0
            return
        self._row = 0 if answered is self.up else self._row + 1
        if self._row >= (self.fail_after if self.up else self.recover_after):
            self.up, self._row = answered, 0
            self.changes += 1

    @property
    def failed(self) -> int:
        """Failed reads among the remembered ones."""
        return self.seen - sum(self._recent)

    @property
    def seen(self) -> int:
        """Reads that are remembered."""
        return len(self._recent)

    @property
    def flaky(self) -> bool:
        """Whether it failed several times apart, with good reads between."""
        falls = sum(before and not after for before, after in pairwise(self._recent))
        return falls >= FLAKY_FALLS
