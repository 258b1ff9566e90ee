"""koordlet: lends idle CPU and memory of a node to best-effort work, reversibly."""
