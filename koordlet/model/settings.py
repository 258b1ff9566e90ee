"""`PodSettings`: a pod's own wishes, from koordinator's labels and annotations, already validated. Pure.

One field per annotation, None when absent or malformed; `faults` names every malformed one, so that a consumer that
must not act on a guess can tell "absent" from "not readable". sources/settings.py reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSettings:
    """faults: (annotation key, what is wrong with its value)."""

    faults: tuple[tuple[str, str], ...] = ()

    def fault(self, key: str) -> str:
        """What is wrong with an annotation, "" when nothing is."""
        return next((text for name, text in self.faults if name == key), "")
