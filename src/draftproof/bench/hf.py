"""Arms in which transformers itself generates, greedily, from the same checkpoint.

``transformers`` is plain decoding, ``transformers:lookup@K`` its prompt lookup and
``transformers:hf:FOLDER@K`` its assisted generation. The checkpoint is loaded a second time, as
transformers loads it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from draftproof.bench.arms import Answer, ArmSpec
from draftproof.checks import require
from draftproof.params import SamplingParams
from draftproof.types import ModelOptions


def load(
    spec: ArmSpec, target: str, options: ModelOptions, end_tokens: Collection[int]
) -> TransformersArm:
    """Load what an arm needs.

    Raises:
        ParameterError: the target is no checkpoint, or the arm is none that there is.
        ModelLoadError: a checkpoint cannot be loaded.
    """
    kind, _, path = target.partition(":")
    require(kind == "hf", f"the arm {spec.label} needs a target hf:FOLDER, and {target} is none")
    from draftproof.models.hf_load import open_checkpoint

    drafter, length = spec.drafter.partition(":")[2], spec.length
    assistant = None
    if drafter.startswith("hf:"):
        assistant = open_checkpoint(drafter.partition(":")[2], options)[0]
        if length is not None:  # the assistant's own settings are those that count
            assistant.generation_config.num_assistant_tokens = length
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            assistant.generation_config.assistant_confidence_threshold = 0.0
    elif drafter == "lookup":
        require(bool(length), f"the arm {spec.label} needs a length: {spec.drafter}@4")
    else:
        known = "transformers drafts by lookup or hf:FOLDER"
        require(not drafter, f"{known}, not {drafter!r}")
        require(length is None, f"plain decoding has no draft length: write {spec.drafter}")
    model = open_checkpoint(path, options)[0]
    return TransformersArm(spec, model, assistant, end_tokens)


class TransformersArm:
    """An arm that calls ``generate``.

    Args:
        spec: the arm.
        model: a causal language model of transformers.
        assistant: its draft model, or None.
        end_tokens: what ends an answer.
    """

    def __init__(
        self, spec: ArmSpec, model: Any, assistant: Any, end_tokens: Collection[int]
    ) -> None:
        self.label = spec.label
        self._copies = spec.length if spec.drafter.endswith(":lookup") else None
        self._model = model
        self._assistant = assistant
        self._end_tokens = sorted(end_tokens)

    def answer(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """See ``Arm.answer``."""
        import torch

        require(params.greedy, f"the arm {self.label} is greedy: leave the temperature out")
        ids = torch.tensor([list(prompt)], device=self._model.device)
        watch = _Watch()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(params),
                streamer=watch,
                assistant_model=self._assistant,
            )
        return Answer(tuple(out[0, len(prompt) :].tolist()), tuple(watch.rounds), None)

    def _config(self, params: SamplingParams) -> Any:
        from transformers import GenerationConfig

        # Another padding than an end token would be hidden from the assistant where it is text.
        return GenerationConfig(
            max_new_tokens=params.max_tokens,
            min_new_tokens=params.max_tokens if params.ignore_eos else None,
            do_sample=False,
            pad_token_id=next(iter(self._end_tokens), None),
            eos_token_id=self._end_tokens or None,
            prompt_lookup_num_tokens=self._copies,
        )


class _Watch:
    """A streamer: when tokens came. The first it is given is the prompt."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, float]] = []
        self._before: float | None = None

    def put(self, tokens: Any) -> None:
        now = time.perf_counter()
        if self._before is not None:
            self.rounds.append((int(tokens.numel()), now - self._before))
        self._before = now

    def end(self) -> None:
        """Nothing is held back."""
