# SPDX-License-Identifier: Apache-2.0
"""The selectors and devices that we and Kubernetes are asked about: published, written by hand, and random."""

import json
import random
from pathlib import Path

from tests.dra.expressions import ATTRIBUTES, Maker
from tests.dra.facts import Json, device_for, make_device
from tests.dra.oracle import Question

HERE = Path(__file__).parent
PUBLISHED = HERE / "published_selectors.json"
"""Selectors in the examples, tests and charts of the drivers of NVIDIA, Intel, AMD and Kubernetes, one path for each.

What a template leaves open has a value in it; `#` in front of an example is gone.
"""
WRITTEN = HERE / "written_selectors.txt"
"""A selector in each line, by hand, for what random ones seldom have."""
DEVICES = 6
"""With how many random devices each published and each written selector is asked."""


def make_selector(chance: random.Random, lists: bool = False) -> str:
    """Make a selector at random; `lists` asks about lists of values as well."""
    maker = Maker(chance)
    if lists and chance.random() < 0.5:
        kind = chance.choice(tuple(ATTRIBUTES))
        attribute, value = maker.attribute(kind), maker.value(kind, 1)
        return chance.choice(
            (
                f"{attribute}.includes({value})",
                f"{value} in {attribute}",
                f"{attribute}.exists(x, x == {value})",
                f"{attribute}.size() > 1",
                f"{attribute}[0] == {value}",
                f"{attribute} == [{value}]",
            )
        )
    return maker.selector()


WHOLE: Json = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": "8.0.0"},
        "index": {"int": 2},
        "healthy": {"bool": True},
        "version": {"version": "9.0.0"},
        "driverVersion": {"version": "580.82.7"},
    },
    "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "16"}},
}
"""A device that has what written selectors ask for."""


def published() -> list[str]:
    """Read the published selectors."""
    return [entry["expression"] for entry in json.loads(PUBLISHED.read_text("utf-8"))]


def written() -> list[str]:
    """Read the selectors that were written by hand."""
    lines = WRITTEN.read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def given_questions(chance: random.Random, devices: int = DEVICES) -> list[Question]:
    """Ask about published and written selectors, with devices that have what these ask for, and others."""
    questions: list[Question] = []
    for expression in published():
        questions += [Question(expression, *device_for(expression, chance)) for _ in range(devices)]
    for expression in written():
        questions.append(Question(expression, "gpu.nvidia.com", WHOLE))
        questions += [Question(expression, *make_device(chance)) for _ in range(devices - 1)]
    return questions


def random_questions(chance: random.Random, count: int, lists: bool = False) -> list[Question]:
    """Make random selectors, each with two random devices."""
    questions: list[Question] = []
    while len(questions) < count:
        expression = make_selector(chance, lists)
        questions += [Question(expression, *make_device(chance, lists)) for _ in range(2)]
    return questions
