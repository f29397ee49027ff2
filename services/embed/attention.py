"""Attention over packed sequences: each token looks at those of its own sequence.

Two ways to the same answer. `flash_attention` is torch's own kernel, once for each run of equally long sequences. On
a processor with bf16 that kernel multiplies small tiles one by one, and is a third of an embedding's time;
`exp_attention` gives oneDNN whole blocks instead, a quarter of that time.

Source of the second: Dao et al., FlashAttention (2022), section 3.1, for dividing by the sum of the weights only after
they were applied; that the largest score need not be taken off before, as long as nothing overflows, is the definition
of softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from services.embed.layout import LONGEST_BLOCK, Group, Layout

SMALL = 48
"""A single sequence of so many tokens is quicker through torch's own kernel: one call instead of a dozen."""

_LEAST_SUM, _LARGEST_SUM = 1e-20, 1e36
"""Between these, no weight that matters has left the range of a float (1e-38 to 1e38)."""


def flash_attention(qkv: Tensor, layout: Layout, heads: int, scale: float | None = None) -> Tensor:
    """Softmax(scale * q k^T) v by head, from (rows, 3 * hidden) to (rows, hidden).

    Args:
        scale: one over the square root of a head's width, unless given.
    """
    attended = qkv.new_zeros(qkv.shape[0], qkv.shape[1] // 3)
    row = 0
    for length, count in layout.runs:
        end = row + length * count
        query, key, value = qkv[row:end].view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, scale=scale)
        attended[row:end] = mixed.transpose(1, 2).reshape(end - row, -1)
        row = end
    return attended


def exponent_scale(width: int) -> float:
    """What queries are multiplied by, so that 2 to the power of a score is its weight; `width` is a head's."""
    return math.log2(math.e) / math.sqrt(width)


def exp_attention(qkv: Tensor, layout: Layout, groups: Sequence[Group], heads: int) -> Tensor:
    """As `flash_attention`, for queries that were multiplied by `exponent_scale`; `groups` are `layout`'s.

    All scores of a block are in memory at once, so what is longer than `LONGEST_BLOCK` goes through torch's kernel.
    """
    attended = qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)
    for group in groups:
        end = group.start + group.runs.rows
        part, into = qkv[group.start : end], attended[group.start : end]
        by_block = group.length <= LONGEST_BLOCK and (group.count > 1 or group.length > SMALL)
        if not (by_block and _weigh(part, group, heads, into)):
            into.copy_(flash_attention(part, group.runs, heads, scale=math.log(2)))
    # What belongs to no sequence has to be a number all the same, since the layers go over it too.
    attended[layout.tokens :] = 0
    return attended


def _weigh(qkv: Tensor, group: Group, heads: int, into: Tensor) -> bool:
    """Write the mean of the values, weighted by 2 to the power of each score, into `into`; answers False, and leaves it
    as it is, where a weight left the range of a float."""
    count, length, padding = group.count, group.length, group.padding
    width = qkv.shape[1] // (3 * heads)
    block = (qkv if padding is None else qkv.index_select(0, padding.rows)).view(count, length, 3, heads, width)
    query, key = block[:, :, :2].permute(2, 0, 3, 1, 4).reshape(2, count * heads, length, width)
    # A column of ones sums the weights in the product that applies them. Filler has zeros for both, and so no part.
    value = qkv.new_empty(count, heads, length, width + 1)
    if padding is None:
        value[..., :width] = block[:, :, 2].transpose(1, 2)
        value[..., width] = 1
    else:
        real = padding.real.view(count, 1, length, 1).to(qkv.dtype)
        torch.mul(block[:, :, 2].transpose(1, 2), real, out=value[..., :width])
        value[..., width:] = real
    weights = torch.bmm(query, key.transpose(1, 2)).exp2_()
    mixed = torch.bmm(weights, value.view(count * heads, length, width + 1)).view(count, heads, length, width + 1)
    sums = mixed[..., width:]
    least, largest = (float(each) for each in torch.aminmax(sums))
    if not (least > _LEAST_SUM and largest < _LARGEST_SUM):
        return False
    means = into if padding is None else into.new_empty(count * length, heads * width)
    torch.div(mixed[..., :width], sums, out=means.view(count, length, heads, width).transpose(1, 2))
    if padding is not None:
        torch.index_select(means, 0, padding.places, out=into)
    return True
