"""Certificates and tokens of one lab, made with openssl: an authority, what it issues, and account tokens.

Where there is a C compiler the certificates are a day old, as any cluster's are but in its first hour: a process whose
clock is set back believes in them still.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.labs.cluster import clock

AGE_S = 86_400


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Its certificate is `ca.crt` of the folder; server and clients of the lab trust only that."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._environment = dict(os.environ)
        if clock.missing() is None:
            yesterday = clock.Clock(folder)
            yesterday.step(-AGE_S)
            self._environment |= yesterday.environment
        self.own = Pair(folder / "ca.crt", folder / "ca.key")
        uses = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        subject = ["-subj", "/CN=koordlet-lab", *uses]
        self._openssl("req", "-x509", *_new_key(self.own.key), *subject, "-out", self.own.certificate)

    def issue(self, name: str, subject: str, names: str = "DNS:client") -> Pair:
        """`subject` as /O=group/CN=user; `names` as in openssl's subjectAltName. For servers and clients alike."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(
            f"subjectAltName={names}\nbasicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            "extendedKeyUsage=serverAuth,clientAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        self._openssl("req", "-new", *_new_key(pair.key), "-subj", subject, "-out", request)
        signer: list[str | Path] = [
            "-CA",
            self.own.certificate,
            "-CAkey",
            self.own.key,
            "-CAcreateserial",
            "-days",
            "30",
        ]
        self._openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", pair.certificate)
        return pair

    def signing_key(self, name: str) -> Path:
        """An RSA key, for the API server's account tokens and for `sign`."""
        key = self.folder / f"{name}.key"
        _openssl("genrsa", "-out", key, "2048")
        return key

    def _openssl(self, *words: str | Path) -> None:
        _openssl(*words, environment=self._environment)


def sign(claims: Mapping[str, Any], key: Path) -> str:
    """A JSON web token (RS256)."""
    head = {"alg": "RS256", "typ": "JWT"}
    text = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{_base64(_openssl('dgst', '-sha256', '-sign', key, given=text.encode()))}"


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(path)]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*words: str | Path, given: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
    done = subprocess.run(["openssl", *map(str, words)], input=given, capture_output=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout
