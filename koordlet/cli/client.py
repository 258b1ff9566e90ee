"""Asks the running agent over its unix socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any, Final
from urllib.parse import urlencode

from koordlet.model.places import SOCKET_FILE

RUN_DIR: Final = "/run/koordlet"
DEFAULT_SOCKET: Final = f"{RUN_DIR}/{SOCKET_FILE}"
TIMEOUT_S: Final = 5.0
_ANSWER_MAX_BYTES: Final = 64 << 20


class AgentError(Exception):
    """The agent could not be asked; the text says what to do. gone: nobody listens there."""

    def __init__(self, text: str, gone: bool = False) -> None:
        super().__init__(text)
        self.gone = gone


def ask(socket_path: str, path: str, *, method: str = "GET", **query: str) -> tuple[int, Any]:
    """(HTTP status, decoded JSON, or text where it is none). Raises AgentError."""
    if query:
        path = f"{path}?{urlencode(query)}"
    connection = _UnixConnection(socket_path)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read(_ANSWER_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise AgentError(_no_agent(socket_path), gone=True) from error
    except PermissionError as error:
        raise AgentError(f"{socket_path}: no permission; try again with sudo") from error
    except TimeoutError as error:
        raise AgentError(f"{socket_path}: no answer within {TIMEOUT_S:g} s; the agent hangs, see its log") from error
    except (OSError, http.client.HTTPException) as error:
        raise AgentError(f"{socket_path}: {error}", gone=isinstance(error, ConnectionError)) from error
    finally:
        connection.close()
    text = body.decode("utf-8", "replace")
    if "application/json" not in (answer.getheader("Content-Type") or ""):
        return answer.status, text.strip()
    try:
        return answer.status, json.loads(text)
    except ValueError as error:
        raise AgentError(f"{socket_path}: this is no koordlet agent, its answer is not JSON") from error


def ask_ok(socket_path: str, path: str, *, method: str = "GET", **query: str) -> Any:
    """The answer of a 200 or 202; every other status is an AgentError."""
    status, answer = ask(socket_path, path, method=method, **query)
    if status in (200, 202):
        return answer
    text = answer.get("error", "") if isinstance(answer, dict) else str(answer)
    raise AgentError(text or f"{socket_path}: the agent answered {status}")


def _no_agent(socket_path: str) -> str:
    """What to do instead: there may be an agent elsewhere, or the path names no agent's socket at all."""
    lines = [f"no agent answers on {socket_path}"]
    inside = os.path.join(socket_path, SOCKET_FILE)
    if os.path.isdir(socket_path):
        lines.append(f"  that is a directory; its socket would be:  --socket {inside}")
    elif os.path.basename(socket_path) != SOCKET_FILE:
        lines.append(f"  an agent's socket is called {SOCKET_FILE} and lies in its -run-dir ({RUN_DIR} by default)")
    if socket_path != DEFAULT_SOCKET and os.path.exists(DEFAULT_SOCKET):
        lines.append("  there is one in the usual place:  leave --socket out")
    else:
        directory = os.path.dirname(socket_path)
        usual = directory == RUN_DIR or os.path.basename(socket_path) != SOCKET_FILE
        lines.append(f"  start one:   koordlet run{'' if usual else f' -run-dir={directory}'}")
        lines.append(f"  elsewhere?   name its socket with --socket DIR/{SOCKET_FILE}")
    return "\n".join(lines)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)
