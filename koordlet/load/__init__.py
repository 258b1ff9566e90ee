"""Bounded load generators for the demo, drills and benches: an online service, batch antagonists, a surge.

Each runs as a child process that joins its cgroup before it starts, waits for `go` and stops by itself. The
daemon never imports this room.
"""
