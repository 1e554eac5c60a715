# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher lint`: checks policies and their test cases without running them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.cli.output import Output, show
from app.cluster.files import case_texts, policy_texts, read_knowledge, shipped_policies
from app.policy.case_document import read_case
from app.policy.load import load_policies
from app.values.errors import PolicyError


@dataclass(frozen=True, slots=True)
class LintResult:
    """The number of policy files and cases, and the findings in them, each as file:line:column: what, remedy."""

    policies: int
    cases: int
    findings: tuple[str, ...]


def lint(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies; the shipped ones by default.")
    ] = None,
    output: Output = "text",
) -> None:
    """Check every policy and case of a directory; each finding is one line: file:line:column: what, remedy."""
    directory = directory or shipped_policies()
    result = LintResult(len(policy_texts(directory)), len(case_texts(directory)), tuple(_findings(directory)))
    show(result, output, lambda console: _show(console, result))
    raise typer.Exit(1 if result.findings else 0)


def _show(console: Console, result: LintResult) -> None:
    for line in result.findings:
        console.print(line, markup=False)
    count = len(result.findings)
    findings = f"{count or 'no'} finding{'s' * (count != 1)}"
    console.print(f"{result.policies} policy files, {result.cases} cases: {findings}")


def _findings(directory: Path) -> Iterator[str]:
    try:
        load_policies(policy_texts(directory), read_knowledge())
    except PolicyError as error:
        yield from error.problems
    for file, text in case_texts(directory).items():
        try:
            read_case(file, text)
        except PolicyError as error:
            yield from error.problems
