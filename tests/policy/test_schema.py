# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schema is the one in force, and the shipped policies do what is promised for the first day."""

from dataclasses import replace
from pathlib import Path

from app.cli.made_texts import schema_text
from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.demand import Demand
from app.policy.merge import AdmissionRules
from app.policy.schema_placement import SharingWish
from tests.builders import gpus, pod, ruling, shipped

POLICIES = Path(__file__).parents[2] / "policies"


def test_published_schema_is_the_one_in_force() -> None:
    """F74, F75: editors complete and check exactly what the service reads."""
    assert schema_text() == (POLICIES / "schema" / "gpupolicy.json").read_text("utf-8")


def test_every_policy_file_points_its_editor_at_the_schema() -> None:
    first = "# yaml-language-server: $schema=./schema/gpupolicy.json"

    lines = {path.name: path.read_text("utf-8").splitlines()[0] for path in POLICIES.glob("*.yaml")}

    assert dict.fromkeys(lines, first) == lines


def test_shipped_policies_load_with_the_default_last() -> None:
    names = [policy.name for policy in shipped().policies]

    assert names[-1] == "default"
    assert "training" in names


def test_plain_gpu_pod_gets_what_day_one_promises() -> None:
    expected = AdmissionRules(
        runtime_class_name="Auto",
        tolerate=True,
        from_node_taints=True,
        requests_only="CopyToLimits",
        mismatch="UseLimits",
        fractional="Deny",
        affinity_mode="Required",
    )

    merged = ruling(pod(gpus(1)))

    stricter = replace(expected, visible_devices="Deny", privileged="Deny", bypass="Deny", shared_replicas="Deny")
    assert [expected, stricter, stricter] == [merged.enforced, merged.warned, merged.audited]


def test_plain_gpu_pod_is_narrowed_by_nothing_on_day_one() -> None:
    scores = shipped().policies[-1].spec.placement.scores or ()
    expected = Demand(
        resources=(("nvidia.com/gpu", 1),),
        max_per_container=(("nvidia.com/gpu", 1),),
        sharing=SharingWish.Any,
        accept=AcceptedCompatibility.ForwardCompatible,
        refuse_unknown=False,
        scores=tuple((score.name, score.weight) for score in scores),
    )

    assert expected == ruling(pod(gpus(1))).demand
