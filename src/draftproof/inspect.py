"""Whether a target and a drafter can work together, and what they need, before anything is loaded.

Not here: reading the files (``models/describe*.py``), and showing it (``report.py``). The bytes are
those of weights and caches; a backend's working memory comes on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from draftproof.drafters import split_chain
from draftproof.drafters.early_exit import exit_layers
from draftproof.errors import ParameterError
from draftproof.models.describe import Description, describe
from draftproof.types import ModelOptions

LOOKUP_ENTRY = 500  # bytes a token of lookup's index, about


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two vocabularies, token by token.

    Attributes:
        result: "same", "padded" (alike, and one is longer), "different" or "unknown" (a model's
            files do not hold its tokens).
        token: the first that differs.
        target: its text there.
        draft: its text here.
    """

    result: str
    token: int | None = None
    target: str | None = None
    draft: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            "result": self.result,
            "token": self.token,
            "target": self.target,
            "draft": self.draft,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found.

    Attributes:
        target: the model that decides.
        drafts: the models that draft; none, one, or those of a chain.
        comparisons: the vocabulary of each of them against the target's.
        context_length: tokens of a sequence.
        sequences: how many are held at once.
        weight_bytes: of all models.
        cache_bytes: of all models, for all sequences at full length.
        free_bytes: main memory that is free; None where that cannot be told.
        problems: why it cannot work, each with what to do; empty where it can.
        notes: what else is worth knowing.
    """

    target: Description
    drafts: tuple[Description, ...]
    comparisons: tuple[Comparison, ...]
    context_length: int
    sequences: int
    weight_bytes: int
    cache_bytes: int
    free_bytes: int | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The document ``draftproof inspect --json`` prints."""
        return {
            "works": self.works,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "context_length": self.context_length,
            "sequences": self.sequences,
            "weight_bytes": self.weight_bytes,
            "cache_bytes": self.cache_bytes,
            "free_bytes": self.free_bytes,
            "target": self.target.to_json(),
            "drafts": [
                draft.to_json() | {"tokenizer_comparison": comparison.to_json()}
                for draft, comparison in zip(self.drafts, self.comparisons, strict=True)
            ],
        }


def inspect(target: str, drafter: str = "none", options: ModelOptions | None = None) -> Inspection:
    """Look at a target and a drafter without loading them.

    Args:
        target: a model as ``load_model`` takes it.
        drafter: a drafter as ``load_drafter`` takes it.
        options: how they would be loaded; the context is the target's own if not given.

    Raises:
        ModelLoadError: a file is missing, broken, or of a kind that is not known.
        PairError: a quantised copy of something that is no GGUF file, or an early exit of
            something that is no Hugging Face checkpoint, or has no such layer.
        ParameterError: no such type to quantise to, no number of layers, or the context is longer
            than the target's.
        MissingExtraError: a library is not installed.
    """
    options = options or ModelOptions()
    model = describe(target, options)
    length = _context_length(model, options)
    parts = [part for part in split_chain(drafter) if part != "none"]
    described = [_draft(part, model, options) for part in parts]
    drafts = tuple(draft for draft in described if draft is not None)
    entries = [(min(length, one.context_length), one.cache_bytes) for one in (model, *drafts)]
    entries += [(length, LOOKUP_ENTRY)] if "lookup" in parts else []
    found = Inspection(
        target=model,
        drafts=drafts,
        comparisons=tuple(compare(model, draft) for draft in drafts),
        context_length=length,
        sequences=options.max_sequences,
        weight_bytes=sum(one.weight_bytes for one in (model, *drafts)),
        cache_bytes=sum(tokens * size for tokens, size in entries) * options.max_sequences,
        free_bytes=_free_memory(),
    )
    problems = (*_cannot(found, bool(parts)), *_too_big(found))
    notes = (*_notes(found, options), *_exit_notes(parts, model))
    return replace(found, problems=problems, notes=notes)


def _context_length(target: Description, options: ModelOptions) -> int:
    if (options.context_length or 0) > target.context_length:
        raise ParameterError(
            f"{target.spec} has a context of {target.context_length} tokens: ask for no more"
        )
    return options.context_length or target.context_length


def _draft(spec: str, target: Description, options: ModelOptions) -> Description | None:
    """The model of a drafter; None where it takes none."""
    kind, _, rest = spec.partition(":")
    if kind == "lookup":
        return None
    if kind == "early-exit":
        layers = target.layers if target.format == "hf" else None
        exit_layers(rest, target.spec, layers, options.bit_exact)
        return None
    if kind != "quantize":
        return describe(spec, options)
    from draftproof.models.describe_gguf import describe_quantized

    return describe_quantized(spec, target, rest)


def compare(target: Description, draft: Description) -> Comparison:
    """The vocabularies of two models, as far as both of them go."""
    if target.tokens is None or draft.tokens is None:
        return Comparison("unknown")
    for token, (theirs, mine) in enumerate(zip(target.tokens, draft.tokens, strict=False)):
        if theirs != mine:
            return Comparison("different", token, theirs, mine)
    return Comparison("same" if target.vocabulary == draft.vocabulary else "padded")


def _cannot(found: Inspection, speculative: bool) -> Iterator[str]:
    """What stands in the way, whatever the memory."""
    target = found.target
    for one in (target, *found.drafts):
        if one.refused:
            yield f"{one.spec} cannot be run: {one.refused}; give a model that writes text"
    if speculative and target.recurrent and not target.refused:
        yield (
            f"{target.spec} cannot be speculated on: it has a recurrent state, which cannot be "
            "rolled back; leave the drafter out"
        )
    for draft, comparison in zip(found.drafts, found.comparisons, strict=True):
        if draft.recurrent and not draft.refused:
            yield (
                f"{draft.spec} cannot draft: it has a recurrent state, which cannot be rolled "
                "back; take another draft model"
            )
        if comparison.result == "different":
            yield (
                f"{draft.spec} has another tokenizer than {target.spec} (token {comparison.token} "
                f"is {comparison.draft!r} there, {comparison.target!r} here): add "
                "--cross-vocabulary, or take a draft model of the same family"
            )


def _too_big(found: Inspection) -> Iterator[str]:
    need = found.weight_bytes + found.cache_bytes
    if found.free_bytes is None or need <= found.free_bytes:
        return
    left = found.free_bytes - found.weight_bytes
    length = left * found.context_length // max(1, found.cache_bytes)
    advice = f"give a context length of {length} or less" if length > 0 else "take smaller models"
    yield f"{readable(need)} are needed and {readable(found.free_bytes)} are free: {advice}"


def _notes(found: Inspection, options: ModelOptions) -> Iterator[str]:
    for draft, comparison in zip(found.drafts, found.comparisons, strict=True):
        if draft.context_length < found.context_length:
            yield (
                f"{draft.spec} drafts in the first {draft.context_length} tokens of a text, its "
                "context; plain decoding from there"
            )
        if comparison.result == "unknown":
            yield f"the tokens of {draft.spec} are compared when it is loaded: no tokenizer.json"
    for one in (found.target, *found.drafts):
        if one.format == "hf" and "F16" in one.types and not (options.device or options.dtype):
            yield f"{one.spec} takes twice these bytes on a CPU: float16 becomes float32 there"
        if one.recurrent:
            yield f"the recurrent state of {one.spec} is not counted"


def _exit_notes(parts: list[str], target: Description) -> Iterator[str]:
    for part in parts:
        kind, _, rest = part.partition(":")
        if kind == "early-exit":
            which = f"the first {rest}" if rest else "as many as measuring finds best"
            yield (
                f"{part} drafts with {which} of the {target.layers} layers of {target.spec}: "
                "it takes no weights and no cache of its own"
            )


def readable(size: int) -> str:
    """Bytes as people read them."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _free_memory() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)
