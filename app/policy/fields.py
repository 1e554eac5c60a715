# SPDX-License-Identifier: Apache-2.0
"""What the parts of a GPUPolicy are made of: strict documents, and texts that are kept as written but must parse."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.errors import BadInput
from app.quantity import check_amount, parse_mib
from app.versions import parse_minimum


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


Day = Annotated[str, _checked(_check_day)]
"""A day of the UTC calendar, as YYYY-MM-DD."""
QuantityText = Annotated[str, _checked(check_amount)]
VersionText = Annotated[str, _checked(parse_minimum)]
MemoryText = Annotated[str, _checked(parse_mib)]


class Part(BaseModel):
    """A mapping in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, strict=True, use_enum_values=False)


class LabelExpression(Part):
    """One line of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = Field(default=(), strict=False)


class LabelSelector(Part):
    """A Kubernetes label selector; all parts must hold, an empty one selects everything."""

    match_labels: dict[str, str] = Field(default={})
    match_expressions: tuple[LabelExpression, ...] = Field(default=(), strict=False)
