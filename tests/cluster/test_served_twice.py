# SPDX-License-Identifier: Apache-2.0
"""One node that a device plugin and a DRA driver both serve: no GPU is given twice, and one side alone is not refused.

The model of the kubelet picks at random among the devices that its plugin's pods do not have, as it may
(kubelet cm/devicemanager, devicesToAllocate); that of kube-scheduler is our allocator, which tests compare to it.
"""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from app.dra.allocator import Outcome, allocate
from app.dra.selectors import Selection
from app.kube.claimed_devices import DeviceChoice
from app.kube.gpu_usage import GPUUsage
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from app.placement.engine import judge
from app.policy.demand import Demand
from app.world.state import State
from tests.dra.recorded_worlds import state_of

NODE = "node-2"
WORLD = "device-plugin-and-dra-on-one-node"
GPU, CLASS = "nvidia.com/gpu", "gpu.nvidia.com"


def by_plugin(units: int) -> Demand:
    """Make the demand of a pod that requests GPUs of the device plugin."""
    return Demand(resources=((GPU, units),))


def by_claim(count: int) -> Demand:
    """Make the demand of a pod that claims GPUs."""
    return Demand(claims=((CLASS, count),), device_requests=((DeviceChoice(CLASS, count),),))


def refusal(state: State, demand: Demand) -> str:
    """Return the code for which filter refuses the node; "" where it fits."""
    reason = judge(demand, state.nodes[NODE], recount=False)
    return reason.code.name if reason else ""


def claim(name: str, count: int, devices: Iterable[str] = ()) -> dict[str, Any]:
    """Write a claim, with the devices that it has."""
    exactly = {"deviceClassName": CLASS, "count": count}
    results = [{"request": "r", "driver": CLASS, "pool": NODE, "device": device} for device in devices]
    return {
        "metadata": {"namespace": "a", "name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        **({"status": {"allocation": {"devices": {"results": results}}}} if results else {}),
    }


def bound(uid: str, units: int) -> dict[str, Any]:
    """Write a pod that has GPUs of the device plugin on the node."""
    main = {"name": "main", "image": "app:1", "resources": {"limits": {GPU: str(units)}}}
    return {
        "metadata": {"namespace": "a", "name": uid, "uid": uid},
        "spec": {"nodeName": NODE, "containers": [main]},
        "status": {"phase": "Running"},
    }


class Cluster:
    """The node with what the kubelet and kube-scheduler have given away on it; `twice` counts GPUs given twice."""

    def __init__(self, draw: random.Random) -> None:
        self.state, self._draw = state_of(WORLD), draw
        self.gpus = [f"gpu-{index}" for index in range(4)]
        self.by_plugin: dict[str, list[str]] = {}
        self.by_claim: dict[str, list[str]] = {}
        self.twice = self.refused = self.refused_alone = 0

    def ask(self, uid: str, with_filter: bool) -> None:
        """Schedule one random pod."""
        units, claims = self._draw.choice([1, 1, 2]), self._draw.random() < 0.5
        if not self._fits(claims, units):
            return
        if with_filter and refusal(self.state, by_claim(units) if claims else by_plugin(units)):
            self.refused += 1
            self.refused_alone += not (self.by_plugin if claims else self.by_claim)
            return
        if claims:
            self._bind_claim(uid, units)
        else:
            held = {gpu for gpus in self.by_plugin.values() for gpu in gpus}
            self.by_plugin[uid] = self._draw.sample([gpu for gpu in self.gpus if gpu not in held], units)
            self.state.put_pod(bound(uid, units))
        self.twice += sum(count > 1 for count in self._counts().values())

    def _fits(self, claims: bool, units: int) -> bool:
        held = self.by_claim if claims else self.by_plugin
        return sum(map(len, held.values())) + units <= len(self.gpus)

    def _bind_claim(self, uid: str, count: int) -> None:
        cluster = self.state.devices.dra.current
        wanted = read_record(ResourceClaim, claim(uid, count))
        verdict = allocate((wanted,), self.state.nodes[NODE], cluster, Selection())
        assert verdict.outcome is Outcome.ALLOCATED
        self.by_claim[uid] = [one.device.name for one in verdict.devices]
        self.state.devices.put_claim(claim(uid, count, self.by_claim[uid]))

    def end_one(self) -> None:
        """End one random pod."""
        uid = self._draw.choice([*self.by_plugin, *self.by_claim] or [""])
        if self.by_plugin.pop(uid, None):
            self.state.drop_pod(uid)
        elif self.by_claim.pop(uid, None):
            self.state.devices.drop_claim(f"a/{uid}")

    def _counts(self) -> Counter[str]:
        holdings = (*self.by_plugin.values(), *self.by_claim.values())
        return Counter(gpu for gpus in holdings for gpu in gpus)


def played(with_filter: bool) -> Cluster:
    """Play 1,000 random pods, of which most end again."""
    draw = random.Random(33)
    cluster = Cluster(draw)
    for index in range(1_000):
        cluster.ask(f"p{index}", with_filter)
        if draw.random() < 0.7:
            cluster.end_one()
    return cluster


def test_of_a_thousand_random_pods_both_ways_none_gets_a_gpu_that_another_has() -> None:
    """F135: 4 GPUs, served by plugin and driver. Without filter the same pods hold GPUs twice."""
    without, with_filter = played(False), played(True)

    assert without.twice > 100
    assert with_filter.twice == 0
    assert with_filter.refused > 100
    assert with_filter.refused_alone == 0


def test_a_gpu_of_one_side_keeps_the_other_side_off_until_it_is_free() -> None:
    """F135."""
    state = state_of(WORLD)
    nobody = refusal(state, by_plugin(1)), refusal(state, by_claim(1))

    state.devices.put_claim(claim("c", 1, ["gpu-0"]))
    with_claim = refusal(state, by_plugin(1)), refusal(state, by_claim(1)), refusal(state, Demand())
    state.devices.drop_claim("a/c")
    state.put_pod(bound("p", 1))
    with_pod = refusal(state, by_plugin(1)), refusal(state, by_claim(1)), refusal(state, Demand())
    state.drop_pod("p")

    assert nobody == (refusal(state, by_plugin(1)), refusal(state, by_claim(1))) == ("", "")
    assert with_claim == ("GPUHeldByClaim", "", "")
    assert with_pod == ("", "GPUHeldByDevicePlugin", "")


def test_a_promise_counts_before_the_pod_is_seen_bound() -> None:
    """F135."""
    state = state_of(WORLD)

    state.promise(GPUUsage("p", NODE, "a/p", ((GPU, 1),)), 0.0)
    promised_units = refusal(state, by_claim(1))
    state.release("p", 0.0)
    state.promise(GPUUsage("c", NODE, "a/c", (), claims=(CLASS,)), 0.0)

    assert promised_units == "GPUHeldByDevicePlugin"
    assert refusal(state, by_plugin(1)) == "GPUHeldByClaim"
    assert refusal(state, by_claim(1)) == ""


def test_one_pod_does_not_get_gpus_both_ways() -> None:
    """F135."""
    assert refusal(state_of(WORLD), Demand(resources=((GPU, 1),), claims=((CLASS, 1),))) == "GPUHeldByClaim"


@pytest.mark.parametrize(
    ("strategy", "offered", "held", "expected"),
    [
        ("mixed", {GPU: "2"}, "gpu-0-mig-1g10gb-19-0", ""),
        ("mixed", {GPU: "2"}, "gpu-2", "GPUHeldByClaim"),
        ("none", {GPU: "4"}, "gpu-0-mig-1g10gb-19-0", "GPUHeldByClaim"),
    ],
)
def test_a_whole_gpu_is_none_of_the_slices_where_the_plugin_tells_them_apart(
    strategy: str, offered: dict[str, str], held: str, expected: str
) -> None:
    """F135: static slices beside whole GPUs."""
    state = state_of("h100-and-a100-static-mig")
    labels = {"nvidia.com/mig.strategy": strategy, "nvidia.com/gpu.count": "4"}
    state.put_node({"metadata": {"name": NODE, "labels": labels}, "status": {"allocatable": offered}})
    names = [device.name for pool in state.devices.dra.pools.pools(state.nodes[NODE]) for device in pool.devices]
    device = next((name for name in names if name == held), None) or next(
        name for name in names if ("mig" in held) == ("mig" in name)
    )

    state.devices.put_claim(claim("c", 1, [device]))

    assert refusal(state, by_plugin(1)) == expected
