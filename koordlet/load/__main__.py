"""The child's side of child.py: `python -m koordlet.load KIND JSON`, then one start moment per line of stdin."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any, Final

from koordlet.load.batch import BatchLoad, Surge, run_batch, run_surge
from koordlet.load.child import READY
from koordlet.load.errors import LoadError
from koordlet.load.online import OnlineLoad, run_online

_KINDS: Final[dict[str, type[OnlineLoad] | type[BatchLoad] | type[Surge]]] = {
    kind.__name__: kind for kind in (OnlineLoad, BatchLoad, Surge)
}


def main(argv: list[str]) -> int:
    """Serve runs until stdin ends; each line of stdin is answered by one line of JSON."""
    if len(argv) != 2 or argv[0] not in _KINDS:
        print(f"usage: python -m koordlet.load {'|'.join(_KINDS)} JSON", file=sys.stderr)
        return 2
    load = _KINDS[argv[0]](**json.loads(argv[1]))
    _say(READY)
    for line in sys.stdin:
        _say(json.dumps(_run(load, int(line))))
    return 0


def _run(load: OnlineLoad | BatchLoad | Surge, start_ns: int) -> dict[str, Any]:
    try:
        if isinstance(load, OnlineLoad):
            return asdict(run_online(load, start_ns))
        if isinstance(load, BatchLoad):
            return asdict(run_batch(load, start_ns))
        run_surge(load, start_ns)
    except LoadError as error:
        return {"error": str(error)}
    return {}


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
