"""`LazyWorkloads`: the rows of a pass as a mapping that nobody pays for who does not look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from koordlet.model.view import WorkloadUsage


class LazyWorkloads(Mapping[str, WorkloadUsage]):
    """Rows of one pass by cgroup path, read on first use: most ticks nobody looks. One row costs one row.

    To be used on the loop's thread before the next pass, as strategies do.
    """

    def __init__(
        self, read: Callable[[], Iterable[WorkloadUsage]], find: Callable[[str], WorkloadUsage | None] | None = None
    ) -> None:
        self._read, self._find = read, find
        self._rows: dict[str, WorkloadUsage] | None = None

    def _known(self) -> dict[str, WorkloadUsage]:
        if self._rows is None:
            self._rows = {row.cgroup: row for row in self._read()}
        return self._rows

    def __getitem__(self, cgroup: str) -> WorkloadUsage:
        if self._rows is not None or self._find is None:
            return self._known()[cgroup]
        row = self._find(cgroup)
        if row is None:
            raise KeyError(cgroup)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())
