"""What deploy/ ships: arguments, mounts and probes fit the agent that they start. The lab asks a real API server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.config.flags import Flags, parse
from koordlet.config.flagtable import FLAGS, Status
from tests.hosts.official import OFFICIAL

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PRESETS = ("base", "host-mode", "old-kubelets")


def rendered(preset: str) -> list[dict[str, Any]]:
    """As `kubectl kustomize` prints it."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(DEPLOY / preset)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def daemonset(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [one for one in documents if one["kind"] == "DaemonSet"]
    pod: dict[str, Any] = found["spec"]["template"]
    return pod


def started(pod: dict[str, Any]) -> tuple[dict[str, Any], Flags]:
    (container,) = pod["spec"]["containers"]
    env = {row["name"]: row.get("value", "node-a") for row in container["env"]}
    return container, parse(container["args"], env)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_whole(preset: str) -> None:
    documents = rendered(preset)
    kinds = [one["kind"] for one in documents]
    assert kinds.count("CustomResourceDefinition") == 4
    assert {"DaemonSet", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= set(kinds)
    wide = [one["metadata"]["name"] for one in documents if "nodes/proxy" in str(one.get("rules"))]
    assert wide == (["koordlet-old-kubelets"] if preset == "old-kubelets" else [])


@pytest.mark.parametrize("preset", PRESETS[:2])
def test_the_shipped_arguments_are_taken_without_a_warning(preset: str) -> None:
    container, flags = started(daemonset(rendered(preset)))
    assert flags.warnings == ()
    assert not flags.standalone
    assert flags.host_mode is (preset == "host-mode")
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "256Mi"}
    assert container["command"] == ["/koordlet"]


@pytest.mark.parametrize("preset", PRESETS[:2])
def test_every_directory_that_the_agent_uses_is_mounted(preset: str) -> None:
    pod = daemonset(rendered(preset))
    container, flags = started(pod)
    mounts = {row["mountPath"].rstrip("/"): row for row in container["volumeMounts"]}
    volumes = {row["name"]: row for row in pod["spec"]["volumes"]}
    assert len(mounts) == len(container["volumeMounts"])
    assert all(row["name"] in volumes for row in mounts.values())
    used = {
        flags.cgroup_root_dir, flags.sys_root_dir, flags.sys_fs_root_dir, flags.var_run_root_dir, flags.run_root_dir,
        flags.var_lib_kubelet_dir, flags.state_dir, flags.run_dir, flags.audit_log_dir, flags.xpu_device_infos_dir,
        flags.pod_resources_proxy_path, Path(flag_text("prediction-checkpoint-filepath")),
        Path(flag_text("runtime-hooks-config-path", host=flags.host_mode)),
    }  # fmt: skip
    for path in used:
        # /run and /var/run are one directory in the image, as on a host.
        places = {str(path), re.sub("^/run/", "/var/run/", str(path))}
        assert any(place == mount or place.startswith(f"{mount}/") for place in places for mount in mounts), path
    state = next(row for mount, row in mounts.items() if str(flags.state_dir).startswith(mount))
    assert "hostPath" in volumes[state["name"]]  # or a killed agent's journal would go with its container


def flag_text(name: str, *, host: bool = False) -> str:
    (flag,) = [flag for flag in FLAGS if flag.name == name]
    return flag.default_in("host" if host else "daemonset")


def test_the_pod_may_do_what_the_agent_does() -> None:
    pod = daemonset(rendered("base"))
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert (spec["hostNetwork"], spec["hostPID"]) == (True, True)
    assert container["securityContext"]["privileged"] is True
    assert pod["metadata"]["labels"]["runtimeproxy.koordinator.sh/skip-hookserver"] == "true"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_references_arguments_are_taken_and_each_flag_without_effect_is_told_once() -> None:
    flags = parse(OFFICIAL, {"NODE_NAME": "node-a"})
    given = {word.lstrip("-").partition("=")[0] for word in OFFICIAL}
    assert not [text for text in flags.warnings if any(f"flag -{name} " in text for name in given)]
    assert len(flags.warnings) == len(set(flags.warnings))


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_accepted_flag_works_or_says_once_that_it_has_no_effect_and_why(flag: Any) -> None:
    other = {"bool": "false" if flag.default == "true" else "true", "duration": "77s", "map": "a=true"}
    value = flag.choices[-1] if flag.choices else other.get(flag.kind.value, "17")
    value = {"addr": ":17", "feature-gates": "CPUBurst=false", "runtime-hooks-disable-stages": "PreRunPodSandbox"}.get(
        flag.name, value
    )
    pair = {"tls-cert-file": "-tls-private-key-file=k", "tls-private-key-file": "-tls-cert-file=c"}.get(flag.name)
    words = [f"-{flag.name}={value}", *([pair] if pair else [])]
    told = [text for text in parse(words, {"NODE_NAME": "n"}).warnings if f"flag -{flag.name} " in text]
    assert len(told) == (flag.status is not Status.USED)
    assert all(text == f"flag -{flag.name} has no effect: {flag.help}" for text in told if " has no " in text)
    as_default = parse([f"-{flag.name}={flag.default}"], {"NODE_NAME": "n"}) if flag.status is Status.IGNORED else None
    assert as_default is None or as_default.warnings == ()


def test_what_the_image_copies_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    extras = re.search(r"^ARG EXTRAS=(\w+)$", text, re.M)
    assert extras is not None
    assert f"{extras[1]} = [" in (ROOT / "pyproject.toml").read_text()
