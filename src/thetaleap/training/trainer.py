"""Training, in steps that can be taken up again wherever they stopped.

All randomness is a function of (seed, step), and a checkpoint holds weights, averages and moments, so that a run that
was killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..core.checks import require, require_choice, require_count, require_number
from ..core.noise import Stream
from ..core.processes import Masked, Process, Uniform
from ..core.schedules import LogLinear
from ..models.transformer import Sizes, Transformer
from .data import Batch, Examples
from .losses import Weighting, masked_bound, noised, score_entropy

LEAST_TIME = 1e-3
CHECKPOINT = "checkpoint.safetensors"
LEAST_BATCHES = 8
"""From which the standard error of the held-out bound is made."""


@dataclass(frozen=True)
class Recipe:
    """All that a run depends on beside the data."""

    process: str = "masked"
    length: int = 256
    hidden: int = 256
    blocks: int = 6
    heads: int = 8
    steps: int = 2000
    batch: int = 16
    rate: float = 1e-3
    warmup: int = 100
    decay: float = 0.01
    average: float = 0.999
    clip: float = 1.0
    dropout: float = 0.0
    drop_label: float = 0.1
    weighting: Weighting = "t"
    precision: str = "float32"
    compiled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("process", self.process, ("masked", "uniform"))
        require_choice("weighting", self.weighting, ("t", "lambda"))
        masked = self.process == "masked" or self.weighting == "t"
        require(masked, "weighting", self.weighting, "is for masked processes; leave it out")
        require_choice("precision", self.precision, ("float32", "bfloat16"))
        for name in ("length", "hidden", "blocks", "heads", "steps", "batch"):
            require_count(name, getattr(self, name))
        for name in ("warmup", "seed"):
            require_count(name, getattr(self, name), least=0)
        require_number("rate", self.rate, 0, math.inf)
        require_number("decay", self.decay, 0, math.inf, closed="low")
        require_number("clip", self.clip, 0, math.inf)
        require_number("average", self.average, 0, 1, closed="low")
        require_number("dropout", self.dropout, 0, 1, closed="low")
        require_number("drop_label", self.drop_label, 0, 1, closed="both")

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
    )


class Spread:
    """One of several processes that train together, as `accelerate launch` starts them: each takes a part of a batch,
    and all take the same steps."""

    def __init__(self, model: Transformer, batch: int, cpu: bool) -> None:
        if find_spec("accelerate") is None:
            raise ImportError("several processes train together through accelerate: pip install accelerate")
        import accelerate

        self.accelerator = accelerate.Accelerator(cpu=cpu)
        count, index = self.accelerator.num_processes, self.accelerator.process_index
        require(batch % count == 0, "batch", batch, f"must be shared out evenly over {count} processes")
        self.mine = slice(index * batch // count, (index + 1) * batch // count)
        self.model: nn.Module = self.accelerator.prepare_model(model)

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.accelerator.is_main_process


@dataclass(eq=False)
class Run:
    """Where training has got to."""

    recipe: Recipe
    model: Transformer
    averages: dict[str, Tensor]
    optimizer: torch.optim.AdamW
    step: int = 0
    spread: Spread | None = None
    fast: nn.Module | None = None
    """The same model, compiled."""


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
    moved = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    groups = [{"params": moved, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98))
    fast = torch.compile(model) if recipe.compiled else None
    return Run(recipe, model, averages, optimizer, spread=spread, fast=fast)  # pyright: ignore[reportArgumentType]


def loss_of(
    run: Run,
    process: Process,
    batch: Batch,
    t: Tensor,
    noise: Stream,
    model: nn.Module,
    mine: slice = slice(None),
) -> Tensor:
    """The bound for each example, or for those that are `mine`, in nats: on what is not given."""
    recipe, sizes, labels = run.recipe, run.model.sizes, batch.labels
    xt = noised(process, batch.tokens, t, noise)
    if batch.given is not None:
        xt = torch.where(batch.given, batch.tokens, xt)
    if labels is not None:
        dropped = noise("label").uniform(len(labels)) < recipe.drop_label
        labels = torch.where(dropped, sizes.classes or 0, labels)
    device = next(model.parameters()).device
    x0, xt, t = (each[mine].to(device) for each in (batch.tokens, xt, t))
    sigma = -torch.log(process.schedule.alpha(t)) if sizes.timed and sizes.cond_dim else None
    with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        logits = model(xt, sigma, None if labels is None else labels[mine].to(device))
    horizon = process.schedule.horizon
    if isinstance(process, Masked):
        return masked_bound(process, logits.float(), x0, xt, t, horizon, recipe.weighting)
    return score_entropy(process, logits, x0, xt, t, horizon)


def times(num: int, process: Process, noise: Stream, weighting: Weighting = "t") -> Tensor:
    """Times in (0, horizon), one in each of `num` equal stretches, all shifted alike: of the time, or of what is lost
    by it."""
    shift = float(noise("time").uniform(noise.count)[0])
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
        torch.manual_seed(int(noise("dropout").uniform(recipe.batch)[0] * 2**53))  # dropout's, of this step alone
        loss = loss_of(run, process, batch, t, noise, model, mine).mean() / recipe.length
    if not math.isfinite(float(loss.detach())):  # before it spoils weights that the next checkpoint would keep
        raise ValueError(
            f"loss={float(loss.detach())} in step {run.step}: the last checkpoint is good; lower rate={recipe.rate:g} "
            "and train in another folder"
        )
    for group in run.optimizer.param_groups:
        group["lr"] = recipe.rate_at(run.step)
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), recipe.clip)
    run.optimizer.step()
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
    for value, state in run.optimizer.state.items():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            tensors[f"{key}.{names[id(value)]}"] = state[key]
    facts = {"step": str(run.step), "recipe": json.dumps(asdict(run.recipe))}
    ready = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return replaced(folder / CHECKPOINT, lambda path: save_file(ready, path, facts))


def replaced(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a file beside `path`, and put it in its place when it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.touch()
        usual = beside.stat().st_mode
        write(beside)
        beside.chmod(usual)  # safetensors' own files are for their owner alone
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def resume(run: Run, folder: Path) -> Run:
    """Go on from the checkpoint in `folder`, which must be of the same recipe."""
    path = folder / CHECKPOINT
    with safe_open(path, "pt") as file:
        facts, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    before, now = json.loads(facts["recipe"]), asdict(run.recipe)
    for name, value in now.items():
        remedy = f"the checkpoint was made with {before.get(name)!r}; use that, or another folder"
        require(before.get(name) == value, name, value, remedy)
    device = next(run.model.parameters()).device
    with torch.no_grad():
        for name, value in run.model.named_parameters():
            value.copy_(tensors[f"model.{name}"])
            run.averages[name].copy_(tensors[f"average.{name}"])
            if f"exp_avg.{name}" in tensors:
                state = {key: tensors[f"{key}.{name}"].clone() for key in ("exp_avg", "exp_avg_sq", "step")}
                run.optimizer.state[value] = {k: v if k == "step" else v.to(device) for k, v in state.items()}
    run.step = int(facts["step"])
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

    Args:
        corpus: what to train on: the first part of its `split`.
        recipe: of the run.
        folder: for checkpoints, which are written every so many seconds and at the end.
        every: seconds between checkpoints.
        report: called after each step with its number, the loss, and the seconds that are left.
    """
    process, run = process_of(recipe, corpus.states), start(recipe, corpus, device)
    if (folder / CHECKPOINT).is_file():
        run = resume(run, folder)
    writes = run.spread is None or run.spread.writes
    began, first, saved = time.monotonic(), run.step, time.monotonic()
    while run.step < recipe.steps:
        loss = advance(run, corpus, process)
        now = time.monotonic()
        if report is not None and writes:
            report(run.step, loss, (now - began) / (run.step - first) * (recipe.steps - run.step))
        if writes and now - saved > every:
            save(run, folder)
            saved = now
    if writes:
        save(run, folder)
    return run
