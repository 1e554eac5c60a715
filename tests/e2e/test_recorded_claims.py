# SPDX-License-Identifier: Apache-2.0
"""Random claims on the recorded worlds of real DRA drivers: our verdicts are those of the real kube-scheduler (S13).

The worlds and how they were recorded: tests/dra/recorded. `make test-long` poses 1,000 pods with claims for each node
of each world, and writes tests/results/recorded-claims.md.
"""

import json
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.module_files import kubernetes_version
from tests.dra.recorded_worlds import WORLDS
from tests.e2e.settling import QUICK
from tests.e2e.world_claims_drawn import WorldClaims
from tests.e2e.world_copies import PLAIN, Copies, label_namespace, specs

SEED = 36
LONG_COPIES, LONG_ROUNDS = 50, 20
"""Together 1,000 pods for each node of a world."""
NOT_JUDGED = 0.02
"""The largest share of the verdicts of one world that may be missing. On-demand MIG, where a claim for many slices has
more combinations than either allocator tries in time, had 23 of 2,000; all worlds together 0.1 % (the page)."""
RESULTS = Path(__file__).parents[1] / "results" / "recorded-claims.md"
REPORTS = Path(__file__).parents[2] / ".pytest_cache" / "claims"
PAGE = """\
# Random claims on recorded worlds

The long test of `tests/e2e/test_recorded_claims.py` wrote this. In each world of `tests/dra/recorded`, pods with random
claims were posed for each of the two nodes to kube-scheduler {version}; half of those with devices kept them.
*Allocated*: the devices, their order and the capacity consumed are compared. *Refused*: whether the allocator refuses,
or kube-scheduler gives up (*error*). *Invalid* claims, which the API server refuses, were drawn anew.

| world | verdicts | allocated | refused | of them error | invalid | not judged | differences | seconds |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
{table}

## Not judged

{causes}
"""


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane) -> ControlPlane:
    """A scheduler without an extender, and the namespace of the claims."""
    label_namespace(plane)
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    plane.start_scheduler({**header, **QUICK, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
    return plane


def pose(plane: ControlPlane, world: str, copies: int, rounds: int) -> Copies:
    """Pose random claims in copies of a world, round by round."""
    stage = Copies(plane, world, random.Random(SEED))
    try:
        if refused := stage.create(copies):
            pytest.skip(f"The API server refuses a slice ({refused[:150]}). Choose a newer version.")
        stage.seed()
        drawn = WorldClaims(random.Random(f"{world} {copies}"), stage.slices, stage.classes)
        valid = filter(stage.is_valid, drawn_specs(drawn))
        for number in range(rounds):
            stage.round(number, specs(valid, stage.chance, copies))
    finally:
        stage.remove()
    return stage


def drawn_specs(drawn: WorldClaims) -> Iterator[Object]:
    while True:
        yield drawn.spec()


@pytest.mark.parametrize("world", WORLDS)
def test_random_claims_of_a_recorded_world_are_judged_as_kube_scheduler_does(
    scheduler: ControlPlane, world: str
) -> None:
    """S13, F135."""
    seen = pose(scheduler, world, copies=15, rounds=2)

    print(world, dict(seen.seen), dict(seen.not_judged))
    assert seen.differences == []
    assert not seen.not_judged
    assert min(seen.seen["allocated"], seen.seen["refused"]) > 0


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_thousand_random_pods_for_each_node_of_a_recorded_world(scheduler: ControlPlane, world: str) -> None:
    """S13, F135: no difference, and few verdicts that are missing."""
    began = time.monotonic()
    seen = pose(scheduler, world, LONG_COPIES, LONG_ROUNDS)

    counts = seen.seen
    numbers = [counts["allocated"] + counts["refused"], *(counts[key] for key in ("allocated", "refused", "ERROR"))]
    numbers += [counts["invalid"], sum(seen.not_judged.values()), len(seen.differences)]
    write_page(world, [*numbers, round(time.monotonic() - began)], seen.not_judged)
    assert seen.differences == []
    assert sum(seen.not_judged.values()) <= NOT_JUDGED * numbers[0]


def write_page(world: str, numbers: list[int], not_judged: Mapping[str, int]) -> None:
    """Keep what was seen of a world, and write the page once all worlds were seen; they may be of several runs."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / f"{world}.json").write_text(json.dumps([numbers, not_judged]), "utf-8")
    kept = {
        name: json.loads(path.read_text("utf-8")) for name in WORLDS if (path := REPORTS / f"{name}.json").is_file()
    }
    if len(kept) < len(WORLDS):
        return
    rows = {name: columns for name, (columns, _) in kept.items()}
    rows["**all**"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    table = "\n".join(f"| {name} | {' | '.join(map(str, columns))} |" for name, columns in rows.items())
    causes = [f"- {name}: {number} {why}" for name, (_, whys) in kept.items() for why, number in whys.items()]
    page = PAGE.format(version=kubernetes_version(), table=table, causes="\n".join(causes) or "None.")
    RESULTS.write_text(page, "utf-8")
