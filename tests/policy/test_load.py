# SPDX-License-Identifier: Apache-2.0
"""Loading policy files: every mistake is named with its place, and the order of files decides nothing (F75, F79)."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.values.errors import PolicyError
from tests.builders import knowledge, policies, policy
from tests.finished import load_policies

HEADER = "apiVersion: gpu-usher.io/v1alpha1\nkind: GPUPolicy\nmetadata: {name: a}\n"


def problems(*documents: str) -> tuple[str, ...]:
    """Return the messages of documents, named 0.yaml, 1.yaml and so on, that must be refused."""
    with pytest.raises(PolicyError) as caught:
        policies(*documents)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            HEADER + "spec:\n  placement:\n    product: {}\n",
            "0.yaml:6:5: spec.placement.product: unknown field, did you mean products?",
            id="field of a part",
        ),
        pytest.param(
            HEADER + "spec:\n  prioritty: 1\n",
            "0.yaml:5:3: spec.prioritty: unknown field, did you mean priority?",
            id="field of the spec",
        ),
        pytest.param(
            HEADER + "specs: {}\n", "0.yaml:4:1: specs: unknown field, did you mean spec?", id="field of the document"
        ),
        pytest.param(
            HEADER + "spec:\n  admission:\n    runtime_class_name: nvidia\n",
            "0.yaml:6:5: spec.admission.runtime_class_name: unknown field, did you mean runtimeClassName?",
            id="snake case",
        ),
        pytest.param(
            HEADER + "spec:\n  placement:\n    scores:\n      - {name: Packing, wieght: 5}\n",
            "0.yaml:7:25: spec.placement.scores[0].wieght: unknown field, did you mean weight?",
            id="field of an item",
        ),
        pytest.param(
            HEADER + "spec:\n  match:\n    podSelector: {matchLabel: {a: b}}\n",
            "0.yaml:6:19: spec.match.podSelector.matchLabel: unknown field, did you mean matchLabels?",
            id="field of a selector",
        ),
        pytest.param(
            HEADER + "spec:\n  fromImage: true\n",
            "0.yaml:5:3: spec.fromImage: unknown field, did you mean spec.placement.cuda.fromImage?",
            id="field of another place",
        ),
        pytest.param(
            HEADER + "spec:\n  zzz: 1\n",
            "0.yaml:5:3: spec.zzz: unknown field, wants description, priority, match, action, actions, enforceFrom, "
            "exceptions, admission or placement",
            id="like no other field",
        ),
    ],
)
def test_unknown_field_is_named_with_the_one_meant(text: str, expected: str) -> None:
    """F79, CFG-06, fault 13."""
    assert (expected,) == problems(text)


@pytest.mark.parametrize(
    ("spec", "path", "quoted"),
    [
        pytest.param("placement: {cuda: {minimum: 12.4}}", "spec.placement.cuda.minimum", "12.4", id="version"),
        pytest.param("admission: {perGPU: {maxCPU: 16}}", "spec.admission.perGPU.maxCPU", "16", id="integer"),
        pytest.param("placement: {cuda: {minimum: 12.10}}", "spec.placement.cuda.minimum", "12.10", id="last zero"),
        pytest.param(
            "match: {podSelector: {matchLabels: {release: 1.10}}}",
            "spec.match.podSelector.matchLabels.release",
            "1.10",
            id="label with a last zero",
        ),
        pytest.param(
            "match: {podSelector: {matchLabels: {gpu: true}}}",
            "spec.match.podSelector.matchLabels.gpu",
            "true",
            id="label that is a boolean",
        ),
    ],
)
def test_scalar_where_a_string_is_wanted_is_to_be_quoted_as_written(spec: str, path: str, quoted: str) -> None:
    expected = f': quote it: "{quoted}"'

    (message,) = problems(policy("a", spec))

    assert path in message
    assert message.endswith(expected)


@pytest.mark.parametrize("field", ["allow", "deny", "prefer"])
def test_misspelt_product_is_named_with_the_one_meant(field: str) -> None:
    text = f"{HEADER}spec:\n  placement:\n    products:\n      {field}:\n        - H100\n        - L40SS\n"
    where = f"spec.placement.products.{field}[1]"
    expected = f"0.yaml:9:11: {where}: unknown product 'L40SS', did you mean L40S?"

    assert (expected,) == problems(text)


def test_product_like_no_other_is_taken_for_a_new_one() -> None:
    assert len(policies(policy("a", "placement: {products: {allow: [QQQQ-7777]}}")).policies) == 1


@pytest.mark.parametrize(
    ("spec", "place", "path"),
    [
        pytest.param(
            "placement: {products: {allow: ['A10*']}}", "0.yaml:4:39", "products.allow[0]", id="star in token"
        ),
        pytest.param("placement: {cuda: {minimum: new}}", "0.yaml:4:27", "cuda.minimum", id="no version"),
        pytest.param("placement: {gpuMemory: lots}", "0.yaml:4:20", "gpuMemory", id="no amount"),
        pytest.param("placement: {sharing: Sometimes}", "0.yaml:4:20", "sharing", id="no sharing"),
        pytest.param("action: Shout", "0.yaml:4:8", "action", id="no action"),
        pytest.param("actions: {toleration: Warn}", "0.yaml:4:18", "actions.toleration", id="no rule"),
        pytest.param("priority: -1", "0.yaml:4:8", "priority", id="negative priority"),
        pytest.param("admission: {maxGPUsPerPod: -1}", "0.yaml:4:20", "maxGPUsPerPod", id="negative maximum"),
        pytest.param("priority: '1'", "0.yaml:4:8", "priority", id="string where a number is wanted"),
        pytest.param(
            "match: {podSelector: {matchExpressions: [{key: a, operator: In}]}}",
            "0.yaml:4:16",
            "match.podSelector",
            id="In without values",
        ),
    ],
)
def test_value_out_of_its_range_is_named_with_its_place(spec: str, place: str, path: str) -> None:
    (message,) = problems(policy("a", spec))

    assert message.startswith(f"{place}: spec.")
    assert path in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("- a\n", id="a list"),
        pytest.param("word\n", id="a word"),
        pytest.param("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", id="another kind"),
        pytest.param("kind: GPUPolicy\nmetadata: {name: a}\n", id="no apiVersion"),
        pytest.param(HEADER.replace("name: a", "name: A_B"), id="a name that Kubernetes refuses"),
    ],
)
def test_document_that_is_no_policy_is_refused(text: str) -> None:
    messages = problems(text)

    assert all(message.startswith("0.yaml:") for message in messages)


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        pytest.param("admission: {runtimeClassName: %s}", "a", "b", id="runtime class"),
        pytest.param("admission: {schedulerName: %s}", "a", "b", id="scheduler"),
        pytest.param("admission: {affinity: {mode: %s}}", "Required", "Preferred", id="affinity"),
        pytest.param("admission: {tolerations: {fromNodeTaints: %s}}", "true", "false", id="tolerations"),
        pytest.param("placement: {scoreSpread: %s}", "Ranked", "Proportional", id="score spread"),
        pytest.param("placement: {cuda: {fromImage: %s}}", "true", "false", id="CUDA from the image"),
        pytest.param("placement: {products: {prefer: [%s]}}", "H100", "H200", id="preference"),
        pytest.param("placement: {scores: [{name: %s}]}", "Packing", "Spreading", id="scores"),
    ],
)
def test_two_policies_of_one_priority_that_set_one_scalar_are_refused(spec: str, left: str, right: str) -> None:
    """Faults 13, 17."""
    field = ".".join(re.findall(r"(\w+): ", spec)).replace(".name", "")

    messages = problems(policy("one", f"priority: 7, {spec % left}"), policy("two", f"priority: 7, {spec % right}"))

    assert len(messages) == 1
    assert all(word in messages[0] for word in ("1.yaml:3:12:", field, "one", "two", "7"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("priority: 7, admission: {runtimeClassName: a}", "priority: 7", id="only one sets it"),
        pytest.param(
            "priority: 7, admission: {runtimeClassName: a}",
            "priority: 8, admission: {runtimeClassName: b}",
            id="other priorities",
        ),
        pytest.param(
            "placement: {products: {allow: [H100]}, gpuMemory: 40Gi}",
            "placement: {products: {allow: [H200]}, gpuMemory: 80Gi}",
            id="fields that merge",
        ),
        pytest.param(
            "priority: 7, match: {workloadClass: [training]}, admission: {runtimeClassName: a}",
            "priority: 7, match: {workloadClass: [notebook]}, admission: {runtimeClassName: b}",
            id="never for one pod",
        ),
    ],
)
def test_policies_that_leave_nothing_to_chance_load_together(one: str, other: str) -> None:
    assert len(policies(policy("one", one), policy("two", other)).policies) == 2


def test_name_given_twice_is_an_error_of_the_later_file() -> None:
    expected = "1.yaml:3:12: metadata.name: a is taken by 0.yaml:3:12"

    assert (expected,) == problems(policy("a", "priority: 1"), policy("a", "priority: 2"))


@pytest.mark.parametrize("priority", [1000, 1001, 1_000_000])
def test_workload_class_is_not_for_high_priorities(priority: int) -> None:
    (message,) = problems(policy("a", f"priority: {priority}, match: {{workloadClass: [training]}}"))

    assert f"spec.priority: got {priority}, wants less than 1000" in message


def test_workload_class_is_for_priorities_below_the_limit() -> None:
    loaded = policies(policy("a", "priority: 999, match: {workloadClass: [training]}"))

    assert frozenset(["training"]) == loaded.policies[0].workload_classes


def test_all_problems_of_all_files_are_reported_at_once() -> None:
    wrong = policy("b", "action: Shout, priority: -1")
    expected = ["0.yaml:1:4", "1.yaml:4:23", "1.yaml:4:8", "1.yaml:9:8", "3.yaml:2:1"]

    messages = problems("a: yes\n", f"{wrong}---\n{policy('c', 'zzz: 1')}", policy("d", "action: Warn"), "a: [\n")

    assert expected == sorted(message.split(": ")[0] for message in messages)


TEXTS = {
    f"{name}.yaml": policy(name, f"priority: {rank}, placement: {{gpuMemory: {rank + 1}Gi}}")
    for rank, name in enumerate(("d", "a", "c", "b"))
} | {"tie.yaml": policy("tie", "priority: 3, match: {workloadClass: [notebook]}")}


@given(st.permutations(sorted(TEXTS)), st.permutations(["v.yaml", "w.yaml", "x.yaml", "y.yaml", "z.yaml"]))
@settings(deadline=None)
def test_order_and_names_of_files_never_change_the_result(order: list[str], names: list[str]) -> None:
    """Fault 17."""
    expected = load_policies(TEXTS, knowledge())

    loaded = load_policies({name: TEXTS[old] for name, old in zip(names, order, strict=True)}, knowledge())

    assert expected.hash == loaded.hash
    assert [policy.name for policy in expected.policies] == [policy.name for policy in loaded.policies]
    assert [policy.spec for policy in expected.policies] == [policy.spec for policy in loaded.policies]


def test_highest_priority_comes_first_and_equal_ones_by_name() -> None:
    expected = ["b", "tie", "c", "a", "d"]

    loaded = load_policies(TEXTS, knowledge())

    assert expected == [policy.name for policy in loaded.policies]


def test_hash_is_of_what_is_said_not_of_how_it_is_written() -> None:
    metadata = "# note\nmetadata:\n  name: 'a'\nkind: GPUPolicy\napiVersion: gpu-usher.io/v1alpha1\n"
    one = policies(HEADER + "spec: {priority: 1, action: Warn}\n")

    assert one.hash == policies("spec:\n  action: 'Warn'\n  priority: 1\n" + metadata).hash


@pytest.mark.parametrize("changed", ["priority: 2, action: Warn", "priority: 1, action: Audit", "priority: 1"])
def test_hash_changes_with_what_is_said(changed: str) -> None:
    assert policies(policy("a", "priority: 1, action: Warn")).hash != policies(policy("a", changed)).hash


@pytest.mark.parametrize(("wrong", "meant"), [("exclusive", "Exclusive"), ("Exclusiv", "Exclusive"), ("any", "Any")])
def test_misspelt_word_of_a_field_is_named_with_the_one_meant(wrong: str, meant: str) -> None:
    """F74: an annotation takes any case; a policy takes the word of the schema, as the API server does."""
    (problem,) = problems(policy("p", f"placement: {{sharing: {wrong}}}"))

    assert problem.endswith(f"did you mean {meant}?")


def test_unknown_product_is_told_beside_errors_of_form() -> None:
    """F74: whoever mends one error does not meet the next one only then."""
    told = problems(policy("p", "placement: {sharing: exclusive, products: {allow: [H10O]}}"))

    assert len(told) == 2
    assert "unknown product 'H10O', did you mean H100?" in told[1]
