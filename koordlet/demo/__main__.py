"""`python -m koordlet.demo`: the demo without the command around it."""

from __future__ import annotations

import sys

from koordlet.demo import main

sys.exit(main(sys.argv[1:]))
