"""One answer on a terminal, and a conversation of them.

Not here: what any of it looks like (``terminal.py``), and the options (``cli.py``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress

from draftproof.drafters.replay import record
from draftproof.engine import Engine
from draftproof.errors import DraftproofError, PromptError
from draftproof.inputs import ask, next_line
from draftproof.params import SamplingParams
from draftproof.stats import Completion
from draftproof.terminal import Interrupt, Terminal, complain
from draftproof.text import encode_prompt
from draftproof.types import Message, Origin, Piece, Prompt, Step

COMMANDS = {
    "/clear": "forget the conversation",
    "/help": "list the commands",
    "/exit": "leave (Ctrl-D does, too)",
}


def has_template(engine: Engine, system: str | None, terminal: Terminal) -> bool:
    """Whether prompts go through a chat template; a model without one continues plain text.

    Raises:
        PromptError: a system message, and no template to put it into.
    """
    if engine.target.tokenizer.chat_template is not None:
        return True
    name = engine.target.name
    if system is not None:
        raise PromptError(f"{name} has no chat template to put --system into: leave it out")
    terminal.note(f"{name} has no chat template: prompts are taken as plain text")
    return False


def encode(engine: Engine, messages: list[Message], raw: bool) -> list[int]:
    """Tokens of messages, through the template; or, without one, of their plain text joined.

    Raises:
        PromptError: as ``encode_prompt``.
    """
    prompt: Prompt = "".join(message["content"] for message in messages) if raw else messages
    return encode_prompt(engine.target.tokenizer, prompt, engine.target.capabilities.vocabulary)


def answer(
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    terminal: Terminal,
    show: bool = True,
    rejected: bool = False,
    explained: bool = False,
) -> Completion:
    """Answer a prompt, showing the text as it becomes certain. Ctrl-C ends it between rounds.

    Args:
        engine: what generates.
        prompt: token ids.
        params: sampling options.
        terminal: where to show it.
        show: whether to show the text.
        rejected: whether to show rejected drafts in it.
        explained: whether to tell behind it what each round was expected to do, and did.

    Raises:
        DraftproofError: as ``Engine.submit`` and ``Engine.completion``.
        KeyboardInterrupt: at the second Ctrl-C.
    """
    record(engine, prompt, params)
    request = engine.submit(prompt, params)
    shown = read = 0
    steps: list[Step] = []
    try:
        with Interrupt() as interrupt, terminal.bar("reading the prompt") as bar:
            for step in engine.follow(request):
                read += step.prefilled
                steps += [step] if explained else []
                bar.update(read / len(prompt))
                if step.tokens:
                    bar.stop()
                if show:
                    terminal.write(step.pieces, _rejected(engine, step) if rejected else "")
                    shown += len(step.text)
                if interrupt.asked:
                    engine.cancel(request)
        completion = engine.completion(request)
    except DraftproofError:
        if shown:
            terminal.line()
        raise
    if show:  # with what was held back, in case it began a stop string
        terminal.write([Piece(completion.text[shown:], Origin.PLAIN)])
        terminal.line()
    terminal.explain(steps)
    return completion


def _rejected(engine: Engine, step: Step) -> str:
    """The text of the draft a round rejected; none if it rejected none."""
    tokens = step.drafted[step.accepted : step.evaluated]
    return b"".join(map(engine.target.tokenizer.piece, tokens)).decode(errors="replace")


class Chat:
    """A conversation: its history, and the lines people type.

    Args:
        engine: answers; its caches are reused from turn to turn.
        params: sampling options of every answer.
        terminal: where it shows.
        opening: messages before the first turn.
        raw: join the turns as plain text instead of using the template.
        rejected: show rejected drafts.
    """

    def __init__(
        self,
        engine: Engine,
        params: SamplingParams,
        terminal: Terminal,
        opening: list[Message],
        raw: bool = False,
        rejected: bool = False,
    ) -> None:
        self._engine = engine
        self._params = params
        self._terminal = terminal
        self._raw = raw
        self._rejected = rejected
        self._opening = opening
        self._turns: list[Message] = []
        self._failed = False

    def run(self) -> int:
        """Talk until the end of the input.

        Returns:
            The exit code: 0, or 2 if lines were piped in and one of them failed.
        """
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        read = next_line
        if interactive:
            self._welcome()
            read = ask
        while (line := self._next(read)) is not None and line.strip() != "/exit":
            self._handle(line)
        return 2 if self._failed and not interactive else 0

    def _next(self, read: Callable[[], str | None]) -> str | None:
        """The next line that can be read; others are complained about and skipped."""
        while True:
            try:
                return read()
            except PromptError as error:
                self._fail(str(error))

    def _welcome(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401  gives input() its line editing
        self._terminal.note(
            f"{self._engine.target.name}: /help lists the commands, Ctrl-C stops an answer, "
            "Ctrl-D leaves"
        )

    def _handle(self, line: str) -> None:
        """Obey a command, or answer."""
        word = line.strip()
        if word == "/clear":
            self._turns = []
        elif word == "/help":
            for command, meaning in COMMANDS.items():
                print(f"{command:8}{meaning}", file=sys.stderr)
        elif re.fullmatch(r"/\w+", word):
            self._fail(f"no command {word}: /help lists them")
        elif word:
            self._turn(line)

    def _turn(self, line: str) -> None:
        """Answer a line; only what was answered becomes history."""
        turns = [*self._turns, {"role": "user", "content": line}]
        try:
            prompt = encode(self._engine, self._opening + turns, self._raw)
            self._require_room(len(prompt))
            completion = answer(
                self._engine, prompt, self._params, self._terminal, rejected=self._rejected
            )
        except DraftproofError as error:
            self._fail(str(error))
            return
        self._terminal.statistics(completion)
        if completion.text or completion.finish_reason != "cancelled":
            self._turns = [*turns, {"role": "assistant", "content": completion.text}]

    def _require_room(self, length: int) -> None:
        context = self._engine.target.capabilities.context_length
        if self._turns and length >= context:
            raise PromptError(
                f"the conversation has {length} tokens and the context {context}: "
                "/clear starts a new one"
            )

    def _fail(self, message: str) -> None:
        self._failed = True
        complain(message)
