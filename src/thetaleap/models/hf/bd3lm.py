"""BD3-LM (Arriola et al. 2025, arXiv:2503.09573): the network of MDLM, in which no block sees those behind it.

It is trained on a noisy block behind the clean ones before it, which are a second copy of the sequence. Sampling needs but
one: finished blocks are the clean ones. Its own code keeps keys and values within the layers; here they are kept as of
other models in blocks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.checks import require, require_choice, require_count
from ...core.processes import Masked
from ..network import Network, from_network
from ..tokenizers import GPT2, GPT2_TOKENS
from ..transformer import Sight, Transformer
from ..weights import Device, Dtype
from .block_causal import Batch, InBlocks, whole
from .checkpoint import Found, entry

FIRST = (
    "the first position is masked, which was never so in training: samples begin with the token <|endoftext|> there; give "
    "it, as in --prompt '<|endoftext|>'"
)


def bd3lm(
    source: str | Path,
    length: int | None = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    block_length: int | None = None,
    time_conditioning: bool | None = None,
) -> Network:
    """A BD3-LM model (Arriola et al. 2025, arXiv:2503.09573): masked, and written block by block.

    `sample` puts a solver into its blocks. What is kept of finished blocks is exact, so that the network is run on one
    block at a time. In training the first position is never masked: give its token, `<|endoftext|>`, in a template.

    Args:
        source: where the weights are: a file, a folder, or a hub id such as ``kuleshov-group/bd3lm-owt-block_size4``.
        length: number of tokens of a sample; by default and at most that of training, where it is known, or else 1024.
        dtype: in which to compute; by default float32.
        device: where to compute.
        block_length: positions of a block, what the model was trained with. It is asked for where neither
            ``config.json`` nor the file says it; a checkpoint of Lightning does.
        time_conditioning: whether the network is told the noise level, asked for likewise. Say False: of one that is,
            what finished blocks say depends on the time, and it is refused.
    """
    found = Found.of("bd3lm", source, block_size=block_length, time_conditioning=time_conditioning)
    config = found.config
    require_choice("parameterization", entry(config, "parameterization", default="subs"), ("subs",))
    remedy = "the network reads from left to right; give one that is trained by diffusion"
    require(entry(config, "causal", "causal_attention", default=False) is False, "causal", True, remedy)
    remedy = f"every position of the network sees every other, as in MDLM; give mdlm{found.name[len('bd3lm') :]}"
    require(entry(config, "cross_attn", default=True) is True, "cross_attn", False, remedy)
    block, most = _block(found), entry(config, "model_length", "length", default=None)
    size: int = length if length is not None else most if most is not None else 1024
    timed = found.require_time_conditioning()
    remedy = "what finished blocks say would depend on the time; give a model that is trained without it"
    require(not timed, "time_conditioning", timed, remedy)
    require_count("length", size)
    require(
        most is None or size <= most, "length", size, f"the model was trained on {most} positions; give at most these"
    )
    network = found.transformer(dtype, device, masked=True, conditioned=True)
    blocks = DiffusionBlocks(network, block, entry(config, "ignore_bos", default=True) is not False)
    tokens = network.sizes.tokens

    def trunk(x: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        return whole(blocks, Batch.of(x, valid, block))

    made = from_network(
        Masked(tokens),
        length=size,
        trunk=trunk,
        head=network.head,
        time_free=True,
        device=device,
        tokenizer=GPT2() if tokens == GPT2_TOKENS else None,
        attends=True,
        shape=(size,),
    )
    return replace(made, evaluate=InBlocks(blocks, network.head), block=block)


def _block(found: Found) -> int:
    """Positions of a block."""
    config = found.config
    told: Any = entry(config, "block_size", default=None)
    if told == "${model.length}":  # by default in the configurations of its code
        told = entry(config, "length", default=None)
    timed = entry(config, "time_conditioning", default=None) is not None
    options = f"block_length=4{'' if timed else ',time_conditioning=False'}"
    remedy = "the file does not say how many positions a block has; give what it was trained with (published: 4, 8, 16)"
    require(told is not None, "block_length", None, f"{remedy}: {found.typed(options)}")
    require_count("block_length", told)
    return told


@dataclass(eq=False)
class Layer:
    """Keys and values of one layer, (b, heads, positions, size)."""

    keys: Tensor
    values: Tensor


@dataclass(eq=False)
class Cache:
    """Keys and values of all layers, used like the cache of transformers, which need not be installed for it."""

    layers: list[Layer] = field(default_factory=list)

    def update(self, keys: Tensor, values: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Add those of more positions to a layer; gives all that it holds."""
        if number == len(self.layers):
            self.layers.append(Layer(keys, values))
        else:
            layer = self.layers[number]
            layer.keys, layer.values = torch.cat([layer.keys, keys], 2), torch.cat([layer.values, values], 2)
        return self.layers[number].keys, self.layers[number].values

    def get_seq_length(self) -> int:
        return self.layers[0].keys.shape[2] if self.layers else 0


class DiffusionBlocks(nn.Module):
    """The transformer, told that no block sees those behind it.

    With `begun` the first position was never masked in training, and there is a warning, once, where it is.
    """

    keeps = True

    def __init__(self, network: Transformer, block: int, begun: bool) -> None:
        super().__init__()
        self.network, self.block, self.begun = network, block, begun

    @property
    def states(self) -> int:
        return self.network.sizes.tokens

    def cache(self) -> Cache:
        return Cache()

    def forward(self, batch: Batch, start: list[int], count: int, past: Any = None) -> Float[Tensor, "b n h"]:
        x = batch.x
        if self.begun and bool(((x == self.states) & batch.valid & (batch.places == 0)).any()):
            self.begun = False
            warnings.warn(FIRST, stacklevel=2)
        first, held = torch.tensor(start, device=x.device).unsqueeze(1), 0 if past is None else past.get_seq_length()
        queries = first + torch.arange(count, device=x.device)
        keys = first + torch.arange(-held, count, device=x.device)
        sight = Sight(batch.places.gather(1, queries), batch.seen(queries, keys), past)
        with torch.no_grad():
            return self.network.trunk(x.gather(1, queries), torch.zeros(len(x), device=x.device), sight=sight)
