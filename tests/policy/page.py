# SPDX-License-Identifier: Apache-2.0
"""Generates policies/README.md: the text of page.md, with tables and examples made from the models.

The meaning of a field, its merging and its values are written once, in the models. The JSON Schema, the
CustomResourceDefinition and this page all take them from there. `python -m tests.policy.page > policies/README.md`
"""

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from app.cluster.files import shipped_policies
from app.policy.annotations import ANNOTATIONS
from app.policy.case_document import Case, CaseNode, Expectation
from app.policy.fields import MERGE_KEYWORD, LabelSelector, merge_rules, model_in
from app.policy.needs import NEEDS
from app.policy.schema import Action, ExceptionMatch, Match, PolicyException, Spec
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Placement

PROSE = Path(__file__).with_suffix(".md")
CASE = shipped_policies() / "cases" / "training-packs-before-it-opens-an-idle-node.yaml"
PLACE = re.compile(r"\{\{(\w+) (\w+)\}\}")
"""A placeholder for generated text: the kind of text, and the model."""
MODELS: Mapping[str, type[BaseModel]] = {
    model.__name__: model
    for model in (
        Spec, Match, PolicyException, ExceptionMatch, Admission, Placement, LabelSelector, Case, CaseNode, Expectation
    )
}  # fmt: skip
FORMATS = {"date": "day", "quantity": "amount", "version": "version", "memory": "memory"}

Schema = Mapping[str, Any]
Row = tuple[str, Schema]


def page_text() -> str:
    """Return the page as policies/README.md stores it."""
    return PLACE.sub(lambda place: MAKERS[place[1]](place[2]), PROSE.read_text("utf-8"))


def _about(name: str) -> str:
    """Return the docstring of a model."""
    return cleandoc(getdoc(Action if name == "Action" else MODELS[name]) or "")


def _parts(name: str) -> str:
    """Return a list of the mappings inside a model, with their docstrings."""
    fields = ((field.alias or key, model_in(field.annotation)) for key, field in MODELS[name].model_fields.items())
    inner = [(key, getdoc(model)) for key, model in fields if model is not None and model is not LabelSelector]
    return "\n".join(f"- `{key}`: {' '.join(cleandoc(text or '').split())}" for key, text in inner)


def _fields(name: str) -> str:
    """Return a table of a model's fields; those of inner mappings have dotted paths, as in errors."""
    schema = MODELS[name].model_json_schema(by_alias=True)
    rows = list(_rows(schema, schema.get("$defs", {})))
    merged = any(MERGE_KEYWORD in node for _, node in rows)
    head = ["field", "value", *(["when several policies match"] if merged else []), "what it is"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for path, node in rows:
        cells = [f"`{path}`", _value(node, schema.get("$defs", {})), *([node.get(MERGE_KEYWORD, "")] if merged else [])]
        lines.append(f"| {' | '.join([*cells, _cell(node.get('description', ''))])} |")
    return "\n".join(lines)


def _rows(schema: Schema, defs: Schema, path: str = "") -> Iterator[Row]:
    for name, field in schema["properties"].items():
        node = _resolved(field, defs)
        if "properties" in node and node["title"] not in LINKS:
            yield from _rows(node, defs, f"{path}{name}.")
        else:
            yield f"{path}{name}", node


def _resolved(node: Schema, defs: Schema) -> dict[str, Any]:
    """Follow references and drop null; members beside a reference override it."""
    inner = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if "$ref" in node:
        inner = [defs[node["$ref"].rpartition("/")[2]]]
    return {**(_resolved(inner[0], defs) if inner else {}), **node}


def _value(node: Schema, defs: Schema) -> str:
    """Describe the values of a field, and its default."""
    default = node.get("default")
    shown = f"; else `{_plain(default)}`" if default not in (None, [], {}, "") and not _is_part(node) else ""
    return _kind(node, defs) + shown


def _kind(node: Schema, defs: Schema) -> str:
    node = _resolved(node, defs)
    if "enum" in node or "const" in node:
        choices = node.get("enum") or [node["const"]]
        return (
            ", ".join(f"`{choice}`" for choice in choices)
            if len(choices) <= MOST_CHOICES or "title" not in node
            else f"a {node['title'].lower()}"
        )
    if node.get("type") == "array":
        return f"list of {_kind(node['items'], defs)}"
    if "properties" in node:
        return LINKS.get(node["title"]) or f"`{{{', '.join(node['properties'])}}}`"
    if node.get("type") == "integer":
        return f"{node.get('minimum', '')} … {node.get('maximum', '')}".strip()
    if node.get("type") == "object":
        return "mapping"
    return FORMATS.get(node.get("format", ""), {"boolean": "`true`, `false`"}.get(node["type"], "text"))


LINKS = {
    "LabelSelector": "[label selector](#label-selectors)",
    "Match": "[below](#match)",
    "PolicyException": "[these](#exceptions)",
    "Admission": "[below](#admission)",
    "Placement": "[below](#placement)",
    "Expectation": "below",
}
"""Links to the sections of models that have one."""
MOST_CHOICES = 6
"""Most values that are listed in a table; longer lists have a place of their own."""


def _is_part(node: Schema) -> bool:
    return "properties" in node


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _example(name: str) -> str:
    """Return a fragment of YAML with the first example of every field."""
    root: dict[str, Any] = {}
    for path, _, examples in merge_rules(MODELS[name]):
        *parents, last = path.split(".")
        inner = root
        for part in parents:
            inner = inner.setdefault(part, {})
        if examples and (name != "Spec" or not parents):
            inner[last] = examples[0]
    if name == "Spec":
        root = {key: value for key, value in root.items() if key not in ("match", "admission", "placement")}
    whole = root if name == "Spec" else {name.lower(): root}
    return f"```yaml\n{yaml.safe_dump({'spec': whole}, sort_keys=False, default_flow_style=None, width=120)}```"


def _annotations(_: str) -> str:
    lines = ["| `gpu-usher.io/…` | grammar | examples | meaning | label, attribute |", "|---|---|---|---|---|"]
    facts = {need.annotation.name: need.fact for need in NEEDS if need.annotation and need.fact}
    for name, annotation in ANNOTATIONS.items():
        shown = ", ".join(f'`"{example}"`' for example in annotation.examples)
        fact = facts.get(name)
        names = (*fact.keys, *filter(None, [fact.member.rpartition(".")[2]])) if fact else ()
        read = ", ".join(f"`{text}`" for text in names)
        lines.append(f"| `{name}` | {annotation.grammar} | {shown} | {annotation.meaning} | {read} |")
    return "\n".join(lines)


def _case(_: str) -> str:
    return f"```yaml\n# cases/{CASE.name}\n{CASE.read_text('utf-8')}```"


MAKERS = {
    "case": _case,
    "about": _about,
    "parts": _parts,
    "fields": _fields,
    "example": _example,
    "annotations": _annotations,
}

if __name__ == "__main__":
    print(page_text(), end="")
