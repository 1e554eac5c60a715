# SPDX-License-Identifier: Apache-2.0
"""The building blocks of the GPUPolicy schema: strict models, and texts that stay as written but must parse."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.values.errors import BadInput
from app.values.quantity import check_amount, parse_gpu_memory, parse_quantity, parse_seconds
from app.values.versions import parse_minimum


def _validated_text(parse: Any) -> AfterValidator:
    """Make a validator that keeps the text and refuses one that `parse` does not accept."""

    def check(text: str) -> str:
        try:
            parse(text)
        except BadInput as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(check)


def _check_day(text: str) -> None:
    """Check that a text has the form YYYY-MM-DD; such days compare as text, so that no calendar is needed."""
    match = re.fullmatch(r"\d{4}-(\d{2})-(\d{2})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= 12 or not 1 <= int(match[2]) <= 31:
        raise BadInput(f"got {text[:20]!r}, wants a day such as 2027-01-31")


SHORTEST_HISTORY, LONGEST_HISTORY = 900, 7 * 86_400
"""Seconds of use that a rule may look back: a window of a history at least, and what most Prometheus servers keep."""


def _check_history(text: str) -> None:
    """Check that a text is a duration in Go's syntax, of whole minutes, that a rule may look back."""
    seconds = parse_seconds(text)
    if seconds is None or seconds % 60 or not SHORTEST_HISTORY <= seconds <= LONGEST_HISTORY:
        raise BadInput(f"got {text[:20]!r}, wants 15m to 168h in whole minutes, such as 4h")


def _text_type(parse: Any, format_: str) -> Any:
    return _validated_text(parse), Field(json_schema_extra={"format": format_})


Day = Annotated[str, *_text_type(_check_day, "date")]
"""A day of the UTC calendar, as YYYY-MM-DD."""
QuantityText = Annotated[str, *_text_type(check_amount, "quantity")]
VersionText = Annotated[str, *_text_type(parse_minimum, "version")]
HistoryText = Annotated[str, *_text_type(_check_history, "duration")]
MemoryText = Annotated[str, *_text_type(parse_gpu_memory, "memory")]


class Merge(Enum):
    """How a field that several policies of a pod set is merged (docs/reference/policy.md#merge).

    The values are texts for the documentation. `merged` merges by the rule, and the check of policies that contradict
    each other reads it too.
    """

    Single = "highest priority wins"
    InOrder = "all, those of the highest priority first"
    Strictest = "strictest"
    Union = "all together"
    Intersection = "only what all allow"
    Highest = "highest"
    Lowest = "lowest"
    Own = "not merged"


STRICTEST_FIRST = ("Deny", "UseLimits", "CopyToLimits", "Void", "Strip", "Leave")
"""Actions on wrong amounts, and actions of guards (docs/reference/policy.md#merge)."""


def _strictness(value: Any) -> int:
    """Rank a value; the members of an enum are in order from lax to strict."""
    if isinstance(value, Enum):
        return list(type(value)).index(value)
    return -STRICTEST_FIRST.index(value) if isinstance(value, str) else int(value)


def _amount(value: Any) -> Any:
    return parse_quantity(value) if isinstance(value, str) else value


_MERGES: Mapping[Merge, Callable[[Sequence[Any]], Any]] = {
    Merge.Highest: lambda given: max(given, key=_amount),
    Merge.Lowest: lambda given: min(given, key=_amount),
    Merge.Single: lambda given: given[0],
    Merge.Strictest: lambda given: max(given, key=_strictness),
    Merge.Union: lambda given: tuple(dict.fromkeys(chain(*given))) if isinstance(given[0], tuple) else any(given),
    Merge.Intersection: lambda given: (
        frozenset.intersection(*given) if isinstance(given[0], frozenset) else tuple(given)
    ),
}


def merged(rule: Merge, given: Sequence[Any]) -> Any:
    """Merge the values that sources give a field, those of the highest priority first.

    Lists of products that all sources allow stay one list for each source.
    """
    return _MERGES[rule](given)


MERGE_KEYWORD = "x-merge"
"""The keyword of the published schema that says how a field is merged."""


def described(merge: Merge, description: str, *examples: Any, default: Any = None, **more: Any) -> Any:
    """Describe a field for the JSON Schema, the CRD and policies/README.md: its merge, its meaning, and examples.

    `default` counts where a policy does not have the field. `more` are further arguments of pydantic's Field.
    """
    shown: dict[str, Any] = {"examples": list(examples)} if examples else {}
    return Field(default, description=description, json_schema_extra={MERGE_KEYWORD: merge.value, **shown}, **more)


class StrictMapping(BaseModel):
    """A mapping in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, strict=True, use_enum_values=False)


MOST_LABEL_REQUIREMENTS = 64
"""Labels or expressions of a selector. A guess; each is compared with the labels of each pod."""
MOST_LABEL_VALUES = 256
"""Values of an expression of a selector. A guess."""


class LabelExpression(StrictMapping):
    """One line of a label selector."""

    key: str = Field(description="the label")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = Field(
        default=(), strict=False, max_length=MOST_LABEL_VALUES, description="for In and NotIn"
    )


class LabelSelector(StrictMapping):
    """A Kubernetes label selector. An empty one selects everything."""

    match_labels: dict[str, str] = Field(
        default={}, max_length=MOST_LABEL_REQUIREMENTS, description="labels with these values"
    )
    match_expressions: tuple[LabelExpression, ...] = Field(
        default=(),
        strict=False,
        max_length=MOST_LABEL_REQUIREMENTS,
        description="must all hold; operators: In, NotIn, Exists, DoesNotExist",
    )


def merge_rules(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Merge, list[Any]]]:
    """List each field that has a merge rule: its dotted path as in YAML, the rule, and its examples."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        extra = field.json_schema_extra
        if isinstance(extra, dict) and MERGE_KEYWORD in extra:
            examples = extra.get("examples", [])
            yield ".".join(here), Merge(extra[MERGE_KEYWORD]), list(examples) if isinstance(examples, list) else []
        elif inner := model_in(field.annotation):
            yield from merge_rules(inner, here)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model in an annotation such as `tuple[Score, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for argument in getattr(annotation, "__args__", ()) if (model := model_in(argument))), None)
