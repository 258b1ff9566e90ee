"""TLS and the bearer token of -addr, with real sockets and certificates."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from koordlet.doors.guard import GuardError, Tls, Token
from koordlet.doors.http import HttpDoor
from koordlet.doors.request import Reply


def page(query: Mapping[str, str], accept: str) -> Reply:
    return 200, "text/plain", b"x" * 200_000, {"Next-Page-Token": "t"}


PAGES = {"/metrics": page, "/healthz": page, "/readyz": page}


def issue(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, moved into place as cert-manager would."""
    made = folder / f"{name}.part", folder / f"{name}.key.part"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made[0]), "-keyout"]
    subprocess.run([*words, str(made[1])], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("pki")
    return issue(folder, "first"), issue(folder, "second")


@pytest.fixture
def files(pairs: tuple[tuple[Path, Path], tuple[Path, Path]], tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "tls.crt", tmp_path / "tls.key"
    for source, target in zip(pairs[0], found, strict=True):
        target.write_bytes(source.read_bytes())
    return found


@pytest.fixture
def doors() -> Iterator[list[HttpDoor]]:
    made: list[HttpDoor] = []
    yield made
    for door in made:
        door.close()


def get(
    door: HttpDoor, path: str, trusted: Path | None = None, token: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    assert door.port is not None
    if trusted is None:
        connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=10)
    else:
        context = ssl.create_default_context(cafile=str(trusted))
        connection = http.client.HTTPSConnection("127.0.0.1", door.port, timeout=10, context=context)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": token})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_tls_serves_whole_answers_and_more_headers(files: tuple[Path, Path], doors: list[HttpDoor]) -> None:
    door = HttpDoor("127.0.0.1:0", "", PAGES, tls=Tls(*map(str, files)))
    doors.append(door)
    door.start()
    status, body, headers = get(door, "/metrics", files[0])
    assert (status, len(body), headers["Next-Page-Token"]) == (200, 200_000, "t")


def test_a_replaced_certificate_is_used_and_a_broken_one_is_not(
    pairs: tuple[tuple[Path, Path], tuple[Path, Path]], files: tuple[Path, Path], doors: list[HttpDoor]
) -> None:
    door = HttpDoor("127.0.0.1:0", "", PAGES, tls=Tls(*map(str, files)))
    doors.append(door)
    door.start()
    get(door, "/healthz", pairs[0][0])
    for source, target in zip(pairs[1], files, strict=True):
        part = target.with_suffix(".new")
        part.write_bytes(source.read_bytes())
        os.replace(part, target)
    assert get(door, "/healthz", pairs[1][0])[0] == 200
    with pytest.raises(ssl.SSLError):
        get(door, "/healthz", pairs[0][0])
    files[0].write_text("garbage")
    assert get(door, "/healthz", pairs[1][0])[0] == 200


def test_strangers_without_tls_and_silent_ones_keep_nobody_out(files: tuple[Path, Path], doors: list[HttpDoor]) -> None:
    door = HttpDoor("127.0.0.1:0", "", PAGES, tls=Tls(*map(str, files)))
    doors.append(door)
    door.start()
    assert door.port is not None
    silent = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(20)]
    try:
        with pytest.raises((http.client.HTTPException, OSError)):
            get(door, "/healthz")
        assert get(door, "/healthz", files[0])[0] == 200
    finally:
        for stranger in silent:
            stranger.close()


@pytest.mark.parametrize("which", ["missing", "garbage", "other key"])
def test_a_certificate_that_cannot_be_used_names_the_flag(
    which: str, files: tuple[Path, Path], pairs: tuple[tuple[Path, Path], tuple[Path, Path]]
) -> None:
    certificate, key = files
    if which == "missing":
        certificate.unlink()
    elif which == "garbage":
        certificate.write_text("garbage")
    else:
        key = pairs[1][1]
    with pytest.raises(GuardError, match="-tls-cert-file="):
        Tls(str(certificate), str(key))


def test_the_token_is_asked_for_but_not_by_probes(tmp_path: Path, doors: list[HttpDoor]) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    door = HttpDoor("127.0.0.1:0", str(tmp_path / "k.sock"), PAGES, token=Token(str(file)))
    doors.append(door)
    door.start()
    status, _, headers = get(door, "/metrics")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="koordlet"')
    for wrong in ("Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer", "", "Bearer \u00e9"):
        assert get(door, "/metrics", token=wrong)[0] == 401
        assert get(door, "/nowhere", token=wrong)[0] == 401  # nor does it tell which pages there are
    assert get(door, "/metrics", token="Bearer s3cret")[0] == 200
    assert get(door, "/nowhere", token="Bearer s3cret")[0] == 404
    assert get(door, "/healthz")[0] == get(door, "/readyz")[0] == 200


def test_a_replaced_token_counts_at_once_and_a_missing_one_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    token = Token(str(file))
    assert token.admits("bearer old")
    part = tmp_path / "part"
    part.write_text("new")
    os.replace(part, file)
    assert not token.admits("Bearer old")
    assert token.admits("Bearer new")
    file.unlink()
    assert not token.admits("Bearer new")
    assert not token.admits("Bearer ")
    with pytest.raises(GuardError, match="-auth-token-file="):
        Token(str(file))
