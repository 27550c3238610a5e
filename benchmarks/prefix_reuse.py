"""Keys and values kept within a block (`approximate_prefix`, `approximate_dual`): how much faster, and how much changes.

    python -m benchmarks.prefix_reuse [prefix|dual] [ANSWERS]

One answer of 128 tokens to a prompt of 256, with 64 evaluations, on one thread. Time is that of a Llama of width 512
with 8 layers and 32000 tokens. What changes is measured on 16 answers, or as many as are asked for, of one of width 128
with 4 layers and 99 tokens. Both have random weights; the scale of the latter's says how much its positions depend on each other. The yardstick is a
sampler that does not run the network at all after the first evaluation of a block.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

import thetaleap as tl
from thetaleap.conditioning.wrappers import Wrapped
from thetaleap.core.evaluation import Conditionals, Denoiser, of_samples
from thetaleap.models.hf.llm import llada
from thetaleap.models.hf.prefix_reuse import ApproximatePrefix, approximate_dual, approximate_prefix
from thetaleap.models.network import Network

REUSES: dict[str, Callable[[Denoiser, int], ApproximatePrefix]] = {
    "prefix": approximate_prefix,
    "dual": approximate_dual,
}
PROMPT, NEW, NFE, ANSWERS = 256, 128, 64, 16
BLOCKS = (8, 32)
SPECIAL = ["<pad>", "<eos>", "<unk>", "<mask>"]
SCALES = (0.5, 1.0, 2.0)
WIDE: dict[str, Any] = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 1376}
SMALL: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 344}


# --- networks


def save(folder: Path, model: Any, tokens: int) -> None:
    """`model`, and a tokenizer with names for its tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = SPECIAL + [f"<{n}>" for n in range(len(SPECIAL), tokens)]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    named = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "mask_token": "<mask>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **named).save_pretrained(folder)
    model.save_pretrained(folder)


def llama(tokens: int, sizes: dict[str, Any], scale: float = 1.0) -> Any:
    """With random weights: rows of matrices have norm `scale`, but for the last one's, so that logits vary by 2."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = torch.Generator().manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=tokens, max_position_embeddings=PROMPT + NEW, **sizes))
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            size = 1.0 if "embed" in name else (2.0 if "lm_head" in name else scale) / weight.shape[1] ** 0.5
            weight.data = size * torch.randn(weight.shape, generator=made)
    return model.eval()


# --- what is measured


@dataclass
class Changes:
    """Over evaluations after a block's first, and its masked positions: divergences of conditionals from the
    model's."""

    kept: list[Tensor] = field(default_factory=list)
    """With keys and values kept."""
    old: list[Tensor] = field(default_factory=list)
    """Of the model's own, from the first evaluation of the block."""
    first: Conditionals | None = None


def divergence(p: Float64[Tensor, "n S"], q: Float64[Tensor, "n S"]) -> Float64[Tensor, " n"]:
    """Of rows of logarithms, in nats."""
    return (p.exp() * (p - q).nan_to_num()).sum(1)


@dataclass(frozen=True)
class Watched(Wrapped):
    """A model that keeps keys and values, compared with itself without, at every evaluation."""

    block: int
    exact: Network
    changes: Changes = field(default_factory=Changes)

    def of(self, samples: Int64[Tensor, " b"]) -> Watched:
        return Watched(of_samples(self.model, samples), self.block, self.exact, self.changes)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        mine, truth = self.model(x, t), self.exact(x, t)
        masked = x == self.process.states
        block = (torch.arange(x.shape[1]) - PROMPT) // self.block
        present = masked & (block == block[masked.int().argmax(1)].unsqueeze(1))
        if int(present.sum()) == len(x) * self.block:
            self.changes.first = truth
            return mine
        positions = torch.nonzero(present.flatten()).flatten()
        assert self.changes.first is not None
        p, q, old = (one.logits(positions).double().log_softmax(1) for one in (truth, mine, self.changes.first))
        self.changes.kept.append(divergence(p, q))
        self.changes.old.append(divergence(p, old))
        return mine


def draw(model: Denoiser, prompts: Tensor, block: int) -> Tensor:
    free = torch.full((len(prompts), NEW), tl.FREE)
    solver = tl.Blocks(tl.SemiAutoregressive(), block)
    return tl.sample(model, solver, template=torch.cat([prompts, free], 1), nfe=NFE, batch_size=len(prompts)).x


def speed(model: Network, reuse: str, block: int, rounds: int) -> tuple[float, float, ApproximatePrefix]:
    """Processor seconds of one answer without and with, run in turn; the least of the rounds."""
    prompt = torch.randint(len(SPECIAL), model.process.states, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    reusing = REUSES[reuse](model, block)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for kept in (False, True):
            start = time.process_time()
            draw(reusing if kept else model, prompt, block)
            seconds[kept].append(time.process_time() - start)
    return min(seconds[False]), min(seconds[True]), reusing


def change(model: Network, reuse: str, prompts: Tensor, block: int) -> tuple[float, float, float, float]:
    """The share of tokens that differ though all draws are the same; how far conditionals are from the model's, on
    average and at most; and how far old ones are."""
    watched = Watched(REUSES[reuse](model, block), block, model)
    mine, plain = draw(watched, prompts, block), draw(model, prompts, block)
    kept, old = torch.cat(watched.changes.kept), torch.cat(watched.changes.old)
    share = float((mine != plain)[:, PROMPT:].double().mean())
    return share, float(kept.mean()), float(kept.max()), float(old.mean())


def report_speed(folder: Path, reuse: str, rounds: int) -> None:
    save(folder, llama(32000, WIDE), 32000)
    for block in BLOCKS:
        plain, kept, reusing = speed(llada(folder, length=PROMPT + NEW), reuse, block, rounds)
        runs = reusing.runs
        count = f"{runs.partial} of {runs.partial + runs.full} runs partial"
        print(f"block {block}: {count}; {plain:.1f} s without, {kept:.1f} s with, {plain / kept:.2f}x", flush=True)


def report_change(folder: Path, reuse: str, answers: int) -> None:
    tokens = len(SPECIAL) + 95
    prompts = torch.randint(len(SPECIAL), tokens, (answers, PROMPT), generator=torch.Generator().manual_seed(2))
    for scale in SCALES:
        save(folder, llama(tokens, SMALL, scale), tokens)
        for block in BLOCKS:
            share, mean, most, old = change(llada(folder, length=PROMPT + NEW), reuse, prompts, block)
            print(
                f"scale {scale}, block {block}: {share:.1%} of tokens differ; nats per position from the model {mean:.1e}, "
                f"at most {most:.1e}; without running it after the first evaluation {old:.1e}",
                flush=True,
            )


def main(reuse: str = "prefix", answers: str = str(ANSWERS)) -> None:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # virtual machines may announce what they forbid
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        report_change(Path(name) / "small", reuse, int(answers))
        report_speed(Path(name) / "wide", reuse, rounds=2)


if __name__ == "__main__":
    main(*sys.argv[1:3])
