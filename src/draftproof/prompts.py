"""The prompts that measuring runs on: a file of them, or the small set that is built in.

A file has one JSON object a line: ``{"category": "code", "turns": ["Write ..."]}``. Only the first
turn is asked, as what follows it would depend on the answer. Further keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftproof.errors import ParameterError, PromptError
from draftproof.models import Model
from draftproof.text import encode_prompt
from draftproof.types import Prompt

BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a kind.

    Attributes:
        category: the kind of text.
        text: what the user says.
        tokens: the prompt as a target reads it, once that is known.
    """

    category: str
    text: str
    tokens: tuple[int, ...] = ()


def read_tasks(path: str = BUILT_IN) -> list[Task]:
    """All prompts of a JSONL file, or those built in.

    Raises:
        PromptError: the file cannot be read, or a line of it is not a prompt.
    """
    if path == BUILT_IN:
        data = (files("draftproof") / "data" / "prompts.jsonl").read_bytes()
    else:
        try:
            data = Path(path).expanduser().read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise PromptError(f"{path} cannot be read ({reason}): give a JSONL file") from None
    lines = enumerate(data.split(b"\n"), 1)
    tasks = [_task(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not tasks:
        raise PromptError(f"{path} holds no prompts: give one JSON object a line")
    return tasks


def _task(line: bytes, where: str) -> Task:
    try:
        row: Any = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise PromptError(f"{where} is not JSON ({error}): write one object a line") from None
    category = row.get("category") if isinstance(row, dict) else None
    turns = row.get("turns") if isinstance(row, dict) else None
    first = turns[0] if isinstance(turns, list) and turns else None
    if not (isinstance(category, str) and category.strip()):
        raise PromptError(f'{where} has no category: write {{"category": "...", "turns": ["..."]}}')
    if not (isinstance(first, str) and first.strip()):
        raise PromptError(f'{where} has no text: write {{"category": "...", "turns": ["..."]}}')
    return Task(category, first)


def choose(
    tasks: Iterable[Task], categories: Iterable[str] = (), limit: int | None = None
) -> list[Task]:
    """The prompts of some categories (of all, if none is named), the first ``limit`` of each.

    Raises:
        ParameterError: there is no such category.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.category, []).append(task)
    wanted = list(categories) or list(groups)
    for name in wanted:
        if name not in groups:
            known = ", ".join(groups)
            raise ParameterError(f"no prompt is of category {name!r}: there are {known}")
    return [task for name in dict.fromkeys(wanted) for task in groups[name][:limit]]


def encode(tasks: Iterable[Task], target: Model, room: int, raw: bool = False) -> list[Task]:
    """The prompts as the target reads them, through its chat template where it has one.

    Args:
        tasks: the prompts.
        target: whose tokenizer.
        room: tokens that must fit behind each of them.
        raw: leave the template out.

    Raises:
        PromptError: a prompt the target cannot read, or that leaves too little room.
    """
    tokenizer, capabilities = target.tokenizer, target.capabilities
    encoded = []
    for number, task in enumerate(tasks, 1):
        plain = raw or tokenizer.chat_template is None
        prompt: Prompt = task.text if plain else [{"role": "user", "content": task.text}]
        where = f"prompt {number} ({task.category})"
        try:
            tokens = encode_prompt(tokenizer, prompt, capabilities.vocabulary)
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from None
        if len(tokens) + room > capabilities.context_length:
            raise PromptError(
                f"{where} has {len(tokens)} tokens, and with {room} behind it does not fit into "
                f"the context of {capabilities.context_length}: give a longer context, fewer "
                "tokens to measure, or other prompts"
            )
        encoded.append(Task(task.category, task.text, tuple(tokens)))
    return encoded
