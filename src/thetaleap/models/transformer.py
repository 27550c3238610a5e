"""The diffusion transformer behind RADD, SEDD, MDLM and BD3-LM, with the names and shapes of their published weights.

All four are one network: a bidirectional transformer with rotary positions, in front of which sits an embedding of
tokens and behind which sits a linear layer. SEDD and MDLM tell it the total noise ``sigma = -log alpha`` by adaptive
layer norms (Peebles and Xie, 2023, arXiv:2212.09748); RADD does not, as the conditionals of masked data do not depend
on time (Ou et al., 2024, arXiv:2406.03736).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ..core.checks import require, require_count, require_number
from ..core.schedules import Schedule

FREQUENCIES = 128
"""Number of frequencies by which the noise level is embedded."""

PERIOD = 10_000.0
"""The longest period of rotary positions and of the noise level, over 2 pi."""

BUFFERS = ("rotary_emb.inv_freq",)
"""What the weights hold beside parameters."""


@dataclass(frozen=True)
class Sizes:
    """How large a transformer is.

    Args:
        tokens: number of clean values, S.
        hidden: width.
        blocks: depth.
        heads: attention heads; they divide the width into even parts.
        cond_dim: width of the condition on the noise level, or on a label; None for a network that is told neither,
            like RADD.
        masked: whether there is a mask, with the value S, and so one more embedding and output channel.
        timed: whether the condition tells the noise level.
        classes: number of labels that the condition tells; a network that has them takes one more for none.
        row: positions in a row of an image; a position's rotary position is then its row and its column, by turns.
        patch: height and width of the squares of an image that the blocks see as one position each.
        dropout: probability with which each entry that joins the residual stream is dropped while training.
        causal: whether a position sees itself and those before it alone.
    """

    tokens: int
    hidden: int = 768
    blocks: int = 12
    heads: int = 12
    cond_dim: int | None = None
    masked: bool = True
    dropout: float = 0.0
    timed: bool = True
    classes: int | None = None
    row: int | None = None
    causal: bool = False
    patch: int = 1

    def __post_init__(self) -> None:
        require_count("tokens", self.tokens, least=2)
        for name in ("hidden", "blocks", "heads"):
            require_count(name, getattr(self, name))
        if self.cond_dim is not None:
            require_count("cond_dim", self.cond_dim)
        if self.classes is not None:
            require_count("classes", self.classes)
            require(self.cond_dim is not None, "cond_dim", None, "labels are told by the condition: say how wide it is")
        if self.row is not None:
            require_count("row", self.row)
        require_count("patch", self.patch)
        if self.patch > 1:
            require(self.row is not None and not self.causal, "patch", self.patch, "is for images; leave it out")
            cut = (self.row or 0) % self.patch == 0
            require(cut, "patch", self.patch, f"must divide the {self.row} positions of a row")
        even = self.hidden % (2 * self.heads) == 0
        require(even, "heads", self.heads, f"must divide the width, {self.hidden}, into parts of even size")
        require_number("dropout", self.dropout, 0, 1, closed="low")

    @property
    def channels(self) -> int:
        """Number of embeddings and of output channels."""
        return self.tokens + self.masked


@dataclass(frozen=True, eq=False)
class Sight:
    """Which positions a network is run on, and what they see, where that is not all of all."""

    places: Int64[Tensor, "b d"]
    """The number of each in its sequence."""
    seen: Bool[Tensor, "b 1 d k"]
    """Whether the position of a query sees that of a key; the keys of the past are first."""
    past: Any = None
    """Keys and values of other positions, which are added to: a cache of transformers', or one that is used like it."""


def _precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which to compute what half precision would spoil."""
    return torch.promote_types(dtype, torch.float32)


class Norm(nn.Module):
    """Layer norm, at least in float32; with a bias where no condition gives the shift."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "b d h"], shift: Tensor | None, scale: Tensor | None) -> Float[Tensor, "b d h"]:
        kind = _precise(x.dtype)
        bias = None if self.bias is None else self.bias.to(kind)
        x = F.layer_norm(x.to(kind), self.weight.shape, self.weight.to(kind), bias, eps=1e-5).to(x.dtype)
        return x if shift is None or scale is None else x * (1 + scale) + shift


class Rotary(nn.Module):
    """Rotary positions (Su et al., 2021, arXiv:2104.09864): the first half of a head turns against the second."""

    inv_freq: Tensor

    def __init__(self, head_size: int, row: int | None = None) -> None:
        super().__init__()
        self.row = row
        self.register_buffer("inv_freq", PERIOD ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))

    def _apply(self, fn: Any, recurse: bool = True) -> Rotary:
        frequencies = self.inv_freq
        super()._apply(fn, recurse)
        if self.inv_freq.dtype != frequencies.dtype:  # in half precision, far positions would be far off
            self.inv_freq = frequencies.to(self.inv_freq.device)
        return self

    def forward(self, x: Float[Tensor, "b d h"], places: Int64[Tensor, "b d"] | None = None) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle of each position and frequency, (d, head size / 2), or (b, 1, d, head size / 2) at
        `places` of their own."""
        kind = _precise(x.dtype)
        positions = torch.arange(x.shape[1], device=x.device, dtype=kind)
        place = positions.unsqueeze(1) if places is None else places.to(kind)[:, None, :, None]
        if self.row is not None:
            even = torch.arange(len(self.inv_freq), device=x.device) % 2 == 0
            place = torch.where(even, place.div(self.row, rounding_mode="floor"), place % self.row)
        angles = place * self.inv_freq.to(kind)
        return angles.cos(), angles.sin()


def _turn(x: Float[Tensor, "b heads d k"], turn: tuple[Tensor, Tensor]) -> Float[Tensor, "b heads d k"]:
    cos, sin = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and added to what came in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, conditioned = sizes.hidden, sizes.cond_dim is not None
        self.heads = sizes.heads
        self.dropout = sizes.dropout
        self.causal = sizes.causal
        # the order of registration is that of the lists of averaged parameters in published training files
        self.norm1 = Norm(width, bias=not conditioned)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = Norm(width, bias=not conditioned)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adaLN_modulation = None if sizes.cond_dim is None else _silent(nn.Linear(sizes.cond_dim, 6 * width))

    def forward(
        self,
        x: Float[Tensor, "b d h"],
        turn: tuple[Tensor, Tensor],
        condition: Tensor | None,
        sight: Sight | None = None,
        number: int = 0,
    ) -> Float[Tensor, "b d h"]:
        """The `number` is by which the past knows the block."""
        shift1, scale1, gate1, shift2, scale2, gate2 = _modulation(self.adaLN_modulation, condition, 6)
        x = self._add(x, self._attend(self.norm1(x, shift1, scale1), turn, sight, number), gate1)
        return self._add(x, self.mlp(self.norm2(x, shift2, scale2)), gate2)

    def _attend(self, x: Tensor, turn: tuple[Tensor, Tensor], sight: Sight | None, number: int) -> Tensor:
        q, k, v = self.attn_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _turn(q, turn), _turn(k, turn)
        if sight is not None and sight.past is not None:
            k, v = sight.past.update(k, v, number)
        seen = None if sight is None else sight.seen
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal)
        return self.attn_out(mixed.transpose(1, 2).flatten(2))

    def _add(self, x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
        change = F.dropout(change, self.dropout, self.training)
        return x + (change if gate is None else gate * change)


class NoiseLevel(nn.Module):
    """The condition: waves of the total noise, made into a vector by a perceptron."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * FREQUENCIES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim))

    def forward(self, sigma: Float[Tensor, " b"], dtype: torch.dtype) -> Float[Tensor, "b c"]:
        kind = _precise(dtype)
        steps = torch.arange(FREQUENCIES, device=sigma.device, dtype=kind) / FREQUENCIES
        angles = torch.outer(sigma.to(kind), torch.exp(-math.log(PERIOD) * steps))
        waves = torch.cat([angles.cos(), angles.sin()], -1)
        return F.silu(self.mlp(waves.to(dtype)))


class Patches(nn.Module):
    """Squares of an image as one position each, and back: what the blocks do costs as much less."""

    def __init__(self, side: int, row: int, width: int) -> None:
        super().__init__()
        self.side, self.row = side, row
        self.fold = nn.Linear(side**2 * width, width)
        self.unfold = nn.Linear(width, side**2 * width)

    def together(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b n h"]:
        squares = x.unflatten(1, (-1, self.side, self.row // self.side, self.side)).transpose(2, 3)
        return self.fold(squares.flatten(3).flatten(1, 2))

    def apart(self, x: Float[Tensor, "b n h"]) -> Float[Tensor, "b d h"]:
        squares = self.unfold(x).unflatten(1, (-1, self.row // self.side)).unflatten(3, (self.side, self.side, -1))
        return squares.transpose(2, 3).flatten(1, 4)


class Output(nn.Module):
    """The last norm and the last linear layer, which starts at zero: all tokens equally likely."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm_final = Norm(sizes.hidden, bias=sizes.cond_dim is None)
        self.linear = _silent(nn.Linear(sizes.hidden, sizes.channels))
        self.adaLN_modulation = None if sizes.cond_dim is None else _silent(nn.Linear(sizes.cond_dim, 2 * sizes.hidden))

    def forward(self, x: Float[Tensor, "b d h"], condition: Tensor | None) -> Float[Tensor, "b d h"]:
        """What the linear layer is to be given."""
        shift, scale = _modulation(self.adaLN_modulation, condition, 2)
        return self.norm_final(x, shift, scale)


class Transformer(nn.Module):
    """Logits of each position's clean token, from the whole sequence and, if `sizes` say so, from the noise level.

    ``forward`` is `head` after `trunk`. They are apart because the head, with the vocabulary at its end, is expensive,
    and is needed at few positions.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.vocab_embed = nn.ParameterDict({"embedding": torch.empty(sizes.channels, sizes.hidden)})
        nn.init.kaiming_uniform_(self.vocab_embed["embedding"], a=math.sqrt(5))
        self.sigma_map = None if sizes.cond_dim is None or not sizes.timed else NoiseLevel(sizes.cond_dim)
        self.label_map = None
        if sizes.classes is not None and sizes.cond_dim is not None:
            self.label_map = nn.Embedding(sizes.classes + 1, sizes.cond_dim)
        self.patches = None
        if sizes.patch > 1 and sizes.row is not None:
            self.patches = Patches(sizes.patch, sizes.row, sizes.hidden)
        self.rotary_emb = Rotary(sizes.hidden // sizes.heads, sizes.row and sizes.row // sizes.patch)
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes.blocks)])
        self.output_layer = Output(sizes)

    def trunk(
        self,
        x: Int64[Tensor, "b d"],
        sigma: Float[Tensor, " b"] | None = None,
        labels: Int64[Tensor, " b"] | None = None,
        *,
        sight: Sight | None = None,
    ) -> Float[Tensor, "b d h"]:
        """The rows that `head` takes, for tokens `x` (the mask is the value S) at total noise `sigma`, one a sample,
        and with `labels`, by default none. With a `sight`, `x` are the tokens of its positions."""
        hidden = F.embedding(x, self.vocab_embed["embedding"])
        condition = None
        if self.sigma_map is not None:
            require(sigma is not None, "sigma", sigma, "this network is told the noise level: give -log alpha")
            condition = self.sigma_map(sigma, hidden.dtype).unsqueeze(1)
        if self.label_map is not None:
            none = self.label_map.num_embeddings - 1
            told = self.label_map(torch.full_like(x[:, 0], none) if labels is None else labels).unsqueeze(1)
            condition = told if condition is None else condition + told
        if self.patches is not None:
            require(sight is None, "sight", sight, "this network sees squares of an image; leave it out")
            hidden = self.patches.together(hidden)
        turn = self.rotary_emb(hidden, None if sight is None else sight.places)
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, turn, condition, sight, number)
        if self.patches is not None:
            hidden = self.patches.apart(hidden)
        return self.output_layer(hidden, condition)

    def at(self, schedule: Schedule | None) -> Callable[..., Float[Tensor, "b d h"]]:
        """`trunk` as a function of tokens, time and labels; without a schedule, at total noise 0."""

        def trunk(x: Tensor, t: Tensor, *labels: Tensor) -> Tensor:
            if self.sigma_map is None:
                return self.trunk(x, None, *labels)
            return self.trunk(x, torch.zeros_like(t) if schedule is None else total_noise(schedule, t), *labels)

        return trunk

    def head(self, rows: Float[Tensor, "n h"]) -> Float[Tensor, "n S"]:
        """Logits of the clean tokens; the mask's channel, which nothing reads, is left out."""
        linear, tokens = self.output_layer.linear, self.sizes.tokens
        return F.linear(rows, linear.weight[:tokens], linear.bias[:tokens])

    def forward(
        self,
        x: Int64[Tensor, "b d"],
        sigma: Float[Tensor, " b"] | None = None,
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b d S"]:
        return self.head(self.trunk(x, sigma, labels).flatten(0, 1)).unflatten(0, x.shape)


def total_noise(schedule: Schedule, t: Tensor) -> Tensor:
    """``-log alpha``, which networks are told instead of the time."""
    return -torch.log(schedule.alpha(t))


def _silent(linear: nn.Linear) -> nn.Linear:
    """`linear`, made to give zeros until it is trained."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _modulation(linear: nn.Linear | None, condition: Tensor | None, parts: int) -> tuple[Tensor | None, ...]:
    if linear is None or condition is None:
        return (None,) * parts
    return linear(condition).chunk(parts, -1)
