"""Write docs/settings.md: every setting of a run with its type, default and meaning, from the classes that
read them.

python workflow/scripts/settings_page.py          # or: make schemas
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftis.config import RUN_CONFIG
from ftis.method.readings import PRESETS
from ftis.settings import resolve_reference

PAGE = Path(__file__).parents[2] / "docs/settings.md"
HEAD = """\
# Settings

Made from the settings' classes by `workflow/scripts/settings_page.py`; `ftis settings` prints the same.

A run is one YAML or JSON file; [pair.yaml](../examples/pair.yaml) is a small one. Unknown keys and wrong \
types are errors that name the field and what exists. Each setting can be replaced by its dotted name, \
list entries by their index: `ftis train my.yaml --out results/my --set optim.warmup=5 --set \
nodes.0.learning_rate=1e-6`, or `ftis.load_run("my.yaml", {"optim.warmup": 5}, cap=1.0)`. In a tier's file \
(`workflow/config/tiers/`) those of a run stand under `run`, those of its nodes under `node`.
"""


def page() -> str:
    """The page's text."""
    schema = RUN_CONFIG.json_schema()
    parts = [HEAD]
    for name, section in sections(schema, schema["$defs"]):
        about = one_line(section.get("description", ""))
        parts.append(f"## {f'`{name}`' if name else 'A run'}\n\n{about}\n")
        parts.append(table(section, schema["$defs"]))
        if name == "readings":
            parts += ["Presets:\n", *(preset(each) for each in PRESETS), ""]
    return "\n".join(parts).rstrip() + "\n"


def sections(
    node: dict[str, Any], defs: dict[str, Any], name: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings that have settings of their own, by dotted name, the run itself first."""
    yield name, node
    for key, entry in node["properties"].items():
        inner = resolve_reference(entry.get("items", entry), defs)
        if "properties" in inner:
            yield from sections(inner, defs, f"{name}.{key}".strip(".") + "[]" * ("items" in entry))


def table(section: dict[str, Any], defs: dict[str, Any]) -> str:
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, entry in section["properties"].items():
        inner = resolve_reference(entry.get("items", entry), defs)
        nested = "properties" in inner
        about = entry.get("description") or (inner.get("description", "") if nested else "")
        if name in section.get("required", ()):
            default = "required"
        else:
            given = "default" in entry and not (nested and entry["default"] is not None)
            default = f"`{shown(entry['default'])}`" if given else ""
        form = ("list, below" if "items" in entry else "below") if nested else kind(entry)
        rows.append(f"| `{name}` | {form} | {default} | {one_line(about)} |")
    return "\n".join([*rows, ""])


def kind(entry: dict[str, Any]) -> str:
    """A type in few words, with its bounds."""
    if "enum" in entry:
        return ", ".join(f"`{shown(choice)}`" for choice in entry["enum"])
    if "anyOf" in entry:
        return " or ".join(kind(option) for option in entry["anyOf"])
    if "const" in entry:
        return f"`{shown(entry['const'])}`"
    if "prefixItems" in entry:
        return ", ".join(map(kind, entry["prefixItems"]))
    if entry.get("type") == "array":
        return f"list of {kind(entry['items'])}"
    bounds = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}
    said = [f"{word} {entry[key]:g}" for key, word in bounds.items() if key in entry]
    return " ".join([entry.get("type", "any"), *said])


def shown(value: Any) -> str:
    """A value as YAML writes it."""
    words = {None: "null", True: "true", False: "false", "": '""'}
    return words[value] if value is None or value is True or value is False or value == "" else str(value)


def preset(name: str) -> str:
    chosen = ", ".join(f"`{key}: {shown(value)}`" for key, value in PRESETS[name].items())
    return f"- `{name}`: {chosen or 'the defaults'}"


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
