"""The decoding algorithm ``ThetaLeap`` of SGLang's diffusion language models.

SGLang finds `register` by its entry point ``sglang.srt.plugins``; ``--dllm-algorithm ThetaLeap`` then serves with one of our
solvers, and ``--dllm-algorithm-config FILE.yaml`` has its settings. Every block of a request is a run of its own, whose
seed is a function of the request's id and of where the block begins: an answer does not depend on what else is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..conditioning.answering import Manner
from ..core.checks import require, require_choice, require_count, require_kind
from ..core.processes import Masked
from ..evaluation.choice import Budget, choose, hyper_parameters, needs_model
from .driven import Driven, seed_of

NAME = "ThetaLeap"
ARCHITECTURES = ("LLaDA2MoeModelLM", "SDARForCausalLM", "SDARMoeForCausalLM")
"""Those of SGLang's diffusion language models that have masks."""
ENGINE = ("block_size", "capture_input_preparation")
"""Settings that SGLang itself reads from the same file."""


@dataclass(frozen=True)
class Settings:
    """What the YAML file says."""

    manner: Manner
    seed: int

    @staticmethod
    def of(said: Mapping[str, Any], block_size: int) -> Settings:
        """Settings by name: solver, nfe, grid, temperature, top_k, top_p, seed, and hyper-parameters of the solver."""
        told = {"solver": "tweedie", "nfe": block_size, "grid": None, "seed": 0, **said}
        shape = {key: told.pop(key, default) for key, default in SHAPE.items()}
        solver, nfe, grid, seed = (told.pop(key) for key in ("solver", "nfe", "grid", "seed"))
        hyper = {key: value for key, value in told.items() if key not in ENGINE}
        known = (*SHAPE, "solver", "nfe", "grid", "seed", *ENGINE, *hyper_parameters())
        for key in hyper:
            require_choice("dllm-algorithm-config", key, known)
        require_kind("solver", solver, str, "give its name, as in tweedie, or write it as in Multistep(window=2)")
        require(not needs_model(solver), "solver", solver, "name one; it cannot be chosen before the model is there")
        require_count("seed", seed, least=0)
        require_count("nfe", nfe)
        choice = choose(None, solver, hyper, Budget(nfe, grid=grid))
        require(choice.solver.evaluations is not None, "solver", solver, "spends as it likes; name one with a budget")
        manner = Manner(choice.solver, nfe, grid=choice.grid, **shape)
        blank = torch.full((1, block_size), 2)
        Driven(manner, Masked(2), blank, seed=seed)  # what the first request would find wrong
        return Settings(manner, seed)


SHAPE: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": None}


@dataclass
class Block:
    """One block of a request: what is to be written, and how far that is."""

    seed: int
    given: Tensor
    complete: bool
    """Whether there is nothing to write."""
    run: Driven | None = None

    def advance(self, settings: Settings, mask: int, x: Tensor, logits: Tensor) -> Tensor | None:
        """What the network is to be asked next, by what it said about `x`; None where `x` was complete already."""
        if self.complete:
            return None
        if self.run is None:
            process = Masked(logits.shape[-1])
            self.run = Driven(settings.manner, process, x, seed=self.seed, given=self.given, mask=mask)
        if self.run.done:
            return None
        self.run.tell(logits.clone(), x)  # the engine writes its next logits into the same memory
        return self.run.x


@lru_cache(maxsize=1)
def register() -> Any:
    """Tell SGLang of the algorithm; gives its class."""
    try:
        table = import_module("sglang.srt.dllm.algorithm").algo_name_to_cls
        base = import_module("sglang.srt.dllm.algorithm.base").DllmAlgorithm
    except ImportError as error:
        raise ImportError(f"sglang is not installed, or too old ({error}): pip install 'sglang>=0.5.23'") from error

    class ThetaLeap(base):
        """Blocks of masks, written by one of thetaleap's solvers."""

        supported_architectures = ARCHITECTURES

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.settings = Settings.of(config.algorithm_config, self.block_size)

        def max_steps(self, block_size: int) -> int:
            return (self.settings.manner.nfe or block_size) + 1  # the last finds that all is written

        def init_step_state(self, forward_batch: Any) -> list[Block]:
            """A block for each request, with the seed of its id and place."""
            starts = forward_batch.positions.view(-1, self.block_size)[:, 0].tolist()
            given = forward_batch.dllm_prompt_mask  # None where no mask is a token of the prompt
            if given is None:
                given = forward_batch.input_ids.view(-1, self.block_size) != self.mask_id
            complete = given.all(1).tolist()
            return [
                Block(seed_of(self.settings.seed, rid, start), given[n : n + 1], complete[n])
                for n, (rid, start) in enumerate(zip(forward_batch.rids, starts, strict=True))
            ]

        def step(self, forward_batch: Any, full_logits: Tensor, states: list[Block]) -> list[bool]:
            """Write what is due in place; a block is done if it was complete before this evaluation."""
            x = forward_batch.input_ids.view(-1, self.block_size)
            logits = full_logits.view(*x.shape, -1)
            done = []
            for n, block in enumerate(states):
                row = x[n : n + 1].long()
                after = block.advance(self.settings, self.mask_id, row, logits[n : n + 1])
                done.append(after is None)
                if after is not None:
                    x[n : n + 1].copy_(after)
            return done

    ThetaLeap.__qualname__ = ThetaLeap.__name__
    table[NAME] = ThetaLeap
    return ThetaLeap
