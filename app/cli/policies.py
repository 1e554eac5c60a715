# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher policy lint` and `policy test`: checks policies, and runs their cases. export.py writes other forms."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import typer
from rich.console import Console

from app.cli.output import show
from app.values.computations import finish
from app.values.errors import PolicyError
from app.values.reasons import counted


@dataclass(frozen=True, slots=True)
class LintResult:
    """The number of policy files and cases, and what is wrong, each as file:line:column: what, remedy.

    `warnings` are about products that no table has, which may be new ones: they do not fail.
    """

    policies: int
    cases: int
    findings: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def lint(*, directory: Path | None, output: str) -> None:
    from app.cluster.files import case_texts, policy_texts, shipped_policies  # --help needs no models of policies

    directory = directory or shipped_policies()
    warnings: list[str] = []
    findings = tuple(_findings(directory, warnings))
    result = LintResult(len(policy_texts(directory)), len(case_texts(directory)), findings, tuple(warnings))
    show(result, output, lambda console: _show_findings(console, result))
    raise typer.Exit(1 if result.findings else 0)


def _show_findings(console: Console, result: LintResult) -> None:
    for line in (*result.findings, *(f"warning: {warning}" for warning in result.warnings)):
        console.print(line, markup=False)
    count = len(result.findings)
    findings = counted(count, "finding") if count else "no findings"
    console.print(f"{counted(result.policies, 'policy file')}, {counted(result.cases, 'case')}: {findings}")


def _findings(directory: Path, warnings: list[str]) -> Iterator[str]:
    """Yield what is wrong with the policies and cases, and add to `warnings` what is only unusual."""
    from app.cluster.files import case_texts, policy_texts, read_knowledge
    from app.policy.case_document import read_case
    from app.policy.load import load_policies

    for file, text in policy_texts(directory).items():
        with suppress(PolicyError):
            for policy in finish(load_policies({file: text}, read_knowledge())).policies:
                yield from policy.doubts
                warnings.extend(warning for _, warning in policy.unknown_products)
    try:
        finish(load_policies(policy_texts(directory), read_knowledge()))
    except PolicyError as error:
        yield from error.problems
    for file, text in case_texts(directory).items():
        try:
            read_case(file, text)
        except PolicyError as error:
            yield from error.problems


Outcomes = dict[str, list[str]]
"""The differences of each case by its file; an empty list for a case that holds."""


@dataclass(frozen=True, slots=True)
class PolicyTestResult:
    """The results of the cases: the differences by file, empty if a case holds, and `untouched` rules without case."""

    cases: Outcomes
    untouched: tuple[str, ...]


def run_cases(*, directory: Path | None, output: str) -> None:
    from app.cluster.files import case_texts, read_knowledge, read_policies, shipped_policies
    from app.explain.policy_cases import rules_of, rules_touched, run_case  # lint needs none of what it imports
    from app.policy.case_document import read_case

    directory = directory or shipped_policies()
    knowledge = read_knowledge()
    policies = read_policies(directory, knowledge)
    texts = case_texts(directory)
    if not texts:
        raise PolicyError((f"{directory}/cases: no *.yaml in it: wants at least one case",))
    cases = {file: read_case(file, text) for file, text in texts.items()}
    outcomes = {file: list(run_case(case, policies, knowledge)) for file, case in cases.items()}
    touched = {rule for case in cases.values() for rule in rules_touched(case, policies, knowledge)}
    result = PolicyTestResult(outcomes, tuple(sorted(rules_of(policies) - touched)))
    if output == "junit":
        print(_junit(outcomes))
    else:
        show(result, output, lambda console: _show_cases(console, result))
    raise typer.Exit(1 if any(outcomes.values()) else 0)


def _show_cases(console: Console, result: PolicyTestResult) -> None:
    for file, differences in result.cases.items():
        mark = "[red]fails[/]" if differences else "[green]holds[/]"
        console.print(f"{mark}  {_sentence(file)}")
        for difference in differences:
            console.print(f"       {difference}", markup=False)
    failed = sum(map(bool, result.cases.values()))
    console.print(f"{len(result.cases) - failed} of {len(result.cases)} cases hold")
    if result.untouched:
        console.print(f"no case is for: {', '.join(result.untouched)}")


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
