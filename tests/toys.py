"""Toy models and a second opinion on the engine: small, exact, instant."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from draftproof import (
    Chunk,
    Completion,
    DraftRequest,
    Engine,
    ModelError,
    ModelOptions,
    SamplingParams,
    Speculation,
    Step,
)
from draftproof.models.table import TableModel
from draftproof.noise import At, Purpose, SeededNoise, noise_for
from draftproof.sampling import distribution

SIZE, END = 5, 4


PLAIN = SamplingParams(max_tokens=10)


SEEDED = SamplingParams(max_tokens=10, temperature=1.0, seed=7)


def table(seed: int, size: int = SIZE, end: int = END) -> dict[tuple[int, ...], Sequence[float]]:
    """A random table on the last two tokens; the end token is rare."""
    rng = np.random.default_rng(seed)
    weight = np.full(size, 0.6)
    weight[end:] = 0.05
    endings = [()] + [e for n in (1, 2) for e in product(range(size), repeat=n)]
    return {ending: rng.dirichlet(weight + 0.05).tolist() for ending in endings}


class Toy(TableModel):
    """A table model that remembers its passes, and fails when told to.

    ``failures`` maps the number of a pass, from 1 on, to an error and to how much of the pass is
    appended before it is raised: "before", "half" or "after".
    """

    def __init__(self, seed: int = 0, context: int = 64, sequences: int = 1, **named: object):
        options = ModelOptions(context_length=context, max_sequences=sequences)
        super().__init__(named.pop("table", None) or table(seed), f"toy {seed}", END, options)
        self.calls: list[list[Chunk]] = []
        self.failures: dict[int, tuple[BaseException, str]] = {}
        self.closed = 0

    def forward(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        self.calls.append([Chunk(c.seq, list(c.tokens), c.logits) for c in chunks])
        error, when = self.failures.get(len(self.calls), (None, ""))
        if when == "half":
            chunk = chunks[0]
            super().forward([Chunk(chunk.seq, chunk.tokens[: (len(chunk.tokens) + 1) // 2], 0)])
        if when in ("before", "half"):
            raise error
        rows = super().forward(chunks)
        if error:
            raise error
        return rows

    def close(self) -> None:
        self.closed += 1
        super().close()


class NoRollback(Toy):
    """As a recurrent model: back to nothing, or not at all."""

    def __init__(self, *args: int, **named: int):
        super().__init__(*args, **named)
        self.capabilities = replace(
            self.capabilities, rollback=False, no_rollback_reason="its state is recurrent"
        )

    def truncate(self, seq: int, length: int) -> None:
        if 0 < length < self.length(seq):
            raise ModelError("a recurrent state cannot go back")
        super().truncate(seq, length)


class Pieces:
    """A tokenizer from the bytes of its tokens; encodes by the longest piece."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        end: int | None = None,
        bos: int | None = None,
        template: str | None = None,
    ):
        self.pieces, self.bos, self.chat_template = list(pieces), bos, template
        self.eos = end
        self.end_tokens = frozenset(() if end is None else (end,))

    def encode(self, text: str) -> list[int]:
        data, tokens = text.encode(), []
        while data:
            fitting = [t for t, p in enumerate(self.pieces) if p and data.startswith(p)]
            tokens.append(max(fitting, key=lambda t: len(self.pieces[t])))
            data = data[len(self.pieces[tokens[-1]]) :]
        return tokens

    def piece(self, token: int) -> bytes:
        special = token in self.end_tokens or token == self.bos
        return b"" if special else self.pieces[token]

    def special_text(self, token: int) -> str:
        return self.pieces[token].decode()

    def vocabulary(self) -> list[str]:
        return [piece.decode("latin-1") for piece in self.pieces]


def cut(text: str, stop: Iterable[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, and whether there is one."""
    found = [(at + len(s), at) for s in stop if (at := text.find(s)) >= 0]
    return (text[: min(found)[1]], True) if found else (text, False)


def decode(data: bytes, final: bool) -> str:
    """Bytes to text; unless final, a character that is not whole is left out."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data, final)


def oracle(
    model: TableModel, prompt: Sequence[int], params: SamplingParams
) -> tuple[tuple[int, ...], str, str]:
    """Plain decoding in its slowest form: tokens, finish reason, text. Greedy or seeded only."""
    context, tokenizer = model.capabilities.context_length, model.tokenizer
    fresh = TableModel({(): [1.0]}, options=ModelOptions(context_length=context))
    fresh._order, fresh._logits = model._order, model._logits
    ends = () if params.ignore_eos else tokenizer.end_tokens
    out: list[int] = []
    data, reason = b"", None
    while reason is None:
        fresh.truncate(0, 0)
        (logits,) = fresh.forward([Chunk(0, [*prompt, *out], 1)])
        out.append(_pick(logits, params, len(prompt) + len(out)))
        if out[-1] in ends:
            reason = "stop"
            break
        data += tokenizer.piece(out[-1])
        if cut(decode(data, False), params.stop)[1]:
            reason = "stop"
        elif len(prompt) + len(out) == context or len(out) == params.max_tokens:
            reason = "length"
    return tuple(out), reason, cut(decode(data, True), params.stop)[0]


def _pick(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    if params.greedy:
        return int(np.argmax(logits[0]))
    noise = SeededNoise(params.seed)
    return noise.draw(distribution(logits, params)[0], At(0, position, Purpose.TARGET))


PROMPTS = [[0], [1, 2], [3, 3, 1], [2, 0, 1, 2], [1, 0, 3, 2, 1, 0], [2] * 9, [0, 1] * 8, [3, 1]]


def eight_requests() -> list[tuple[list[int], SamplingParams, Speculation]]:
    """Eight requests that differ in everything."""
    params = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=5, temperature=0.8, seed=1),
        SamplingParams(max_tokens=20, temperature=1.3, top_k=3, seed=2, stop=("bb", "ca")),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=None, temperature=1, top_p=0.8, seed=-3, ignore_eos=True),
        SamplingParams(max_tokens=16, stop=("d",)),
        SamplingParams(max_tokens=9, temperature=0.5, min_p=0.2, seed=2**70),
        SamplingParams(max_tokens=13, ignore_eos=True),
    ]
    lengths = [Speculation(draft_length=k) for k in (4, 1, 8, 3, 2, 0, 5, 6)]
    return list(zip(PROMPTS, params, lengths, strict=True))


def drain(engine: Engine) -> list[Step]:
    steps: list[Step] = []
    while new := engine.step():
        steps += new
    return steps


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def tokens_of(steps: list[Step]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.tokens)


def check(engine: Engine, request: int, target: Toy, prompt: list[int], params: SamplingParams):
    """A request ended with what plain decoding gives."""
    done = engine.completion(request)
    assert (done.token_ids, done.finish_reason, done.text) == oracle(target, prompt, params)


def ask(
    tokens: Sequence[int],
    length: int = 4,
    params: SamplingParams = PLAIN,
    seq: int = 0,
    owner: int = 0,
    ends: frozenset[int] = frozenset(),
) -> DraftRequest:
    return DraftRequest(seq, owner, tokens, length, params, noise_for(params.seed), ends)


FRESH = SamplingParams(temperature=0.8, top_k=3, max_tokens=30, ignore_eos=True)


def cycle(length: int = SIZE - 1) -> dict[tuple[int, ...], list[float]]:
    """abcdabcd..., or with ``length`` SIZE the end token after d."""
    row = np.eye(SIZE)
    return {(): row[0], **{(i,): row[(i + 1) % length] for i in range(SIZE)}}


def agrees(done: Completion, target: Toy, prompt: list[int], params: SamplingParams) -> bool:
    return (done.token_ids, done.finish_reason, done.text) == oracle(target, prompt, params)
