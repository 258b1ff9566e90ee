from pathlib import Path

import pytest

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.kubelet_state import parse_cpu_manager_state, read_cpu_manager_state
from koordlet.model.cpuset import CpuSet
from tests.hosts.cases import case_json, case_text
from tests.hosts.tree import HostTree

CASE = "cpu-manager-state-v2-and-v1"
ONLINE = CpuSet.parse(case_text(CASE, "node_cpus").strip())


def test_current_layout() -> None:
    expected = case_json(CASE)["v2"]
    state = parse_cpu_manager_state(case_text(CASE, "cpu_manager_state.v2"), ONLINE)
    assert state.policy == "static"
    assert {uid: str(cpus) for uid, cpus in state.pods.items()} == expected["allocs"]
    assert str(state.shared) == expected["share_pool"]
    assert str(state.exclusive) == "4-7"


def test_old_layout_without_pod_names() -> None:
    expected = case_json(CASE)["v1"]
    state = parse_cpu_manager_state(case_text(CASE, "cpu_manager_state.v1"), ONLINE)
    assert state.pods == {}
    assert (str(state.exclusive), str(state.shared)) == (expected["exclusive"], expected["share_pool"])


def test_a_stale_default_set_is_not_used() -> None:
    case = "cpu-manager-stale-default-set"
    online = CpuSet.parse(case_text(case, "online").strip())
    state = parse_cpu_manager_state(case_text(case, "cpu_manager_state"), online)
    assert str(state.shared) == case_json(case)["share_pool"]
    assert state.pods == case_json(case)["allocs"]


@pytest.mark.parametrize("text", ['{"policyName":"none","defaultCpuSet":""}', '{"policyName":"none","entries":null}'])
def test_policy_none_owns_nothing(text: str) -> None:
    state = parse_cpu_manager_state(text, ONLINE)
    assert (state.policy, state.exclusive, state.shared) == ("none", CpuSet(), ONLINE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no policyName"),
        ('{"policyName":1}', "no policyName"),
        ('{"policyName":"static","entries":[]}', "entries is no object"),
        ('{"policyName":"static","entries":{"u":{"app":"4-x"}}}', r"entries\.u\.app"),
        ('{"policyName":"static","entries":{"u":{"app":["4"]}}}', r"entries\.u\.app is no CPU list"),
        ('{"policyName":"static","entries":{"u":7}}', r"entries\.u is no CPU list"),
    ],
)
def test_garbage_names_the_key(text: str, reason: str) -> None:
    with pytest.raises(KernelFileError, match=reason):
        parse_cpu_manager_state(text, ONLINE)


def test_reading(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2)
    assert read_cpu_manager_state(tree.host, ONLINE) is None
    tree.put("kubelet/cpu_manager_state", case_text(CASE, "cpu_manager_state.v2"))
    found = read_cpu_manager_state(tree.host, ONLINE)
    assert found is not None
    assert len(found.pods) == 2
    path = tree.put("kubelet/cpu_manager_state", "{")
    with pytest.raises(KernelFileError) as caught:
        read_cpu_manager_state(tree.host, ONLINE)
    assert caught.value.path == str(path)
