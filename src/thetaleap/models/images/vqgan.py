"""The decoder of a VQGAN (Esser et al. 2021, arXiv:2012.09841): from codes to images.

It has the names and shapes of the taming-transformers weights, such as ``last.ckpt`` of its ImageNet model with 1024
codes, 16 pixels apart. All sizes are read off the shapes, so that ``model.yaml`` is not needed. `diffusers.VQModel` is
not used: it would make diffusers a requirement, and needs these weights renamed and their sizes given. LlamaGen's tokenizer
(Sun et al. 2024, arXiv:2406.06525), which Halton-MaskGIT uses, is the same decoder under other names, with codes of
length 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...core.checks import require
from ..weights import Device, Dtype, Shapes, Weights, built, read_weights

GROUPS = 32
"""Of channels that are normed together."""
BATCH = 8
"""Images that are decoded together."""
IGNORED = ("encoder.", "quant_conv.", "loss.")
"""Parts of a training file that decoding does without: the encoder, and the loss with its discriminator."""
CALLBACK = "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"
"""A class that training files name among their notes."""


@dataclass(frozen=True)
class Sizes:
    """How large a decoder is."""

    codes: int
    embedding: int
    """Width of a code."""
    latent: int
    """Channels that go into the decoder."""
    widths: tuple[int, ...]
    """Channels of each level, from pixels to codes."""
    blocks: int
    """Residual blocks of a level."""
    attentive: frozenset[int]
    """Levels whose blocks are followed by attention."""
    colours: int


class Residual(nn.Module):
    """Two convolutions behind norms, added to what came in."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1 = _norm(before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm2 = _norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.nin_shortcut = None if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k h w"]:
        change = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return change + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class Attention(nn.Module):
    """Attention between all pixels, with one head, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(mixed.transpose(1, 2).unflatten(2, x.shape[2:]))


class Level(nn.Module):
    """Residual blocks, each with attention behind it or not, and then, but for the last, twice the size."""

    def __init__(self, before: int, after: int, blocks: int, attentive: bool, last: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(Residual(before if n == 0 else after, after) for n in range(blocks))
        self.attn = nn.ModuleList(Attention(after) for _ in range(blocks if attentive else 0))
        self.upsample = None if last else nn.ModuleDict({"conv": nn.Conv2d(after, after, 3, padding=1)})

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k ..."]:
        for n, block in enumerate(self.block):
            x = block(x)
            if self.attn:
                x = self.attn[n](x)
        if self.upsample is None:
            return x
        return self.upsample["conv"](F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths, top = sizes.widths, len(sizes.widths) - 1
        self.conv_in = nn.Conv2d(sizes.latent, widths[top], 3, padding=1)
        width = widths[top]
        layers = {"block_1": Residual(width, width), "attn_1": Attention(width), "block_2": Residual(width, width)}
        self.mid = nn.ModuleDict(layers)
        self.up = nn.ModuleList(
            Level(widths[min(n + 1, top)], width, sizes.blocks, n in sizes.attentive, last=n == 0)
            for n, width in enumerate(widths)
        )
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], sizes.colours, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b colours height width"]:
        x = self.conv_in(x)
        for layer in (*self.mid.values(), *reversed(self.up)):
            x = layer(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class VQGAN(nn.Module):
    """Codes to images; the half of a VQGAN that sampling needs."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.quantize = nn.ModuleDict({"embedding": nn.Embedding(sizes.codes, sizes.embedding)})
        self.post_quant_conv = nn.Conv2d(sizes.embedding, sizes.latent, 1)
        self.decoder = Decoder(sizes)

    def decode(self, codes: Int64[Tensor, "b h w"]) -> Float[Tensor, "b colours height width"]:
        """Images with entries in [0, 1]; what the network says beyond is cut off, as it is when it is trained."""
        known = codes.numel() == 0 or bool(((codes >= 0) & (codes < self.sizes.codes)).all())
        span = [int(codes.min()), int(codes.max())] if codes.numel() else []
        require(known, "codes", span, f"must be 0 to {self.sizes.codes - 1}; a mask is no code")
        with torch.no_grad():
            return torch.cat([self._images(some) for some in codes.split(BATCH)])

    def _images(self, codes: Int64[Tensor, "b h w"]) -> Float[Tensor, "b colours height width"]:
        embedded = self.quantize["embedding"](codes.to(self.post_quant_conv.weight.device)).permute(0, 3, 1, 2)
        return ((self.decoder(self.post_quant_conv(embedded)) + 1) / 2).clamp(0, 1)


def vqgan(source: str | Path, dtype: Dtype = None, device: Device = "cpu") -> VQGAN:
    """The decoder in a file of weights: ``last.ckpt`` of taming-transformers, LlamaGen's ``vq_ds16_c2i.pt``, or a
    .safetensors file.

    Args:
        source: the file. Of a training file, the encoder and the loss are left out.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    path = Path(source).expanduser()
    with torch.serialization.safe_globals([(_Note, CALLBACK)]):
        tensors = read_weights(path)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(IGNORED)}
    if "decoder.mid.0.norm1.weight" in tensors:
        tensors = _from_llamagen(tensors)
    what = f"vqgan={str(path)!r}"
    return built(lambda: VQGAN(_sizes(tensors, what)), tensors, what, dtype, device)


MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}


def _from_llamagen(tensors: Weights) -> Weights:
    """Weights of LlamaGen's tokenizer by the names of taming-transformers'. It counts levels from the codes, and divides
    a code by its length; notes on how often codes are used are left out."""
    top = Shapes(tensors, "vqgan", "give a VQGAN").count(r"decoder\.conv_blocks\.(\d+)\.") - 1
    named: Weights = {}
    for name, tensor in tensors.items():
        middle = re.sub(r"^decoder\.mid\.(\d)\.", lambda found: f"decoder.mid.{MIDDLE[found[1]]}.", name)
        level = re.sub(r"^decoder\.conv_blocks\.(\d+)\.", lambda found: f"decoder.up.{top - int(found[1])}.", middle)
        if name != "quantize.codebook_used":
            named[re.sub(r"^(decoder\.up\.\d+)\.res\.", r"\1.block.", level)] = tensor
    named["quantize.embedding.weight"] = F.normalize(named["quantize.embedding.weight"].float(), dim=-1)
    return named


class _Note:
    """What stands for a class that a training file names, and that nothing is done with."""


def _sizes(tensors: Weights, what: str) -> Sizes:
    shapes = Shapes(tensors, what, "give a VQGAN")
    return Sizes(
        codes=shapes.width("quantize.embedding.weight", 0),
        embedding=shapes.width("quantize.embedding.weight", 1),
        latent=shapes.width("post_quant_conv.weight", 0),
        widths=tuple(
            shapes.width(f"decoder.up.{level}.block.0.conv1.weight", 0)
            for level in range(shapes.count(r"decoder\.up\.(\d+)\.(?:block|attn)\.\d+\."))
        ),
        blocks=shapes.count(r"decoder\.up\.\d+\.(?:block|attn)\.(\d+)\."),
        attentive=frozenset(int(level) for (level,) in shapes.numbers(r"decoder\.up\.(\d+)\.attn\.\d+\.")),
        colours=shapes.width("decoder.conv_out.weight", 0),
    )


def _norm(width: int) -> nn.GroupNorm:
    require(width % GROUPS == 0, "channels", width, f"must be a multiple of {GROUPS}; give weights of another network")
    return nn.GroupNorm(GROUPS, width, eps=1e-6)
