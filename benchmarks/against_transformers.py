"""Draftproof beside transformers' own generation, on the demo model. Run it with ``make bench-hf``.

Not a test: it prints the median ratio of tokens per second, with a bootstrap interval, of one run
in which both take turns on the same weights, float32 on the CPU, greedy, with the same drafts.
Where a CPU's matrix library is slow for a few rows, much of the gain is ``hf_linear.py``.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import bootstrap
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof import Engine, ModelOptions, SamplingParams, Speculation
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.models.demo import demo_path
from draftproof.models.hf import HfModel

TOKENS, K = 32, 4
SOURCE = (
    "The lighthouse at Cape Verity was built in 1874 by Anna Holm. It is 31 metres tall, has 142 "
    "steps, and its lamp can be seen from 24 nautical miles away. The keeper's house was added "
    "in 1880, and the lamp was electrified in 1931."
)
PROMPTS = [
    f"Copy this text word by word: {SOURCE}",
    f"List every number in this text with its meaning: {SOURCE}",
    f"Repeat the text and replace 1874 by 1875: {SOURCE}",
    f"Extract all names and years from this text: {SOURCE}",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Write a Python class for a stack with push, pop and peek.",
    "Write an HTML page with a heading, a list of three items and a link.",
    "Write a SQL query that counts the orders of each customer.",
    "Tell me a short story about a dragon who is afraid of fire.",
    "Why is the sky blue? Explain it to a child.",
    "Write a letter to a friend about your new garden.",
    "What should I look at when I buy a used bicycle?",
]
GREEDY = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
Run = Callable[[str], float]


def shallow(model: torch.nn.Module, layers: int) -> torch.nn.Module:
    """A draft model: the first layers of the target, with its norm and head."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    draft = AutoModelForCausalLM.from_config(config)
    draft.load_state_dict(model.state_dict(), strict=False)
    return draft.float().eval()


class Arms:
    """Both libraries on the same weights; each run gives tokens per second."""

    def __init__(self, layers: int) -> None:
        path = Path(demo_path())
        source, file = str(path.parent), path.name
        self.tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
        self.model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file, dtype=torch.float32
        ).eval()
        self.draft = shallow(self.model, layers)
        options = ModelOptions(context_length=1024)
        target = HfModel(self.model, self.tokenizer, options)
        small = HfModel(self.draft, self.tokenizer, options)
        self.plain = Engine(target)
        self.drafted = Engine(target, ModelDrafter(small, target))
        self.copied = Engine(target, LookupDrafter())
        many = ModelOptions(context_length=512, max_sequences=8)
        self.many = Engine(HfModel(self.model, self.tokenizer, many))

    def ours(self, engine: Engine) -> Run:
        """Through an engine, at a fixed draft length."""
        speculation = Speculation(draft_length=K)

        def run(prompt: str) -> float:
            begin = time.perf_counter()
            done = engine.generate(self.encode(prompt), GREEDY, speculation)
            return len(done.token_ids) / (time.perf_counter() - begin)

        return run

    def theirs(self, **options: Any) -> Run:
        """Through ``generate``, at the same draft length."""
        settings = transformers.GenerationConfig(
            max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        assistant = options.get("assistant_model")
        if assistant is not None:  # its own settings are those that count
            assistant.generation_config.num_assistant_tokens = K
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            assistant.generation_config.assistant_confidence_threshold = 0.0

        def run(prompt: str) -> float:
            ids = torch.tensor([self.encode(prompt)])
            begin = time.perf_counter()
            with torch.inference_mode():
                out = self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    generation_config=settings,
                    **options,
                )
            return (out.shape[1] - ids.shape[1]) / (time.perf_counter() - begin)

        return run

    def encode(self, prompt: str) -> list[int]:
        """Tokens of a prompt through the chat template."""
        chat = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def batch(self, prompts: list[str]) -> float:
        """Tokens per second of eight prompts of different lengths at once."""
        begin = time.perf_counter()
        done = self.many.generate_many([self.encode(prompt) for prompt in prompts], GREEDY)
        return sum(len(one.token_ids) for one in done) / (time.perf_counter() - begin)


def compare(name: str, ours: Run, theirs: Run, bound: float) -> None:
    """Take turns over the prompts and print the median of the ratios."""
    ratios = []
    for number, prompt in enumerate(PROMPTS):
        if number % 2:
            mine, other = ours(prompt), theirs(prompt)
        else:
            other, mine = theirs(prompt), ours(prompt)
        ratios.append(mine / other)
    show(name, ratios, bound)


def show(name: str, ratios: list[float], bound: float) -> None:
    """Print a median ratio, its 95 % interval, and whether the bound is reached."""
    low, high = bootstrap(
        (np.array(ratios),), np.median, method="percentile", rng=0
    ).confidence_interval
    median = statistics.median(ratios)
    reached = "reached" if median >= bound else "MISSED"
    print(
        f"{name:42} {median:5.2f}x  [{low:.2f}, {high:.2f}]   >= {bound:.2f}x  {reached}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=3, help="layers of the draft model")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arms = Arms(parser.parse_args().layers)
    for run in (arms.ours(arms.plain), arms.theirs()):
        run(PROMPTS[0])  # warm-up
    print(f"{len(PROMPTS)} prompts, {TOKENS} tokens, k = {K}: tokens per second over transformers'")
    compare("plain decoding", arms.ours(arms.plain), arms.theirs(), 1.05)
    drafted = arms.theirs(assistant_model=arms.draft)
    compare("a draft model, over assisted generation", arms.ours(arms.drafted), drafted, 1.3)
    copied = arms.theirs(prompt_lookup_num_tokens=K)
    compare("lookup, over prompt lookup", arms.ours(arms.copied), copied, 1.3)
    one_by_one = arms.theirs()
    ratios = []
    for start in (0, 2, 4):
        eight = PROMPTS[start : start + 8]
        alone = statistics.harmonic_mean([one_by_one(prompt) for prompt in eight])
        ratios.append(arms.batch(eight) / alone)
    show("eight at once, over one by one", ratios, 3.0)


if __name__ == "__main__":
    main()
