# SPDX-License-Identifier: Apache-2.0
"""Reads the files of the command line: fact tables, policies, snapshots."""

from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from app.knowledge.tables import TABLE_FILES, Knowledge, load_knowledge
from app.policy.compiled import CompiledPolicy, PolicySet
from app.policy.load import load_policies
from app.values.computations import finish
from app.values.errors import KnowledgeError, PolicyError, SnapshotError

DEFAULT = "default.yaml"
NO_FILE = "no *.yaml in it: wants at least one policy, such as the shipped default.yaml"
PACKAGE = Path(__file__).parent.parent


@cache
def read_knowledge(own: Path | None = None) -> Knowledge:
    """Load the shipped fact tables, once; files of the same names in the directory `own` override them.

    Raises KnowledgeError.
    """
    shipped = {name: (PACKAGE / "knowledge" / name).read_text("utf-8") for name in TABLE_FILES}
    if own is None:
        return load_knowledge(shipped)
    try:
        texts = {path.name: path.read_text("utf-8") for path in sorted(own.iterdir()) if path.suffix == ".yaml"}
    except (OSError, UnicodeDecodeError) as error:
        raise KnowledgeError(f"{own}: {_cause(error)}: wants a directory of fact tables") from error
    return load_knowledge(shipped, texts)


def shipped_policies() -> Path:
    """Return the directory of the shipped policies: in the installed package, or beside it in a checkout."""
    packaged = PACKAGE / "shipped_policies"
    return packaged if packaged.is_dir() else PACKAGE.parent / "policies"


def read_policies(directory: Path, knowledge: Knowledge) -> PolicySet:
    """Load every *.yaml of a directory, but not its sub-directories (cases, schema).

    Raises PolicyError.
    """
    return finish(load_policies(policy_texts(directory), knowledge, shipped_default(knowledge)))


@lru_cache(maxsize=1)
def shipped_default(knowledge: Knowledge) -> CompiledPolicy:
    """Load the shipped default policy, which applies to pods that match no other policy.

    See docs/reference/policy.md#match.
    """
    text = (shipped_policies() / DEFAULT).read_text("utf-8")
    return finish(load_policies({DEFAULT: text}, knowledge)).policies[0]


def policy_texts(directory: Path) -> dict[str, str]:
    """Read the policy files of a directory, or the one file that is named, by file name.

    Raises PolicyError for an unreadable directory or file, and for a directory without policies.
    """
    texts, problems = policy_files(directory) if not directory.is_file() else _read((directory,))
    if problems:
        raise PolicyError(problems)
    return texts


def is_policy_file(name: str) -> bool:
    """Tell whether a file of a directory of policies is read, by its name."""
    return name.endswith((".yaml", ".yml"))


def policy_files(directory: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read the policy files of a directory, by file name, and list the problems of those that cannot be read."""
    try:
        files = sorted(path for path in directory.iterdir() if is_policy_file(path.name) and path.is_file())
    except OSError as error:
        return {}, (f"{directory}: {_cause(error)}: wants a directory of policy files",)
    return _read(files) if files else ({}, (f"{directory}: {NO_FILE}",))


def _read(files: Iterable[Path]) -> tuple[dict[str, str], tuple[str, ...]]:
    texts, problems = {}, []
    for path in files:
        try:
            texts[path.name] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path.name}: {error}: wants a policy file in UTF-8")
    return texts, tuple(problems)


def case_texts(directory: Path) -> dict[str, str]:
    """Read the test cases below a directory of policies, by path.

    Raises PolicyError for an unreadable file.
    """
    try:
        return {str(path): path.read_text("utf-8") for path in sorted((directory / "cases").glob("*.yaml"))}
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError((f"{directory}/cases: {_cause(error)}: wants case files",)) from error


def read_snapshot_file(path: Path, wants: str = "wants a file from kubectl get -o json") -> bytes:
    """Read a snapshot file, or another file of objects; `wants` ends the message about one that cannot be read.

    Raises SnapshotError.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}: {wants}") from error


def _cause(error: OSError | UnicodeDecodeError) -> str:
    """Return the operating system's words without its number and the path, or those about the encoding."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
