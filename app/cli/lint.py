# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher lint`: check policies and their cases without running anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.cluster.files import case_texts, policy_texts, read_knowledge, shipped_policies
from app.errors import PolicyError
from app.explain.cases import read_case
from app.policy.load import load_policies


def lint(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies; the shipped ones by default.")
    ] = None,
) -> None:
    """Check every policy and case of a directory; each finding is one line: file:line:column: what, remedy."""
    directory = directory or shipped_policies()
    console = Console(highlight=False, soft_wrap=True)
    findings = list(_findings(directory))
    for line in findings:
        console.print(line, markup=False)
    count = len(policy_texts(directory))
    console.print(f"{count} policy files, {len(case_texts(directory))} cases: {len(findings) or 'no'} findings")
    raise typer.Exit(1 if findings else 0)


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
