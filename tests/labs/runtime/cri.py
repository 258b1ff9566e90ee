"""CRI over gRPC, without generated code in the tree: messages come from the api.proto of the module k8s.io/cri-api.

`cri("RunPodSandbox", config={...})` sends that request and returns the response message. Fields are named as in the
proto; sub-messages and maps are dicts.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.labs import binaries

PROTO = "pkg/apis/runtime/v1/api.proto"
CALL_S = 60  # a pod takes 0.2 s, under emulation 10


class CriError(RuntimeError):
    """The runtime refused, in its own words; `code` is gRPC's, e.g. NOT_FOUND, or UNAVAILABLE when nobody answers."""

    def __init__(self, method: str, code: str, words: str) -> None:
        super().__init__(f"{method}: {code}: {words}")
        self.code = code


def missing() -> str | None:
    """Why there can be no client, or None."""
    for module, package in (("grpc", "grpcio"), ("grpc_tools", "grpcio-tools"), ("google.protobuf", "protobuf")):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"Python package {package} is not installed (pip install {package})"
    return None


class Cri:
    """A connection to one runtime's socket."""

    def __init__(self, socket: Path) -> None:
        import grpc

        self._error = grpc.RpcError
        # Each connection for itself: else a new one waits out the back-off of an older one to a dead runtime.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)
        self._methods: dict[str, Any] = {}

    def __call__(self, method: str, call_s: float = CALL_S, **fields: Any) -> Any:
        request, response, path = methods()[method]
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
        try:
            return self._methods[method](request(**fields), timeout=call_s)
        except self._error as e:
            raise CriError(method, e.code().name, e.details()) from None

    def close(self) -> None:
        self._channel.close()


@cache
def methods() -> dict[str, tuple[Any, Any, str]]:
    """By name: the request's class, the response's, and the path; runtime and image service."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString(_descriptors().read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = {}
    for service in ("runtime.v1.RuntimeService", "runtime.v1.ImageService"):
        for method in pool.FindServiceByName(service).methods:
            classes = [message_factory.GetMessageClass(t) for t in (method.input_type, method.output_type)]
            found[method.name] = (classes[0], classes[1], f"/{service}/{method.name}")
    return found


def _descriptors() -> Path:
    """The compiled proto, in the cache."""

    def make(target: Path) -> None:
        proto = binaries.source("cri-api") / PROTO
        words = [f"-I{proto.parent}", "--include_imports", f"--descriptor_set_out={target / 'cri.binpb'}", proto.name]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True)

    return binaries.made("cri-api", binaries.part("cri-api").version, make) / "cri.binpb"
