# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's labels on Nodes, as they come there in a cluster.

gpu-feature-discovery runs on the node and writes a NodeFeature; nfd-master of Node Feature Discovery follows these and
labels the Nodes. nfd-worker, which discovers what is not NVIDIA's, is not in this path.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port
from tests.realnodes.nvidia import MANIFESTS, MASTER, make_environment

DISCOVERY = "gpu-feature-discovery"
NAMESPACE = "default"
"""The namespace that nfd-master's own ClusterRoleBinding names."""
ACCOUNTS = {
    name: (f"system:serviceaccount:{NAMESPACE}:{name}", "system:serviceaccounts") for name in (MASTER, DISCOVERY)
}
"""Token → user and group."""
GROUP = "nfd.k8s-sigs.io"
MANAGED = "nfd.node.kubernetes.io/feature-labels"
"""The annotation of a Node in which nfd-master lists the labels that it wrote."""
ONCE_SECONDS = 30
"""Bound on one run of gpu-feature-discovery."""
ROLE: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": DISCOVERY},
    "rules": [
        {"apiGroups": [GROUP], "resources": ["nodefeatures"], "verbs": ["get", "list", "watch", "create", "update"]}
    ],
}
"""The rights of NVIDIA's Helm chart (k8s-device-plugin deployments/helm/nvidia-device-plugin/templates/role.yml)."""
BINDING: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": DISCOVERY},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": DISCOVERY},
    "subjects": [{"kind": "ServiceAccount", "name": DISCOVERY, "namespace": NAMESPACE}],
}


def start_master(plane: ControlPlane, built: Path, node: str) -> Process:
    """Install the CRDs and roles of Node Feature Discovery, and start nfd-master as if it ran on that node."""
    for words in (["--filename", str(built / MANIFESTS)], ["--filename", "-"]):
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": [ROLE, BINDING]})
        done = plane.kubectl("apply", "--namespace", NAMESPACE, *words, stdin=items)
        assert done.code == 0, done.err
    done = plane.kubectl("wait", "--for=condition=Established", f"crd/nodefeatures.{GROUP}", "--timeout=60s")
    assert done.code == 0, done.err
    command = [
        str(built / MASTER),
        f"--kubeconfig={plane.kubeconfig(MASTER)}",
        f"--port={free_port()}",
        "--config=",
    ]
    environment = {"NODE_NAME": node, "KUBERNETES_NAMESPACE": NAMESPACE}
    return Process(MASTER, command, plane.folder / f"{MASTER}.log", environment)


def publish(plane: ControlPlane, built: Path, enter: Sequence[str], name: str, folder: Path) -> Mapping[str, str]:
    """Run gpu-feature-discovery once on a node, which `enter` enters; give the labels of the NodeFeature that it wrote.

    The machine's type, which it reads from the firmware, is that of no machine: the label's value is `unknown`.
    """
    command = [
        *enter,
        str(built / DISCOVERY),
        *("--oneshot", "--no-timestamp", "--use-node-feature-api"),
        *(f"--config-file={folder / 'settings'}", f"--machine-type-file={folder / 'no-machine-type'}"),
        f"--kubeconfig={plane.kubeconfig(DISCOVERY)}",
    ]
    environment = {**make_environment(built, folder / "machine"), "NODE_NAME": name, "NAMESPACE": NAMESPACE}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=ONCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    path = f"/apis/{GROUP}/v1alpha1/namespaces/{NAMESPACE}/nodefeatures/nvidia-features-for-{name}"
    labels: Mapping[str, str] = plane.api.get(path)["spec"]["labels"]
    return labels


def is_labelled(node: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether nfd-master has put just these labels on the Node: also, whether it has removed former ones."""
    metadata = node["metadata"]
    managed = (metadata.get("annotations") or {}).get(MANAGED, "").split(",")
    return set(managed) == set(labels) and labels.items() <= metadata["labels"].items()
