"""An OCI archive made locally: one layer with a static busybox. Nothing is ever pulled."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

PAUSE = "lab.local/pause:1"
BUSYBOX = "lab.local/busybox:1"
COMMANDS = ("sh", "sleep", "cat", "dd", "true", "false", "yes")
FOREVER_S = "2147483647"


def missing() -> str | None:
    """Why there is no image to be made, or None."""
    path = shutil.which("busybox")
    if path is None or b"ld-linux" in Path(path).read_bytes()[:4096]:
        return "no static busybox (apt-get install busybox-static)"
    return None


def write_archive(target: Path) -> None:
    """Both names are the same image; the pause image's process must stay up, so sleeping is the entrypoint."""
    path = shutil.which("busybox")
    assert path is not None
    binary = Path(path).read_bytes()
    layer = _tar({"bin/busybox": binary}, {f"bin/{c}": "busybox" for c in COMMANDS})
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    layer_at = blob("layer.v1.tar", layer)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", FOREVER_S], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_at["digest"]]},
    }
    config_at = blob("config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "config": config_at, "layers": [layer_at]}
    manifest_at = blob("manifest.v1+json", json.dumps(manifest).encode())
    names = [{**manifest_at, "annotations": {"io.containerd.image.name": name}} for name in (PAUSE, BUSYBOX)]
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": names}).encode(),
    }
    target.write_bytes(_tar(files | blobs, {}))


def _tar(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()
