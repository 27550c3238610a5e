"""Training, in steps that can be taken up again wherever they stopped.

All randomness is a function of (seed, step), and a checkpoint holds weights, averages and moments, so that a run that
was killed and resumed ends with the same bits as one that was not. A run may be extended: it goes on with the learning
rate that a run of so many steps has from there on, which is above the tenth to which it had fallen.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..core.bounds import noised
from ..core.checks import require
from ..core.fields import check_fields, knob
from ..core.noise import Draw, Stream
from ..core.processes import Masked, Process, Uniform
from ..core.progress import deferred
from ..core.schedules import LogLinear
from ..core.storage import installed
from ..models.transformer import Sizes, Transformer
from .data import Batch, Examples
from .losses import WEIGHTINGS, masked_bound, score_entropy
from .muon import Muon
from .recipes import write_tensors

LEAST_TIME = 1e-3
CHECKPOINT = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step", "momentum_buffer")
"""What AdamW and Muon remember of a weight."""
LEAST_BATCHES = 8
"""From which the standard error of the held-out bound is made."""


@dataclass(frozen=True)
class Recipe:
    """All that a run depends on beside the data."""

    process: str = knob("masked", "The noise: masked or uniform.", choices=("masked", "uniform"))
    length: int = knob(256, "Tokens of an example.", least=1)
    hidden: int = knob(256, "Width of the transformer.", least=1)
    blocks: int = knob(6, "Its depth.", least=1)
    heads: int = knob(8, "Its attention heads.", least=1)
    patch: int = knob(1, "Side of the squares of an image that it sees as one position each.", least=1)
    steps: int = knob(2000, "Steps to train.", least=1)
    batch: int = knob(16, "Examples in a step.", least=1)
    optimizer: str = knob("adamw", "adamw, or muon for the matrices of the blocks.", choices=("adamw", "muon"))
    rate: float = knob(1e-3, "The largest learning rate.", low=0)
    warmup: int = knob(100, "Steps in which it rises.", least=0)
    decay: float = knob(0.01, "Weight decay.", low=0, closed="low")
    average: float = knob(
        0.999, "Of the weights: how much of the average is kept in a step.", low=0, high=1, closed="low"
    )
    clip: float = knob(1.0, "The largest norm of a gradient.", low=0)
    dropout: float = knob(0.0, "How often an entry of the residual stream is dropped.", low=0, high=1, closed="low")
    drop_label: float = knob(0.1, "How often a label is left out, for guidance.", low=0, high=1, closed="both")
    weighting: str = knob("t", "Of the masked bound: t, or lambda for times even in what is lost.", choices=WEIGHTINGS)
    precision: str = knob("float32", "In which to train: float32 or bfloat16.", choices=("float32", "bfloat16"))
    compiled: bool = knob(False, "Compile the network first, for speed; this needs a C++ compiler.")
    seed: int = knob(0, "Of all randomness.", least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        masked = self.process == "masked" or self.weighting == "t"
        require(masked, "weighting", self.weighting, "is for masked processes; leave it out")

    def rate_at(self, step: int) -> float:
        """Rising in a line over the warm-up, then falling in half a cosine to a tenth."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        part = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * part)))


def process_of(recipe: Recipe, states: int) -> Process:
    schedule = LogLinear()
    return Masked(states, schedule) if recipe.process == "masked" else Uniform(states, schedule)


def sizes_of(recipe: Recipe, corpus: Examples) -> Sizes:
    masked, told = recipe.process == "masked", recipe.process != "masked" or corpus.classes is not None
    return Sizes(
        corpus.states,
        recipe.hidden,
        recipe.blocks,
        recipe.heads,
        cond_dim=128 if told else None,
        masked=masked,
        timed=not masked,
        dropout=recipe.dropout,
        classes=corpus.classes,
        row=None if corpus.shape is None else corpus.shape[-1],
        patch=recipe.patch,
    )


def compiler() -> bool:
    """Whether there is one, of C++."""
    return any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++")))


class Spread:
    """One of several processes that train together, as `accelerate launch` starts them: each takes a part of a batch,
    and all take the same steps."""

    def __init__(self, model: Transformer, batch: int, cpu: bool) -> None:
        if not installed("accelerate"):
            raise ImportError("several processes train together through accelerate: pip install accelerate")
        import accelerate

        accelerator = accelerate.Accelerator(cpu=cpu)
        count, index = accelerator.num_processes, accelerator.process_index
        require(batch % count == 0, "batch", batch, f"must be shared out evenly over {count} processes")
        self.mine = slice(index * batch // count, (index + 1) * batch // count)
        self.model: nn.Module = accelerator.prepare_model(model)
        self.device = accelerator.device
        self.writes = accelerator.is_main_process  # files and reports
        self.wait = accelerator.wait_for_everyone


@dataclass(eq=False)
class Run:
    """Where training has got to."""

    recipe: Recipe
    model: Transformer
    averages: dict[str, Tensor]
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    spread: Spread | None = None
    fast: nn.Module | None = None
    """The same model, compiled."""
    earlier: tuple[dict[str, int], ...] = ()
    """What `steps` was before, and until which step, if that was changed."""


def start(recipe: Recipe, corpus: Examples, device: torch.device | str = "cpu") -> Run:
    """A fresh run; its weights are a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Transformer(sizes_of(recipe, corpus))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    require(not (several and recipe.compiled), "compiled", True, "not with several processes; leave it out")
    spread = Spread(model, recipe.batch, torch.device(device).type == "cpu") if several else None
    model = model.to(device if spread is None else spread.device).train()
    averages = {name: value.detach().clone() for name, value in model.named_parameters()}
    fast = torch.compile(model) if recipe.compiled else None
    return Run(recipe, model, averages, optimizers(recipe, model), spread=spread, fast=fast)  # pyright: ignore[reportArgumentType]


def optimizers(recipe: Recipe, model: Transformer) -> list[torch.optim.Optimizer]:
    """AdamW, with weight decay for matrices alone; of "muon" the blocks' matrices, with updates as large as AdamW's."""
    matrices = {name: value for name, value in model.named_parameters() if value.ndim > 1}
    vectors = [value for value in model.parameters() if value.ndim <= 1]
    inner = [name for name, value in matrices.items() if name.startswith("blocks.") and value.ndim == 2]
    muon = [matrices.pop(name) for name in inner] if recipe.optimizer == "muon" else []
    groups = [{"params": [*matrices.values()], "weight_decay": recipe.decay}, {"params": vectors, "weight_decay": 0.0}]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98))]
    if muon:
        made.append(Muon(muon, lr=recipe.rate, weight_decay=recipe.decay))
    return made


def loss_of(
    run: Run, process: Process, batch: Batch, t: Tensor, noise: Stream, model: nn.Module, mine: slice = slice(None)
) -> Tensor:
    """The bound for each example, or for those that are `mine`, in nats: on what is not given."""
    recipe, sizes, labels = run.recipe, run.model.sizes, batch.labels
    xt = noised(process, batch.tokens, t, noise)
    if batch.given is not None:
        xt = torch.where(batch.given, batch.tokens, xt)
    if labels is not None:
        dropped = noise(Draw.LABEL).uniform(len(labels)) < recipe.drop_label
        labels = torch.where(dropped, sizes.classes or 0, labels)
    device = next(model.parameters()).device
    x0, xt, t = (each[mine].to(device) for each in (batch.tokens, xt, t))
    sigma = -torch.log(process.schedule.alpha(t)) if sizes.timed and sizes.cond_dim else None
    with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        logits = model(xt, sigma, None if labels is None else labels[mine].to(device))
    logits, horizon = logits.float(), process.schedule.horizon
    if isinstance(process, Masked):
        return masked_bound(process, logits, x0, xt, t, horizon, recipe.weighting)
    return score_entropy(process, logits, x0, xt, t, horizon)


def times(num: int, process: Process, noise: Stream, weighting: str = "t") -> Tensor:
    """Times in (0, horizon), one in each of `num` equal stretches of t, or of 1 - alpha, all with the same shift."""
    shift = float(noise(Draw.TIME).uniform(noise.count)[0])
    part = LEAST_TIME + (1 - LEAST_TIME) * ((torch.arange(num, dtype=torch.float64) + shift) / num)
    schedule = process.schedule
    if weighting == "t":
        return schedule.horizon * part
    return schedule.alpha_inverse(1 - part * (1 - schedule.alpha(schedule.horizon)))


def advance(run: Run, corpus: Examples, process: Process) -> float:
    """One step; gives the mean bound in nats per token."""
    recipe, noise = run.recipe, Stream(run.recipe.seed, 0, run.recipe.batch).at(run.step)
    batch = corpus.draw(recipe.batch, recipe.length, noise)
    t = times(recipe.batch, process, noise, recipe.weighting)
    model, mine = run.model if run.fast is None else run.fast, slice(None)
    if run.spread is not None:
        model, mine = run.spread.model, run.spread.mine
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(noise(Draw.DROPOUT).uniform(recipe.batch)[0] * 2**53))  # dropout's, of this step alone
        loss = loss_of(run, process, batch, t, noise, model, mine).mean() / recipe.length
    return descend(run, loss)


def descend(run: Run, loss: Tensor) -> float:
    """One step of the optimizers down `loss`, and of the averages; gives the loss."""
    recipe = run.recipe
    if not math.isfinite(float(loss.detach())):  # before it spoils weights that the next checkpoint would keep
        raise ValueError(
            f"the loss is {float(loss.detach())} in step {run.step}: the last checkpoint is good; give less than "
            f"rate={recipe.rate:g}, and train in another folder"
        )
    run.model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), recipe.clip)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(run.step)
        optimizer.step()
    run.step += 1
    keep = min(recipe.average, run.step / (run.step + 10))
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            run.averages[name].lerp_(value, 1 - keep)
    return float(loss.detach())


# --- files


def save(run: Run, folder: Path) -> Path:
    """Write all that is needed to go on; a kill at any moment leaves this checkpoint or the one before."""
    tensors = {f"model.{name}": value for name, value in run.model.named_parameters()}
    tensors |= {f"average.{name}": value for name, value in run.averages.items()}
    names = {id(value): name for name, value in run.model.named_parameters()}
    for optimizer in run.optimizers:
        for value, state in optimizer.state.items():
            tensors |= {f"{key}.{names[id(value)]}": moment for key, moment in state.items()}
    path = folder / CHECKPOINT
    facts = {"step": run.step, "recipe": asdict(run.recipe), "earlier": run.earlier}
    write_tensors(path, tensors, {name: json.dumps(value) for name, value in facts.items()})
    return path


def reached(folder: Path) -> int | None:
    """The step of the checkpoint in `folder`, if there is one."""
    if not (folder / CHECKPOINT).is_file():
        return None
    with safe_open(folder / CHECKPOINT, "pt") as file:
        return int(file.metadata()["step"])


def resume(run: Run, folder: Path) -> Run:
    """Go on from the checkpoint in `folder`, which must be of the same recipe; it may have more steps."""
    with safe_open(folder / CHECKPOINT, "pt") as file:
        facts, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # what an older checkpoint does not know was as it is by default
    before = {one.name: one.default for one in fields(Recipe)} | json.loads(facts["recipe"])
    for name, value in asdict(run.recipe).items():
        remedy = f"the checkpoint was made with {before[name]!r}; use that, or another folder"
        require(before[name] == value or name == "steps", name, value, remedy)
    step, steps = int(facts["step"]), run.recipe.steps
    require(step <= steps, "steps", steps, f"the run in this folder has taken {step}; give more, or another folder")
    device = next(run.model.parameters()).device
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            value.copy_(tensors[f"model.{name}"])
            run.averages[name].copy_(tensors[f"average.{name}"])
    names = {id(value): name for name, value in run.model.named_parameters()}
    for optimizer in run.optimizers:
        for value in [value for group in optimizer.param_groups for value in group["params"]]:
            moments = {key: tensors.get(f"{key}.{names[id(value)]}") for key in MOMENTS}
            # a step is counted on the CPU
            state = {k: v if k == "step" else v.to(device) for k, v in moments.items() if v is not None}
            if state:
                optimizer.state[value] = state
    run.step, run.earlier = step, tuple(json.loads(facts.get("earlier", "[]")))
    if before["steps"] != steps:
        run.earlier += ({"steps": before["steps"], "until": step},)
    return run


# --- the whole of it


def averaged(run: Run) -> Transformer:
    """The network with averaged weights, for use."""
    model = Transformer(run.model.sizes)
    model.load_state_dict({**run.model.state_dict(), **run.averages})
    return model.to(next(run.model.parameters()).device).eval().requires_grad_(False)


def held_out(run: Run, corpus: Examples, process: Process, num: int = 256) -> tuple[float, float]:
    """The bound on unseen data in nats per token, by the averaged weights, and its standard error."""
    model, parts = averaged(run), []
    for first in range(0, max(num, LEAST_BATCHES * run.recipe.batch), run.recipe.batch):
        noise = Stream(run.recipe.seed, first, run.recipe.batch).at(2**40)  # no step of training
        batch = corpus.draw(run.recipe.batch, run.recipe.length, noise)
        t = times(run.recipe.batch, process, noise, run.recipe.weighting)
        with torch.no_grad():
            parts.append(loss_of(run, process, batch, t, noise, model).cpu() / run.recipe.length)
    means = torch.stack([part.mean() for part in parts]).double()
    return float(means.mean()), float(means.std() / len(means) ** 0.5)


def train(
    corpus: Examples,
    recipe: Recipe,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    every: float = 180.0,
    report: Callable[[int, float, float], None] | None = None,
) -> Run:
    """Train until the recipe's last step, from the checkpoint in `folder` if there is one.

    Ctrl-C ends the step, writes a checkpoint and raises ``KeyboardInterrupt``. A second one does not wait; nor does one
    during the first step, which compiles, or with several processes: the last checkpoint is then the one to go on from.

    Args:
        corpus: what to train on: the first part of its `split`.
        recipe: of the run.
        folder: for checkpoints, which are written every so many seconds and at the end.
        every: seconds between checkpoints.
        report: called after each step with its number, the loss in nats per token, and the seconds that are left.
    """
    process, run = process_of(recipe, corpus.states), start(recipe, corpus, device)
    if (folder / CHECKPOINT).is_file():
        run = resume(run, folder)
    writes = run.spread is None or run.spread.writes
    began, first, saved = time.monotonic(), run.step, time.monotonic()

    def step() -> None:
        nonlocal saved
        loss = advance(run, corpus, process)
        now = time.monotonic()
        if report is not None and writes:
            report(run.step, loss, (now - began) / (run.step - first) * (recipe.steps - run.step))
        if writes and now - saved > every:
            save(run, folder)
            saved = now

    if run.step < recipe.steps:
        step()
    with deferred() if run.spread is None else nullcontext(lambda: False) as interrupted:
        while run.step < recipe.steps and not interrupted():
            step()
        if writes:
            save(run, folder)
        if interrupted():
            raise KeyboardInterrupt
    return run
