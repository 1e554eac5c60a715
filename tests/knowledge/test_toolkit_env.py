# SPDX-License-Identifier: Apache-2.0
"""The variables that NVIDIA's container toolkit reads: each has a source, and values that give no GPU (F12)."""

from pathlib import Path

import pytest
import yaml

from app.cluster.files import read_knowledge
from app.knowledge.container_toolkit import load_toolkit_env
from app.values.errors import KnowledgeError
from tests.builders import knowledge

ROWS = yaml.safe_load(Path("app/knowledge/toolkit_env.yaml").read_text("utf-8"))["variables"]


def test_every_row_names_the_file_of_the_toolkit_that_says_so() -> None:
    assert [row["name"] for row in ROWS if "NVIDIA/nvidia-container-toolkit v" not in row["source"]] == []
    assert len(ROWS) == len(knowledge().toolkit_env) == 10


@pytest.mark.parametrize("row", [{"name": "X", "gives": "gpus"}, {"name": "X", "gives": "all", "harmless": [""]}])
def test_row_that_does_not_say_what_is_harmless_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"X|all"):
        load_toolkit_env([row])


def test_variable_of_an_operators_own_swarm_resource_is_one_row(tmp_path: Path) -> None:
    """F81: the toolkit's config.toml names such a variable, and gpu-usher cannot read that file."""
    (tmp_path / "toolkit_env.yaml").write_text("variables: [{name: MY_GPUS, gives: gpus, harmless: ['']}]", "utf-8")

    assert read_knowledge(tmp_path).toolkit_env["MY_GPUS"].is_effective({"value": "all"})


def test_variable_hidden_by_one_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toolkit_env.yaml").write_text(
        "variables: [{name: A, gives: gpus, harmless: [''], hidden_by: B}]", "utf-8"
    )

    with pytest.raises(KnowledgeError, match="hidden_by B"):
        read_knowledge(tmp_path)
