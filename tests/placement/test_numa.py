# SPDX-License-Identifier: Apache-2.0
"""Nodes on which a kubelet's topology manager would refuse a pod are refused if a policy says so and it is certain."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.api.wire import encode
from app.explain.pending_pod import explain
from app.kube.numa_zones import NodeResourceTopology, NUMAZones, device_amounts, read_topology, topology_refusal
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.placement.engine import helpful_candidates
from app.server.service import Service
from app.values.computations import finish
from tests.builders import container, gpus, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes

Object = dict[str, Any]
GPU, NIC = "nvidia.com/gpu", "example.com/nic"
REFUSE = "placement: {topologyManager: Refuse}"
SMALL = "NUMA nodes too small for the topology manager: wants "
BUSY = "not enough free on one NUMA node for the topology manager: wants "


def topology(
    *available: int, policy: str = "single-numa-node", scope: str = "container", nics: tuple[int, ...] = ()
) -> Object:
    """Write the object of node n, whose NUMA nodes have four GPUs each, and perhaps NICs, none of them free."""
    zones = [
        {"name": f"node-{index}", "type": "Node", "resources": [
            {"name": GPU, "capacity": 4, "allocatable": 4, "available": free},
            *({"name": NIC, "capacity": nic, "allocatable": nic, "available": 0} for nic in nics[index : index + 1]),
        ]}
        for index, free in enumerate(available)
    ]  # fmt: skip
    attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items() if value],
        "zones": zones,
    }


def serving(folder: Path, document: Object | None, spec: str = REFUSE) -> Service:
    service = make_service(folder, [node_document("n", offers={GPU: 8})], policies(policy("p", spec)))
    if document is not None:
        service.state.put_topology("n", read_topology(read_record(NodeResourceTopology, document)))
    return service


def asked(service: Service, *amounts: int, **limits: int) -> str:
    """Return filter's message against node n for a pod whose containers ask for these GPUs; empty where it fits."""
    containers = [gpus(amount, name=f"c{index}") for index, amount in enumerate(amounts)]
    if limits:
        containers = [container({GPU: amounts[0], NIC: limits["nics"]})]
    answer = json.loads(filter_nodes(encode({"Pod": pod(*containers), "NodeNames": ["n"]}), service).body)
    return str(({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}).get("n", ""))


def running(uid: str, amount: int, phase: str = "Running") -> Object:
    made = pod(gpus(amount), nodeName="n")
    return made | {"metadata": {"name": uid, "namespace": "team-a", "uid": uid}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("document", "amounts", "message"),
    [
        pytest.param(topology(3, 2, scope="pod"), (4,), f"{BUSY}4 {GPU}", id="pytorch/ci-infra#696"),
        pytest.param(topology(0, 4, scope="pod"), (4,), "", id="pytorch/ci-infra#696, one socket empty"),
        pytest.param(topology(4, 4), (6,), f"{SMALL}6 {GPU}", id="kubernetes/kubernetes#84869"),
        pytest.param(topology(4, 4, policy="restricted"), (6,), "", id="no two NUMA nodes would do with fewer"),
        pytest.param(topology(3, 2, policy="restricted"), (4,), f"{BUSY}4 {GPU}",
                     id="kubernetes-sigs/scheduler-plugins#885"),
        pytest.param(topology(3, 3), (3, 3), "", id="kubernetes-sigs/scheduler-plugins#452"),
        pytest.param(topology(3, 3, scope="pod"), (3, 3), f"{SMALL}6 {GPU}", id="the same with scope pod"),
        pytest.param(topology(3, 2), (3, 3), f"{BUSY}3 {GPU}", id="the second container"),
        pytest.param(topology(3, 2, policy="best-effort"), (4,), "", id="best-effort"),
        pytest.param(topology(3, 2, policy="none"), (4,), "", id="none"),
        pytest.param(topology(3, 2, policy=""), (4,), "", id="a policy that is not known is a guess"),
        pytest.param(topology(5), (6,), "", id="one NUMA node"),
        pytest.param(None, (4,), "", id="no object"),
    ],
)  # fmt: skip
def test_filter_refuses_by_policy_what_the_kubelet_will_refuse(
    document: Object | None, amounts: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    """F83: told and not refused by default; explain and filter judge alike."""
    service = serving(tmp_path, document)
    asking = pod(*(gpus(amount, name=f"c{index}") for index, amount in enumerate(amounts)))

    assert asked(service, *amounts) == message
    assert finish(explain(asking, service.world_copied())).fits is not bool(message)
    for spec in ("", "placement: {topologyManager: Accept}", f"{REFUSE}, action: Audit", f"{REFUSE}, action: Warn"):
        assert asked(serving(tmp_path, document, spec), *amounts) == ""


@pytest.mark.parametrize(("nics", "message"), [((1, 1), f"{SMALL}2 {NIC}"), ((2, 0), ""), ((), "")])
def test_other_devices_count_as_if_all_were_free_once_pods_are_known(
    nics: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    """Who holds them is not counted."""
    service = serving(tmp_path, topology(4, 4, nics=nics))
    service.state.put_pod(running("a", 0))
    service.state.put_pod(running("b", 1))

    assert asked(service, 2, nics=2) == message


def test_object_that_is_old_refuses_no_longer_than_the_pods_that_it_saw(tmp_path: Path) -> None:
    """What ended pods held is free on some NUMA node; a pod that came later, and was refused, changes nothing."""
    service = serving(tmp_path, None)
    state = service.state
    for uid, amount in (("a", 1), ("b", 2)):
        state.put_pod(running(uid, amount))
    state.put_topology("n", read_topology(read_record(NodeResourceTopology, topology(3, 2))))
    answers = [asked(service, 4)]
    for document in (running("c", 4), running("c", 4, "Failed"), running("d", 1), running("a", 1, "Succeeded")):
        state.put_pod(document)
        answers.append(asked(service, 4))
    state.put_topology("n", read_topology(read_record(NodeResourceTopology, topology(3, 2))))
    answers.append(asked(service, 4))
    state.put_topology("n", read_topology(read_record(NodeResourceTopology, topology(2, 3))))
    answers.append(asked(service, 4))
    state.put_topology("n", None)

    full = f"not enough free GPUs: wants 4 {GPU}"
    assert answers == [f"{BUSY}4 {GPU}", full, f"{BUSY}4 {GPU}", f"{BUSY}4 {GPU}", "", "", f"{BUSY}4 {GPU}"]
    assert asked(service, 4) == ""


def test_object_that_counts_pods_which_are_gone_is_not_believed(tmp_path: Path) -> None:
    """Its exporter has stopped: pods of the node are known, and none of them holds a GPU."""
    service = serving(tmp_path, topology(3, 2))
    believed = asked(service, 4)
    service.state.put_pod(running("agent", 0))
    service.state.put_pod(running("b", 1))

    assert (believed, asked(service, 4)) == (f"{BUSY}4 {GPU}", "")


@pytest.mark.parametrize(
    ("victims", "helps"),
    [(("a",), False), (("a", "b"), False), (("a", "b", "c"), True), (("a", "b", "c", "d"), True)],
)
def test_nobody_is_evicted_where_the_freed_gpus_may_be_on_several_numa_nodes(
    victims: tuple[str, ...], helps: bool, tmp_path: Path
) -> None:
    """F44: eight GPUs are held two by two; only six of them have to be on one NUMA node with two at least."""
    service = serving(tmp_path, None)
    for uid in "abcd":
        service.state.put_pod(running(uid, 2))
    service.state.put_topology("n", read_topology(read_record(NodeResourceTopology, topology(0, 0))))
    demand = service.demand(read_pod(pod(gpus(2 if helps and len(victims) == 3 else 4))))

    kept = helpful_candidates(demand, {"n": victims}, {"n": victims}, service.state.node_without_pods)

    assert bool(kept) is helps


def test_what_is_free_at_most_refuses_only_what_every_state_of_the_node_refuses() -> None:
    """Pods that an object saw end in any order: whatever NUMA node they held, a refusal was right."""
    chance = Random(7)
    for _ in range(2_000):
        held = [(chance.randrange(2), chance.randrange(1, 3)) for _ in range(chance.randrange(5))]
        free = [4 - sum(units for zone, units in held if zone == index) for index in range(2)]
        if min(free) < 0:
            continue
        ended = [chance.random() < 0.5 for _ in held]
        now = list(free)
        for (zone, units), gone in zip(held, ended, strict=True):
            now[zone] += units * gone
        stays = sum(units for (_, units), gone in zip(held, ended, strict=True) if not gone)
        wanted = device_amounts(read_pod(pod(gpus(chance.randrange(1, 6)))))
        seen = read_topology(
            read_record(NodeResourceTopology, topology(*free, policy=chance.choice(["single-numa-node", "restricted"])))
        )
        true = NUMAZones(seen.policy, seen.scope, seen.total, tuple(((GPU, units),) for units in now))
        at_most = seen.with_pods({GPU: stays}, {})

        assert topology_refusal(wanted, at_most) is None or topology_refusal(wanted, true) is not None
        if not any(ended):
            assert topology_refusal(wanted, at_most) == topology_refusal(wanted, true)
