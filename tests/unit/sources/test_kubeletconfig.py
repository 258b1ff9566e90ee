"""A kubelet's /configz: what is taken of it, and what is refused as a whole."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.cpuset import CpuSet
from koordlet.model.kubelet import KubeletConfig
from koordlet.sources.kubeletconfig import KubeletConfigError, decode_configz

RECORDED = Path(__file__).parents[2] / "labs/cluster/configz.json"


def answer(**config: object) -> bytes:
    return json.dumps({"kubeletconfig": config}).encode()


def test_a_real_kubelets_answer() -> None:
    found = decode_configz(RECORDED.read_bytes())
    assert (found.cpu_policy, found.topology_scope) == ("static", "container")


def test_everything_that_is_used() -> None:
    found = decode_configz(
        answer(
            cpuManagerPolicy="static",
            cpuManagerPolicyOptions={"full-pcpus-only": "true", "a": "b"},
            reservedSystemCPUs="0,4",
            kubeReserved={"cpu": "1", "memory": "1Gi"},
            systemReserved={"cpu": "500m"},
            topologyManagerPolicy="restricted",
            topologyManagerScope="pod",
            logging=["a shape of another version"],
        )
    )
    options = (("a", "b"), ("full-pcpus-only", "true"))
    assert found == KubeletConfig("static", options, CpuSet([0, 4]), 1500, "restricted", "pod")


def test_what_is_absent_or_null_has_the_kubelets_defaults() -> None:
    assert (
        decode_configz(answer()) == decode_configz(answer(cpuManagerPolicy=None, kubeReserved=None)) == KubeletConfig()
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "/configz"),
        (b'{"kind":"Status","message":"no"}', "kubeletconfig"),
        (b'{"kubeletconfig":{"cpuManagerPolicy":1}}', "cpuManagerPolicy"),
        (answer(reservedSystemCPUs="a-b"), "reservedSystemCPUs"),
        (answer(kubeReserved={"cpu": "lots"}), "kubeReserved.cpu"),
        (b"[" * 5000, "/configz"),
    ],
)
def test_refused_as_a_whole_naming_the_key(body: bytes, told: str) -> None:
    with pytest.raises(KubeletConfigError, match=told):
        decode_configz(body)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    with contextlib.suppress(KubeletConfigError):
        decode_configz(body)
