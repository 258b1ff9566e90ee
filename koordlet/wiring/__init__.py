"""Wiring of whole areas, one file each, called by the daemon: which parts of which rooms belong together."""
