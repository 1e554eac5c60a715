# SPDX-License-Identifier: Apache-2.0
"""S13, F84: the mistakes that people make with claims, each with its cause in plain words and the smallest fix."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo.sample_fleets import demo_fleet
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.values.computations import finish
from app.world.world import world_of
from tests.builders import shipped, state_of

Document = dict[str, Any]
PUZZLES: dict[str, Document] = yaml.safe_load(Path(__file__).with_name("claim_puzzles.yaml").read_text("utf-8"))


def request(fields: Document) -> Document:
    """Write a request as the API has it; `class` and `selectors` are short for the API's fields."""
    fields = dict(fields)
    if "firstAvailable" in fields:
        alternatives = [{"name": one["name"], **request(one)["exactly"]} for one in fields["firstAvailable"]]
        return {"name": fields["name"], "firstAvailable": alternatives}
    name, device_class = fields.pop("name"), fields.pop("class")
    selectors = [{"cel": {"expression": expression}} for expression in fields.pop("selectors", ())]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": selectors, **fields}}


def template(puzzle: Document) -> Document:
    """Write the ResourceClaimTemplate of a puzzle."""
    devices = {"requests": list(map(request, puzzle.get("requests", ()))), "constraints": puzzle.get("constraints", [])}
    metadata = {"namespace": "team-a", "name": "wish"}
    return {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": {"devices": devices}}}


def waiting(puzzle: Document) -> Document:
    """Write the pod of a puzzle."""
    main = {"name": "main", "image": "train:1", "resources": {"claims": [{"name": "gpus"}]}}
    claims = [{"name": "gpus", "resourceClaimTemplateName": "wish"}]
    spec = {"containers": [main], "resourceClaims": claims, **puzzle.get("pod", {})}
    return {"kind": "Pod", "metadata": {"namespace": "team-a", "name": "train", "uid": "train"}, "spec": spec}


def played(puzzle: Document) -> Explanation:
    """Explain the pod of a puzzle on the fleet gpucluster."""
    state = state_of([*demo_fleet("gpucluster"), template(puzzle), *puzzle.get("objects", ())])
    return finish(explain(waiting(puzzle), world_of(state, shipped())))


@pytest.mark.parametrize("name", PUZZLES)
def test_mistake_has_its_cause_in_plain_words_and_its_smallest_fix(name: str) -> None:
    """S13, F84."""
    puzzle = PUZZLES[name]
    explanation = played(puzzle)
    smallest = explanation.fixes[0] if explanation.fixes else None
    primary = explanation.primary

    assert (primary.reason if primary else None) == puzzle.get("primary"), explanation
    assert (primary.message if primary else None) == puzzle.get("says")
    fix = f"{smallest.edits[0].kind}: {smallest.edits[0].text}" if smallest else None
    assert fix == puzzle.get("fix"), explanation.fixes
    assert smallest is None or smallest.opens > 0
    assert explanation.notes == ((puzzle["notes"],) if "notes" in puzzle else ())


def test_there_are_more_than_twenty_mistakes() -> None:
    """S13."""
    assert len(PUZZLES) > 20


def test_fix_with_which_kube_scheduler_would_give_up_on_other_nodes_is_not_shown() -> None:
    """S13: `profile` is guarded by nothing on whole GPUs, so that another class that has both kinds fails on these."""
    any_class = {"kind": "DeviceClass", "metadata": {"name": "all"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}}  # fmt: skip
    puzzle = {**PUZZLES["mig-profile-of-the-class-of-whole-gpus"], "objects": [any_class]}
    texts = [fix.edits[0].text for fix in played(puzzle).fixes]

    assert texts == ["request slice: ask for DeviceClass mig.nvidia.com instead of gpu.nvidia.com"]


def test_claims_and_templates_are_not_judged_where_none_of_their_kind_is_known() -> None:
    """S13: whoever may read no claims is not told that one is missing."""
    cluster = played({"pod": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "other"}]}})
    assert cluster.primary is not None
    assert cluster.unjudged == ()
    state = state_of([document for document in demo_fleet("gpucluster") if document["kind"] != "ResourceClaim"])
    puzzle = {"pod": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "other"}]}}
    unknown = finish(explain(waiting(puzzle), world_of(state, shipped())))
    assert (unknown.primary, unknown.unjudged) == (None, ("resourceClaims",))


def test_namespace_with_the_label_may_have_admin_access() -> None:
    """S13."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {"kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}}
    puzzle = {**PUZZLES["admin-access-in-a-namespace-without-the-label"], "objects": [namespace]}
    assert played(puzzle).fits == 5
