# SPDX-License-Identifier: Apache-2.0
"""F83, F84: a pod, a fleet and policies, with the primary cause and the smallest proven fix that must result.

The file's name is the sentence. `says` has words of the smallest fix, and `also` kinds of edits among the other fixes.
`live` means that the pod is in the cluster as it is, and was not admitted by the webhook.
"""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import pytest
import yaml

from app.cluster.snapshot import bound_volumes
from app.demo.notation import DemoFleet
from app.demo.sample_fleets import objects_of
from app.explain.explanation import Explanation
from app.explain.funnel import funnel
from app.explain.pending_pod import explain
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.values.reasons import Code, Reason
from app.world.world import World, world_of
from tests.builders import policies, state_of

PUZZLES = sorted(Path(__file__).parent.joinpath("puzzles").glob("*.yaml"))


def world_under(puzzle: dict[str, Any]) -> World:
    """Make the cluster of a puzzle with the shipped fallback policy and the puzzle's own policies."""
    objects = [*objects_of(msgspec.convert(puzzle["fleet"], DemoFleet)), *puzzle.get("objects", ())]
    state = state_of(objects)
    header = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
    texts = (
        yaml.safe_dump({**header, "metadata": {"name": policy["name"]}, "spec": policy["spec"]})
        for policy in puzzle.get("policies", ())
    )
    pods = (document for document in objects if document.get("kind") == "Pod")
    return world_of(state, policies(*texts), volumes=bound_volumes(objects), existing_pods=existing_pods_of(pods))


@cache
def played(path: Path) -> tuple[dict[str, Any], Explanation]:
    """Explain the pod of a puzzle, once for all tests of it."""
    puzzle = yaml.safe_load(path.read_text("utf-8"))
    return puzzle, finish(explain(puzzle["pod"], world_under(puzzle), live=puzzle.get("live", False), by_node=True))


@pytest.mark.parametrize("path", PUZZLES, ids=lambda path: path.stem)
def test_puzzle_has_its_primary_cause_and_its_smallest_fix(path: Path) -> None:
    """F83, F84, P45."""
    puzzle, explanation = played(path)
    expect = puzzle["expect"]
    smallest = explanation.fixes[0] if explanation.fixes else None
    edits = smallest.edits if smallest else ()

    assert (explanation.primary.reason if explanation.primary else None) == expect["primary"], explanation
    assert [edit.kind for edit in edits] == expect["fix"], explanation.fixes
    assert expect.get("says", "") in " ".join(edit.text for edit in edits)
    assert [evicted.pod for edit in edits for evicted in edit.evicts] == expect.get("evicts", [])
    assert set(expect.get("also", ())) <= {edit.kind for fix in explanation.fixes for edit in fix.edits}
    assert smallest is None or smallest.opens >= expect.get("opens", 1)


@pytest.mark.parametrize("path", PUZZLES, ids=lambda path: path.stem)
def test_patch_of_a_fix_does_what_its_words_say(path: Path) -> None:
    """F84: the edited pod fits if the fix changes only the pod; a JSON Patch library applies the patch."""
    puzzle, explanation = played(path)
    for fix in explanation.fixes:
        kinds = {edit.of for edit in fix.edits}
        assert bool(fix.patch) is ("pod" in kinds and fix.edits[0].kind != "recreate"), fix
        if kinds == {"pod"}:
            patched = jsonpatch.apply_patch(puzzle["pod"], [dict(operation) for operation in fix.patch])
            assert finish(explain(patched, world_under(puzzle))).fits == fix.opens


@pytest.mark.parametrize("path", PUZZLES, ids=lambda path: path.stem)
def test_funnel_loses_no_node_and_says_how_many_for_the_reason_that_it_names(path: Path) -> None:
    """F83: the nodes after the last stage are those that fit, and every stage's count follows from the one before.

    A stage may cut for several reasons, of which it names one, as the headline does.
    """
    _, explanation = played(path)

    primary, stages = explanation.primary, explanation.funnel
    assert all(after.left == before.left - after.cut for before, after in pairwise(stages))
    assert (stages[0].left, stages[-1].left) == (explanation.nodes, explanation.fits)
    assert len(explanation.verdicts or ()) == explanation.nodes
    assert all(0 <= step.nodes <= step.cut and bool(step.nodes) == bool(step.cut) for step in stages)
    for step in stages:
        if primary is not None and (step.reason, step.message) == (primary.reason, primary.message):
            assert step.nodes == primary.nodes


def test_stage_that_cuts_for_two_reasons_says_how_many_nodes_for_the_one_it_names() -> None:
    """F83: 14 of the 19 nodes are without an A100; of the others the product is not known."""
    product, unknown = (Reason(Code.ProductNotAllowed, words) for words in ("wants A100", "not known: wants A100"))

    steps = funnel({(product,): 14, (unknown,): 5, (): 3})

    assert [(step.left, step.cut, step.nodes) for step in steps if step.cut] == [(3, 19, 14)]


def test_there_are_more_than_thirty_puzzles() -> None:
    """F84."""
    assert len(PUZZLES) > 30
