# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share, as one parameter: a frozen dataclass whose fields are Typer options."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from app.cli.help import Verb

Function = Callable[..., Any]


def with_records(verb: Function) -> Function:
    """Return a verb that Typer can read: each parameter that is a record is replaced by one option for each field.

    The record is made of their values before the verb runs, and may refuse them (BadInput).
    """
    hints = get_type_hints(verb, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if record := records.get(name):
            options = get_type_hints(record, include_extras=True)
            parameters += [_parameter(field.name, field.default, options[field.name]) for field in fields(record)]
        else:
            parameters.append(_parameter(name, parameter.default, hints[name]))

    def run(**values: Any) -> Any:
        made = {
            name: record(**{field.name: values.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        return verb(**values, **made)

    run.__doc__, run.__name__ = verb.__doc__, verb.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(group: typer.Typer, name: str | None = None) -> Callable[[Function], Function]:
    """Add a verb to a group; its help ends with its manual page."""

    def add(verb: Function) -> Function:
        group.command(name, cls=Verb)(with_records(verb))
        return verb

    return add
