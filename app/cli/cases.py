# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher test`: run the cases beside the policies, for a person or as JUnit XML for CI."""

import json
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from rich.console import Console

from app.cluster.files import case_texts, read_knowledge, read_policies, shipped_policies
from app.errors import BadInput, PolicyError
from app.explain.cases import read_case, rules_of, rules_touched, run_case

Outcomes = dict[str, list[str]]
"""What each case's file differs in; an empty list holds."""


def run_cases(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies, with cases/ below it; the shipped ones by default.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text, json or junit.")] = "text",
) -> None:
    """Run the policy cases: each a pod, some nodes, and what is expected; and name the rules that no case touches."""
    if output not in ("text", "json", "junit"):
        raise BadInput(f"--output: got {output[:20]!r}, wants text, json or junit")
    directory = directory or shipped_policies()
    knowledge = read_knowledge()
    policies = read_policies(directory, knowledge)
    texts = case_texts(directory)
    if not texts:
        raise PolicyError((f"{directory}/cases: no *.yaml in it: wants at least one case",))
    cases = {file: read_case(file, text) for file, text in texts.items()}
    outcomes = {file: list(run_case(case, policies, knowledge)) for file, case in cases.items()}
    touched = {each for case in cases.values() for each in rules_touched(case, policies, knowledge)}
    untouched = sorted(rules_of(policies) - touched)
    if output == "text":
        _print(outcomes, untouched)
    else:
        print(
            _junit(outcomes) if output == "junit" else json.dumps({"cases": outcomes, "untouched": untouched}, indent=2)
        )
    raise typer.Exit(1 if any(outcomes.values()) else 0)


def _print(outcomes: Outcomes, untouched: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for file, differences in outcomes.items():
        mark = "[red]fails[/]" if differences else "[green]holds[/]"
        console.print(f"{mark}  {_sentence(file)}")
        for difference in differences:
            console.print(f"       {difference}", markup=False)
    failed = sum(map(bool, outcomes.values()))
    console.print(f"{len(outcomes) - failed} of {len(outcomes)} cases hold")
    if untouched:
        console.print(f"no case is for: {', '.join(untouched)}")


def _sentence(file: str) -> str:
    return Path(file).stem.replace("-", " ")


def _junit(outcomes: Outcomes) -> str:
    failed = sum(map(bool, outcomes.values()))
    suite = ElementTree.Element("testsuite", name="gpu-usher", tests=str(len(outcomes)), failures=str(failed))
    for file, differences in outcomes.items():
        case = ElementTree.SubElement(suite, "testcase", classname="policies", name=_sentence(file), file=file)
        if differences:
            ElementTree.SubElement(case, "failure", message=differences[0]).text = "\n".join(differences)
    return ElementTree.tostring(suite, encoding="unicode")
