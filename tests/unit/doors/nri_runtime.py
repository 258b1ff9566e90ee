"""A runtime's side of NRI, as much of it as a test needs: it listens, asks and hangs up. Frames as Go peers send
them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from koordlet.wire import mux, ttrpc
from koordlet.wire import nri_pb2 as nri
from koordlet.wire.mux import MuxReader
from koordlet.wire.ttrpc import Call, Frame, FrameReader

LSR = {"koordinator.sh/qosClass": "LSR"}
PLUGIN = "nri.pkg.api.v1alpha1.Plugin"


class Runtime:
    """One plugin's connection, seen from the runtime. Every wait ends after 10 s."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(10.0)
        self._mux, self._streams = MuxReader(), {1: FrameReader(), 2: FrameReader()}
        self._frames: deque[tuple[int, Frame]] = deque()
        self._next = 1
        self.registered: nri.RegisterPluginRequest | None = None

    def frame(self) -> tuple[int, Frame]:
        """The next frame of either connection. EOFError when the plugin has hung up."""
        while not self._frames:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            for conn, piece in self._mux.feed(data):
                self._frames += ((conn, frame) for frame in self._streams[conn].feed(piece))
        return self._frames.popleft()

    def send(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """As Go does: at most 4096 bytes in the first frame, the rest in a second."""
        body = ttrpc.head(len(data), stream, kind) + data
        parts = [part for part in (body[:4096], body[4096:]) if part]
        head = [conn.to_bytes(4, "big") + len(part).to_bytes(4, "big") for part in parts]
        self.socket.sendall(b"".join(h + p for h, p in zip(head, parts, strict=True)))

    def accept(self) -> None:
        """Answer the registration."""
        conn, frame = self.frame()
        assert (conn, frame.stream, frame.kind) == (mux.RUNTIME_CONN, 1, ttrpc.REQUEST)
        self.registered = nri.RegisterPluginRequest.FromString(ttrpc.read_call(frame.data).payload)
        self.send(mux.RUNTIME_CONN, 1, ttrpc.RESPONSE, b"")

    def ask(self, method: str, message: Any, limit_s: float = 2.0) -> tuple[int, str, bytes]:
        """(code, text, payload) of the plugin's answer."""
        return self.ask_bytes(method, message.SerializeToString(), limit_s)

    def ask_bytes(self, method: str, payload: bytes, limit_s: float = 2.0) -> tuple[int, str, bytes]:
        stream, self._next = self._next, self._next + 2
        self.send(mux.PLUGIN_CONN, stream, ttrpc.REQUEST, ttrpc.write_call(Call(PLUGIN, method, payload, limit_s)))
        while True:
            conn, frame = self.frame()
            if conn == mux.PLUGIN_CONN and frame.stream == stream:
                assert frame.kind == ttrpc.RESPONSE
                return ttrpc.read_answer(frame.data)

    def configure(self, version: str = "v2.4.2", nri_version: str = "v0.12.0", runtime: str = "containerd") -> int:
        """The plugin's event mask."""
        told = nri.ConfigureRequest(
            runtime_name=runtime,
            runtime_version=version,
            registration_timeout=5000,
            request_timeout=2000,
            NRI_version=nri_version,
        )
        code, text, payload = self.ask("Configure", told)
        assert code == 0, text
        return nri.ConfigureResponse.FromString(payload).events

    def synchronize(self, pods: Iterable[Any] = (), containers: Iterable[Any] = (), *, more: bool = False) -> Any:
        code, text, payload = self.ask(
            "Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers, more=more)
        )
        assert code == 0, text
        return nri.SynchronizeResponse.FromString(payload)

    def handshake(self, pods: Iterable[Any] = (), containers: Iterable[Any] = ()) -> None:
        self.accept()
        self.configure()
        self.synchronize(pods, containers)

    def create(self, pod: Any, container: Any) -> Any:
        code, text, payload = self.ask("CreateContainer", nri.CreateContainerRequest(pod=pod, container=container))
        assert code == 0, text
        return nri.CreateContainerResponse.FromString(payload)

    def close(self) -> None:
        self.socket.close()


class Listener:
    """The runtime's NRI socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(str(path))
        self.socket.listen(16)
        self.socket.settimeout(10.0)
        self._plugins: list[Runtime] = []

    def plugin(self) -> Runtime:
        self._plugins.append(Runtime(self.socket.accept()[0]))
        return self._plugins[-1]

    def close(self) -> None:
        self.socket.close()
        for plugin in self._plugins:
            plugin.close()
        self.path.unlink(missing_ok=True)


def pod(name: str = "web-0", parent: str = "/kubepods/burstable/podu1", uid: str = "u1", **more: Any) -> Any:
    linux = nri.LinuxPodSandbox(cgroup_parent=parent)
    return nri.PodSandbox(id=f"sb-{uid}", name=name, uid=uid, namespace="shop", linux=linux, **more)


def container(name: str = "app", id: str = "c1", uid: str = "u1", parent: str = "/kubepods/burstable/podu1") -> Any:
    linux = nri.LinuxContainer(cgroups_path=f"{parent}/{id}")
    return nri.Container(id=id, pod_sandbox_id=f"sb-{uid}", name=name, linux=linux)
