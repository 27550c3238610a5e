"""A language model parted into its trunk and its vocabulary layer, and the precision that both compute in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .hub import FAILURES


class Rounding(TorchDispatchMode):
    """Watches a network run; `eps` is the rounding error of the coarsest type among all intermediate results.

    A network may round more coarsely than its weights and its outputs tell: Gemma 2 computes its norms in float32 even
    if all else is float64. How far two runs then differ depends on the processor. The types do not.
    """

    eps: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in tree_leaves(result):
            if isinstance(part, Tensor) and part.is_floating_point():
                self.eps = max(self.eps, torch.finfo(part.dtype).eps)
        return result

    def same(self, found: Tensor, wanted: Tensor) -> bool:
        """Whether they are the same up to the rounding of a whole network: half of the digits agree."""
        return float((found - wanted).abs().max()) <= self.eps**0.5 * float(wanted.abs().max())

    def equal(self, found: Tensor, wanted: Tensor) -> bool:
        """Whether they differ by no more than a few roundings of the last step."""
        return float((found - wanted).abs().max()) <= 4 * self.eps * float(wanted.abs().max())


class Head(nn.Module):
    """The vocabulary layer, or nothing where the trunk gives logits already.

    Of the logits it gives those of the tokens `kept`, by default all; tokens that are `forbidden` get minus infinity.
    """

    def __init__(
        self,
        layer: nn.Linear | None,
        kept: Int64[Tensor, " S"] | None = None,
        forbidden: Int64[Tensor, " n"] | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer
        if layer is not None and kept is not None:
            self.layer, kept = _linear(layer.weight[kept], None if layer.bias is None else layer.bias[kept]), None
        self.kept, self.forbidden = (None if ids is None else nn.Buffer(ids) for ids in (kept, forbidden))

    def forward(self, rows: Float[Tensor, "n h"]) -> Float[Tensor, "n S"]:
        logits = rows if self.layer is None else self.layer(rows.to(self.layer.weight)).to(rows.device)
        logits = logits if self.kept is None else logits[:, self.kept]
        return logits if self.forbidden is None else logits.index_fill(1, self.forbidden, -torch.inf)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def take_layer(model: Any, run: Callable[[], Float[Tensor, "*b h"]]) -> nn.Linear | None:
    """Take the vocabulary layer out of `model`, whose output on some tokens is ``run()``: hidden rows from then on.

    Where both together do not give the model's own logits, the model is left whole, and there is None.
    """
    with Rounding() as rounding:
        logits = run()
    layer = model.get_output_embeddings()
    names = [name for name, part in model.named_modules() if part is layer]
    if not names or not isinstance(layer, nn.Linear) or layer.out_features != logits.shape[-1]:
        return None
    parent = model.get_submodule(names[0].rpartition(".")[0])
    apart = getattr(parent, "bias", None) if layer.bias is None else None  # ESM adds its bias after the layer
    taken = layer if apart is None else _linear(layer.weight, apart)
    model.set_submodule(names[0], nn.Identity())
    if apart is not None:
        parent.bias = nn.Parameter(apart.new_zeros(()), requires_grad=False)
    try:
        if rounding.same(taken(run().to(taken.weight)).to(logits.device), logits):  # LLaDA2 gives rows in float32
            return taken
    except FAILURES:  # the model wants more of its last layer than its output
        pass
    model.set_submodule(names[0], layer)
    if apart is not None:
        parent.bias = apart
    return None
