# SPDX-License-Identifier: Apache-2.0
"""The book of policies checks an edit together with all other sources before it is made, and bounds its size."""

from pathlib import Path
from typing import Any

import pytest

from app.cluster.policy_watch import PolicyBook
from app.values.computations import finish
from app.values.errors import PolicyError
from tests.builders import knowledge, policy
from tests.cluster.test_policy_watch import gpu_policy


def book_with(folder: Path, **sources: dict[str, Any]) -> PolicyBook:
    """Make a book of the policy file default.yaml and of GPUPolicy objects by name."""
    (folder / "default.yaml").write_text(policy("default", ""), "utf-8")
    book = PolicyBook(folder, knowledge(), lambda: "2026-11-21")
    for name, spec in sources.items():
        book.put_source(f"gpupolicy {name}", gpu_policy(name, **spec))
    return book


UNKNOWN = {"placement": {"zzz": 1}}
PLACEMENT = (
    "unknown field, wants products, cuda, gpuMemory, computeCapability, sharing, interconnect, formFactor, "
    "architectures, confidentialComputing, gpuMode, nodeSelector, namespaceLimits, health, unknownFacts, "
    "topologyManager, scores or scoreSpread"
)
SPEC = (
    "unknown field, wants description, priority, match, action, actions, enforceFrom, exceptions, admission or "
    "placement"
)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        pytest.param("gpupolicy new", gpu_policy("new", priority=4), None, id="good object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("new", "")}, None, id="good text"),
        pytest.param("gpupolicy team", gpu_policy("team", priority=4), None, id="replaced by a good one"),
        pytest.param("gpupolicy new", gpu_policy("new", **UNKNOWN),
                     f"gpupolicy new: spec.placement.zzz: {PLACEMENT}", id="bad object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("new", "zzz: 1"), "b.yaml": policy("b", "")},
                     f"configmap gpu-usher/new: a.yaml:4:8: spec.zzz: {SPEC}", id="bad text"),
        pytest.param("gpupolicy default", gpu_policy("default"),
                     "gpupolicy default: metadata.name: default is taken by default.yaml:3:12", id="name of a file"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("team", "")},
                     "gpupolicy team: metadata.name: team is taken by configmap gpu-usher/new: a.yaml:3:12",
                     id="name of an object, which is loaded later"),
    ],
)  # fmt: skip
def test_edit_is_checked_with_all_that_is_there(
    tmp_path: Path, source: str, content: dict[str, Any], expected: str | None
) -> None:
    """F131: the check comes before the edit is made."""
    assert expected == finish(book_with(tmp_path, team={}).check(source, content))[0]


def test_edit_that_ties_with_another_policy_names_both(tmp_path: Path) -> None:
    book = book_with(tmp_path, team={"priority": 7, "admission": {"runtimeClassName": "a"}})

    problem = finish(book.check("gpupolicy new", gpu_policy("new", priority=7, admission={"runtimeClassName": "b"})))[0]

    assert problem is not None
    assert "team and new both have priority 7" in problem


def test_mistake_of_another_source_does_not_stop_an_edit(tmp_path: Path) -> None:
    book = book_with(tmp_path, broken=UNKNOWN)

    assert finish(book.check("gpupolicy new", gpu_policy("new")))[0] is None
    assert finish(book.check("gpupolicy broken", gpu_policy("broken")))[0] is None


def test_mistake_that_stays_in_what_is_edited_is_its_own(tmp_path: Path) -> None:
    book = book_with(tmp_path, broken=UNKNOWN, other={"zzz": 1})

    problem = finish(book.check("gpupolicy broken", gpu_policy("broken", priority=3, **UNKNOWN)))[0]

    assert problem == f"gpupolicy broken: spec.placement.zzz: {PLACEMENT}"


def test_check_changes_nothing_and_reads_no_file(tmp_path: Path) -> None:
    book = book_with(tmp_path, team={})
    finish(book.load())
    before = book.current
    (tmp_path / "default.yaml").unlink()

    finish(book.check("gpupolicy new", gpu_policy("new")))
    finish(book.check("gpupolicy new", gpu_policy("new", **UNKNOWN)))

    assert (book.current, book.error) == (before, None)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        pytest.param("gpupolicy new", gpu_policy("new", placement={"products": {"allow": ["H100"] * 300_000}}),
                     "more than 2500 values (keys, words, lists): split it", id="object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": "---\n" * 1_000}, "at most 256: split", id="documents"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": "- a\n" * 20_000}, "more than 2500 values", id="values"),
        pytest.param("configmap gpu-usher/new", {str(key): "" for key in range(257)}, "257 keys", id="texts"),
        pytest.param("configmap gpu-usher/new", {"a": "#" * 600_000, "b": "#" * 600_000}, "1200000 characters",
                     id="characters of all texts"),
        pytest.param("configmap gpu-usher/new", {"a": "#\n" * 60_000, "b": "#\n" * 60_000}, "more than 100000 lines",
                     id="lines of all texts"),
    ],
)  # fmt: skip
def test_too_large_source_is_refused_and_leaves_the_good_set_in_force(
    tmp_path: Path, source: str, content: dict[str, Any], expected: str
) -> None:
    """F103: the size of every source is bounded before it is read."""
    book = book_with(tmp_path, team={})
    before = finish(book.load())

    refused = finish(book.check(source, content))[0]
    book.put_source(source, content)
    taken = finish(book.load())

    assert refused is not None
    assert expected in refused
    assert expected in (taken.error or "")
    assert taken.hash == before.hash


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    """F103: `gpu-usher policy lint` and the mounted directory read files in the same way."""
    (tmp_path / "default.yaml").write_text("---\n" * 1_000, "utf-8")

    with pytest.raises(PolicyError, match=r"default.yaml:1:1: 1000 documents, wants at most 256: split it"):
        PolicyBook(tmp_path, knowledge(), lambda: "2026-11-21")


def test_more_policies_than_a_set_may_have_are_refused(tmp_path: Path) -> None:
    """F103: every pod is matched against each policy."""
    book = book_with(tmp_path)
    texts = {str(key): "---\n".join(policy(f"p{key}-{index}", "") for index in range(100)) for key in range(5)}

    assert "more than 500 policies in all" in (finish(book.check("configmap gpu-usher/many", texts))[0] or "")


def test_what_is_in_force_is_not_read_again_for_each_edit(tmp_path: Path) -> None:
    """F103: the cost of a check depends on the edit and not on the size of the set."""
    text = "---\n".join(policy(f"p{index}", f"priority: {index}") for index in range(100))
    book = book_with(tmp_path)
    book.put_source("configmap gpu-usher/many", {"a.yaml": text})

    first, again = (sum(1 for _ in book.load()) for _ in range(2))

    assert again < first / 2
