# SPDX-License-Identifier: Apache-2.0
"""The control plane that real kubelets join: on a bridge of the sandbox, with the controllers that judge nodes."""

import subprocess
from pathlib import Path

from app.tls.serving_certificates import NAMES as DEFAULT_NAMES
from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import CONTROLLERS, TOKENS, ControlPlane
from tests.controlplane.processes import Process
from tests.realnodes.components import environment
from tests.realnodes.features import ACCOUNTS, start_master
from tests.realnodes.nvidia import MASTER

BRIDGE = "br0"
ADDRESS = "10.88.0.1"
"""The control plane's address; nodes are 10.88.0.11 and up. The network exists in the sandbox alone."""
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
"""The address of the Service `kubernetes`, by which pods reach the API server: the first of the range."""
PODS = "10.89.0.0/16"
NODE_CONTROLLERS = (
    "device-taint-eviction-controller",
    "endpointslice-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
)
NAMES = ("node-1", "node-2", "node-3")


IDENTITIES = {
    **TOKENS,
    **ACCOUNTS,
    "kube-proxy": ("system:kube-proxy", ""),
    **{name: (f"system:node:{name}", "system:nodes") for name in NAMES},
}
"""Token (name-token) → user and group; the node authorizer knows a kubelet by its name and group."""


class RealControlPlane(ControlPlane):
    """A control plane with Node authorization, NodeRestriction, and a kube-proxy of its own for webhook calls."""

    address = ADDRESS
    names = (*DEFAULT_NAMES, ADDRESS, FIRST_SERVICE, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    service_range = SERVICES
    authorization = "Node,RBAC"
    admission_off = ()
    admission_on = ("NodeRestriction",)
    controllers: tuple[str, ...] = (*CONTROLLERS, *NODE_CONTROLLERS, "resourcequota-controller")
    tokens = IDENTITIES

    def __init__(self, binaries: Binaries, folder: Path) -> None:
        make_bridge()
        super().__init__(binaries, folder)
        self.start_proxy()

    def start_proxy(self) -> None:
        """Start a kube-proxy where kube-apiserver runs, so that it reaches webhooks by their Service."""
        self._processes["kube-proxy"] = start_proxy(self, "control-plane", [], self.folder / "kube-proxy.log")

    def start_labelling(self, built: Path) -> None:
        """Start nfd-master, which labels Nodes by what was discovered on them; `built` has NVIDIA's components."""
        self._processes[MASTER] = start_master(self, built, NAMES[0])

    @property
    def labelling(self) -> Process:
        """The running nfd-master."""
        return self._processes[MASTER]


def start_proxy(plane: ControlPlane, name: str, enter: list[str], log: Path) -> Process:
    """Start kube-proxy for one network namespace; `enter` are the words that enter it."""
    flags = {
        "kubeconfig": str(plane.kubeconfig("kube-proxy")),
        "hostname-override": name,
        "proxy-mode": "nftables",
        "cluster-cidr": PODS,
        "conntrack-max-per-core": "0",  # 0: leave the kernel's own settings, which are the whole machine's
        "conntrack-tcp-timeout-established": "0s",
        "conntrack-tcp-timeout-close-wait": "0s",
    }
    command = [*enter, *plane.binaries.command("kube-proxy"), *(f"--{key}={value}" for key, value in flags.items())]
    return Process("kube-proxy", command, log, environment())


def make_bridge() -> None:
    """Make the network of the nodes in the sandbox.

    Services have a route too: the kernel wants one for a packet before kube-proxy's rules give it another target.
    """
    for line in (
        f"ip link add {BRIDGE} type bridge",
        f"ip addr add {ADDRESS}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        f"ip route add {SERVICES} dev {BRIDGE}",
        "sysctl -q -w net.ipv4.ip_forward=1",
    ):
        subprocess.run(line.split(), check=True)
