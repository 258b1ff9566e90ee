"""Coverage floors by room: fails when a room's line-and-branch coverage falls below its floor.

Reads coverage.json as `coverage json` writes it. Rooms of pure judgement have the highest floors; rooms whose
work is sockets and screens are judged by their own tests.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

FLOORS = {"model": 95, "decide": 95, "act": 90, "kernel": 90, "config": 90, "sources": 85, "sense": 85, "store": 90}


def main() -> int:
    files = json.loads(Path("coverage.json").read_text())["files"]
    covered: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for name, entry in files.items():
        parts = Path(name).parts
        if len(parts) > 2 and parts[0] == "koordlet":
            summary = entry["summary"]
            covered[parts[1]] += summary["covered_lines"] + summary["covered_branches"]
            total[parts[1]] += summary["num_statements"] + summary["num_branches"]
    low = False
    for room in sorted(total):
        percent = 100 * covered[room] / max(total[room], 1)
        floor = FLOORS.get(room, 0)
        low |= percent < floor
        print(f"{room:10} {percent:5.1f} %  (floor {floor} %){'  TOO LOW' if percent < floor else ''}")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
