# SPDX-License-Identifier: Apache-2.0
"""A cluster moves from the device plugin to DRA under load: pool by pool, with a rollback in the middle, and back.

The control plane, the webhook, the scheduler and the allocations are real; the kubelets are stand-ins that give devices
(device_kubelets.py). tests/realnodes/test_migration.py does the same with three real kubelets.
"""

import json
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.device_kubelets import GPU, LOOK_SECONDS, DeviceKubelets
from tests.e2e.offers import dra_path, keeps_extended_resources
from tests.e2e.stage import (
    ASKED_ABOUT_CLAIMS,
    Service,
    create_namespace,
    eventually,
    gpu_pod,
    grant_events,
    install_webhooks,
    pods_of,
    serving,
    start_scheduler,
)

POOLS, GPUS, NAMESPACE = ("a", "b", "c"), 8, "migration"
CONFIG_MAPS = "/api/v1/namespaces/gpu-usher/configmaps"
MOVE_SECONDS = 240
CHURN_SECONDS = 0.7
"""Between two deletions of a random pod."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service with Events, its webhooks, and a scheduler that asks it."""
    grant_events(plane)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(plane) as running:
            install_webhooks(plane, running)
            start_scheduler(plane, running, change=ASKED_ABOUT_CLAIMS)
            yield running


class Migration:
    """A cluster of three pools with a Deployment each, whose nodes move between device plugin and DRA."""

    def __init__(self, plane: ControlPlane, nodes_of_a_pool: int, pods_of_a_pool: int) -> None:
        self.plane, self.api, self.dra = plane, plane.api, dra_path(plane)
        self.nodes = {pool: [f"{pool}-{number}" for number in range(nodes_of_a_pool)] for pool in POOLS}
        self.pods = pods_of_a_pool
        create_namespace(plane, NAMESPACE)
        for pool, names in self.nodes.items():
            labels = {"pool": pool}
            add_nodes(self.api, (node_object(name, offers={GPU: GPUS}, labels=labels) for name in names))
        self.extended = keeps_extended_resources(plane)
        served = device_class("gpu.nvidia.com", "gpu")
        more = {"extendedResourceName": GPU} if self.extended else {}
        self.api.create(f"{self.dra}/deviceclasses", {**served, "spec": {**served["spec"], **more}})
        gpus = {name: GPUS for names in self.nodes.values() for name in names}
        self.kubelets = DeviceKubelets(NAMESPACE, self.dra, gpus, "pool")
        self._set_policy(())

    def pod(self, pool: str) -> Object:
        """Write the pod of a pool's Deployment: the same manifest before, during and after the migration."""
        labels = {"pool": pool}
        return gpu_pod(pool, NAMESPACE, labels=labels, nodeSelector=labels, terminationGracePeriodSeconds=1)

    def start(self, folder: Path) -> None:
        """Create the Deployments and the templates of their claims, and wait until all pods run."""
        (folder / "pod.json").write_text(json.dumps(self.pod("a")), "utf-8")
        words = ["-f", str(folder / "pod.json"), "-n", NAMESPACE, "--kubeconfig", str(self.plane.kubeconfig("admin"))]
        made = CliRunner().invoke(app, ["plan", "claim-templates", *words])
        assert made.exit_code == 0, made.output
        applied = self.plane.kubectl("apply", "-f", "-", stdin=made.stdout)
        assert applied.code == 0, applied.err
        for pool in POOLS:
            pod = self.pod(pool)
            template = {"metadata": {"labels": {"pool": pool}}, "spec": pod["spec"]}
            spec = {"replicas": self.pods, "selector": {"matchLabels": {"pool": pool}}, "template": template}
            path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
            self.api.create(path, {"metadata": {"name": pool}, "spec": spec})
        self.wait()

    def wait(self) -> None:
        """Wait until as many pods run as are wanted."""
        eventually("every pod runs", lambda: self.running() == len(POOLS) * self.pods, MOVE_SECONDS)

    def running(self) -> int:
        """Count the pods that run, not too often, since it lists them all."""
        time.sleep(LOOK_SECONDS)
        return sum(
            pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
            for pod in pods_of(self.plane, NAMESPACE)
        )

    def convert(self, *pools: str) -> None:
        """Let admission convert the pods of these pools, and wait until it does, or no more does."""
        self._set_policy(pools)
        eventually("admission knows the policy", lambda: self._converted() == set(pools))

    def _converted(self) -> set[str]:
        """Name the pools whose pods admission converts now."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        return {pool for pool in POOLS if "resourceClaims" in self.api.create(path, self.pod(pool))["spec"]}

    def _set_policy(self, pools: Sequence[str]) -> None:
        selected = ", ".join(pools or ("none",))
        text = policy(
            "convert",
            "priority: 9, match: {podSelector: {matchExpressions: [{key: pool, operator: In, "
            f"values: [{selected}]}}]}}}}, admission: {{convertToClaims: true}}",
        )
        document = {"metadata": {"name": "convert", "labels": {"gpu-usher.io/policy": "true"}},
                    "data": {"convert.yaml": text}}  # fmt: skip
        if self.api.client.get(f"{CONFIG_MAPS}/convert").is_success:
            self.api.patch(f"{CONFIG_MAPS}/convert", document)
        else:
            self.api.create(CONFIG_MAPS, document)

    def publish(self, names: Sequence[str]) -> None:
        """Let a DRA driver publish the GPUs of nodes, which their device plugins may offer as well."""
        published = {item["metadata"]["name"] for item in self.api.items(f"{self.dra}/resourceslices")}
        devices = [device(number, "gpu", "h100") for number in range(GPUS)]
        for name in sorted({*names} - published):
            self.api.create(f"{self.dra}/resourceslices", slice_of(name, devices))

    def offer(self, names: Sequence[str], amount: int) -> None:
        """Let the device plugins of nodes offer so many GPUs."""
        for name in names:
            amounts = {GPU: str(amount)}
            self.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        (self.kubelets.plugins.update if amount else self.kubelets.plugins.difference_update)(names)

    def move(self, names: Sequence[str], to_claims: bool) -> None:
        """Drain nodes, take away the other side, and give them back; then wait until all pods run."""
        for name in names:
            self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        eventually("the nodes are drained", lambda: not self._evict(names), MOVE_SECONDS)
        self.offer(names, 0 if to_claims else GPUS)
        if not to_claims:
            for name in names:
                self.api.delete(f"{self.dra}/resourceslices/{name}")
        for name in names:
            self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": False}})
        self.wait()

    def _evict(self, names: Sequence[str]) -> int:
        """Evict the pods of nodes that are not being evicted; return how many are left."""
        time.sleep(LOOK_SECONDS)
        left = [pod for pod in pods_of(self.plane, NAMESPACE) if pod["spec"].get("nodeName") in names]
        for pod in left:
            if not pod["metadata"].get("deletionTimestamp"):
                metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
                self.api.try_create(f"{pod_path(pod)}/eviction", body)
        return len(left)

    @contextmanager
    def load(self) -> Iterator[list[str]]:
        """Delete a random running pod again and again while the block lasts; yields their names."""
        stop, deleted = threading.Event(), list[str]()

        def work() -> None:
            chance = random.Random(1126)
            with self.api.like() as own:
                while not stop.wait(CHURN_SECONDS):
                    pods = own.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
                    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
                    pod = chance.choice(running) if running else None
                    if pod is not None:
                        own.client.delete(pod_path(pod))
                        deleted.append(pod["metadata"]["name"])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield deleted
        finally:
            stop.set()
            thread.join(30)


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("nodes", "pods"), [pytest.param(2, 12, id="36"), pytest.param(13, 100, id="300", marks=pytest.mark.long)]
)
def test_no_pod_is_lost_and_no_gpu_held_twice_while_pools_move_to_claims_and_back(
    plane: ControlPlane, nodes: int, pods: int, tmp_path: Path
) -> None:
    """F135: three pools, each in two batches; pool b goes back when half of it has moved."""
    migration = Migration(plane, nodes, pods)
    half = (nodes + 1) // 2
    batches = {pool: (names[:half], names[half:]) for pool, names in migration.nodes.items()}
    began = time.monotonic()
    with migration.kubelets.running(plane.api):
        migration.start(tmp_path)
        with migration.load() as deleted:
            for pool in POOLS:
                forward(migration, pool, batches[pool][:1] if pool == "b" else batches[pool])
                if pool == "b":
                    back(migration, pool, batches[pool][:1])
                    forward(migration, pool, batches[pool])
            converted = sum("resourceClaims" in pod["spec"] for pod in pods_of(plane, NAMESPACE))
            by_claim = sum(claim for _, _, claim in migration.kubelets.held.values())
            for pool in reversed(POOLS):
                back(migration, pool, batches[pool])
        migration.wait()
    gaps = [seconds for found in migration.kubelets.gaps.values() for seconds in found]
    failed = [pod for pod in pods_of(plane, NAMESPACE) if pod["status"]["phase"] == "Failed"]
    total = len(POOLS) * pods
    print(
        f"{total} pods, {by_claim} by claims at the turn, {converted} of them converted; {len(gaps)} replaced, "
        f"{len(deleted)} of them by the load, in {time.monotonic() - began:.0f} s; "
        f"lost {len(failed)}, held twice {len(migration.kubelets.twice)}; seconds without service: "
        f"{sum(gaps) / total:.1f} per pod, {statistics.median(gaps):.1f} median and {max(gaps):.1f} at most of a "
        f"replacement"
    )

    assert migration.kubelets.twice == []
    assert (failed, migration.kubelets.refused) == ([], [])
    assert by_claim > total * 0.9
    assert converted > 0
    assert not any(claim for _, _, claim in migration.kubelets.held.values())
    assert migration.running() == total


def forward(migration: Migration, pool: str, batches: Sequence[Sequence[str]]) -> None:
    """Move a pool to claims: the driver on all its nodes, then the nodes, then the field.

    Where DRA does not serve `nvidia.com/gpu`, the field comes before the nodes.
    """
    converted = POOLS[: POOLS.index(pool) + 1]
    migration.publish(migration.nodes[pool])
    if not migration.extended:
        migration.convert(*converted)
    for batch in batches:
        migration.move(batch, to_claims=True)
    migration.convert(*converted)


def back(migration: Migration, pool: str, batches: Sequence[Sequence[str]]) -> None:
    """Move a pool back: the field first, then the nodes.

    The device plugin of a node comes back when it is drained, as docs/reference/dra.md says: earlier, 28 of 300 pods
    waited, since a node whose claims hold GPUs serves no other pod.
    """
    migration.convert(*POOLS[: POOLS.index(pool)])
    for batch in batches:
        migration.move(batch, to_claims=False)
