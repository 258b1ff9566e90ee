"""No deadline per example: how long one takes on a busy machine says nothing about what holds."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
