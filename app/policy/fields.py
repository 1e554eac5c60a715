# SPDX-License-Identifier: Apache-2.0
"""What the parts of a GPUPolicy are made of: strict documents, and texts that are kept as written but must parse."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.values.errors import BadInput
from app.values.quantity import check_amount, parse_mib
from app.values.versions import parse_minimum


def _checked(parse: Any) -> AfterValidator:
    """Keep the text, but refuse one that does not parse."""

    def check(text: str) -> str:
        try:
            parse(text)
        except BadInput as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(check)


def _check_day(text: str) -> None:
    """Check YYYY-MM-DD; days compare as text, so the core needs no calendar."""
    match = re.fullmatch(r"\d{4}-(\d{2})-(\d{2})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= 12 or not 1 <= int(match[2]) <= 31:
        raise BadInput(f"got {text[:20]!r}, wants a day such as 2027-01-31")


def _text(parse: Any, format_: str) -> Any:
    return _checked(parse), Field(json_schema_extra={"format": format_})


Day = Annotated[str, *_text(_check_day, "date")]
"""A day of the UTC calendar, as YYYY-MM-DD."""
QuantityText = Annotated[str, *_text(check_amount, "quantity")]
VersionText = Annotated[str, *_text(parse_minimum, "version")]
MemoryText = Annotated[str, *_text(parse_mib, "memory")]


class Merge(Enum):
    """What becomes of a field that several policies of one pod set; the words are for people.

    See docs/reference/policy.md#merge.
    """

    Single = "highest priority wins"
    InOrder = "all, those of the highest priority first"
    Strictest = "strictest"
    Union = "all together"
    Intersection = "only what all allow"
    Highest = "highest"
    Lowest = "lowest"
    Own = "each policy's own"


MERGE = "x-merge"
"""Keyword of the published schema that says how a field is merged."""


def described(merge: Merge, description: str, *examples: Any, **more: Any) -> Any:
    """Describe a field for the schema, the definition and the page: how it merges, what it is, what may stand there."""
    shown = {"examples": list(examples)} if examples else {}
    return Field(description=description, json_schema_extra={MERGE: merge.value, **shown}, **more)


class Part(BaseModel):
    """A mapping in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, strict=True, use_enum_values=False)


MOST_LABELS = 64
"""Labels or lines of a selector; guess. Each is compared with for each pod."""
MOST_LABEL_VALUES = 256
"""Values of a line of a selector; guess."""


class LabelExpression(Part):
    """One line of a label selector."""

    key: str = Field(description="the label")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = Field(
        default=(), strict=False, max_length=MOST_LABEL_VALUES, description="for In and NotIn"
    )


class LabelSelector(Part):
    """A Kubernetes label selector; all parts must hold, an empty one selects everything."""

    match_labels: dict[str, str] = Field(
        default={}, max_length=MOST_LABELS, description="labels that must be there with these values"
    )
    match_expressions: tuple[LabelExpression, ...] = Field(
        default=(),
        strict=False,
        max_length=MOST_LABELS,
        description="lines that must hold, each a key, an operator and values",
    )


def merging(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Merge, list[Any]]]:
    """List every field that says how it merges: its dotted path as people write it, how, and its examples."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        extra = field.json_schema_extra
        if isinstance(extra, dict) and MERGE in extra:
            examples = extra.get("examples", [])
            yield ".".join(here), Merge(extra[MERGE]), list(examples) if isinstance(examples, list) else []
        elif inner := model_in(field.annotation):
            yield from merging(inner, here)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model in an annotation such as `tuple[Score, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for each in getattr(annotation, "__args__", ()) if (model := model_in(each))), None)
