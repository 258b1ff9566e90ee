"""What a kubelet serves for a pod: the manifest with the API server's defaults, and the status of a running pod.

test_cluster_standin.py compares it, key by key and type by type, with what the real kubelet serves for the same one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.labs.cluster.node import pod

CONFIGURATION = Path(__file__).with_name("configz.json")  # recorded from the real kubelet of versions.toml
STARTED = "2026-07-24T06:52:45Z"
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def pod_list(pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of /pods; no pods are null there, not an empty list."""
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods) or None}


def configuration(options: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of /configz; `options` overlay the recorded KubeletConfiguration."""
    recorded = json.loads(CONFIGURATION.read_text())
    return {"kubeletconfig": recorded["kubeletconfig"] | dict(options)}


def served(manifest: Mapping[str, Any], node: str, address: str) -> dict[str, Any]:
    """A running pod. Its uid and container ids follow from namespace and name."""
    given = copy.deepcopy(dict(manifest))
    metadata, spec = given["metadata"], given["spec"]
    namespace = metadata.setdefault("namespace", "lab")
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{metadata['name']}.{namespace}"))
    metadata = _full(metadata) | {
        "uid": uid,
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": STARTED,
        "annotations": {
            **metadata.get("annotations", {}),
            "kubernetes.io/config.seen": "2026-07-24T06:52:45.123456789Z",
            "kubernetes.io/config.source": "api",
        },
    }
    spec["containers"] = [_container(c) for c in spec["containers"]]
    spec = _defaults() | spec | {"nodeName": node}
    metadata["managedFields"] = [_managed(metadata, spec)]
    return {"metadata": metadata, "spec": spec, "status": _status(spec, uid, address)}


def quality(spec: Mapping[str, Any]) -> str:
    """Kubernetes' QoS class, of cpu and memory alone."""
    resources = [c.get("resources", {}) for c in spec["containers"]]
    limits = [{k: v for k, v in r.get("limits", {}).items() if k in ("cpu", "memory")} for r in resources]
    requests = [r.get("requests", {}) for r in resources]
    if not any(limits) and not any(k in r for r in requests for k in ("cpu", "memory")):
        return "BestEffort"
    full = all(len(x) == 2 and all(r.get(k, x[k]) == x[k] for k in x) for x, r in zip(limits, requests, strict=True))
    return "Guaranteed" if full else "Burstable"


def mixture(count: int) -> list[dict[str, Any]]:
    """Manifests of `count` pods: of ten, one Guaranteed LSR, four Burstable LS and five batch pods."""
    return [_one(n) for n in range(count)]


def _one(number: int) -> dict[str, Any]:
    name, turn = f"many-{number:03}", number % 10
    if turn == 0:
        limits = {"cpu": "1", "memory": "256Mi"}
        return pod(name, limits=limits, labels={"koordinator.sh/qosClass": "LSR"}, priority=9500)
    if turn < 5:
        requests, limits = {"cpu": "100m", "memory": "64Mi"}, {"cpu": "1", "memory": "128Mi"}
        return pod(name, requests, limits, labels={"koordinator.sh/qosClass": "LS"}, priority=9100)
    batch = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
    return pod(name, batch, batch, labels={"koordinator.sh/qosClass": "BE"}, priority=5500)


def _full(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty members, which JSON of Kubernetes leaves out."""
    return {k: v for k, v in mapping.items() if v not in ({}, [], "")}


def _defaults() -> dict[str, Any]:
    tolerated = [("node.kubernetes.io/not-ready", "NoExecute"), ("node.kubernetes.io/unreachable", "NoExecute")]
    return {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": effect, "tolerationSeconds": 300} for key, effect in tolerated
        ],
    }


def _container(given: Mapping[str, Any]) -> dict[str, Any]:
    resources = _full(given.get("resources", {}))
    if "limits" in resources:  # a request that is not given is the limit
        resources["requests"] = resources["limits"] | resources.get("requests", {})
    return {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **given,
        "resources": resources,
    }


def _managed(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The record of who set what: a fifth of a real answer's bytes, so it is there and of about the size."""
    owned = {k: v for k, v in metadata.items() if k in ("labels", "annotations")}
    fields = _fields({"metadata": owned, "spec": spec})
    entry = {"manager": "unknown", "operation": "Update", "apiVersion": "v1", "time": STARTED, "fieldsType": "FieldsV1"}
    return {**entry, "fieldsV1": fields}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"f:{k}": _fields(v) for k, v in value.items()}
    if isinstance(value, list):
        named = [v for v in value if isinstance(v, Mapping) and "name" in v]
        return {"k:" + json.dumps({"name": v["name"]}): {".": {}, **_fields(v)} for v in named}
    return {}


def _status(spec: Mapping[str, Any], uid: str, address: str) -> dict[str, Any]:
    condition = {"status": "True", "observedGeneration": 1, "lastProbeTime": None, "lastTransitionTime": STARTED}
    return {
        "observedGeneration": 1,
        "phase": "Running",
        "conditions": [{"type": t, **condition} for t in CONDITIONS],
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": STARTED,
        "containerStatuses": [_container_status(c, uid) for c in spec["containers"]],
        "qosClass": quality(spec),
        **(_resources(spec["containers"][0]) if len(spec["containers"]) == 1 else {}),
    }


def _resources(container: Mapping[str, Any]) -> dict[str, Any]:
    """What was granted; of a pod with several containers the sum, which is left out here."""
    wanted = container["resources"]
    return {"resources": wanted} | ({"allocatedResources": wanted["requests"]} if "requests" in wanted else {})


def _container_status(container: Mapping[str, Any], uid: str) -> dict[str, Any]:
    name, image = container["name"], container["image"]
    return {
        "name": name,
        "state": {"running": {"startedAt": STARTED}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": image,
        "imageID": "sha256:" + hashlib.sha256(image.encode()).hexdigest(),
        "containerID": "containerd://" + hashlib.sha256(f"{uid}/{name}".encode()).hexdigest(),
        "started": True,
        "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
        **_resources(container),
    }
