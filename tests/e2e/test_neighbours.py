# SPDX-License-Identifier: Apache-2.0
"""Pods with host ports, pod affinity or topology spread: explain agrees with the real scheduler on them."""

import json
from collections import Counter
from random import Random

from app.intree.inter_pod_constraints import (
    EXISTING_ANTI_AFFINITY,
    POD_AFFINITY_MISMATCH,
    POD_ANTI_AFFINITY_CONFLICT,
    PORT_TAKEN,
    SPREAD_CONFLICT,
)
from app.kube.pod_object import REQUIRED_TERMS
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.agreement import answer_of, difference, read_world
from tests.e2e.stage import create_namespace, create_pod, eventually, gpu_pod, read_pod
from tests.e2e.test_explain import GPU, fleet

PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def draw_pod(random: Random, index: int) -> Object:
    """Draw a pod of one of three kinds, with host ports, pod affinity or anti-affinity, or topology spread."""
    labels = {"kind": random.choice("abc"), "batch": random.choice("xy")}
    pod = gpu_pod(f"minding-{index}", random.choice(CROWDS), {GPU: 1, "cpu": "1"}, labels=labels)
    spec, affinity = pod["spec"], {}
    spec["schedulerName"] = "default-scheduler"
    spec["tolerations"] = random.choice([[], [{"key": "team", "operator": "Exists"}]])
    if random.random() < 0.4:
        ports = [{"containerPort": 80, "hostPort": random.choice([80, 81]), "protocol": random.choice(["TCP", "UDP"])}]
        ports[0] |= random.choice([{}, {"hostIP": "127.0.0.1"}, {"hostIP": "127.0.0.2"}])
        spec["containers"][0]["ports"] = ports
    for kind, share in (("podAffinity", 0.3), ("podAntiAffinity", 0.5)):
        if random.random() < share:
            affinity[kind] = {REQUIRED_TERMS: [term(random, kind) for _ in range(random.choice([1, 1, 2]))]}
    if random.random() < 0.3:
        spec["nodeSelector"] = {"zone": random.choice("ab")}
    if random.random() < 0.5:
        spec["topologySpreadConstraints"] = [
            spread(random, key) for key in random.sample(DOMAINS, random.choice([1, 2]))
        ]
    return {**pod, "spec": {**spec, "affinity": affinity}}


CROWDS = ("crowd-a", "crowd-b")
DOMAINS = ["zone", "cores", "kubernetes.io/hostname", "nvidia.com/gpu.product"]


def term(random: Random, kind: str) -> Object:
    """Draw a pod affinity term; some anti-affinity is over hostnames only, or soon no pod would find a node."""
    keys = ["kubernetes.io/hostname", "cores"] if kind == "podAntiAffinity" else DOMAINS
    spaces: list[Object] = [{}, {}, {"namespaces": ["crowd-a"]}, {"namespaceSelector": {}},
                            {"namespaceSelector": {"matchLabels": {"crowd": "b"}}}]  # fmt: skip
    own: list[Object] = [{}, {}, {"matchLabelKeys": ["batch"]}, {"mismatchLabelKeys": ["batch"]}]
    return {
        "topologyKey": random.choice(keys),
        "labelSelector": selector(random),
        **random.choice(spaces),
        **random.choice(own),
    }


def selector(random: Random) -> Object:
    expressions = [{"key": "kind", "operator": "NotIn", "values": ["a"]}]
    return random.choice([{"matchLabels": {"kind": random.choice("abc")}}, {"matchExpressions": expressions}])


def spread(random: Random, key: str) -> Object:
    policies = {
        "nodeAffinityPolicy": random.choice(["Honor", "Ignore"]),
        "nodeTaintsPolicy": random.choice(["Honor", "Ignore"]),
    }
    more: list[Object] = [{}, policies, {"minDomains": random.choice([2, 5])}, {"matchLabelKeys": ["batch"]}]
    constraint = {"topologyKey": key, "maxSkew": random.choice([1, 2]), "whenUnsatisfiable": "DoNotSchedule"}
    return {**constraint, "labelSelector": selector(random), **random.choice(more)}


def test_pods_that_mind_their_neighbours_are_explained_as_the_scheduler_judges(plane: ControlPlane) -> None:
    """F83: host ports, pod affinity and anti-affinity in both directions, topology spread, where all pods are known."""
    add_nodes(plane.api, fleet())
    plane.start_scheduler(PLAIN)
    for name in CROWDS:
        create_namespace(plane, name, crowd=name[-1])
    random, refusals = Random(84), Counter[str]()
    for index in range(MOST):
        if index >= LEAST and all(refusals[words] > 2 for words in MESSAGES):
            break
        pod = create_pod(plane, draw_pod(random, index))
        eventually("it is judged", lambda pod=pod: answer_of(read_pod(plane, pod)))  # type: ignore[misc]
        pod = read_pod(plane, pod)
        answer = answer_of(pod)
        assert answer is not None
        assert difference(pod, answer, read_world(plane, None)[0], asks_extender=False) == "", json.dumps(pod["spec"])
        refusals.update(words for words in MESSAGES if words in answer.words)
        if answer.words or index % 6 == 0:
            plane.api.delete(pod_path(pod))
            eventually("it is gone", lambda pod=pod: plane.api.client.get(pod_path(pod)).status_code == 404)  # type: ignore[misc]

    assert all(refusals[words] > 2 for words in MESSAGES), refusals


LEAST = 110
MOST = 440
"""The scheduler chooses at random among nodes of equal score, so that in some runs a rare reason comes late."""
MESSAGES = (PORT_TAKEN, POD_AFFINITY_MISMATCH, POD_ANTI_AFFINITY_CONFLICT, EXISTING_ANTI_AFFINITY, SPREAD_CONFLICT)
