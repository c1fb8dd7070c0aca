"""The options the commands share, read from the dataclasses, and what must not go together."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from draftproof.drafters import split_chain
from draftproof.errors import ParameterError
from draftproof.sampling_options import SAMPLING, SCORES, Command, Text, option_for
from draftproof.types import (
    CROSS_VOCABULARY,
    DTYPES,
    RULES,
    ModelOptions,
    Speculation,
)

Record = TypeVar("Record")


class DraftLength(click.ParamType[int | None]):
    """A whole number, or auto."""

    name = "length"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """See ``click.ParamType``."""
        return None if value == "auto" else int(click.INT.convert(value, param, ctx))


_SHARED = (
    click.option(
        "--target",
        required=True,
        metavar="MODEL",
        help="The model that decides: a GGUF file, hf:FOLDER (a Hugging Face checkpoint), demo "
        "(SmolLM2-135M-Instruct), or table:NAME.",
    ),
    click.option(
        "--draft",
        default="none",
        metavar="DRAFTER",
        help="What proposes tokens: a GGUF file of the same vocabulary; quantize:TYPE, a quantised "
        "copy of the target (Q4_0, Q8_0, ...); lookup, which copies from the text so far; "
        "early-exit:N, the first N layers of an hf: target (early-exit alone measures N); "
        "table:NAME; replay:CHANCE, for measuring, which knows the answer and is right with this "
        "chance (replay:0.8:burst: wrong in bursts); or none. Several separated by commas "
        "(lookup,FILE): the one speaks that promises most, for each text and round. The text is "
        "the target's whatever you take, only the speed differs.",
    ),
    click.option(
        "--cross-vocabulary",
        is_flag=False,
        flag_value="auto",
        type=click.Choice(CROSS_VOCABULARY),
        show_default="off",
        help="Let a draft model of any tokenizer draft: by the tokens both have, by its text, or "
        "(auto, which the option alone means) by what is accepted more often.",
    ),
    option_for(
        Speculation,
        "draft_length",
        "Tokens to propose per round: a number, 0 for plain decoding, or auto, which goes by what "
        "was measured so far and is plain where drafts do not pay.",
        type=DraftLength(),
        metavar="K|auto",
        show_default="auto",
    ),
    option_for(
        Speculation,
        "rule",
        "The rule that judges drafts; all of them are exact.",
        type=click.Choice(RULES),
        show_default="block; match with a seed or when greedy",
    ),
    *SAMPLING,
    click.option(
        "--system",
        type=Text(),
        show_default="the chat template's own",
        help="The system message.",
    ),
    click.option(
        "--raw",
        is_flag=True,
        help="Take prompts as plain text to go on from, without the chat template. A model "
        "that has no template is always used so.",
    ),
    option_for(
        ModelOptions,
        "context_length",
        "Most tokens of prompt and answer together.",
        type=int,
        show_default="the model's own",
    ),
    option_for(
        ModelOptions,
        "threads",
        "CPU threads.",
        type=int,
        show_default="the physical cores, less one where there are more than two",
    ),
    option_for(ModelOptions, "gpu_layers", "Layers of a GGUF file to put on a GPU; -1 for all."),
    option_for(
        ModelOptions,
        "device",
        "Where a Hugging Face checkpoint runs: cpu, cuda, cuda:N or mps.",
        show_default="the best at hand",
    ),
    option_for(
        ModelOptions,
        "dtype",
        "What a Hugging Face checkpoint computes in.",
        type=click.Choice(DTYPES),
        show_default="its own; float32 for float16 on a CPU",
    ),
    option_for(
        ModelOptions,
        "cuda_graphs",
        "On CUDA, replay a checkpoint's decode passes instead of launching every kernel anew.",
        flag="--cuda-graphs/--no-cuda-graphs",
    ),
    option_for(
        ModelOptions,
        "bit_exact",
        "Give the same bits with and without speculation, by passes of widths that are measured to "
        "round alike; slower. Refused where there are none.",
        is_flag=True,
    ),
    click.option(
        "--show-rejected",
        is_flag=True,
        help="Show rejected drafts too, struck through, where there is colour.",
    ),
    click.option("--verbose", is_flag=True, help="Log to standard error what is done."),
)


def shared_options(command: Command) -> Command:
    """Give a command all of them."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def scores(command: Command) -> Command:
    """Give a command the options that tell about single tokens."""
    for option in reversed(SCORES):
        command = option(command)
    return command


def pick(kind: type[Record], options: dict[str, Any]) -> Record:
    """A dataclass from the options that have its fields' names."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in options.items() if name in names})


def _kind(spec: str) -> str:
    """What runs a model of this spec; files without a prefix are GGUF files, as is the demo."""
    kind = spec.partition(":")[0]
    return kind if kind in ("table", "hf", "lookup", "none", "early-exit", "replay") else "gguf"


def refuse_idle_options(context: click.Context) -> None:
    """An option is used or refused, never ignored."""
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for applies, names, reason in _idle(context.params):
        for name in names:
            if applies and name in given:
                raise ParameterError(f"--{name.replace('_', '-')} {reason}")


def _idle(options: dict[str, Any]) -> tuple[tuple[bool, tuple[str, ...], str], ...]:
    """Whether something holds, the options that would do nothing then, and what to do."""
    drafters = split_chain(options["draft"])
    copied = options["draft"] == "lookup" and options["rule"] in ("block", "token")
    kinds = {_kind(spec) for spec in (options["target"], *drafters)}
    return (
        (
            options["draft"] == "none",
            ("draft_length", "rule", "show_rejected", "cross_vocabulary", "explain"),
            "needs a drafter: add --draft",
        ),
        (
            options["draft_length"] == 0,
            ("rule", "show_rejected", "explain"),
            "needs drafts: give a --draft-length of 1 or more, or leave it out",
        ),
        (
            all(spec.partition(":")[0] in ("lookup", "quantize") for spec in drafters),
            ("cross_vocabulary",),
            "needs a draft model: give --draft one, or leave it out",
        ),
        (copied, ("rule",), "is not used by lookup, whose drafts are not drawn: leave it out"),
        (
            options["temperature"] == 0,
            ("top_k", "top_p", "min_p", "typical_p", "seed", "rule"),
            "changes nothing at temperature 0: give a --temperature above 0",
        ),
        (
            not options.get("as_json"),
            ("logprobs", "prompt_logprobs"),
            "is shown with --json: add it, or leave it out",
        ),
        (
            bool(options.get("as_json")),
            ("show_rejected",),
            "shows nothing with --json: leave it out",
        ),
        (options["raw"], ("system",), "needs the chat template: leave out --raw, or --system"),
        (
            options["target"].startswith("table:"),
            ("threads", "gpu_layers"),
            "does nothing for a table: leave it out",
        ),
        ("gguf" not in kinds, ("gpu_layers",), "is for GGUF files alone: leave it out"),
        (
            "hf" not in kinds,
            ("device", "dtype", "cuda_graphs"),
            "is for hf: models alone: leave it out",
        ),
    )
