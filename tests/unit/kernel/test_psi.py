from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.psi import cgroup_psi_path, node_psi_path, parse_psi, read_psi
from koordlet.model.psi import Psi, PsiLine
from tests.hosts.cases import case_json, case_text
from tests.hosts.tree import HostTree

ONE_LINE = "some avg10=1.23 avg60=0.50 avg300=0.10 total=123456\n"


def test_cpu_file_of_old_kernels_has_no_full_line() -> None:  # W-12
    assert parse_psi(ONE_LINE) == Psi(PsiLine(1.23, 0.5, 0.1, 123_456), PsiLine(), full_supported=False)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_no_full_line_case(resource: str) -> None:
    expected = case_json("psi-no-full-line")[resource]
    psi = parse_psi(case_text("psi-no-full-line", f"{resource}.pressure"))
    assert psi.some == PsiLine(*expected["some"].values())
    assert psi.full_supported is expected["full_supported"]
    assert psi.full == PsiLine(*expected.get("full", {}).values())


@pytest.mark.parametrize(
    "text", ["", "full avg10=0 avg60=0 avg300=0 total=0\n", "some avg10=x\n", "some\n", ONE_LINE + "full avg10=1\n"]
)
def test_malformed_pressure(text: str) -> None:
    with pytest.raises(KernelFileError, match="pressure"):
        parse_psi(text)


def test_lines_of_other_kinds_are_left_alone() -> None:
    assert parse_psi("irq avg10=0\n" + ONE_LINE).some.total_us == 123_456


@given(st.text())
def test_any_text_answers_or_raises_its_own_error(text: str) -> None:
    with suppress(KernelFileError):
        parse_psi(text)


def test_a_missing_file_is_no_pressure(tmp_path: Path) -> None:
    assert read_psi(tmp_path / "cpu") is None
    bad = tmp_path / "memory"
    bad.write_text("nonsense")
    with pytest.raises(KernelFileError) as caught:
        read_psi(bad)
    assert caught.value.path == str(bad)


def test_where_a_cgroups_pressure_stands(tmp_path: Path) -> None:
    v2 = HostTree(tmp_path / "2", CgroupVersion.V2)
    v2.cgroup("a")
    v2.put("cgroup/off", {})
    assert cgroup_psi_path(v2.host, "a", "cpu") == v2.host.cgroup_root / "a/cpu.pressure"
    assert cgroup_psi_path(v2.host, "off", "cpu") is None
    assert cgroup_psi_path(v2.host, "gone", "cpu") is None

    v1 = HostTree(tmp_path / "1", CgroupVersion.V1)
    v1.cgroup("a")
    assert cgroup_psi_path(v1.host, "a", "io") is None
    v1.put("cgroup/unified/a/io.pressure", ONE_LINE)
    assert cgroup_psi_path(v1.host, "a", "io") == v1.host.cgroup_root / "unified/a/io.pressure"
    v1.put("cgroup/cpuacct/a/io.pressure", ONE_LINE)
    assert cgroup_psi_path(v1.host, "a", "io") == v1.host.cgroup_root / "cpuacct/a/io.pressure"


def test_this_machines_pressure() -> None:
    psi = read_psi(node_psi_path(Host.preset("host"), "cpu"))
    if psi is None:
        pytest.skip("this kernel has no PSI")
    assert 0 <= psi.some.avg10 <= 100
    assert psi.some.total_us > 0
