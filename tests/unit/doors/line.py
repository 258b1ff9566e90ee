"""One NRI connection: the plugin's session at one end, a runtime at the other."""

from __future__ import annotations

import socket
import threading
from typing import Any

from koordlet.doors.nri_identity import Identity
from koordlet.doors.nri_session import Session
from tests.unit.doors.nri_runtime import Runtime
from tests.unit.doors.stand import Stand


class Line:
    """A session on its own thread and the runtime at the other end. `end` is why it ended."""

    def __init__(self, stand: Stand, **more: Any) -> None:
        ours, theirs = socket.socketpair()
        self.stand, self.runtime, self.end = stand, Runtime(theirs), ""
        self.session = Session(ours, Identity("koordlet_nri", "00"), stand.teller(), **more)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.end = self.session.run()

    def ended(self) -> str:
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        return self.end

    def close(self) -> None:
        self.runtime.close()
        self.session.close()
        self.ended()
