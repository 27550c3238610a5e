"""DiffusionGemma of transformers: text in blocks, by uniform diffusion, as a denoiser.

A prompt goes through an encoder, once; a canvas of tokens, all of them visible to each other and to the prompt, through a
decoder that shares its weights. There are no masks: noise is a token drawn from the whole vocabulary, with
``alpha = 1 - t``. The network is not told the time, and guesses the clean canvas given *all* of the noisy one. Its answer
about a position is thus the posterior, from which the likelihood of the token there is divided out (`LeaveOneOut`): what
is left does not know the token, as solvers want it. In logits that takes ``log(1 + S alpha / (1 - alpha))`` from the
token's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from ...core.checks import require, require_count, require_flag
from ...core.processes import Uniform
from ...core.schedules import LogLinear
from ..network import Network, from_network
from ..tokenizers import require_clean
from .hub import Source, first_line, transformers

EPS = 1e-6
"""What is left of alpha at time 1, where the canvas is all but noise."""
CLASS, SINCE = "DiffusionGemmaForBlockDiffusion", "5.22"


@dataclass(frozen=True, eq=False)
class Text:
    """The model's own tokenizer: tokens have its numbers, and nothing is put around a text."""

    tokenizer: Any
    states: int

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        require_clean(ids, self.states)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


class Trunk(nn.Module):
    """The decoder behind one prompt; hidden rows of a canvas."""

    def __init__(self, model: Any, prompt: Int64[Tensor, "1 n"], twice: bool) -> None:
        super().__init__()
        self.decoder, self.twice = model.model.decoder, twice
        self.head = Head(model)

        @lru_cache(maxsize=2)
        def encoded(batch: int) -> Any:
            """Keys and values of the prompt, for so many samples. The decoder reads them, and adds nothing."""
            return model.model.encoder(input_ids=prompt.expand(batch, -1), use_cache=True).past_key_values

        self.encoded = encoded

    def forward(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, " b"]) -> Float[Tensor, "b d h"]:
        with torch.no_grad():
            prompt = self.encoded(len(x))
            hidden = self.decoder(decoder_input_ids=x, past_key_values=prompt).last_hidden_state
            if not self.twice:
                return hidden
            told = {"self_conditioning_logits": self.head(hidden)}
            return self.decoder(decoder_input_ids=x, past_key_values=prompt, **told).last_hidden_state


class Head(nn.Module):
    """The vocabulary layer, whose logits are bent so that none is beyond the cap: ``cap tanh(logit / cap)``."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layer, self.cap = model.lm_head, model.final_logit_softcapping

    def forward(self, rows: Float[Tensor, "*n h"]) -> Float[Tensor, "*n S"]:
        return self.cap * torch.tanh(self.layer(rows).float() / self.cap)


def diffusion_gemma(
    source: str | Path,
    *,
    length: int | None = None,
    prompt: str = "",
    self_conditioning: bool = False,
    dtype: torch.dtype | Literal["auto"] | None = "auto",
    device: torch.device | str = "cpu",
) -> Network:
    """DiffusionGemma as a denoiser of one canvas behind a prompt.

    Its own sampler tells each step what the last one predicted. A denoiser is a function of the canvas alone, so that
    is not done here: the network is told nothing, as in the first step of its own sampler; or, with
    `self_conditioning`, what it says itself about the same canvas when told nothing, for which it runs twice. Neither is
    the same as its own sampler from the second step on.

    Args:
        source: a folder written by ``save_pretrained``, or a hub id such as ``google/diffusiongemma-26B-A4B-it``.
        length: tokens of the canvas; by default the checkpoint's own, 256.
        prompt: what the canvas answers; put into the checkpoint's chat template, if it has one.
        self_conditioning: run the network twice, the second time told what it said the first time.
        dtype: the network's precision; None is that of the files, "auto" bfloat16 on a GPU and else that of the files.
        device: where the network runs.
    """
    auto, place = transformers(), torch.device(device)
    require_flag("self_conditioning", self_conditioning)
    found = Source.of(
        source, "diffusion-gemma:FOLDER", lambda what, error: f"cannot use {what} ({first_line(error)}): replace them"
    )
    loader = getattr(auto, CLASS, None)
    if loader is None:
        need = f"transformers {auto.__version__} does not have it: pip install 'transformers>={SINCE}'"
        raise ImportError(f"source={found.name!r}: {need}")
    if dtype == "auto":
        dtype = None if place.type == "cpu" else torch.bfloat16
    tokenizer = found.read(auto.AutoTokenizer, "the tokenizer (tokenizer.json and tokenizer_config.json)")
    model = found.read_model(loader, "the weights", "; give a complete checkpoint", dtype=dtype or "auto")
    model = model.to(place).eval().requires_grad_(False)
    size = int(model.config.canvas_length) if length is None else length
    require_count("length", size)
    states = model.config.text_config.vocab_size
    ids = torch.tensor([_prompt(tokenizer, prompt, states)], device=place)
    trunk = Trunk(model, ids, self_conditioning)
    return from_network(
        Uniform(states, LogLinear(EPS)),
        length=size,
        trunk=trunk,
        head=trunk.head,
        device=place,
        tokenizer=Text(tokenizer, states),
        shape=(size,),
        posterior=True,
    )


def _prompt(tokenizer: Any, text: str, states: int) -> list[int]:
    """The tokens of a prompt, of which there is at least one."""
    if text and getattr(tokenizer, "chat_template", None) is not None:
        said = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=True, return_dict=False)
    else:
        ids = tokenizer.encode(text)
    start = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None]
    require(len(ids) + len(start) > 0, "prompt", text, "this tokenizer has no token to begin with; give some text")
    ids = ids or start[:1]
    require(max(ids) < states, "prompt", text, f"holds the token {max(ids)}, but the model has {states}; match them")
    return ids
