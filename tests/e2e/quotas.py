# SPDX-License-Identifier: Apache-2.0
"""Limits of namespaces on a real scheduler: two replicas, which are asked in turn, and what a watch saw of each pod.

A watch of all pods gives the order in which the API server stored each binding and each end. From it alone follows what
each namespace held of each product at every moment, and how much of it was beyond a limit.
"""

import http.client
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from app.kube.pod_object import FINISHED
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import free_port
from tests.e2e.mixed import call_extender
from tests.e2e.stage import Service, eventually

GPU, SLICE, AMD = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"
H100, A100, MI300X = "H100", "A100", "MI300X"
LIMITS: Mapping[str, Mapping[str, int]] = {
    "team-0": {H100: 6, A100: 6},
    "team-1": {H100: 5, A100: 9, MI300X: 3},
    "team-2": {H100: 8, A100: 3},
    "team-3": {H100: 4, A100: 4},
}
POOLS = ("one", "two")
"""The values of the label `pool`: each scheduler has nodes of its own, since two schedulers may give one GPU twice."""
LAG_SECONDS = 10.0
"""The longest that a binding takes to reach both replicas, beside other busy processes; most take 10 to 50 ms."""
Limits = Mapping[str, Mapping[str, int]]


def fleet() -> Iterator[tuple[str, Object]]:
    """Write nodes of three products, MIG slices, time-slices and another vendor in each pool, with their product."""
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    sliced = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config.state": "success"}
    for pool in POOLS:
        labels = {"pool": pool}
        yield H100, node_object(f"{pool}-h100", labels=labels)
        yield A100, node_object(f"{pool}-a100", "NVIDIA-A100-SXM4-80GB", labels=labels)
        slices = {SLICE: 7}
        yield A100, node_object(f"{pool}-mig", "NVIDIA-A100-SXM4-80GB", offers=slices, labels={**labels, **sliced})
        units = {GPU: 4}
        yield H100, node_object(f"{pool}-slices", f"NVIDIA-{H100}-80GB-HBM3-SHARED", offers=units,
                                labels={**labels, **shared})  # fmt: skip
        yield "L4", node_object(f"{pool}-l4", "NVIDIA-L4", labels=labels)
        vendor = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", **labels}
        yield MI300X, node_object(f"{pool}-amd", None, None, {AMD: 8}, labels=vendor)


PRODUCTS = {document["metadata"]["name"]: product for product, document in fleet()}


def policy_text(namespace: str, limits: Mapping[str, int]) -> str:
    """Write the policy with the limits of a namespace."""
    rows = ", ".join(f"{{products: [{product}], gpus: {most}}}" for product, most in limits.items())
    match = f"match: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}"
    return policy(namespace, f"priority: 10, {match}, placement: {{namespaceLimits: [{rows}]}}")


def units_of(pod: Object) -> int:
    """Sum up the GPUs, slices and shares that a pod requests, as kube-scheduler does (PodRequests)."""
    total = 0
    for resource in (GPU, SLICE, AMD):
        amounts = [
            (one.get("restartPolicy"), int(((one.get("resources") or {}).get("limits") or {}).get(resource, 0)))
            for one in pod["spec"].get("initContainers", ())
        ]
        sidecars = sum(amount for restart, amount in amounts if restart)
        main = [
            ((one.get("resources") or {}).get("limits") or {}).get(resource, 0) for one in pod["spec"]["containers"]
        ]
        total += max([sum(map(int, main)) + sidecars, *(amount for restart, amount in amounts if not restart)])
    return total


@dataclass
class SeenPod:
    """What a watch saw of a pod; `units` of it are held on `node`, and `ended` says that it has finished or is gone."""

    namespace: str
    units: int
    node: str = ""
    ended: bool = False
    created: float = 0.0
    document: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A binding or an end, at a time of the monotonic clock, in the order in which the API server stored them."""

    at: float
    name: str
    namespace: str
    product: str
    units: int

    @property
    def binds(self) -> bool:
        """Whether it is a binding; an end has negative units."""
        return self.units > 0


class Watch:
    """Follows all pods from a list on, in a thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self.pods: dict[str, SeenPod] = {}
        self.changes: list[Change] = []
        self.lock = threading.Lock()
        self.failure: BaseException | None = None
        self._plane, self._stop = plane, False
        self._from = plane.api.get("/api/v1/pods")["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop = True
        self._thread.join(10)
        assert self.failure is None, self.failure

    def held(self) -> Counter[tuple[str, str]]:
        """Count what each namespace holds of each product now."""
        with self.lock:
            found: Counter[tuple[str, str]] = Counter()
            for pod in self.pods.values():
                if pod.node and not pod.ended:
                    found[pod.namespace, PRODUCTS[pod.node]] += pod.units
            return found

    def _run(self) -> None:
        try:
            while not self._stop:
                self._follow()
        except BaseException as error:  # noqa: BLE001  # raised again by close
            self.failure = error

    def _follow(self) -> None:
        params = {"watch": "1", "resourceVersion": self._from, "timeoutSeconds": "3", "allowWatchBookmarks": "true"}
        with self._plane.api.like() as own, own.client.stream("GET", "/api/v1/pods", params=params) as lines:
            for line in lines.iter_lines():
                event: Object = json.loads(line)
                assert event["type"] != "ERROR", line
                self._from = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    with self.lock:
                        self._note(event["type"], event["object"], time.monotonic())

    def _note(self, kind: str, document: Object, now: float) -> None:
        uid = document["metadata"]["uid"]
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        seen = self.pods.setdefault(uid, SeenPod(namespace, units_of(document), created=now))
        seen.document = document
        node = document["spec"].get("nodeName", "")
        ended = kind == "DELETED" or (document.get("status") or {}).get("phase") in FINISHED
        if node and not seen.node and not ended:
            seen.node = node
            self.changes.append(Change(now, name, namespace, PRODUCTS[node], seen.units))
        if ended and not seen.ended:
            seen.ended = True
            if seen.node:
                self.changes.append(Change(now, name, namespace, PRODUCTS[seen.node], -seen.units))


@dataclass(frozen=True, slots=True)
class LimitEdit:
    """An edit of the limits: before `began` those of before hold, from `seen` on by both replicas those of after."""

    began: float
    seen: float
    before: Limits
    after: Limits


@dataclass(frozen=True, slots=True)
class Excess:
    """One binding beyond a limit: its units beyond, and the seconds since the first binding that it raced with."""

    change: Change
    least: int
    most: int
    seconds: float


def replay(changes: Sequence[Change], limits: Limits, edits: Sequence[LimitEdit]) -> list[Excess]:
    """Find each binding that brought a namespace above a limit, from what a watch saw.

    While an edit is not seen by both replicas either limits may hold: `least` and `most` units are then beyond.
    """
    held: Counter[tuple[str, str]] = Counter()
    recent: dict[tuple[str, str], list[Change]] = defaultdict(list)
    found = []
    for change in changes:
        key = change.namespace, change.product
        held[key] += change.units
        if not change.binds:
            continue
        recent[key].append(change)
        valid = _limits_at(change.at, key, limits, edits)
        beyond = [min(change.units, held[key] - most) for most in valid]
        if max(beyond, default=0) > 0:
            excess, needed = max(beyond), 0
            for raced in reversed(recent[key]):
                needed += raced.units
                if raced is not change and needed >= excess:
                    break
            found.append(Excess(change, max(0, min(beyond)), excess, change.at - raced.at))
    return found


def _limits_at(at: float, key: tuple[str, str], limits: Limits, edits: Sequence[LimitEdit]) -> list[int]:
    namespace, product = key
    valid = [limits]
    for edit in edits:
        if at >= edit.seen:
            valid = [edit.after]
        elif at >= edit.began:
            valid = [edit.before, edit.after]
    return [most for one in valid if (most := one.get(namespace, {}).get(product)) is not None]


class InTurn:
    """An HTTP server on loopback that passes each request on to one of the replicas, chosen at random of `ports`."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        chance, local = random.Random(seed), threading.local()
        self.ports = ports
        self.asked: Counter[int] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                port = chance.choice(outer.ports)
                outer.asked[port] += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                connections: dict[int, http.client.HTTPConnection] = vars(local).setdefault("by_port", {})
                connection = connections.setdefault(port, http.client.HTTPConnection("127.0.0.1", port, timeout=10))
                headers = {"Content-Type": "application/json"}
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def finish(self) -> None:
                super().finish()
                for connection in vars(local).pop("by_port", {}).values():
                    connection.close()

            def log_message(self, *_: Any) -> None:
                """Write no log."""

        self.port = free_port()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def extender(self) -> Object:
        """Return the fields of a scheduler's extender with which it asks this server."""
        url = f"http://127.0.0.1:{self.port}/scheduler"
        return {"urlPrefix": url, "enableHTTPS": False, "tlsConfig": None}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class QuotaStage:
    """The control plane, both replicas, the directory of their policies, and the server before them."""

    plane: ControlPlane
    replicas: tuple[Service, Service]
    folder: Path
    front: InTurn
    limits: dict[str, dict[str, int]]
    edits: list[LimitEdit] = field(default_factory=list)

    def ask_all(self) -> None:
        """Have both replicas asked about a pod of each namespace, so that they know its limits."""
        for replica in self.replicas:
            for namespace in self.limits:
                pod = {"metadata": {"name": "probe", "namespace": namespace, "uid": "probe"},
                       "spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "64"}}}]}}  # fmt: skip
                call_extender(replica, "filter", pod, PRODUCTS)

    def lower(self, namespace: str, product: str, most: int) -> None:
        """Change a limit, and return once both replicas have it."""
        before, began = {key: dict(value) for key, value in self.limits.items()}, time.monotonic()
        self.limits[namespace] = {**self.limits[namespace], product: most}
        hashes = [replica.health()["policies"]["hash"] for replica in self.replicas]
        (self.folder / f"{namespace}.yaml").write_text(policy_text(namespace, self.limits[namespace]), "utf-8")
        for replica, old in zip(self.replicas, hashes, strict=True):
            eventually("the limit is in force", partial(has_other_policies, replica, old))
        self.ask_all()
        after = {key: dict(value) for key, value in self.limits.items()}
        self.edits.append(LimitEdit(began, time.monotonic() + LAG_SECONDS, before, after))

    def counted(self) -> tuple[int, int]:
        """Return how many units each replica has counted beyond limits."""
        one, other = (int(one.metric("gpu_usher_namespace_limit_exceeded_total")) for one in self.replicas)
        return one, other

    def clear(self) -> None:
        """Delete all pods, and wait until both replicas have seen it."""
        for namespace in self.limits:
            self.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods")
        eventually("the pods are gone", lambda: not self.plane.api.items("/api/v1/pods"))
        time.sleep(0.5)


@contextmanager
def fleet_of(plane: ControlPlane) -> Iterator[None]:
    """Register the nodes."""
    add_nodes(plane.api, [document for _, document in fleet()])
    yield


def has_other_policies(replica: Service, before: str) -> bool:
    """Tell whether a replica has other policies in force than those with this hash."""
    return bool(replica.health()["policies"]["hash"] != before)


def finish_pod(client: httpx.Client, pod: Object, phase: str = "Succeeded") -> float:
    """Set a pod's phase as its kubelet does when its containers have ended; return when the API server had it."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = client.patch(path, content=json.dumps({"status": {"phase": phase}}), headers=headers)
    assert answer.status_code in (200, 404), answer.text
    return time.monotonic()
