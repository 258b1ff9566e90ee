import errno
from pathlib import Path

import pytest

from koordlet.kernel.write import write_file


def test_one_write_on_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "cpu.shares"
    path.write_bytes(b"2048\n")
    write_file(path, b"9")
    assert path.read_bytes() == b"9048\n"  # no truncation: a kernel file has none


def test_a_missing_file_is_never_created(tmp_path: Path) -> None:
    path = tmp_path / "cpu.idle"
    with pytest.raises(FileNotFoundError) as caught:
        write_file(path, b"1")
    assert caught.value.filename == str(path)
    assert not path.exists()


def test_the_kernels_refusal_passes_through_with_the_name() -> None:
    with pytest.raises(OSError, match="/dev/full") as caught:
        write_file(Path("/dev/full"), b"1")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")
