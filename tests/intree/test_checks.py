# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own reasons: what each check objects to in its words, and node affinity against the oracle (F83)."""

from random import Random
from typing import Any

import pytest

from app.explain.funnel import first_objection, funnel, objection_name, objection_text
from app.intree.checks import (
    InTreeCause,
    in_tree_refusals,
    read_pod_constraints,
    scheduling_gate_refusal,
    unjudged_constraints,
)
from app.kube.existing_pods import read_pod_among_others
from app.kube.node_selectors import read_terms
from app.kube.pod_object import pod_object
from app.nodes.reading import read_node
from app.values.reasons import Code, FunnelStage, reason
from tests.builders import gpus, knowledge, node_document, pod
from tests.oracles.node_affinity import eligible

HAS = {"cpu": "4", "memory": "16Gi", "pods": "10", "example.com/nic": "2"}
NEVER = {"nvidia.com/gpu"}


def terms(*selector_terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(selector_terms)}}
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def causes(document: dict[str, Any], used: dict[str, int] | None = None, **node: Any) -> list[tuple[InTreeCause, str]]:
    made = node_document("n", labels={"zone": "a", "cores": "64"}, taints=node.get("taints"))
    made["status"]["allocatable"] |= HAS
    made["spec"] |= {"unschedulable": True} if node.get("cordoned") else {}
    pod_constraints = read_pod_constraints(pod_object(document), NEVER.__contains__, node.get("volumes"))
    return [
        (refusal.cause, refusal.message)
        for refusal in in_tree_refusals(pod_constraints, read_node(made, knowledge()), used or {})
    ]


def spec(**more: Any) -> dict[str, Any]:
    return pod(gpus(1), **more)


def asking(**amounts: str) -> dict[str, Any]:
    return pod({"name": "main", "resources": {"requests": {"nvidia.com/gpu": "99", **amounts}}})


TAINT = [{"key": "team", "value": "b", "effect": "NoSchedule"}]
SOFT = [{"key": "team", "value": "b", "effect": "PreferNoSchedule"}]
UNSELECTED = (InTreeCause.NodeAffinityMismatch, "node(s) didn't match Pod's node affinity/selector")
TAINTED = (InTreeCause.UntoleratedTaint, "node(s) had untolerated taint(s)")
CORDONED = (InTreeCause.NodeUnschedulable, "node(s) were unschedulable")
OF_ZONE_B = read_terms({"nodeSelectorTerms": [{"matchExpressions": [expression("zone", "In", "b")]}]})
CLAIM = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[InTreeCause, str]]]] = {
    "nothing asked": (spec(), {}, []),
    "taint": (spec(), {"taints": TAINT}, [TAINTED]),
    "soft taint": (spec(), {"taints": SOFT}, []),
    "tolerated": (spec(tolerations=[{"key": "team", "operator": "Exists"}]), {"taints": TAINT}, []),
    "tolerated with another value": (spec(tolerations=[{"key": "team", "value": "c"}]), {"taints": TAINT}, [TAINTED]),
    "tolerated for another effect": (
        spec(tolerations=[{"key": "team", "operator": "Exists", "effect": "NoExecute"}]), {"taints": TAINT}, [TAINTED]),
    "all tolerated": (spec(tolerations=[{"operator": "Exists"}]), {"taints": TAINT, "cordoned": True}, []),
    "cordoned": (spec(), {"cordoned": True}, [CORDONED]),
    "cordoned, its taint said once": (
        spec(), {"cordoned": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
        [CORDONED]),
    "selector": (spec(nodeSelector={"zone": "a"}), {}, []),
    "selector with another value": (spec(nodeSelector={"zone": "b"}), {}, [UNSELECTED]),
    "two keys, two causes": (spec(nodeSelector={"zone": "b", "x": "y"}), {}, [UNSELECTED, UNSELECTED]),
    "node by name": (spec(nodeName="m"), {}, [
        (InTreeCause.NodeNameMismatch, "node(s) didn't match the requested node name")]),
    "one of two terms is enough": (spec(affinity=terms(
        {"matchExpressions": [expression("zone", "In", "b")]}, {"matchExpressions": [expression("zone", "Exists")]})),
        {}, []),
    "empty term": (spec(affinity=terms({})), {}, [UNSELECTED]),
    "no term": (spec(affinity=terms()), {}, [UNSELECTED]),
    "cpu": (asking(cpu="4001m"), {}, [(InTreeCause.InsufficientResource, "Insufficient cpu")]),
    "all cpu": (asking(cpu="4"), {}, []),
    "cpu and memory": (asking(cpu="5", memory="17Gi"), {}, [
        (InTreeCause.InsufficientResource, "Insufficient cpu"),
        (InTreeCause.InsufficientResource, "Insufficient memory")]),
    "extended resource": (asking(**{"example.com/nic": "3"}), {}, [
        (InTreeCause.InsufficientResource, "Insufficient example.com/nic")]),
    "unknown resource": (asking(**{"example.com/other": "1"}), {}, [
        (InTreeCause.InsufficientResource, "Insufficient example.com/other")]),
    "volume elsewhere": (spec(**CLAIM), {"volumes": {"team-a/data": OF_ZONE_B}}, [
        (InTreeCause.VolumeNodeAffinityConflict, "node(s) didn't match PersistentVolume's node affinity")]),
    "volume of another namespace": (spec(**CLAIM), {"volumes": {"team-b/data": OF_ZONE_B}}, []),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_check_objects_in_the_words_of_kube_scheduler(row: str) -> None:
    """F83: the words are those of kube-scheduler v1.36's plugins."""
    document, node, expected = ROWS[row]

    assert causes(document, **node) == expected


def test_what_other_pods_have_booked_counts() -> None:
    """F83."""
    assert causes(asking(cpu="1"), {"cpu": 3000, "pods": 9}) == []
    assert causes(asking(cpu="1"), {"cpu": 3001, "pods": 10}) == [
        (InTreeCause.TooManyPods, "Too many pods"),
        (InTreeCause.InsufficientResource, "Insufficient cpu"),
    ]


def test_gates_are_named_as_the_event_names_them() -> None:
    """F83."""
    refusal = scheduling_gate_refusal(
        read_pod_constraints(pod_object(spec(schedulingGates=[{"name": "a"}, {"name": "b"}])), NEVER.__contains__)
    )

    assert refusal is not None
    assert refusal.message == "waiting for scheduling gates: [a b]"


def test_what_only_the_scheduler_can_tell_is_named() -> None:
    """F83: an answer that left these constraints out would claim too much."""
    document = spec(
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        topologySpreadConstraints=[{"whenUnsatisfiable": "DoNotSchedule"}],
    )

    assert list(unjudged_constraints(False, read_pod_among_others(pod_object(document)))) == [
        "podAntiAffinity",
        "topologySpreadConstraints",
    ]
    assert list(unjudged_constraints(True, None)) == ["resourceClaims"]
    assert list(unjudged_constraints(False, read_pod_among_others(pod_object(spec())))) == []


def drawn(random: Random) -> dict[str, Any]:
    """Draw required node affinity with all operators; some of it is not valid."""

    def one() -> dict[str, Any]:
        operator = random.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        few = random.sample(["a", "b", "63", "64", "65"], random.randrange(3))
        return expression(random.choice(["zone", "cores", "none"]), operator, *few)

    def term() -> dict[str, Any]:
        field = {"key": "metadata.name", "operator": random.choice(["In", "NotIn"]), "values": [random.choice("nm")]}
        return {
            "matchExpressions": [one() for _ in range(random.randrange(3))],
            **({"matchFields": [field]} if random.random() < 0.3 else {}),
        }

    return terms(*(term() for _ in range(random.randrange(4))))


def test_node_affinity_is_read_as_the_oracle_reads_it() -> None:
    """F83: all operators and matchFields are drawn with a fixed seed, and only values that the API server allows."""
    random = Random(8)
    verdicts = []
    for _ in range(3000):
        document = spec(affinity=drawn(random), nodeSelector=random.choice([{}, {"zone": "a"}, {"zone": "b"}]))
        verdicts.append(
            eligible(document, {**node_document("n")["metadata"]["labels"], "zone": "a", "cores": "64"}, "n")
        )

        assert (causes(document) == []) is verdicts[-1], document

    assert 300 < sum(verdicts) < 2700


def test_every_stage_of_the_funnel_has_a_cause_or_a_code() -> None:
    """F83."""
    assert {cause.stage for cause in (*InTreeCause, *Code)} == set(FunnelStage)


def test_node_falls_out_at_the_first_stage_that_objects() -> None:
    """F83."""
    product, free = reason(Code.ProductNotAllowed, "product"), reason(Code.InsufficientGPUs, "free")

    assert first_objection((free, product)) == product
    assert [(step.left, step.cut) for step in funnel({(free, product): 3, (free,): 2, (): 1}) if step.cut] == [
        (3, 3),
        (1, 2),
    ]
    assert (objection_name(product), objection_text(product)) == ("ProductNotAllowed", "product")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("zone", "In", "b", "c")]})),
                     f"{UNSELECTED[1]}: zone In b, c", id="value"),
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("zone", "Exists"),
                                                               expression("pool", "Exists")]})),
                     f"{UNSELECTED[1]}: pool Exists", id="the one that fails"),
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("zone", "NotIn", "a")]})),
                     f"{UNSELECTED[1]}: zone NotIn a", id="excluded"),
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("cores", "Gt", "64")]})),
                     f"{UNSELECTED[1]}: cores Gt 64", id="bound"),
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("zone", "In", *"bcdef")]})),
                     f"{UNSELECTED[1]}: zone In b, c, d, …", id="many values"),
        pytest.param(spec(affinity=terms({"matchExpressions": [expression("zone", "In", "b")]},
                                         {"matchExpressions": [expression("zone", "In", "c")]})),
                     UNSELECTED[1], id="several terms"),
        pytest.param(spec(**CLAIM), "node(s) didn't match PersistentVolume's node affinity: claim data, whose volume "
                     "wants zone In b", id="volume"),
    ],
)  # fmt: skip
def test_refusal_names_the_expression_that_fails(document: dict[str, Any], expected: str) -> None:
    """The key alone of a nodeSelector was named before, and of a volume nothing."""
    made = node_document("n", labels={"zone": "a", "cores": "64"})
    made["status"]["allocatable"] |= HAS
    claim = document["spec"].get("volumes", [{}])[0].get("persistentVolumeClaim", {}).get("claimName")
    volumes = {f"{document['metadata'].get('namespace', 'team-a')}/{claim}": OF_ZONE_B}
    constraints = read_pod_constraints(pod_object(document), NEVER.__contains__, volumes)

    [refusal] = in_tree_refusals(constraints, read_node(made, knowledge()), {})

    assert expected == objection_text(refusal)
