"""Settings to paste: the planned draft length for this tool, for llama.cpp and for vLLM."""

from __future__ import annotations

import json
import shlex

from draftproof.drafters import split_chain


def settings(target: str, drafter: str, k: int, files: dict[str, str]) -> dict[str, list[str]]:
    """Command lines by tool, where the tool has this kind of drafting.

    Args:
        target: its spec.
        drafter: its spec.
        k: the draft length; 0 is plain decoding.
        files: the path behind each spec that is a model in a file or a folder.
    """
    parts = split_chain(drafter) if k else []
    found = {"draftproof": [_draftproof(target, drafter, k)]}
    models = [part for part in parts if part != "lookup"]
    if target not in files or any(part not in files for part in models) or len(models) > 1:
        return found
    path, drafts = files[target], [files[part] for part in models]
    if path.endswith(".gguf"):
        found["llama.cpp"] = _llama_cpp(path, "lookup" in parts, drafts, k)
    if len(parts) <= 1:
        found["vLLM"] = [_vllm(path, parts, drafts, k)]
    return found


def _draftproof(target: str, drafter: str, k: int) -> str:
    command = ["draftproof", "chat", "--target", target]
    return shlex.join([*command, *(("--draft", drafter, "--draft-length", str(k)) if k else ())])


def _llama_cpp(path: str, lookup: bool, drafts: list[str], k: int) -> list[str]:
    """The options as they are called since 2026, and a draft model's by the names before."""
    command = ["llama-server", "-m", path]
    if not k:
        return [shlex.join(command)]
    kinds = [*(["ngram-simple"] if lookup else []), *(["draft-simple"] if drafts else [])]
    new = [*command, "--spec-type", ",".join(kinds)]
    if lookup:
        new += ["--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", str(k)]
    if not drafts:
        return [shlex.join(new)]
    new += ["-md", *drafts, "--spec-draft-n-max", str(k), "--spec-draft-n-min", "0"]
    old = [*command, "-md", *drafts, "--draft-max", str(k), "--draft-min", "0"]
    ends = (["--spec-draft-p-min", "0"], ["--draft-p-min", "0"])  # of each draft, as planned
    lines = [shlex.join([*new, *ends[0]])]
    return lines if lookup else [*lines, shlex.join([*old, *ends[1]]) + "  # before 2026"]


def _vllm(path: str, parts: list[str], drafts: list[str], k: int) -> str:
    """It is at home with checkpoints: for GGUF files their place is left to be filled in."""
    command = ["vllm", "serve", "CHECKPOINT" if path.endswith(".gguf") else path]
    if not parts:
        return shlex.join(command)
    config: dict[str, object] = {"method": "ngram", "num_speculative_tokens": k}
    config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    if drafts:
        draft = "DRAFT_CHECKPOINT" if drafts[0].endswith(".gguf") else drafts[0]
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": k}
    return shlex.join([*command, "--speculative-config", json.dumps(config)])
