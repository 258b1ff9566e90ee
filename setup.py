"""Build the native extension through cffi (API mode, one abi3 wheel). Everything else is in pyproject.toml."""

from setuptools import setup

setup(
    cffi_modules=["native/build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
