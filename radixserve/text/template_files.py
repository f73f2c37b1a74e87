"""Where a model folder keeps its chat templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.errors import ModelLoadError
from radixserve.text.tokenizer_files import read_json

if TYPE_CHECKING:
    from pathlib import Path


def read_templates(folder: Path) -> dict[str, str]:
    """Return the Jinja source of each of a folder's chat templates, by name.

    A `.jinja` file wins over the config, as in transformers. A single template is `default`.

    Raises:
        ModelLoadError: A file that holds templates cannot be read.
    """
    templates = _from_config(read_json(folder / "tokenizer_config.json").get("chat_template"))
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    path = folder / "chat_template.jinja"
    return templates | ({"default": _read_text(path)} if path.is_file() else {})


def _from_config(value: Any) -> dict[str, str]:
    """A template as such, or a list of objects with a name and a template."""
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    named = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
    }
    return {"default": next(iter(named.values()))} if len(named) == 1 else named


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as a chat template: {error}") from error
