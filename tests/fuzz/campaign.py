# SPDX-License-Identifier: Apache-2.0
"""A campaign sends a number of inputs to all targets, drawn from one seed, and records the outcomes and the memory.

`fill` fills every bounded cache of the service before the first input, so that later growth of memory is a leak.

The entries are made from the seeds with a small change each, as strange inputs differ from the seeds by little too.
Each is decoded anew, since the caches hold the strings that were decoded.
"""

import gc
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from app.kube.pods import read_pod
from app.nodes.conditions import MEMORY
from app.nodes.labels import NODE_CLASSES_KEPT, _read_class
from app.nodes.reading import read_node
from app.placement.ranking import TIE_BREAKS_KEPT, tie_break
from app.server.service import Service
from app.values.quantity import parse_quantity
from app.world.verdict_cache import DEMANDS_KEPT
from app.world.world import RULINGS_KEPT
from tests.bench.measure import resident_mib
from tests.builders import knowledge
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import FLEETS, seeds
from tests.fuzz.targets import TARGETS, Target, service


def fill(services: Iterable[Service]) -> None:
    """Fill the rulings and appraisals of each service, and the caches of node classes, names and quantities of the
    process."""
    pods, nodes = seeds("pod"), seeds("node")
    for number in range(RULINGS_KEPT):
        document = json.loads(pods[number % len(pods)])
        document["metadata"].setdefault("annotations", {})["gpu-usher.io/gpu-memory"] = f"{number + 1}Mi"
        for usher in services:
            read = read_pod(json.loads(json.dumps(document)))
            usher.world().ruling(read)
            demand = usher.demand(read)
            if number < DEMANDS_KEPT:
                usher.verdicts.of(demand)
    for number in range(NODE_CLASSES_KEPT):
        document = json.loads(nodes[number % len(nodes)])
        document["metadata"]["labels"][MEMORY] = str(number)
        read_node(document, knowledge())
        parse_quantity(f"{number}001m")
    for number in range(TIE_BREAKS_KEPT):
        tie_break(f"ip-10-0-{number}.eu-central-1.compute.internal")


def remembered(services: Iterable[Service]) -> Mapping[str, int]:
    """Count the entries of each cache, for all services together."""
    all_services = list(services)
    return {
        "rulings": sum(len(usher._rulings._by_template) for usher in all_services),
        "demands": sum(len(usher._demands._by_template) for usher in all_services),
        "appraised demands": sum(len(usher.verdicts._tables) for usher in all_services),
        "makes of nodes": _read_class.cache_info().currsize,
        "names": tie_break.cache_info().currsize,
        "quantities": parse_quantity.cache_info().currsize,
    }


SEED = 1125
RESULTS = Path(__file__).parents[1] / "results" / "fuzz.md"
WARM_SHARE = 1 / 2
"""The share of the rounds that count as warm-up, in which strange and larger entries replace the first ones in the
caches."""


@dataclass(slots=True)
class Tally:
    """The outcomes of a target's inputs. `slowest_ms` is the CPU time of the slowest input in milliseconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0


@dataclass(slots=True)
class Campaign:
    """The outcomes of all inputs. `crashes` has target, input number and exception; `memory` has (inputs, MiB).

    `remembered` has the number of entries in each cache before the first input and after the last.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    memory: list[tuple[int, float]] = field(default_factory=list)
    remembered: list[Mapping[str, int]] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """Count the inputs."""
        return sum(tally.outcomes.total() for tally in self.tallies.values())

    @property
    def growth_mib(self) -> float:
        """Return the growth of resident memory after warm-up, in MiB per 100,000 inputs."""
        (before, least), (after, most) = self.memory[int(len(self.memory) * WARM_SHARE)], self.memory[-1]
        return (most - least) / max(1, after - before) * 100_000


def body_of(target: Target, number: int, seed: int = SEED) -> bytes:
    """Make the input of this number, which is always the same."""
    random = Random(f"{seed} {target.name} {number}")
    good = seeds(target.seeds)
    return mutated(random.choice(good), good, random)


def run(inputs: int, rounds: int = 12, seed: int = SEED) -> Iterator[Campaign]:
    """Send about this many inputs, and yield the campaign after each round over all targets."""
    campaign = Campaign({target.name: Tally() for target in TARGETS})
    services = [service(name) for name in FLEETS]
    fill(services)
    full = remembered(services)
    for turn in range(rounds):
        for target in TARGETS:
            count = round(inputs * target.share / 100 / rounds)
            for number in range(turn * count, (turn + 1) * count):
                _send(target, number, seed, campaign)
        gc.collect()
        campaign.memory.append((campaign.inputs, resident_mib()))
        campaign.remembered = [full, remembered(services)]
        yield campaign


def _send(target: Target, number: int, seed: int, campaign: Campaign) -> None:
    tally = campaign.tallies[target.name]
    body = body_of(target, number, seed)
    before = time.process_time()
    try:
        outcome = target.outcome(body, number)
    except Exception as error:  # noqa: BLE001  # whatever it is: finding it is the point
        outcome = "CRASH"
        where = traceback.extract_tb(error.__traceback__)[-1]
        campaign.crashes.append(f"{target.name} {number}: {error!r:.200} at {where.filename}:{where.lineno}")
    tally.slowest_ms = max(tally.slowest_ms, (time.process_time() - before) * 1000)
    tally.outcomes[outcome] += 1


def table(campaign: Campaign) -> str:
    """Write the campaign in Markdown."""
    before, after = campaign.remembered
    lines = [
        "# Fuzzing",
        "",
        f"{campaign.inputs:,} inputs of seed {SEED}: {len(campaign.crashes)} crashes.",
        f"Resident memory grows by {campaign.growth_mib:.2f} MiB per 100,000 inputs after the first half, in which",
        "what the caches were filled with gives way to larger entries. All are bounded, and full from the start:",
        ", ".join(f"{before[name]:,} {name} ({after[name]:,} at the end)" for name in before) + ".",
        "Made by `python -m tests.fuzz INPUTS ROUNDS`.",
        "",
        "| read by | inputs | outcomes | slowest, CPU ms |",
        "|---|---:|---|---:|",
    ]
    for name, tally in campaign.tallies.items():
        outcomes = ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(tally.outcomes.items()))
        lines.append(f"| {name} | {tally.outcomes.total():,} | {outcomes} | {tally.slowest_ms:.0f} |")
    lines += ["", "| inputs | resident, MiB |", "|---:|---:|"]
    samples = campaign.memory[:: max(1, len(campaign.memory) // 25)]
    lines += [f"| {inputs:,} | {mib:.1f} |" for inputs, mib in dict([*samples, campaign.memory[-1]]).items()]
    return "\n".join([*lines, *(f"\n    {crash}" for crash in campaign.crashes[:50]), ""])
