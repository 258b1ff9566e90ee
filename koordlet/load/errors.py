"""The one error of this room."""

from __future__ import annotations


class LoadError(Exception):
    """A load or its cgroups cannot be made or run; the text says what and how to fix it."""
