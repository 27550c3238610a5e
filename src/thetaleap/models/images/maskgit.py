"""MaskGIT (Chang et al. 2022, arXiv:2202.04200) in PyTorch: images of 16 x 16 codes, given a class of ImageNet.

The layout is that of the public weights of Besnier and Chen (2023, arXiv:2310.14400), ``MaskGIT_ImageNet_256.pth``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...core.checks import require, require_count
from ...core.processes import Masked
from ..network import Network, from_network
from ..weights import Weights, find, fit, read_weights
from .vqgan import vqgan as read_vqgan

CODES, HEADS = 1024, 16
"""Of the public weights, whose shapes do not tell these two."""


@dataclass(frozen=True)
class Sizes:
    """How large a network is.

    Args:
        codes: values of a position, S.
        classes: number of labels.
        side: height and width, in codes.
        hidden: width.
        inner: width within the perceptrons.
        blocks: depth.
        heads: attention heads.
    """

    codes: int
    classes: int
    side: int
    hidden: int
    inner: int
    blocks: int
    heads: int

    def __post_init__(self) -> None:
        divides = self.hidden % self.heads == 0
        require(divides, "heads", self.heads, f"must divide the width of the weights, {self.hidden}; give another")

    @property
    def channels(self) -> int:
        """Embeddings: codes, the mask, labels, and one for no label."""
        return self.codes + 1 + self.classes + 1


class Attend(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(sizes.hidden, sizes.heads, batch_first=True)

    def forward(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b d h"]:
        return self.mha(x, x, x, need_weights=False)[0]


class Perceptron(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        first, last = nn.Linear(sizes.hidden, sizes.inner), nn.Linear(sizes.inner, sizes.hidden)
        self.net = nn.Sequential(first, nn.GELU(), nn.Identity(), last)

    def forward(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b d h"]:
        return self.net(x)


class Normed(nn.Module):
    """A layer behind a norm, added to what came in."""

    def __init__(self, hidden: int, layer: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.fn = layer

    def forward(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b d h"]:
        return x + self.fn(self.norm(x))


class MaskGIT(nn.Module):
    """Logits of each position's code, from all codes and the label, which is one more token, the last.

    A position's logits have a bias of their own. So that the head, which is asked for any rows, can tell whose they
    are, a row of the trunk ends in the height and the width at which its position is: small whole numbers, which every
    floating-point type holds exactly.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        hidden, tokens = sizes.hidden, sizes.side**2 + 1
        self.tok_emb = nn.Embedding(sizes.channels, hidden)
        self.pos_emb = nn.Parameter(torch.zeros(1, tokens, hidden))
        # where the training code has dropout there is nothing, so that layers keep their numbers
        self.first_layer = nn.Sequential(
            nn.LayerNorm(hidden, eps=1e-12),
            nn.Identity(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden, eps=1e-12),
            nn.Identity(),
            nn.Linear(hidden, hidden),
        )
        blocks = (
            nn.Sequential(Normed(hidden, Attend(sizes)), Normed(hidden, Perceptron(sizes))) for _ in range(sizes.blocks)
        )
        self.transformer = nn.ModuleDict({"layers": nn.Sequential(*blocks)})
        self.last_layer = nn.Sequential(
            nn.LayerNorm(hidden, eps=1e-12),
            nn.Identity(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden, eps=1e-12),
        )
        self.bias = nn.Parameter(torch.zeros(tokens, sizes.channels))

    def trunk(self, x: Int64[Tensor, "b d"], labels: Int64[Tensor, " b"]) -> Float[Tensor, "b d k"]:
        """The rows that `head` takes, for codes `x` (the mask is the value S); the label ``classes`` is none."""
        tokens = torch.cat([x, (self.sizes.codes + 1 + labels).unsqueeze(1)], 1)
        hidden = self.transformer["layers"](self.first_layer(self.tok_emb(tokens) + self.pos_emb))
        rows = self.last_layer(hidden[:, :-1])
        side = torch.arange(self.sizes.side, device=x.device, dtype=rows.dtype)
        return torch.cat([rows, torch.cartesian_prod(side, side).expand(len(x), -1, -1)], 2)

    def head(self, rows: Float[Tensor, "n k"]) -> Float[Tensor, "n S"]:
        """Logits of the codes; the channels of the mask and of labels are left out."""
        codes, (height, width) = self.sizes.codes, rows[:, -2:].long().unbind(1)
        return rows[:, :-2] @ self.tok_emb.weight[:codes].T + self.bias[height * self.sizes.side + width, :codes]


def maskgit(
    source: str | Path,
    *,
    vqgan: str | Path | None = None,
    codes: int = CODES,
    heads: int = HEADS,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Network:
    """A MaskGIT: masked, time-free, with labels for `guided`, and positions in the plane.

    Args:
        source: where the weights are: a file, such as ``MaskGIT_ImageNet_256.pth``, a folder, or a hub id.
        vqgan: the file of its VQGAN, such as ``last.ckpt``. The model's `pictures` then makes images of codes, as in
            ``model.pictures.decode(x.unflatten(1, model.shape))``.
        codes: values of a position.
        heads: attention heads.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    require_count("codes", codes, least=2)
    require_count("heads", heads)
    dtype = torch.float32 if dtype is None else dtype
    require(dtype.is_floating_point, "dtype", dtype, "give a floating-point one, such as torch.bfloat16")
    path = find(source, "maskgit").path
    tensors, what = read_weights(path), f"weights={str(path)!r}"
    with torch.device("meta"):
        module = MaskGIT(_sizes(tensors, codes, heads, what))
    module = module.to(dtype).to_empty(device=device)
    fit(module, tensors, what)
    module = module.eval().requires_grad_(False)
    pictures = None if vqgan is None else read_vqgan(vqgan, dtype, device)
    if pictures is not None:
        same = pictures.sizes.codes == codes
        require(same, "vqgan", str(vqgan), f"has {pictures.sizes.codes} codes, but the model {codes}; give its own")

    def trunk(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return module.trunk(x, labels)

    return from_network(
        Masked(codes),
        length=module.sizes.side**2,
        trunk=trunk,
        head=module.head,
        time_free=True,
        device=device,
        pictures=pictures,
        shape=(module.sizes.side, module.sizes.side),
        classes=module.sizes.classes,
    )


def _sizes(tensors: Weights, codes: int, heads: int, what: str) -> Sizes:
    def width(name: str, axis: int) -> int:
        there = name in tensors and tensors[name].ndim > axis
        if not there:
            few = ", ".join(list(tensors)[:4])
            raise ValueError(f"{what}: no {name} among the weights ({few}, ...); give those of a MaskGIT")
        return tensors[name].shape[axis]

    channels, tokens = width("tok_emb.weight", 0), width("pos_emb", 1)
    side = math.isqrt(tokens - 1)
    square = tokens == side**2 + 1 and side > 0
    require(square, f"pos_emb of {what}", tokens, "must be the positions of a square, and one for the label")
    classes = channels - codes - 2
    require(
        classes > 0, "codes", codes, f"there are {channels} embeddings, for codes, mask, labels and none; give less"
    )
    numbers = [int(found[1]) for found in map(re.compile(r"transformer\.layers\.(\d+)\.").match, tensors) if found]
    return Sizes(
        codes=codes,
        classes=classes,
        side=side,
        hidden=width("tok_emb.weight", 1),
        inner=width("transformer.layers.0.1.fn.net.0.weight", 0),
        blocks=max(numbers, default=0) + 1,
        heads=heads,
    )
