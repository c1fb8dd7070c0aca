"""What the loop around the models costs, on the demo model. Run it with ``make bench``.

Not a test: it prints ratios and medians of one interleaved run. Time "outside" is a round's wall
time less the time inside ``llama_decode``, of target and draft model alike.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from draftproof import Engine, ModelOptions, SamplingParams, Speculation, load_model
from draftproof.drafters import DraftRequest
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models.demo import demo_path
from draftproof.models.gguf import GgufModel
from draftproof.models.llama import lib
from draftproof.models.quantize import quantized_copy
from draftproof.noise import noise_for

PROMPT = [
    {"role": "user", "content": "Write a story about a lighthouse keeper and a talking seagull."}
]
GREEDY = SamplingParams(max_tokens=64, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.8, top_p=0.95)
SEEDED = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.8, top_p=0.95, seed=1)
FULL = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.8)


Arm = tuple[str, SamplingParams, int, float]
"""A name, sampling options, a draft length, and the most milliseconds a round may cost."""


class DecodeClock:
    """Adds up the seconds spent inside ``llama_decode``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count every call while the block runs."""
        decode = lib.llama_decode

        def timed(context: object, batch: object) -> int:
            begin = time.perf_counter()
            try:
                return decode(context, batch)
            finally:
                self.seconds += time.perf_counter() - begin

        lib.llama_decode = timed
        try:
            yield
        finally:
            lib.llama_decode = decode


def outside(engine: Engine, params: SamplingParams, k: int) -> list[float]:
    """Milliseconds outside the models' passes, of each decoding round."""
    clock, costs = DecodeClock(), []
    request = engine.submit(PROMPT, params, Speculation(draft_length=k))
    with clock.running():
        before = time.perf_counter()
        for step in engine.follow(request):
            now = time.perf_counter()
            if not step.prefilled:
                costs.append((now - before - clock.seconds) * 1e3)
            clock.seconds = 0.0
            before = time.perf_counter()
    engine.completion(request)
    return costs


def bare_loop(model: GgufModel, prompt: list[int], count: int) -> tuple[float, float]:
    """The shortest loop that decodes greedily with llama.cpp.

    Returns:
        Tokens per second, and the milliseconds a token outside ``llama_decode``.
    """
    context, memory = model._context, model._memory
    lib.llama_memory_seq_rm(memory, 0, 0, -1)
    batch = lib.llama_batch_get_one((ctypes.c_int32 * len(prompt))(*prompt), len(prompt))
    lib.llama_decode(context, batch)
    width = model.capabilities.vocabulary
    one = (ctypes.c_int32 * 1)()
    batch = lib.llama_batch_get_one(one, 1)
    clock = DecodeClock()
    with clock.running():
        begin = time.perf_counter()
        for _ in range(count):
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(width,))
            one[0] = int(logits.argmax())
            lib.llama_decode(context, batch)
        seconds = time.perf_counter() - begin
    lib.llama_memory_seq_rm(memory, 0, 0, -1)
    return count / seconds, (seconds - clock.seconds) / count * 1e3


def plain(model: GgufModel, repeats: int) -> tuple[list[float], list[float]]:
    """Plain decoding through the engine beside the bare loop, interleaved.

    Returns:
        The ratios of their tokens per second, and what the bare loop costs, one per repeat.
    """
    prompt = model.tokenizer.encode("Once upon a time there was a lighthouse keeper.")
    engine, ratios, bare = Engine(model), [], []
    for repeat in range(repeats):
        ours = [engine.generate(prompt, GREEDY).stats.tokens_per_second] if repeat % 2 else []
        speed, outside = bare_loop(model, prompt, 64)
        ours = ours or [engine.generate(prompt, GREEDY).stats.tokens_per_second]
        ratios.append(ours[0] / speed)
        bare.append(outside)
    return ratios, bare


@contextmanager
def instant_passes() -> Iterator[None]:
    """``llama_decode`` returns at once: what the loop costs where caches are warm."""
    decode = lib.llama_decode
    lib.llama_decode = lambda context, batch: 0
    try:
        yield
    finally:
        lib.llama_decode = decode


def lookup_cost(context: int, rounds: int = 200) -> list[float]:
    """Milliseconds of one lookup round that takes in 3 tokens, behind ``context`` tokens."""
    words = random.Random(0)
    tokens = [words.randrange(200) for _ in range(context)]
    drafter, costs = LookupDrafter(), []
    params, noise = SamplingParams(), noise_for(0)
    for _ in range(rounds + 1):
        request = DraftRequest(0, 0, tokens, 4, params, noise, frozenset())
        begin = time.perf_counter()
        drafter.propose([request])
        costs.append((time.perf_counter() - begin) * 1e3)
        tokens += [words.randrange(200) for _ in range(3)]
    return costs[1:]


def report(name: str, value: float, bound: float, at_most: bool = True) -> bool:
    """Print one line; whether the bound is kept."""
    kept = value <= bound if at_most else value >= bound
    sign = "<=" if at_most else ">="
    print(f"{name:58} {value:8.3f}   {sign} {bound:5.3f}   {'kept' if kept else 'MISSED'}")
    return kept


def measure(engine: Engine, arms: list[Arm], repeats: int) -> list[tuple[str, float, float]]:
    """Interleaved: the name, the median milliseconds a round and the bound of each arm."""
    costs: list[list[float]] = [[] for _ in arms]
    for _ in range(repeats):
        for own, (_, params, k, _) in zip(costs, arms, strict=True):
            own += outside(engine, params, k)
    return [
        (f"{name}, k = {k}", statistics.median(own), bound)
        for own, (name, _, k, bound) in zip(costs, arms, strict=True)
    ]


def main() -> int:
    """Print the table; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="interleaved repeats (default 9)")
    repeats = parser.parse_args().repeats
    options = ModelOptions(context_length=1024)
    demo = demo_path()
    target = load_model(quantized_copy(demo, "F16"), options)
    draft = load_model(quantized_copy(demo, "Q8_0"), options)
    engine = Engine(target, ModelDrafter(draft, target))
    arms: list[Arm] = [("greedy", GREEDY, k, 0.15 + 0.03 * k) for k in (0, 1, 4, 8)]
    arms += [("temperature 0.8, top-p 0.95", SAMPLED, 4, 2.0)]
    arms += [("the same with a seed", SEEDED, 4, 2.0)]
    arms += [("temperature 0.8 alone", FULL, 4, 2.0)]
    costs = measure(engine, arms, max(1, repeats // 3))
    print("\nmilliseconds a round outside the models' passes (medians)")
    kept = [report(*row) for row in costs]
    ratios, bare = plain(target, repeats)
    print(f"{'for comparison, the bare loop, greedy, k = 0':58} {statistics.median(bare):8.3f}")
    kept += [
        report(f"lookup, behind {n} tokens", statistics.median(lookup_cost(n)), 0.05)
        for n in (100, 1_000, 10_000, 100_000)
    ]
    print("\ntokens per second, engine over bare loop (median of the ratios)")
    kept.append(report("plain decoding, greedy", statistics.median(ratios), 0.97, at_most=False))
    print("\nthe same rounds with passes that return at once: warm caches, for comparison")
    with instant_passes():
        for row in measure(engine, arms, 1):
            report(*row)
    draft.close()
    target.close()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
