"""What every settings class shares: strict fields with their meaning as docstring, and errors that name the
field."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import yaml
from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from ftis.errors import UserError, unknown

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def settings(cls: type[Class]) -> type[Class]:
    """Make a class of fields with their docstrings a settings class: frozen, and without room for an unknown
    key."""
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    return cast(type[Class], dataclass(frozen=True, kw_only=True, config=config)(cls))


@plain_dataclass(frozen=True)
class OneOf:
    """Of the type of a setting, Annotated[str, OneOf(...)]: it names an entry of a registry, and is checked
    against what is registered when it is read, so that a new entry is one line."""

    kind: str
    names: Collection[str]

    def check(self, value: str) -> str:
        if value not in self.names:
            raise ValueError(str(unknown(self.kind, value, self.names)))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


def parse(adapter: TypeAdapter, data: Any, where: str) -> Any:
    """Validate `data`, turning pydantic's errors into one that names every field and what exists."""
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            field = ".".join(str(p) for p in item["loc"]) or "(top level)"
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "unexpected_keyword_argument":
                message = "unknown key" + _siblings(adapter, item["loc"])
            given = (
                ""
                if item["type"] in ("missing", "unexpected_keyword_argument", "value_error")
                else (f" (given: {item['input']!r})")
            )
            lines.append(f"  {field}: {message}{given}")
        raise UserError(f"{where} is not valid:\n" + "\n".join(lines)) from None


def _siblings(adapter: TypeAdapter, location: tuple) -> str:
    """The keys that exist beside an unknown one, read off the JSON schema."""
    schema = adapter.json_schema()
    defs = schema.get("$defs", {})
    node = schema
    for part in location[:-1]:
        node = resolve_reference(node, defs)
        node = (
            node.get("items", {})
            if isinstance(part, int)
            else node.get("properties", {}).get(part) or (node.get("additionalProperties") or {})
        )
    keys = resolve_reference(node, defs).get("properties", {})
    return f"; the keys here are {', '.join(keys)}" if keys else ""


def resolve_reference(node: dict, defs: dict) -> dict:
    for option in [node, *node.get("anyOf", [])]:
        if "$ref" in option:
            return defs[option["$ref"].rsplit("/", 1)[1]]
    return node


def read_yaml(path: str | Path) -> Any:
    """Parse a YAML or JSON file; a missing or malformed one is a `UserError` that names it."""
    try:
        return yaml.safe_load(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({str(error).replace(chr(10), ' ')})") from None


def replaced(data: Any, name: str, value: Any) -> Any:
    """Nested settings with the one of a dotted name replaced; list entries go by their index.

    Raises UserError where the name leads through something that has no parts.
    """

    def within(part: Any, path: list[str]) -> Any:
        if not path:
            return value
        first, *rest = path
        if isinstance(part, list | tuple):
            if not first.isdecimal() or int(first) >= len(part):
                raise UserError(f"{name}: there are entries 0 to {len(part) - 1} here, no {first!r}")
            entries = list(part)
            entries[int(first)] = within(part[int(first)], rest)
            return entries
        if not isinstance(part, Mapping | None):
            raise UserError(f"{name}: the setting above {first!r} is {part!r}, which has no parts")
        return {**(part or {}), first: within((part or {}).get(first), rest)}

    return within(data, name.split("."))


def to_dict(config: Any) -> dict[str, Any]:
    """Plain, JSON-serialisable form."""
    return json.loads(json.dumps(asdict(config)))
