"""What a seed costs in acceptance: match with shared noise beside token and block verification.

Run ``python benchmarks/seeded.py``. Needs no quiet machine: it counts and times nothing. The target
is the demo model's F16 copy, the draft models its own quantised copies.
"""

from __future__ import annotations

from dataclasses import replace

from draftproof import Engine, SamplingParams, Speculation, Stats, load_drafter, load_model
from draftproof.models.demo import demo_path
from draftproof.models.quantize import quantized_copy
from draftproof.types import ModelOptions

PROMPTS = (
    "Write a Python function that tells whether a word is a palindrome.",
    "What is 17 times 6? Show each step.",
    "Translate into French: The train leaves at noon.",
    "Tell a short story about a lighthouse keeper and a whale.",
    "Why is the sky blue?",
    "Extract the names: Anna met Boris and Carla at the station in Ghent.",
    "Give me a recipe for pancakes.",
    "Write an email to a landlord about a broken heater.",
)
LENGTH, TOKENS = 4, 64
ARMS = (("token", None), ("block", None), ("match", None), ("match", 1))


def acceptance_length(engine: Engine, rule: str, params: SamplingParams) -> float:
    """Emitted tokens per target pass over all prompts."""
    emitted = rounds = 0
    for number, prompt in enumerate(PROMPTS):
        one = replace(params, seed=params.seed and params.seed + number)
        stats: Stats = engine.generate(
            [{"role": "user", "content": prompt}], one, Speculation(draft_length=LENGTH, rule=rule)
        ).stats
        emitted, rounds = emitted + stats.completion_tokens, rounds + stats.rounds
    return emitted / rounds


def main() -> None:
    options = ModelOptions(threads=1)  # also where other processes run
    target = load_model(quantized_copy(demo_path(), "F16"), options)
    print(f"acceptance length at k = {LENGTH}, {len(PROMPTS)} prompts of {TOKENS} tokens")
    print("draft      temperature   token   block   match   seeded match")
    for draft in ("quantize:Q8_0", "quantize:Q4_0"):
        drafter = load_drafter(draft, target, options)
        engine = Engine(target, drafter)
        for temperature in (0.8, 1.0):
            params = SamplingParams(temperature=temperature, max_tokens=TOKENS, ignore_eos=True)
            found = [
                acceptance_length(engine, rule, replace(params, seed=seed)) for rule, seed in ARMS
            ]
            print(f"{draft:14s} {temperature:6.1f}   " + "   ".join(f"{x:5.2f}" for x in found))
        drafter.close()


if __name__ == "__main__":
    main()
