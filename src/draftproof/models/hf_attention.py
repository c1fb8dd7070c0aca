"""The attention and the mask function that transformers calls during a packed pass.

Both are registered under one name, which a model's configuration carries only while a pass of
ours runs. What is visible is the model's own: the functions that make up its masks (causal,
sliding window, chunks) are evaluated at the true positions of each chunk. Anything else a layer
asks for, and this does not do, raises ``UnsupportedError``: nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from draftproof.models.hf_cache import FixedPass, Pass, Span, Tensor, View, current

NAME = "draftproof"

# What layers pass on that is harmless: the window is in the mask, the rest is no attention's.
_KNOWN = frozenset(
    (
        *("cache_position", "is_causal", "output_attentions", "output_hidden_states"),
        *("output_router_logits", "position_embeddings", "position_ids", "sliding_window"),
        "use_cache",
    )
)


class UnsupportedError(Exception):
    """A layer asks for something that this attention does not do."""


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: list[View] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend chunk by chunk, each to its own sequence.

    Args:
        module: the attention layer.
        query: [1, Hq, N, D], the packed row.
        key: [H, places, D], the flat cache; Hq is a multiple of H.
        value: [H, places, E].
        attention_mask: one view per chunk, as ``mask`` made them.
        scaling: factor of the scores; None takes 1 / sqrt(D).
        dropout: must be 0.
        softcap: scores are squeezed into this range (Gemma 2).
        s_aux: scores of attention sinks, one per query head (gpt-oss).
        options: refused, unless known to change nothing.

    Returns:
        [1, N, Hq, E], and no weights.

    Raises:
        UnsupportedError: an argument asks for more than this.
    """
    if options:
        _refuse_unknown(options)
    if attention_mask is None or dropout or key.ndim != 3:
        raise UnsupportedError("its attention layers bring their own masks, dropout or cache")
    parts = []
    for view in attention_mask:
        rows = query if len(attention_mask) == 1 else query[:, :, view.rows]
        entries = key[None, :, view.entries], value[None, :, view.entries]  # [1, H, T, D or E]
        if softcap is None and s_aux is None:
            parts.append(_attend(rows, *entries, view, scaling))
        else:
            parts.append(_attend_plainly(rows, *entries, view, scaling, softcap, s_aux))
    attended = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return attended.transpose(1, 2), None


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, view: View, scaling: float | None
) -> Tensor:
    """One chunk's queries [1, Hq, n, D] on its entries [1, H, T, D]: [1, Hq, n, E]."""
    heads, groups = query.shape[1], keys.shape[1]
    if view.mask is None:
        return scaled_dot_product_attention(
            query, keys, values, scale=scaling, is_causal=view.causal, enable_gqa=heads != groups
        )
    # The query heads of a group as rows of one: kernels take no mask together with groups.
    repeats, count, size = heads // groups, query.shape[2], query.shape[3]
    packed = query.reshape(1, groups, repeats * count, size)
    mask = view.scores(repeats, query.dtype)
    attended = scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scaling)
    return attended.reshape(1, heads, count, values.shape[3])


def _attend_plainly(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    view: View,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The same, step by step, for what no kernel does."""
    heads, groups, count = query.shape[1], keys.shape[1], query.shape[2]
    packed = query.reshape(1, groups, heads // groups * count, query.shape[3])
    scores = packed @ keys.transpose(2, 3) * (scaling or query.shape[3] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + view.scores(heads // groups, scores.dtype)
    if sinks is not None:
        extra = sinks.to(scores.dtype).repeat_interleave(count).reshape(1, groups, -1, 1)
        scores = torch.cat([scores, extra], 3)
    weights = torch.softmax(scores, 3, dtype=torch.float32).to(values.dtype)
    return (weights[..., : keys.shape[2]] @ values).reshape(1, heads, count, values.shape[3])


def _refuse_unknown(options: dict[str, Any]) -> None:
    for name, setting in options.items():
        if name not in _KNOWN and setting is not None:
            raise UnsupportedError(f"its attention needs {name!r}")


def mask(
    mask_function: Callable[..., Tensor],
    use_vmap: bool = False,
    attention_mask: Tensor | None = None,
    **_: object,
) -> list[View]:
    """What each chunk of the running pass looks at, for one kind of layer.

    Args:
        mask_function: (batch, head, query position, entry position) -> whether it looks.
        use_vmap: that function may not work on index tensors.
        attention_mask: a mask of padding, which a packed pass has not.

    Raises:
        UnsupportedError: not a causal mask that depends on the positions alone.
    """
    if use_vmap or attention_mask is not None:
        raise UnsupportedError("its masks depend on more than positions")
    running = current.get()
    if isinstance(running, FixedPass):
        return running.views(mask_function)
    if mask_function is causal_mask_function:
        return running.causal
    return [_look(running, span, mask_function) for span in running.spans]


def _look(running: Pass, span: Span, mask_function: Callable[..., Tensor]) -> View:
    """Evaluate a mask function for one chunk; entries before all windows are left out."""
    queries = torch.arange(span.start, span.end, device=running.device)[:, None]
    entries = torch.arange(span.end, device=running.device)[None]
    seen = torch.as_tensor(mask_function(0, 0, queries, entries), device=running.device)
    seen = seen.expand(span.end - span.start, span.end)
    if (seen & (entries > queries)).any():
        raise UnsupportedError("its attention looks ahead")
    first = int(seen.any(0).int().argmax())
    seen = seen[:, first:]
    return running.view(span, first, None if seen.all() else seen)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
