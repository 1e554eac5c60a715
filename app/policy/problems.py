# SPDX-License-Identifier: Apache-2.0
"""Messages about the documents of policies and cases, in YAML's words: what was found, what was wanted, an example.

What a field wants is read from the JSON Schema of the models, so that a new field needs no message of its own. pydantic
decides only where an error is; its texts, which name Python's types, are never shown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from app.knowledge.cuda_compatibility import CUDATables
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.policy.document import Document, YAMLPath
from app.policy.fields import LabelSelector
from app.policy.needs import NEEDS
from app.policy.schema import GPUPolicy, resolve_schema
from app.policy.schema_admission import Admission, Defaults, PerGPU
from app.policy.schema_placement import CUDAWish, Placement
from app.values.errors import BadInput
from app.values.json_members import object_if_any
from app.values.quantity import parse_quantity
from app.values.reasons import join_with_or
from app.values.versions import parse_minimum, parse_version, show_driver, show_version

LONGEST_GUESSED_FIELD = 64
"""Characters of an unknown field for which a similar name is searched; the longest field name has 20."""
LONGEST_KEY, LONGEST_SHOWN = 80, 40
"""Characters of a key, and of a value, in a message."""
MOST_SHOWN_ITEMS = 8
"""Items of a list that an example repeats."""
NEARLY = 0.8
"""The similarity, as difflib measures it, from which an unknown field is a misspelling of one beside it, whatever other
meaning it has. A guess: matchLabel and product have 0.9, exclude and include less."""
MOST_CUDA, MOST_CAPABILITY = 100, 20
"""Major versions above which a number is no CUDA version or compute capability: NVIDIA is at 13 and 12, and
drivers have been above 100 since 2005."""
LEAST_BYTES = 1 << 20
"""Bytes of memory below which a unit was forgotten: 32 is 32 bytes."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label that the API server gives each namespace: its name (KEP-2161)."""
WANTED_TEXTS = {
    "version": "a quoted version",
    "date": "a day",
    "quantity": "a quantity",
    "memory": "an amount of memory",
    "duration": "a duration",
}
"""What a text with a format is called."""

_MEANT_VERSION = re.compile(
    r"(?i)(?:>|≥|=|v|\s|cuda)*(\d{1,2})\.(\d{1,2})(?:\s*(?:\+|\.x|or \w+))?\s*|(?:sm|compute|cc)[_ ]?(\d{1,2})\.?(\d)"
)
"""A version as people write one with a bound of their own, or an architecture of nvcc (sm_80)."""
Schema = Mapping[str, Any]


@cache
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(by_alias=True)


def describe_error(document: Document, error: Any, model: type[BaseModel], knowledge: Knowledge | None = None) -> str:
    """Turn an error of pydantic into one line: the place, the path, what was found, what was wanted."""
    path: YAMLPath = tuple(part for part in error["loc"] if part != "[key]")
    is_key = len(path) < len(error["loc"])
    schema = _schema_of(model)
    if error["type"] == "extra_forbidden":
        text = _unknown_field(path, error["input"], schema, knowledge)
    elif is_key:
        names = _node_at(schema, path[:-1]).get("propertyNames", {})
        text = _got_and_wanted(error["input"], resolve_schema(names, schema["$defs"]), None, knowledge)
    elif error["type"] == "missing":
        text = f"missing, wants {_wanted(_node_at(schema, path), None)}"
    elif error["type"] == "value_error" and _node_at(schema, path).get("format") != "version":
        text = re.sub(r"^\w+: (?=got)", "", error["msg"].removeprefix("Value error, "))
    else:
        text = _got_and_wanted(error["input"], _node_at(schema, path), document.literals.get(path), knowledge)
    return located(document, path, text)


def located(document: Document, path: YAMLPath, text: str) -> str:
    """Write the place and the path of a value, as `spec.exceptions[0].match`, before what is wrong with it."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_KEY]}" for part in path)
    return f"{document.locate(path)}: {''.join(parts).removeprefix('.')}: {text}"


def _node_at(schema: Schema, path: YAMLPath) -> Schema:
    """Find what the schema says of a path; an empty mapping where it says nothing."""
    defs = schema.get("$defs", {})
    node = resolve_schema(schema, defs)
    for part in path:
        inner = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        node = resolve_schema(inner or node.get("additionalProperties") or {}, defs)
    below = {name: resolve_schema(field, defs) for name, field in node.get("properties", {}).items()}
    items = {"items": resolve_schema(node["items"], defs)} if "items" in node else {}
    return {**node, **items, **({"properties": below} if below else {})}


def _got_and_wanted(value: Any, node: Schema, literal: str | None, knowledge: Knowledge | None) -> str:
    """Say what was found and what a field wants; what was certainly meant comes first."""
    got, choices = _got(value, literal), _choices(node)
    word = re.sub(r"[\s_-]", "", in_yaml(value).strip("'")).lower()
    meant = next((one for one in choices if knowledge and word in knowledge.meant_words.get(one, ())), None)
    if similar := meant or similar_choice(value, choices):
        return f"got {got}, did you mean {in_yaml(similar)}?"
    if node.get("format") == "version" and isinstance(value, str) and (version := _MEANT_VERSION.fullmatch(value)):
        return f"got {got}, did you mean '{'.'.join(filter(None, version.groups()))}'? It is a minimum already"
    if node.get("type") == "string" and not choices and isinstance(value, bool | int | float):
        needs_unit = node.get("format") and re.search("[A-Za-z]", in_yaml(node.get("examples", [""])[0]))
        quote = "" if needs_unit else f": quote it: {json.dumps(literal or in_yaml(value))}"
        return f"got {got} unquoted, wants {_wanted(node, None)}{quote}"
    if isinstance(value, str) and _reads_as(value, node):
        return f"got {got}, wants {_wanted(node, None)}: remove the quotes"
    if isinstance(value, list | Mapping) and len(value) > node.get("maxItems", node.get("maxProperties", len(value))):
        return f"got {len(value)} of them, wants at most {node.get('maxItems', node.get('maxProperties'))}"
    return f"got {got}, wants {_wanted(node, value)}"


def similar_choice(value: Any, choices: Sequence[str]) -> str | None:
    """Guess which of some words a wrong one means, whatever its case."""
    by_lower = {choice.lower(): choice for choice in choices}
    if not isinstance(value, str) or len(value) > LONGEST_GUESSED_FIELD:
        return None
    similar = get_close_matches(value.lower(), by_lower, n=1)
    return by_lower[similar[0]] if similar else None


def _choices(node: Schema) -> list[str]:
    return list(node.get("enum") or ([node["const"]] if "const" in node else []))


def _reads_as(text: str, node: Schema) -> bool:
    """Tell whether a text without its quotes would be the number or boolean that a field wants."""
    pattern = {"integer": r"\d{1,9}", "number": r"\d{1,9}(?:\.\d+)?", "boolean": "true|false"}.get(node.get("type", ""))
    return pattern is not None and re.fullmatch(pattern, text) is not None


def _got(value: Any, literal: str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text '{value[:LONGEST_SHOWN]}'" if value else "an empty text"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else (literal or in_yaml(value))[:LONGEST_SHOWN]


def _wanted(node: Schema, value: Any) -> str:
    """Say what a field wants, with an example, which repeats words that were written without their list."""
    choices = _choices(node)
    if choices:
        return choices[0] if len(choices) == 1 else f"one of {join_with_or([in_yaml(choice) for choice in choices])}"
    shown = node.get("examples") or (
        [node["description"]] if "description" in node and "properties" not in node else []
    )
    example = (f", such as {in_yaml(shown[0])}" if node.get("examples") else f": {shown[0]}") if shown else ""
    return _WANTED.get(node.get("type", ""), _wanted_text)(node, value, example)


def _wanted_list(node: Schema, value: Any, example: str) -> str:
    words = [word.strip() for word in value.split(",")[:MOST_SHOWN_ITEMS]] if isinstance(value, str) else []
    choices = _choices(node["items"])
    is_of_words = "properties" not in node["items"] and all(0 < len(word) <= LONGEST_SHOWN for word in words)
    if words and is_of_words and (not choices or set(words) <= set(choices)):
        return f"a list: {in_yaml(words)}"
    return f"a list{example}"


def _wanted_mapping(node: Schema, value: Any, example: str) -> str:
    if "properties" not in node:
        return f"a mapping{example or ' of names and values'}"
    fields = node["properties"]
    first = next(((name, field["examples"][0]) for name, field in fields.items() if field.get("examples")), None)
    shown = example or (f", such as {in_yaml(dict([first]))}" if first else "")
    absent = ", or no such field at all" if value is None else ""
    return f"a mapping with {join_with_or(list(fields))}{shown}{absent}"


def _wanted_number(node: Schema, _value: Any, example: str) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    bounds = f" from {least} to {most}" if most is not None else f" of at least {least}" if least is not None else ""
    return f"a {'whole number' if node['type'] == 'integer' else 'number'}{bounds}{example}"


def _wanted_text(node: Schema, value: Any, example: str) -> str:
    if isinstance(value, str) and "pattern" in node:
        return f"text of the form {example.removeprefix(', such as ')}"
    return f"{WANTED_TEXTS.get(node.get('format', ''), 'text')}{example}"


_WANTED: Mapping[str, Callable[[Schema, Any, str], str]] = {
    "array": _wanted_list,
    "object": _wanted_mapping,
    "integer": _wanted_number,
    "number": _wanted_number,
    "boolean": lambda _node, _value, _example: "true or false",
}


def in_yaml(value: Any) -> str:
    """Write a value in one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def _unknown_field(path: YAMLPath, value: Any, schema: Schema, knowledge: Knowledge | None) -> str:
    """Say what to write instead of a field that the schema does not have."""
    name, node = str(path[-1]), _node_at(schema, path[:-1])
    fields = list(node.get("properties", ()))
    if len(name) <= LONGEST_GUESSED_FIELD:
        if near := get_close_matches(name, fields, n=1, cutoff=NEARLY):
            return f"unknown field, did you mean {near[0]}?"
        if "matchLabels" in fields:
            return f"unknown field, write matchLabels: {in_yaml({name: value if isinstance(value, str) else 'VALUE'})}"
        if knowledge is not None and (idea := _idea(name, value, knowledge)):
            return f"unknown field: {idea}"
        if similar := [*_paths_of(name, schema), *get_close_matches(name, fields, n=1)]:
            return f"unknown field, did you mean {similar[0]}?"
    return f"unknown field, wants {join_with_or(fields)}"


def _idea(name: str, value: Any, knowledge: Knowledge) -> str | None:
    """Find what a word of other projects means in a policy (policy_fields.yaml)."""
    text = knowledge.field_ideas.get(re.sub(r"[-_]", "", name.lower()))
    listed = value if isinstance(value, list) else [value]
    written = ", ".join(in_yaml(item) for item in listed if isinstance(item, str | int | float))
    if text is None:
        return None
    driver = re.search(r"\d{3}(?:\.\d{1,6}){0,2}", written[:LONGEST_SHOWN])
    version = parse_version(driver[0]) if driver else (550,)
    cuda = knowledge.cuda.highest_cuda(version) or knowledge.cuda.reported[550]
    shown = written if 0 < len(written) <= LONGEST_SHOWN else "VALUE"
    return text.format(value=shown, driver=show_driver(version), cuda=show_version(cuda))


def _paths_of(name: str, schema: Schema) -> list[str]:
    """List the paths at which the schema has a field of this name."""

    def below(node: Schema, above: str) -> Iterator[str]:
        for key, field in node.get("properties", {}).items():
            inner = resolve_schema(field, schema.get("$defs", {}))
            if key == name:
                yield above + key
            yield from below(resolve_schema(inner.get("items", inner), schema.get("$defs", {})), f"{above}{key}.")

    return list(below(schema, ""))


def policy_doubts(policy: GPUPolicy, knowledge: Knowledge) -> Iterator[tuple[YAMLPath, str]]:
    """List what loads but cannot be meant, each with its path: lint reports it, and the webhook warns of it."""
    spec = policy.spec
    products, placement = spec.placement.products, ("spec", "placement")
    denied = [knowledge.products.pattern(name) for name in products.deny] if products else []
    for index, name in enumerate((products.allow if products else None) or ()):
        allowed = knowledge.products.pattern(name)
        forms = [form for form in knowledge.products.by_form if allowed.matches(form)]
        if forms and all(any(pattern.matches(form) for pattern in denied) for form in forms):
            yield (*placement, "products", "allow", index), f"deny excludes every {name} as well, remove one of the two"
    for need in NEEDS:
        stated = need.read(spec.placement, knowledge.products) if need.read and need.doubt else None
        if stated is not None and need.doubt and (doubt := need.doubt(stated, knowledge.products)):
            at: YAMLPath = tuple(need.path.split("."))
            yield at, f"got {spec.placement.model_dump(by_alias=True)[str(at[-1])]}, which {doubt}"
    yield from _amount_doubts(spec.admission)
    selectors: dict[YAMLPath, LabelSelector | None] = {("spec", "match"): spec.match.namespace_selector}
    for index, row in enumerate(spec.exceptions):
        selectors[("spec", "exceptions", index, "match")] = row.match.namespace_selector
    for path, selector in selectors.items():
        namespace = selector.match_labels.get(NAMESPACE_NAME) if selector else None
        if namespace is not None and (problem := namespace_problem(namespace)):
            yield (*path, "namespaceSelector", "matchLabels", NAMESPACE_NAME), problem


def _amount_doubts(admission: Admission) -> Iterator[tuple[YAMLPath, str]]:
    per_gpu, defaults = admission.per_gpu or PerGPU(), admission.defaults or Defaults()
    memory = {
        ("perGPU", "minMemory"): per_gpu.min_memory,
        ("perGPU", "maxMemory"): per_gpu.max_memory,
        ("defaults", "memoryPerGPU"): defaults.memory_per_gpu,
        ("defaults", "sharedMemory"): defaults.shared_memory,
    }
    for path, text in memory.items():
        if text is not None and parse_quantity(text) < LEAST_BYTES:
            hint = f", did you mean {text}Gi?" if text.isdecimal() else ", wants an amount such as 16Gi"
            yield ("spec", "admission", *path), f"got {text}, which is less than 1Mi{hint}"
    bounds = ("CPU", per_gpu.min_cpu, per_gpu.max_cpu), ("Memory", per_gpu.min_memory, per_gpu.max_memory)
    for name, least, largest in bounds:
        if least and largest and parse_quantity(least) > parse_quantity(largest):
            yield ("spec", "admission", "perGPU", f"min{name}"), f"got {least}, which is more than max{name} {largest}"


def namespace_problem(name: str) -> str | None:
    """Say why no namespace can have a name (an RFC 1123 label); None if one can."""
    if re.fullmatch(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
        return None
    return f"got the text '{name[:LONGEST_SHOWN]}', but names of namespaces have only lower-case letters, digits and -"


def version_problems(placement: Placement, cuda: CUDATables) -> Iterator[tuple[YAMLPath, str]]:
    """List the versions of another kind: a driver for CUDA, and a capability without its dot."""
    wish, path = placement.cuda or CUDAWish(), ("spec", "placement", "cuda")
    stated: dict[YAMLPath, str | None] = {(*path, "minimum"): wish.minimum}
    stated |= {(*path, "images", index, "cuda"): row.cuda for index, row in enumerate(wish.images)}
    for where, text in stated.items():
        version = parse_minimum(text) if text else (0,)
        if version[0] >= MOST_CUDA:
            branches = [branch for branch in cuda.reported if branch <= version[0]]
            runs = show_version(cuda.reported[max(branches)]) if branches else _with_dot(version[0])
            kind = ", which is a driver version" if branches else ""
            yield where, f"got '{text}'{kind}, wants a CUDA version: did you mean '{runs}'?"
    capability = parse_minimum(placement.compute_capability) if placement.compute_capability else (0,)
    if capability[0] >= MOST_CAPABILITY:
        text = f"got '{placement.compute_capability}', wants digits with a dot"
        yield ("spec", "placement", "computeCapability"), f"{text}: did you mean '{_with_dot(capability[0])}'?"


def _with_dot(number: int) -> str:
    return f"{number // 10}.{number % 10}"


def product_problems(policy: Mapping[str, Any], knowledge: Knowledge) -> Iterator[tuple[YAMLPath, str]]:
    """List misspelt products of a document, whether or not it has the right form elsewhere."""
    for path, name in _listed_products(policy):
        try:
            pattern = knowledge.products.pattern(name)
        except BadInput as error:
            yield path, re.sub("^product: ", "", str(error))
            continue
        similar = None if knowledge.products.names_any(pattern) else knowledge.products.suggest(name)
        if similar:
            yield path, f"unknown product {name!r}, did you mean {similar}?"


def unknown_products(policy: Mapping[str, Any], knowledge: Knowledge) -> Iterator[tuple[ProductPattern, YAMLPath, str]]:
    """List products that no row of the tables has and that resemble none: new ones, or ones that do not exist."""
    for path, name in _listed_products(policy):
        pattern = knowledge.products.pattern(name)
        if "*" not in name and not knowledge.products.names_any(pattern):
            yield pattern, path, f"no known product is called {name}: pods wait until a node has it"
        elif spread := knowledge.products.with_star(name):
            yield pattern, path, f"no known product is called {name}, did you mean {spread}?"


def _listed_products(policy: Mapping[str, Any]) -> Iterator[tuple[YAMLPath, str]]:
    placement = object_if_any(object_if_any(policy, "spec"), "placement")
    products, limits = object_if_any(placement, "products"), placement.get("namespaceLimits")
    lists: dict[YAMLPath, Any] = {("products", field): products.get(field) for field in ("allow", "deny", "prefer")}
    for index, row in enumerate(limits if isinstance(limits, list | tuple) else ()):
        lists[("namespaceLimits", index, "products")] = row.get("products") if isinstance(row, dict) else None
    for path, names in lists.items():
        for index, name in enumerate(names if isinstance(names, list | tuple) else ()):
            if isinstance(name, str):
                yield ("spec", "placement", *path, index), name
