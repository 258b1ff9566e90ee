"""cffi builder of koordlet._native: compiles native/*.c, takes the cdef from the headers' marked blocks.

Each header has one block between the lines `/* cdef */` and `/* end cdef */`, plain C that cffi parses,
so a header and its cdef cannot drift.
"""

import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADERS = (
    "parse.h",
    "ring.h",
    "table.h",
    "node.h",
    "sentinel.h",
    "dirwatch.h",
    "load.h",
    "perf.h",
    "reap.h",
    "pages.h",
    "changes.h",
)

ffi = FFI()
for name in HEADERS:
    text = (HERE / name).read_text()
    block = re.search(r"/\* cdef \*/\n(.*?)/\* end cdef \*/", text, re.S)
    if block is None:
        raise SystemExit(f"native/{name}: no /* cdef */ block")
    ffi.cdef(block.group(1))

ffi.set_source(
    "koordlet._native",
    "".join(f'#include "{name}"\n' for name in HEADERS),
    sources=[f"native/{source.name}" for source in sorted(HERE.glob("*.c"))],
    include_dirs=["native"],
    extra_compile_args=["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-pthread"],
    extra_link_args=["-pthread", "-lm"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
