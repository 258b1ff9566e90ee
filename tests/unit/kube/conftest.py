from __future__ import annotations

from collections.abc import Iterator

import pytest

from koordlet.kube.access import Access
from koordlet.kube.client import Api
from tests.hosts.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    made = Api(Access(server.url, lambda anew: {"Authorization": "Bearer t"}), read_s=5)
    try:
        yield made
    finally:
        made.close()
