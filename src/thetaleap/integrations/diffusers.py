"""Solvers as schedulers of diffusers: for its language pipelines, and in `AmusedScheduler`'s place for image tokens.

A scheduler is handed what the network said about a batch, and gives the next states that it is to be asked about. So
``num_inference_steps`` is the number of evaluations, the same as ``nfe`` of `sample`, whatever a solver's order is; and with
the same network, seed and noise to begin with, a scheduler draws the same tokens as `sample`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from ..conditioning.answering import Manner
from ..control.grids import Grid, uniform
from ..core.checks import require, require_choice, require_count, require_kind
from ..core.extrapolation import Form
from ..core.noise import Draw, Stream
from ..core.processes import Masked, Process, Uniform
from ..core.schedules import LogLinear
from ..evaluation.choice import make, read_grid
from ..models.hf.diffusion_gemma import EPS
from ..planners import Planner
from ..solvers import ExponentialTrapezoidal, Multistep, Solver, Trapezoidal, Tweedie
from .driven import Driven, Told, seed_of

try:
    configuration = import_module("diffusers.configuration_utils")
    SchedulerMixin: Any = import_module("diffusers.schedulers.scheduling_utils").SchedulerMixin
    BaseOutput: Any = import_module("diffusers.utils.outputs").BaseOutput
except ImportError as error:
    raise ImportError(f"diffusers is not installed ({error}): pip install 'thetaleap[diffusers]'") from error
ConfigMixin: Any = configuration.ConfigMixin
register_to_config: Any = configuration.register_to_config

METHODS = ("auto", "greedy", "multinomial")


@dataclass
class StepOutput(BaseOutput):
    """What a pipeline reads of a step; all but the logits are of the shape of the sample."""

    prev_sample: Tensor
    """What the network is to be asked about next, or, at the end, data."""
    transfer_index: Tensor
    """Masks that now hold a token."""
    editing_transfer_index: Tensor
    """Tokens that were changed, or masked again."""
    sampled_tokens: Tensor
    """The same as `prev_sample`."""
    sampled_probs: Tensor
    """How likely the network said each of these was."""
    pred_logits: Tensor
    """What the network said."""


class SolverScheduler(SchedulerMixin, ConfigMixin):
    """What all of them do. ``config`` has the solver's own fields, and

    - ``grid``: "uniform", "cosine", "power", or "alpha_power(2)", as `sample` takes them;
    - ``seed``: of the noise. A generator that a pipeline is given takes its place: one seed is drawn from it for each run;
    - ``mask_token_id``: where pipelines do not say; None is a network without masks, whose logits are given all positions;
    - ``block_length``: of pipelines that write block by block, where they do not say.
    """

    order = 1
    config: Any
    timesteps: Tensor

    @property
    def solver(self) -> Solver:
        """The solver of this configuration."""
        raise NotImplementedError(f"{type(self).__name__} is none by itself: use TweedieScheduler, for example")

    def ready(self) -> None:
        """Check the configuration, before the first run."""
        self._grid(Masked(2))
        require_count("seed", self.config.seed, least=0)
        require_count("block_length", self.config.block_length)
        self.made, self.timesteps = self.solver, torch.arange(0)
        self.run: Driven | None = None
        self.runs, self.expected = 0, 0

    def set_timesteps(
        self, num_inference_steps: int, temperature: Any = None, device: Any = None, block_length: int | None = None
    ) -> None:
        """Begin anew, with so many evaluations for each sequence or block.

        Args:
            num_inference_steps: evaluations.
            temperature: not used; `AmusedPipeline` gives it, for the order of positions, which is up to the planner.
            device: of ``timesteps``, which count the evaluations from 0.
            block_length: not used; the samples say it.
        """
        require_count("num_inference_steps", num_inference_steps)
        self.timesteps = torch.arange(num_inference_steps, device=device)
        self.run, self.runs, self.expected = None, 0, 0

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        temperature: float = 1.0,
        top_p: float | None = None,
        top_k: int | None = None,
        sampling_method: str = "auto",
        threshold: float | None = None,
        editing_threshold: float | None = None,
        minimal_topk: int | None = None,
        prompt_mask: Tensor | None = None,
        starting_mask_ratio: Any = 1.0,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> StepOutput | tuple[Tensor, ...]:
        """Go on by what the network said about `sample`.

        A run begins with timestep 0, or with one that does not follow the last, and has the evaluations that are left
        from there. What is not masked when it begins is given, and stays. How to sample is said then: of later steps,
        temperature, top_p, top_k, sampling_method and generator are not read.

        Args:
            model_output: logits (b, d, S), or (b, S, h, w) of images.
            timestep: which evaluation this is, from 0.
            sample: tokens (b, d), or (b, h, w) of images.
            mask_token_id: in place of the configuration's.
            temperature: 0 takes the likeliest tokens; as top_p and top_k, see `tempered`.
            sampling_method: "greedy" is temperature 0.
            threshold: not used, as editing_threshold, minimal_topk and starting_mask_ratio: pipelines give them to
                schedulers of their own. Which positions are unmasked is up to the planner.
            prompt_mask: positions (d,) of a block that hold the prompt.
            generator: draws the seed of a run, in place of the configuration's.
            return_dict: False gives the fields of `StepOutput` as a tuple.
        """
        require_choice("sampling_method", sampling_method, METHODS)
        logits = model_output.flatten(2).transpose(1, 2) if sample.ndim == 3 else model_output
        x, mask = sample.flatten(1), self.config.mask_token_id if mask_token_id is None else mask_token_id
        index = int(timestep)
        if self.run is None or index != self.expected or index == 0:
            heat = 0.0 if sampling_method == "greedy" else temperature
            manner = Manner(self.made, len(self.timesteps) - index, temperature=heat, top_p=top_p, top_k=top_k)
            self.run = self._begun(manner, x, logits.shape[-1], mask, prompt_mask, self._seed(generator))
        self.expected = index + 1
        self.run.tell(logits, x)
        after = self.run.x
        masked = torch.zeros_like(x, dtype=torch.bool) if mask is None else x == mask
        changed, likely = after != x, _likely(logits, after)
        parts = [part.view(sample.shape) for part in (after, masked & changed, ~masked & changed, after, likely)]
        output = StepOutput(*parts, model_output)
        return output if return_dict else output.to_tuple()

    def _seed(self, generator: torch.Generator | None) -> int:
        """Of the run that begins."""
        self.runs += 1
        if generator is not None:
            return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
        return self.config.seed if self.runs == 1 else seed_of(self.config.seed, "run", self.runs)

    def _begun(
        self, manner: Manner, x: Tensor, states: int, mask: int | None, prompt: Tensor | None, seed: int
    ) -> Driven:
        total, left = len(self.timesteps), manner.nfe or 0
        require(left > 0, "timestep", total - left, f"there are {total} of them, from 0; call set_timesteps for more")
        process = Uniform(states, LogLinear(EPS)) if mask is None else Masked(states)
        manner, given = replace(manner, grid=self._grid(process)), None
        if mask is not None:
            given = x != mask if prompt is None else (x != mask) | prompt
        try:
            return Driven(manner, process, x, seed=seed, given=given, mask=mask, posterior=mask is None)
        except ValueError as error:  # of a budget that is called so elsewhere
            raise ValueError(str(error).replace("nfe=", "num_inference_steps=", 1)) from None

    def _grid(self, process: Process) -> Grid | None:
        return read_grid(Told(process, 1, torch.device("cpu")), self.config.grid)

    # --- for LLaDA2Pipeline

    def check_eos_finished(
        self,
        cur_x: Tensor,
        sampled_tokens: Tensor,
        final_transfer: Tensor,
        finished: Tensor,
        eos_token_id: int,
        mask_token_id: int,
        prompt_length: int,
    ) -> Tensor:
        """Which sequences have ended: those with an end token, and no mask before it."""
        written = cur_x[:, prompt_length:]
        ends = written == eos_token_id
        open_before = ((written == mask_token_id) & (ends.cumsum(1) == 0)).any(1)
        return finished | (ends.any(1) & ~open_before)

    def check_block_should_continue(self, *, finished: Tensor, **others: Any) -> bool:
        """Whether the network is to be asked again about this block."""
        return self.run is not None and not self.run.done and not bool(finished.all())

    # --- for AmusedImg2ImgPipeline

    def add_noise(self, sample: Tensor, timesteps: int | Tensor, generator: torch.Generator | None = None) -> Tensor:
        """`sample` with as many of its tokens masked as are left after this evaluation: each on its own."""
        mask = self.config.mask_token_id
        require(mask is not None, "mask_token_id", mask, "only masks can be added; give it in the configuration")
        times = (self._grid(Masked(2)) or uniform)(1.0, 0.0, len(self.timesteps))
        share = torch.full((len(sample), sample[0].numel()), float(times[int(timesteps) + 1]), dtype=torch.float64)
        seed = seed_of(self._seed(generator), "noise")
        hit, _ = Stream(seed, 0, len(sample))(Draw.NOISED).flip(share)
        return sample.flatten().index_fill(0, hit.to(sample.device), mask).view(sample.shape)


def _likely(logits: Tensor, tokens: Tensor) -> Tensor:
    """The probabilities of `tokens` by `logits`; of a mask that has none, 0."""
    told = tokens < logits.shape[-1]
    rows = logits.detach().float().log_softmax(2)
    return torch.where(told, rows.gather(2, torch.where(told, tokens, 0).unsqueeze(2)).squeeze(2).exp(), 0.0)


def _planner(text: str | None) -> Planner:
    require_kind("planner", text, str, "give it as text, as in 'confidence' or 'Confidence(randomness=4.5)'")
    return make("planner", str(text))


class TweedieScheduler(SolverScheduler):
    """`Tweedie`: exact kernels of each position, one evaluation a step."""

    @register_to_config
    def __init__(
        self,
        planner: str = "bernoulli",
        grid: str = "uniform",
        seed: int = 0,
        mask_token_id: int | None = None,
        block_length: int = 32,
    ) -> None:
        self.ready()

    @property
    def solver(self) -> Tweedie:
        return Tweedie(_planner(self.config.planner))


class MultistepScheduler(SolverScheduler):
    """`Multistep`: one evaluation a step, extrapolated from earlier ones."""

    @register_to_config
    def __init__(
        self,
        weight: float | None = None,
        window: int = 1,
        extrapolation: Form | None = None,
        floor: float = 0.1,
        planner: str | None = None,
        grid: str = "uniform",
        seed: int = 0,
        mask_token_id: int | None = None,
        block_length: int = 32,
    ) -> None:
        self.ready()

    @property
    def solver(self) -> Multistep:
        config = self.config
        planner = None if config.planner is None else _planner(config.planner)
        return Multistep(config.weight, config.window, config.extrapolation, config.floor, planner)


class ExponentialTrapezoidalScheduler(SolverScheduler):
    """`ExponentialTrapezoidal`: two evaluations a step, extrapolated within it."""

    order = 2

    @register_to_config
    def __init__(
        self,
        theta: float = 0.5,
        extrapolation: Form = "linear",
        planner: str = "bernoulli",
        grid: str = "uniform",
        seed: int = 0,
        mask_token_id: int | None = None,
        block_length: int = 32,
    ) -> None:
        self.ready()

    @property
    def solver(self) -> ExponentialTrapezoidal:
        return ExponentialTrapezoidal(self.config.theta, self.config.extrapolation, _planner(self.config.planner))


class TrapezoidalScheduler(SolverScheduler):
    """`Trapezoidal`, the paper's method: two evaluations a step; with masks one more at the end."""

    order = 2

    @register_to_config
    def __init__(
        self,
        theta: float = 0.5,
        rule: Literal["exact", "reject"] = "exact",
        align: str = "destination",
        grid: str = "uniform",
        seed: int = 0,
        mask_token_id: int | None = None,
        block_length: int = 32,
    ) -> None:
        self.ready()

    @property
    def solver(self) -> Trapezoidal:
        return Trapezoidal(self.config.theta, self.config.rule, self.config.align)
