# SPDX-License-Identifier: Apache-2.0
"""A substitute for kubelets that gives pods devices, by a device plugin or by claims, and notices one held twice.

Both sides number the GPUs of a node alike: `gpu-0` of the plugin is the device `gpu-0` of the driver.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.controlplane.fleet import pod_path
from tests.controlplane.kubectl import Api, Object

GPU = "nvidia.com/gpu"
LOOK_SECONDS = 0.3
UNAVAILABLE = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "


class DeviceKubelets:
    """The kubelets of nodes. `gpus` are the devices of each; `plugins` are the nodes whose device plugin runs.

    `twice` are devices that two pods held, `refused` the pods that a kubelet had no devices for. `gaps` are the seconds
    from the end of a pod to the start of one that replaces it, by workload.
    """

    def __init__(self, namespace: str, dra: str, gpus: Mapping[str, int], workload_label: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._claims = f"{dra}/namespaces/{namespace}/resourceclaims"
        self._gpus = gpus
        self._label = workload_label
        self.plugins = set(gpus)
        self.held: dict[str, tuple[str, frozenset[str], bool]] = {}
        self.twice: list[str] = []
        self.refused: list[str] = []
        self.gaps: dict[str, list[float]] = defaultdict(list)
        self._ended: dict[str, deque[float]] = defaultdict(deque)

    @contextmanager
    def running(self, api: Api) -> Iterator[None]:
        """Run them while the block lasts."""
        stop = threading.Event()

        def work() -> None:
            with api.like() as own:
                while not stop.wait(LOOK_SECONDS):
                    self._look(own)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)

    def _look(self, api: Api) -> None:
        pods = [pod for pod in api.items(self._path) if pod["spec"].get("nodeName")]
        claims = {claim["metadata"]["name"]: claim for claim in api.items(self._claims)}
        there = {pod["metadata"]["uid"] for pod in pods}
        for uid in self.held.keys() - there:
            del self.held[uid]
        for pod in pods:
            metadata, uid = pod["metadata"], pod["metadata"]["uid"]
            if metadata.get("deletionTimestamp"):
                if uid in self.held:
                    self._ended[metadata["labels"][self._label]].append(time.monotonic())
                    del self.held[uid]
                api.delete(pod_path(pod))
            elif uid not in self.held and pod["status"]["phase"] == "Pending":
                self._start(api, pod, claims)

    def _start(self, api: Api, pod: Object, claims: Mapping[str, Object]) -> None:
        node, workload = pod["spec"]["nodeName"], pod["metadata"]["labels"][self._label]
        named = _claim_names(pod)
        if not set(named) <= claims.keys():
            return  # its claim was deleted with it
        devices = _allocated(claims, named) if named else self._free(node, _requested(pod))
        if devices is None:
            self.refused.append(pod["metadata"]["name"])
            status: dict[str, Any] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": UNAVAILABLE}
        else:
            self._hold(pod, node, devices, bool(named))
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            if self._ended[workload]:
                self.gaps[workload].append(time.monotonic() - self._ended[workload].popleft())
        change = {"Content-Type": "application/merge-patch+json"}
        answer = api.client.patch(f"{pod_path(pod)}/status", json={"status": status}, headers=change)
        assert answer.is_success or answer.status_code == 404, answer.text  # it may just have been deleted

    def _hold(self, pod: Object, node: str, devices: frozenset[str], by_claim: bool) -> None:
        for where, others, _ in self.held.values():
            if where == node and others & devices:
                self.twice.append(f"{node}: {sorted(others & devices)}")
        self.held[pod["metadata"]["uid"]] = (node, devices, by_claim)

    def _free(self, node: str, count: int) -> frozenset[str] | None:
        """Choose devices as a kubelet does, which knows those that its plugin gave, and not those of claims."""
        mine = {
            name for where, names, by_claim in self.held.values() if where == node and not by_claim for name in names
        }
        free = [f"gpu-{number}" for number in range(self._gpus[node]) if f"gpu-{number}" not in mine]
        return frozenset(free[:count]) if node in self.plugins and len(free) >= count else None


def _requested(pod: Object) -> int:
    return sum(int(one["resources"].get("limits", {}).get(GPU, 0)) for one in pod["spec"]["containers"])


def _claim_names(pod: Object) -> list[str]:
    """Name the claims of a pod, that for its extended resource included."""
    status = pod["status"]
    made = [entry["resourceClaimName"] for entry in status.get("resourceClaimStatuses") or ()]
    extended = status.get("extendedResourceClaimStatus")
    return [*made, *([extended["resourceClaimName"]] if extended else [])]


def _allocated(claims: Mapping[str, Object], names: list[str]) -> frozenset[str]:
    found = [claims[name] for name in names if name in claims]
    return frozenset(
        result["device"]
        for claim in found
        for result in ((claim.get("status") or {}).get("allocation") or {"devices": {}})["devices"].get("results", ())
    )
