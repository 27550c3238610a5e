"""MaskGIT (Chang et al. 2022, arXiv:2202.04200) in PyTorch: images of 16 x 16 codes, given a class of ImageNet.

The layout is that of the public weights of Besnier and Chen (2023, arXiv:2310.14400), ``MaskGIT_ImageNet_256.pth``.
Weights of their Halton-MaskGIT are known by their names, and go to `halton`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...core.checks import require, require_count
from ...core.processes import Masked
from ..network import Network, from_network
from ..weights import Device, Dtype, Shapes, Weights, built, find, read_weights
from .halton import HaltonMaskGIT, is_halton, renamed, sizes_of
from .vqgan import vqgan as read_vqgan

CODES, HEADS = 1024, 16
"""Of the public weights, whose shapes do not tell these two."""


@dataclass(frozen=True)
class Sizes:
    """How large a network is."""

    codes: int
    """Values of a position, S."""
    classes: int
    side: int
    """Height and width, in codes."""
    hidden: int
    inner: int
    """Width within the perceptrons."""
    blocks: int
    heads: int

    def __post_init__(self) -> None:
        divides = self.hidden % self.heads == 0
        require(divides, "heads", self.heads, f"must divide the width of the weights, {self.hidden}; give another")

    @property
    def channels(self) -> int:
        """Embeddings: codes, the mask, labels, and one for no label."""
        return self.codes + 1 + self.classes + 1


class Residual(nn.Module):
    """Attention, ``mha``, or a perceptron, ``net``, behind a norm and added to what came in."""

    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        hidden, inner = sizes.hidden, sizes.inner
        self.norm = nn.LayerNorm(hidden)
        layer = {
            "mha": lambda: nn.MultiheadAttention(hidden, sizes.heads, batch_first=True),
            "net": lambda: nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, hidden)),
        }
        self.fn = nn.ModuleDict({kind: layer[kind]()})

    def forward(self, x: Float[Tensor, "b d h"]) -> Float[Tensor, "b d h"]:
        normed = self.norm(x)
        if "mha" in self.fn:
            return x + self.fn["mha"](normed, normed, normed, need_weights=False)[0]
        return x + self.fn["net"](normed)


def _normed_linear(hidden: int) -> list[nn.Module]:
    """Where the training code has dropout there is nothing, so that layers keep their numbers."""
    return [nn.LayerNorm(hidden, eps=1e-12), nn.Identity(), nn.Linear(hidden, hidden)]


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
        self.first_layer = nn.Sequential(*_normed_linear(hidden), nn.GELU(), *_normed_linear(hidden))
        blocks = (nn.Sequential(Residual(sizes, "mha"), Residual(sizes, "net")) for _ in range(sizes.blocks))
        self.transformer = nn.ModuleDict({"layers": nn.Sequential(*blocks)})
        self.last_layer = nn.Sequential(*_normed_linear(hidden), nn.GELU(), nn.LayerNorm(hidden, eps=1e-12))
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
    codes: int | None = None,
    heads: int | None = None,
    dtype: Dtype = None,
    device: Device = "cpu",
) -> Network:
    """A MaskGIT or Halton-MaskGIT: masked, time-free, with labels for `guided`, and positions in the plane.

    Args:
        source: where the weights are: a file, such as ``MaskGIT_ImageNet_256.pth`` or ``ImageNet_384_large.pth``, a
            folder, or a hub id.
        vqgan: the file of its VQGAN, such as ``last.ckpt``, or for Halton-MaskGIT ``vq_ds16_c2i.pt``. The model's
            `pictures` then makes images of codes, as in ``model.pictures.decode(x.unflatten(1, model.shape))``.
        codes: values of a position, which weights of the first MaskGIT do not tell; by default 1024 for these.
        heads: attention heads; by default those of the published weights.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    for name, count, least in (("codes", codes, 2), ("heads", heads, 1)):
        if count is not None:
            require_count(name, count, least=least)
    path = find(source, "maskgit").path
    tensors, what = read_weights(path), f"weights={str(path)!r}"
    if is_halton(tensors):
        sizes = sizes_of(tensors, heads, what)
        require(codes in (None, sizes.codes), "codes", codes, f"these weights have {sizes.codes}; leave it out")
        module = built(lambda: HaltonMaskGIT(sizes), renamed(tensors), what, dtype, device)
    else:
        first = _sizes(tensors, codes or CODES, heads or HEADS, what)
        module = built(lambda: MaskGIT(first), tensors, what, dtype, device)
    codes = module.sizes.codes
    pictures = None if vqgan is None else read_vqgan(vqgan, dtype, device)
    if pictures is not None:
        same = pictures.sizes.codes == codes
        require(same, "vqgan", str(vqgan), f"has {pictures.sizes.codes} codes, but the model {codes}; give its own")

    return from_network(
        Masked(codes),
        length=module.sizes.side**2,
        trunk=lambda x, t, labels: module.trunk(x, labels),
        head=module.head,
        time_free=True,
        device=device,
        pictures=pictures,
        shape=(module.sizes.side, module.sizes.side),
        classes=module.sizes.classes,
    )


def _sizes(tensors: Weights, codes: int, heads: int, what: str) -> Sizes:
    shapes = Shapes(tensors, what, "give those of a MaskGIT")
    channels, tokens = shapes.width("tok_emb.weight", 0), shapes.width("pos_emb", 1)
    side = math.isqrt(tokens - 1)
    square = tokens == side**2 + 1 and side > 0
    require(square, f"pos_emb of {what}", tokens, "must be the positions of a square, and one for the label")
    classes = channels - codes - 2
    remedy = f"there are {channels} embeddings, for codes, mask, labels and none; give less"
    require(classes > 0, "codes", codes, remedy)
    return Sizes(
        codes=codes,
        classes=classes,
        side=side,
        hidden=shapes.width("tok_emb.weight", 1),
        inner=shapes.width("transformer.layers.0.1.fn.net.0.weight", 0),
        blocks=shapes.count(r"transformer\.layers\.(\d+)\."),
        heads=heads,
    )
