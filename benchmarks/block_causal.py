"""Exact keys and values of finished blocks (`sdar`, `llada2`): how much faster, with the same samples.

    python -m benchmarks.block_causal

One answer of 128 tokens to a prompt of 256, with 64 evaluations, on one thread, of a Llama of width 512 with 8 layers and
32000 tokens that is told to see in blocks; random weights. Both ways are run in turn.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import thetaleap as tl
from benchmarks.prefix_reuse import NEW, NFE, PROMPT, SPECIAL, WIDE, llama, save
from thetaleap.models.hf.block_causal import InBlocks, Kept
from thetaleap.models.hf.llm import sdar

BLOCKS, TOKENS = (4, 8, 32), 32000


def report(folder: Path, block: int, rounds: int) -> None:
    model = sdar(folder, length=PROMPT + NEW, block_length=block)
    assert isinstance(model.evaluate, InBlocks)
    prompt = torch.randint(len(SPECIAL), TOKENS, (PROMPT,), generator=torch.Generator().manual_seed(1))
    template = torch.cat([prompt, torch.full((NEW,), tl.FREE)])
    both = {keep: replace(model, evaluate=replace(model.evaluate, keep=keep, kept=Kept())) for keep in (False, True)}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    drawn = {}
    for _ in range(rounds):
        for keep, one in both.items():
            start = time.process_time()
            drawn[keep] = tl.sample(one, tl.SemiAutoregressive(), template=template, nfe=NFE).x
            seconds[keep].append(time.process_time() - start)
    plain, kept = (min(seconds[keep]) for keep in (False, True))
    ran = [one.evaluate.kept.positions // rounds for one in both.values()]  # pyright: ignore[reportFunctionMemberAccess]
    same = torch.equal(drawn[False], drawn[True])
    print(
        f"block {block}: {plain:.1f} s without, {kept:.1f} s with, {plain / kept:.1f}x; positions run {ran[0]}, {ran[1]}; "
        f"the same tokens: {same}",
        flush=True,
    )


def main(rounds: int = 2) -> None:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # virtual machines may announce what they forbid
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), llama(TOKENS, WIDE), TOKENS)
        for block in BLOCKS:
            report(Path(name), block, rounds)


if __name__ == "__main__":
    main()
