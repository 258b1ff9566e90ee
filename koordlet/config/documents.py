"""Reading one YAML or JSON document, bounded, from a file or an annotation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from koordlet.config.errors import PolicyError

if TYPE_CHECKING:
    import yaml

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_ANNOTATION_CHARS: Final = 64 << 10
"""An annotation's JSON; the API server allows 256 KiB for all annotations of an object together."""


def read_document(path: Path) -> object:
    """The document in a file: JSON for `*.json`, YAML otherwise.

    Raises OSError, and PolicyError when the file is too large, cannot be parsed or is empty. An empty file is
    refused because that is what a half-finished save looks like; to go back to the defaults, delete the file.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise PolicyError(str(path), "", f"{len(data)} bytes or more", f"at most {MAX_BYTES} bytes")
    parsed = _json(data, str(path)) if path.suffix == ".json" else _yaml(data, str(path))
    if parsed is None:
        raise PolicyError(str(path), "", None, "a document; delete the file to go back to the defaults")
    return parsed


def read_annotation(key: str, text: str) -> object:
    """The JSON in an annotation. Raises PolicyError."""
    if len(text) > MAX_ANNOTATION_CHARS:
        raise PolicyError(key, "", f"{len(text)} characters", f"at most {MAX_ANNOTATION_CHARS}")
    return _json(text.encode("utf-8", "surrogatepass"), key)


def _json(data: bytes, file: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PolicyError(file, "", data[:40].decode("utf-8", "replace"), f"valid JSON ({error})") from error


def _yaml(data: bytes, file: str) -> object:
    import yaml  # 0.9 MB, needed only where somebody wrote YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        keys = _Keys()
        # One pass over the events first: the loader recurses per level, and aliases grow without bound.
        for event in yaml.parse(data, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise PolicyError(file, "", f"alias {event.anchor}", "YAML without aliases")
            if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
                raise PolicyError(file, "", event.tag, "YAML without tags")
            if (twice := keys.twice(event)) is not None:
                raise PolicyError(file, "", f"key {twice[:40]}", f"each key once (line {_line(event)})")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise PolicyError(file, "", f"depth {depth}", f"at most {MAX_DEPTH} levels")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        return yaml.load(data, Loader=loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        where = " ".join(str(error).split())[:200]
        raise PolicyError(file, "", data[:40].decode("utf-8", "replace"), f"valid YAML ({where})") from error


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


class _Keys:
    """Finds a key that stands twice in one mapping; the loader would silently take the last."""

    def __init__(self) -> None:
        self._seen: list[set[str] | None] = [None]  # of the open collections, None for a sequence
        self._value_next = [True]

    def twice(self, event: yaml.Event) -> str | None:
        import yaml

        if isinstance(event, yaml.CollectionEndEvent):
            self._seen.pop()
            self._value_next.pop()
            return None
        if not isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            return None
        seen, is_value = self._seen[-1], self._value_next[-1]
        self._value_next[-1] = not is_value
        if isinstance(event, yaml.CollectionStartEvent):
            self._seen.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            self._value_next.append(False)
        elif seen is not None and not is_value:
            if event.value in seen:
                return str(event.value)
            seen.add(event.value)
        return None
