"""The network of Halton-MaskGIT (Besnier et al. 2025, arXiv:2503.17076), with the names and shapes of its weights.

A transformer over the codes of an image, and over register tokens that stand for nothing; the label comes in through
adaptive norms (Peebles and Xie 2023). Where the weights have ``in_proj`` and ``out_proj``, it runs on squares of 2 x 2
codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...core.checks import require
from ..weights import Shapes, Weights

HEADS = {768: 12, 1024: 16, 1152: 16}
"""Attention heads of the published widths, which the shapes of the weights do not tell."""


@dataclass(frozen=True)
class Sizes:
    """How large a network is."""

    codes: int
    classes: int
    side: int
    hidden: int
    inner: int
    blocks: int
    heads: int
    registers: int
    squares: bool
    """Whether it runs on squares of 2 x 2 codes."""

    def __post_init__(self) -> None:
        divides = self.hidden % self.heads == 0
        require(divides, "heads", self.heads, f"must divide the width of the weights, {self.hidden}; give another")


class Norm(nn.Module):
    """``x / sqrt(mean x^2 + 1e-5)``, at least in float32, times a weight; plus a bias, if it has one."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b d h"]:
        x = self.weight * _unit(x)
        return x if self.bias is None else x + self.bias


def _unit(x: Tensor) -> Tensor:
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    return (precise * torch.rsqrt(precise.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _told(hidden: int, parts: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(hidden, parts * hidden))


class Block(nn.Module):
    """Attention and a gated perceptron; the label gives the shift, scale and gate of each."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, inner, self.heads = sizes.hidden, sizes.inner, sizes.heads
        self.mlp = _told(hidden, 6)
        self.ln1, self.ln2 = Norm(hidden, bias=False), Norm(hidden, bias=False)
        self.attn = nn.ModuleDict({name: nn.Linear(hidden, hidden, bias=False) for name in ("wq", "wk", "wv", "wo")})
        wide = {"w1": (hidden, inner), "w2": (inner, hidden), "w3": (hidden, inner)}
        self.ff = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in wide.items()})

    def forward(self, x: Float[Tensor, "b d h"], label: Float[Tensor, "b 1 h"]) -> Float[Tensor, "b d h"]:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.mlp(label).chunk(6, -1)
        x = x + gate1 * self._attend(self.ln1(x) * (1 + scale1) + shift1)
        inner = self.ln2(x) * (1 + scale2) + shift2
        return x + gate2 * self.ff["w2"](F.silu(self.ff["w1"](inner)) * self.ff["w3"](inner))

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = (self.attn[name](x) for name in ("wq", "wk", "wv"))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (_unit(q), _unit(k), v))
        return self.attn["wo"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class HaltonMaskGIT(nn.Module):
    """Logits of each position's code, from all codes and the label."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, hidden = sizes, sizes.hidden
        self.cls_emb = nn.Embedding(sizes.classes + 1, hidden)
        self.tok_emb = nn.Embedding(sizes.codes + 1, hidden)
        self.pos_emb = nn.Embedding(sizes.side**2, hidden)
        self.in_proj = nn.Conv2d(hidden, hidden, 2, 2, bias=False) if sizes.squares else None
        self.out_proj = nn.Conv2d(hidden, 4 * hidden, 1, bias=False) if sizes.squares else None
        self.transformer = nn.ModuleDict({"layers": nn.Sequential(*(Block(sizes) for _ in range(sizes.blocks)))})
        self.last_norm = nn.ModuleDict({"norm_final": Norm(hidden, bias=True), "mlp": _told(hidden, 2)})
        self.head_layer = nn.Linear(hidden, sizes.codes + 1)
        self.reg_tokens = nn.Embedding(sizes.registers, hidden) if sizes.registers else None

    def trunk(self, x: Int64[Tensor, "b d"], labels: Int64[Tensor, " b"]) -> Float[Tensor, "b d h"]:
        """The rows that `head` takes, for codes `x` (the mask is the value S); the label ``classes`` is none."""
        label, rows = self.cls_emb(labels).unsqueeze(1), self.tok_emb(x) + self.pos_emb.weight
        side = self.sizes.side
        if self.in_proj is not None:
            rows = self.in_proj(rows.transpose(1, 2).unflatten(2, (side, side))).flatten(2).transpose(1, 2)
        count = rows.shape[1]
        if self.reg_tokens is not None:
            rows = torch.cat([rows, self.reg_tokens.weight.expand(len(x), -1, -1)], 1)
        for block in self.transformer["layers"].children():
            rows = block(rows, label)
        rows = rows[:, :count]
        if self.out_proj is not None:
            small = side // 2
            squares = self.out_proj(rows.transpose(1, 2).unflatten(2, (small, small)))
            rows = squares.unflatten(1, (-1, 2, 2)).permute(0, 4, 2, 5, 3, 1).flatten(1, 4)
        shift, scale = self.last_norm["mlp"](label).chunk(2, -1)
        return self.last_norm["norm_final"](rows) * (1 + scale) + shift

    def head(self, rows: Float[Tensor, "n h"]) -> Float[Tensor, "n S"]:
        """Logits of the codes; the channel of the mask is left out."""
        codes = self.sizes.codes
        return F.linear(rows, self.head_layer.weight[:codes], self.head_layer.bias[:codes])


def is_halton(tensors: Weights) -> bool:
    """Whether weights are those of Halton-MaskGIT, and not of the first MaskGIT in PyTorch."""
    return "cls_emb.weight" in tensors and "last_norm.norm_final.weight" in tensors


def renamed(tensors: Weights) -> Weights:
    """Weights with the last layer under a name of its own, as `head` is a function here; it may be left out of a file,
    being the table of codes."""
    named = {
        name.replace("head.", "head_layer.") if name.startswith("head.") else name: t for name, t in tensors.items()
    }
    return {"head_layer.weight": named["tok_emb.weight"], **named} if "tok_emb.weight" in named else named


def sizes_of(tensors: Weights, heads: int | None, what: str) -> Sizes:
    shapes = Shapes(tensors, what, "give those of a Halton-MaskGIT")
    positions, hidden = shapes.width("pos_emb.weight", 0), shapes.width("tok_emb.weight", 1)
    side = math.isqrt(positions)
    require(side**2 == positions, f"pos_emb of {what}", positions, "must be the positions of a square")
    heads = heads if heads is not None else HEADS.get(hidden)
    remedy = f"a width of {hidden} is none of the published ones, and the file does not say it; give it, as in heads=12"
    require(heads is not None, "heads", None, remedy)
    assert heads is not None
    return Sizes(
        codes=shapes.width("tok_emb.weight", 0) - 1,
        classes=shapes.width("cls_emb.weight", 0) - 1,
        side=side,
        hidden=hidden,
        inner=shapes.width("transformer.layers.0.ff.w1.weight", 0),
        blocks=shapes.count(r"transformer\.layers\.(\d+)\."),
        heads=heads,
        registers=shapes.width("reg_tokens.weight", 0, 0),
        squares="in_proj.weight" in tensors,
    )
