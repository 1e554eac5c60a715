# SPDX-License-Identifier: Apache-2.0
"""Reviews of random pods: the patch applies as in the JSON Patch library, and a second review changes nothing."""

import copy
from typing import Any

import jsonpatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.admission.fleet_facts import FleetFacts, NodeGroup
from app.admission.json_patch import apply
from app.admission.review import mutate
from app.admission.reviewed_pod import MOST_WARNINGS, WARNING_LIMIT
from app.nodes.reading import RuntimeClass
from app.policy.compiled import PolicySet
from tests.admission.test_review import FLEET, GPU, REPAIR, SLICE
from tests.builders import policies, policy, setting, shipped

AMOUNTS = st.sampled_from(["0", "1", "2", "8", "1000m", "1e0", 1, "500m", "-1"])
SIDES = st.none() | st.dictionaries(st.sampled_from([GPU, SLICE, "amd.com/gpu", "cpu"]), AMOUNTS, max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IMAGES = st.sampled_from(["train:1", "nvidia/cuda:12.4.0-base-ubuntu22.04", "nvcr.io/nvidia/pytorch:24.05-py3", ""])
CONTAINERS = st.fixed_dictionaries(
    {"name": NAMES, "image": IMAGES},
    optional={
        "resources": st.none() | st.fixed_dictionaries({}, optional={"limits": SIDES, "requests": SIDES}),
        "env": st.sampled_from([None, [], [{"name": "NVIDIA_DISABLE_REQUIRE", "value": "1"}, {"name": "ü~/"}]]),
        "restartPolicy": st.just("Always"),
        "~/": NAMES,
    },
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from([GPU, SLICE, "sku", "dedicated"]),
        "operator": st.sampled_from(["Equal", "Exists"]),
        "value": st.sampled_from(["", "present", "small"]),
        "effect": st.sampled_from(["", "NoSchedule", "NoExecute"]),
    },
)
EXPRESSIONS = st.fixed_dictionaries({"key": st.just("zone"), "operator": st.just("In"), "values": st.just(["ü"])})
TERMS = st.fixed_dictionaries(
    {}, optional={field: st.lists(EXPRESSIONS, max_size=2) for field in ("matchExpressions", "matchFields")}
)
NODE_AFFINITY: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "requiredDuringSchedulingIgnoredDuringExecution": st.none()
        | st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERMS, min_size=1, max_size=3)}),
        "preferredDuringSchedulingIgnoredDuringExecution": st.sampled_from([None, []]),
    },
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([f"gpu-usher.io/{name}" for name in ("products", "sharing", "cuda", "decision", "typo")] + ["a/~"]),
    st.sampled_from(["A100", "H100, QQQQ-7777", "!A10", "Exclusive", "Any", "12.4", "{", "ü\n"]),
    max_size=3,
)
SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, min_size=1, max_size=3)},
    optional={
        "initContainers": st.none() | st.lists(CONTAINERS, max_size=2),
        "tolerations": st.none() | st.lists(TOLERATIONS, max_size=3),
        "affinity": st.none() | st.fixed_dictionaries({}, optional={"nodeAffinity": st.none() | NODE_AFFINITY}),
        "runtimeClassName": st.sampled_from([None, "nvidia", "mine"]),
        "schedulerName": st.sampled_from(["default-scheduler", "volcano"]),
        "unknownField": st.just({"~": [None]}),
    },
)
PODS = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional={"annotations": st.none() | ANNOTATIONS}), "spec": SPECS}
)
PREFERRED = policies(policy("p", "admission: {affinity: {mode: Preferred}, schedulerName: ours}, action: Enforce"))
WARNING = policies(policy("w", f"action: Warn, {REPAIR}"), policy("d", "admission: {affinity: {mode: Required}}"))


@given(
    PODS, st.sampled_from([shipped(), PREFERRED, WARNING]), st.lists(st.sampled_from(FLEET.node_groups), unique=True)
)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_second_review_changes_nothing_and_the_library_agrees(
    document: dict[str, Any], policy_set: PolicySet, group: list[NodeGroup]
) -> None:
    """Fault 20."""
    before = copy.deepcopy(document)
    where = setting(policy_set, FleetFacts(tuple(group), {"nvidia": RuntimeClass("nvidia")}))

    verdict = mutate(document, "team-a", {}, where)
    after = apply(document, verdict.operations)
    again = mutate(after, "team-a", {}, where)

    assert before == document
    assert after == jsonpatch.apply_patch(document, [operation.as_json() for operation in verdict.operations])
    assert not verdict.operations or verdict.allowed
    assert not again.operations
    assert verdict.allowed is again.allowed
    assert all(len(warning) <= WARNING_LIMIT and warning.isprintable() for warning in verdict.warnings)
    assert len(verdict.warnings) <= MOST_WARNINGS
