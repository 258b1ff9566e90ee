"""An object of the API server that is ours in part: made when it is missing, brought up to date where it differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError

TRIES: Final = 4

Change = Callable[[dict[str, Any] | None], dict[str, Any] | None]
"""The object as it is, None when there is none -> the object to write, None for nothing to do."""


def keep(api: Api, collection: str, name: str, change: Change) -> None:
    """Look, and write what `change` wants in its place; again when somebody else was faster. Never removes.

    Raises ApiError.
    """
    for left in reversed(range(TRIES)):
        try:
            current = api.get(f"{collection}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            current = None
        wanted = change(current)
        if wanted is None:
            return
        try:
            if current is None:
                api.create(collection, wanted)
            else:
                api.update(f"{collection}/{name}", wanted)
            return
        except ApiError as error:
            if error.status != 409 or not left:
                raise
