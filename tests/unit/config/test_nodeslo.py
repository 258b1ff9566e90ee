import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import PolicyError
from koordlet.config.nodeslo import LoadedPolicy, decode, load_policy, merge
from koordlet.config.nodeslo_schema import DEFAULTS
from koordlet.kernel.kubepods import Driver, Kubepods, host_app_dir
from koordlet.model.qos import Qos
from koordlet.model.slo import CpuQos, NodeSlo, SuppressPolicy
from tests.hosts.cases import case_json

THRESHOLD = "resourceUsedThresholdWithBE"
EXAMPLES = Path(__file__).parents[3] / "systemd/examples"


def app_dir(name: str, qos: str, path: dict[str, str] | None) -> str:
    return host_app_dir(Kubepods(Driver.SYSTEMD), name, qos, path)


def slo(spec: object) -> NodeSlo:
    return decode(spec, host_app_dir=app_dir)


def test_states_of_a_fresh_node() -> None:
    states, expected = case_json("nodeslo-nil", "states.json"), case_json("nodeslo-nil")
    for state, want in zip(states, expected, strict=True):
        found = slo(None if state is None else state["spec"])
        assert found.threshold.enable is want["enable"]
        assert found.threshold.cpu_suppress_threshold_percent == want.get("cpuSuppressThresholdPercent", 65)
        assert found.threshold.cpu_suppress_policy == want.get("cpuSuppressPolicy", "cpuset")
        assert found.threshold.memory_evict_threshold_percent == want.get("memoryEvictThresholdPercent", 70)
        assert found.host_apps == ()


SUPPRESS = {"cpuSuppressPolicy": "cpuset", "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit"}


@pytest.mark.parametrize(
    ("received", "effective"),
    [
        ({"enable": True}, {"enable": True, "cpuSuppressThresholdPercent": 65, **SUPPRESS}),  # V-17
        (
            {"enable": True, "cpuSuppressThresholdPercent": 60},  # W-26
            {"enable": True, "cpuSuppressThresholdPercent": 60, **SUPPRESS},
        ),
        ({"ENABLE": True, "cpuSuppressPolicy": ""}, {"enable": True, "cpuSuppressThresholdPercent": 65, **SUPPRESS}),
        ({"enable": None}, {"enable": False, "cpuSuppressThresholdPercent": 65, **SUPPRESS}),
    ],
    ids=["V-17", "W-26", "case and empty enum", "null is absent"],
)
def test_thresholds_over_defaults(received: dict[str, Any], effective: dict[str, Any]) -> None:
    merged = merge({THRESHOLD: received})
    assert merged[THRESHOLD] == effective
    assert merged["cpuBurstStrategy"] == DEFAULTS["cpuBurstStrategy"]


def block(cls: str, name: str, values: dict[str, Any]) -> dict[str, Any]:
    found = merge({"resourceQOSStrategy": {cls: {name: values}}})["resourceQOSStrategy"][cls][name]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("cls", "name", "received", "effective"),
    [
        ("beClass", "resctrlQOS", {"enable": False, "catRangeEndPercent": 20}, (0, 100, 100)),  # V-18
        ("beClass", "resctrlQOS", {"enable": True, "catRangeEndPercent": 20}, (0, 20, 100)),  # V-18
        ("beClass", "resctrlQOS", {"enable": False, "catRangeEndPercent": 50}, (0, 100, 100)),  # W-26
        ("beClass", "resctrlQOS", {"enable": True, "catRangeEndPercent": 50}, (0, 50, 100)),  # W-26
        ("systemClass", "resctrlQOS", {"enable": False, "catRangeEndPercent": 50}, (0, 50, 100)),
    ],
    ids=["V-18 off", "V-18 on", "W-26 off", "W-26 on", "system class is not neutralised"],
)
def test_cache_ranges(cls: str, name: str, received: dict[str, Any], effective: tuple[int, int, int]) -> None:
    found = block(cls, name, received)
    assert (found["catRangeStartPercent"], found["catRangeEndPercent"], found["mbaPercent"]) == effective


def test_memory_qos_of_an_enabled_class() -> None:  # V-19
    found = block("lsClass", "memoryQOS", {"enable": True, "minLimitPercent": 100})
    assert (found["minLimitPercent"], found["wmarkRatio"], found["wmarkMinAdj"]) == (100, 95, -25)


def test_disabled_blocks_are_neutral() -> None:
    found = merge(None)["resourceQOSStrategy"]
    assert found["beClass"]["cpuQOS"] == {
        "enable": False, "groupIdentity": 0, "schedIdle": 0, "coreExpeller": False,
    }  # fmt: skip
    assert (found["lsClass"]["memoryQOS"]["wmarkRatio"], found["lsClass"]["memoryQOS"]["wmarkScalePermill"]) == (0, 50)


def test_typed_cpu_qos() -> None:
    found = slo({"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}, "lsClass": {"cpuQOS": {}}}})
    assert found.be_cpu == CpuQos(True, -1, 0, False)
    assert found.ls_cpu == CpuQos(False, 0, 0, False)


def test_arrays_replace_and_extensions_are_dropped() -> None:
    spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [{"name": "a"}]}}}, "extensions": {"Object": {}}}
    merged = merge(spec)
    assert merged["resourceQOSStrategy"]["beClass"]["blkioQOS"] == {"enable": False, "blocks": [{"name": "a"}]}
    assert "extensions" not in merged


def test_merging_never_changes_the_defaults() -> None:
    before = json.dumps(DEFAULTS)
    merge({THRESHOLD: {"enable": True}})[THRESHOLD]["enable"] = "changed"
    merge(None)["resourceQOSStrategy"]["beClass"]["cpuQOS"]["enable"] = "changed"
    assert json.dumps(DEFAULTS) == before


def test_host_applications() -> None:
    found = slo(
        {
            "hostApplications": [
                {"name": "edge", "qos": "LS", "priority": "koord-prod", "strategy": {}},
                {"name": "log", "qos": "BE"},
                {"name": "nm", "qos": "BE", "cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "nm/"}},
            ]
        }
    )
    assert [(app.cgroup, app.is_be) for app in found.host_apps] == [  # V-16
        ("host-latency-sensitive/edge", False),
        ("host-best-effort/log", False),
        ("kubepods.slice/kubepods-besteffort.slice/nm", True),
    ]
    assert (found.host_apps[0].qos, found.host_apps[0].priority_class) == (Qos.LS, "koord-prod")


REFUSED = [
    ({THRESHOLD: {"cpuSuppressThresholdPercent": 165}}, "cpuSuppressThresholdPercent", "an integer 0..100"),
    ({THRESHOLD: {"cpuSuppressThresholdPercent": 60.0}}, "cpuSuppressThresholdPercent", "an integer 0..100"),
    ({THRESHOLD: {"cpuSuppressThresholdPercent": True}}, "cpuSuppressThresholdPercent", "an integer 0..100"),
    ({THRESHOLD: {"cpuSuppressThresholdPercent": "60"}}, "cpuSuppressThresholdPercent", "an integer 0..100"),
    ({THRESHOLD: {"cpuSuppressPolicy": "quota"}}, "cpuSuppressPolicy", "cpuset or cfsQuota"),
    ({THRESHOLD: {"enable": 1}}, "enable", "true or false"),
    ({THRESHOLD: {"memoryEvictLowerPercent": 70}}, "memoryEvictLowerPercent", "less than"),
    ({THRESHOLD: {"cpuEvictTimeWindowSeconds": 0}}, "cpuEvictTimeWindowSeconds", "at least 1"),
    ({THRESHOLD: {"allocatableEvictPriorityThreshold": 8000}}, "allocatableEvictPriorityThreshold", "0..7999"),
    ({THRESHOLD: []}, THRESHOLD, "an object"),
    ([], "", "an object"),
    ({"cpuBurstStrategy": {"cfsQuotaBurstPercent": 99}}, "cfsQuotaBurstPercent", "at least 100"),
    ({"resourceQOSStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 3}}}}, "groupIdentity", "-1..2"),
    (
        {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"catRangeStartPercent": 40}}}},
        "catRangeStartPercent",
        "less than",
    ),
    ({"systemStrategy": {"watermarkScaleFactor": 401}}, "watermarkScaleFactor", "1..400"),
    ({"systemStrategy": {"totalNetworkBandwidth": "fast"}}, "totalNetworkBandwidth", "a quantity"),
    ({"hostApplications": [{"qos": "LS"}]}, "hostApplications[0].name", "required"),
    ({"hostApplications": [{"name": "a"}, {"name": "a"}]}, "hostApplications[1].name", "used once"),
    ({"hostApplications": [{"name": "a", "qos": "ls"}]}, "hostApplications[0].qos", "LSE or LSR"),
    ({"hostApplications": [{"name": "..", "cgroupPath": {}}]}, "hostApplications[0].cgroupPath", "cgroup path"),
    ({"hostApplications": [{"name": "../x"}]}, "hostApplications[0].cgroupPath", "cgroup path"),
]


@pytest.mark.parametrize(("spec", "key", "allowed"), REFUSED, ids=[f"{row[1] or 'list'}-{row[2]}" for row in REFUSED])
def test_refused_with_file_key_and_allowed_values(spec: object, key: str, allowed: str) -> None:
    with pytest.raises(PolicyError) as caught:
        decode(spec, host_app_dir=app_dir, file="n.yaml")
    assert caught.value.file == "n.yaml"
    assert caught.value.key.endswith(key)
    assert allowed in caught.value.allowed
    assert "n.yaml" in str(caught.value)


FILES = [
    ("a.yaml", f"{THRESHOLD}: {{enable: true}}\n"),
    ("b.json", json.dumps({THRESHOLD: {"enable": True}})),
    ("c.yml", f"apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nspec: {{{THRESHOLD}: {{enable: true}}}}\n"),
    ("d.json", json.dumps({"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {THRESHOLD: {"enable": True}}})),
]


@pytest.mark.parametrize(("name", "text"), FILES, ids=["bare YAML", "bare JSON", "object YAML", "object JSON"])
def test_policy_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = load_policy(tmp_path / name, app_dir)
    assert found.slo.threshold.enable
    assert found.warnings == ()


BAD_FILES = [
    ("a.yaml", "", "a document"),
    ("a.yaml", "{", "valid YAML"),
    ("a.json", "{", "valid JSON"),
    ("a.yaml", "kind: Pod\nspec: {}\n", "NodeSLO"),
    ("a.yaml", "a: &a [1]\nb: *a\n", "without aliases"),
    ("a.yaml", "a: {b: [{c: 1}, {c: 2}], d: b}\na: {}\n", "each key once .line 2"),
    ("a.yaml", "a: [{c: [c, c], d: {c: 1}, c: 2}]\n", "each key once .line 1"),
    ("a.yaml", "a: !!python/object:os.system x\n", "without tags"),
    ("a.yaml", "[" * 100 + "]" * 100, "levels"),
    ("a.json", "[" * 100_000, "valid JSON"),
    ("a.yaml", "x" * (1 << 20) + "y", "bytes"),
    ("a.yaml", "1: 2\n", "keys that are texts"),
    ("a.yaml", "a: 2001-99-99\n", "valid YAML"),
]


@pytest.mark.parametrize(("name", "text", "allowed"), BAD_FILES, ids=[f"{r[0]} {r[2]}" for r in BAD_FILES])
def test_bad_policy_files(tmp_path: Path, name: str, text: str, allowed: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PolicyError, match=allowed):
        load_policy(tmp_path / name, app_dir)


def test_unknown_keys_are_warnings_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text(f"{THRESHOLD}: {{cpuSupressThresholdPercent: 50}}\nfoo: 1\n")
    second, first = load_policy(tmp_path / "n.yaml", app_dir).warnings
    assert "did you mean cpuSuppressThresholdPercent" in first
    assert "foo: unknown key" in second


def test_the_example_loads_without_warnings() -> None:
    found = load_policy(EXAMPLES / "nodeslo.yaml", app_dir)
    assert found.warnings == ()
    assert found.slo.threshold.cpu_suppress_policy is SuppressPolicy.CFS_QUOTA


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    f"{THRESHOLD} enable hostApplications name resourceQOSStrategy spec kind beClass cpuQOS cgroupPath "
    "cpuSuppressMinPercent systemStrategy schedFeatures".split()
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), below),
    max_leaves=20,
)


@given(TREES)
def test_any_document_is_a_policy_or_refused(spec: object) -> None:
    with contextlib.suppress(PolicyError):
        assert isinstance(slo(spec), NodeSlo)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@given(data=st.binary(max_size=200) | st.text(alphabet="{}[]:-&*!'\"\n ,#|>%@a1.eE", max_size=80).map(str.encode))
def test_any_bytes_are_a_policy_or_refused(folder: Path, data: bytes) -> None:
    for name in ("n.yaml", "n.json"):
        (folder / name).write_bytes(data)
        with contextlib.suppress(PolicyError):
            assert isinstance(load_policy(folder / name, app_dir), LoadedPolicy)
