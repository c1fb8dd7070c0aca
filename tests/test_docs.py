"""The map in ``docs/structure.md`` shows the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/structure.md").read_text())


def test_every_module_has_its_place_on_the_map() -> None:
    modules = {path.name for path in (ROOT / "src/draftproof").rglob("*.py")} - {"__init__.py"}
    assert modules == {name for name in NAMED if "/" not in name}


def test_the_tests_it_names_exist() -> None:
    tests = [name for name in NAMED if "/" in name]
    assert tests
    assert all((ROOT / name).is_file() for name in tests)
