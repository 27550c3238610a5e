"""`sample`: budgets, batches and progress around the time loop of `control.loop`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from . import __version__, files
from .control import grids, parallel
from .control.base import Control, Method, Preset, control_of
from .control.blocks import in_blocks
from .control.loop import State, run
from .control.tolerance import Tolerance
from .core.checks import finite, require, require_count, require_flag, require_kind, shown, takes
from .core.evaluation import MEMORY, Denoiser, as_model
from .core.free import FREE, Template, as_template, check_template, read_prompt
from .core.jumps import Share
from .core.noise import WORD, Stream
from .core.processes import Process
from .core.progress import progress_bar
from .core.wrapped import cost_of, inspect, own_block, restricts, unwrapped
from .registry import AUTO, RECOMMEND
from .solvers.base import require_masked

DELTA = 1e-3


@dataclass(frozen=True)
class Source:
    """What samples came from: all that is known of a model, but for its network."""

    process: Process
    tokenizer: Any = None
    shape: tuple[int, ...] | None = None
    pictures: Any = None


@dataclass(frozen=True)
class Samples:
    """What `sample` gives back."""

    x: Int64[Tensor, "num d"]
    """The samples."""
    nfe: Int64[Tensor, " num"]
    """Network evaluations that each sample has used."""
    spent: Int64[Tensor, " num"]
    """Those for which the network was run: one that ignores time is not run again for a sample that has not changed."""
    rounds: Int64[Tensor, " num"]
    """Batches that these were in: as many as the network was run after each other. Fewer with a `window`."""
    info: dict[str, float]
    """Statistics of the solver, e.g. ``positive``: the share of extrapolated intensities that stayed positive."""
    source: Source | None = field(default=None, repr=False)
    card: dict[str, Any] = field(default_factory=dict, repr=False)
    """How they were made: model, solver, seed, what was spent, and the version of this library."""

    @property
    def text(self) -> list[str]:
        """The samples as text, for models that have some."""
        tokenizer = None if self.source is None else self.source.tokenizer
        require(tokenizer is not None, "tokenizer", None, "the model has no text; read x, or make it with a tokenizer=")
        assert tokenizer is not None
        return [tokenizer.decode(row) for row in self.x.tolist()]

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write them to a file, of which the ending says the format; `files` has the list.

        Args:
            path: of the file.
            force: replace the file if it exists.
        """
        require_kind("path", path, str | Path, "give the name of a file")
        files.save(Path(path), self, force)


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples of several runs as of one; without the solvers' statistics, which are of each."""
    every = {name: torch.cat([getattr(one, name) for one in parts]) for name in ("x", "nfe", "spent", "rounds")}
    return replace(parts[0], **every, info={})


@dataclass(frozen=True)
class Moment:
    """One batch at one moment of the run, as shown to `on_step`."""

    step: int
    """0 is fresh noise; the last one is clean data."""
    t: float
    """The time that has been reached."""
    first: int
    """Index of the batch's first sample in this run."""
    x: Int64[Tensor, "b d"]
    nfe: Int64[Tensor, " b"]
    spent: Int64[Tensor, " b"]
    rounds: Int64[Tensor, " b"]


def sample(
    model: Denoiser | str,
    solver: Method | Literal["auto"] = "auto",
    *,
    nfe: int | None = None,
    tolerance: float | None = None,
    steps: int | None = None,
    grid: Tensor | Sequence[float] | grids.Grid | None = None,
    num: int | None = None,
    template: Template | None = None,
    prompt: str | Sequence[str] | None = None,
    seed: int = 0,
    first: int = 0,
    delta: float | None = None,
    batch_size: int | None = None,
    memory: int = MEMORY,
    window: parallel.Window | None = None,
    exact: bool = False,
    progress: bool | None = None,
    on_step: Callable[[Moment], None] | None = None,
) -> Samples:
    """Draw `num` samples from `model` with `solver`.

    Args:
        model: an oracle, a model from `load` or its name, or your network through `from_network`, which is checked
            for mistakes before its first run, by two to seven evaluations that `nfe` does not count.
        solver: e.g. ``Trapezoidal(theta=0.5)``; "auto" is what `recommend` names for the model and the budget.
        nfe: the most network evaluations to spend on any sample; sets the number of steps. The finishing
            evaluation (see `delta`) is within the budget. With "auto" by default 32, or one for each position.
        tolerance: the error to allow, in nats per position, instead of a budget: each sample then takes as many
            evaluations as it needs. For `Tweedie` and `Multistep`; `control.tolerance.Tolerance` says what the error
            is. ``info["estimated error"]`` is what it came to, by the samples' own estimate.
        steps: the number of steps, instead of `nfe`; the finishing evaluation comes on top.
        grid: decreasing times, instead of both; or a function of `grids` together with one of them.
        num: how many samples; by default as many as the template has rows, or one.
        template: what is given, whole numbers (d,) for all samples or (num, d), as a tensor, an array or lists, with
            `FREE` (-1) where the sampler may write; or text, as in "To be, ___ not", where each _ is a token to
            write, or a list of texts.
        prompt: in its place, text that all samples begin with, or one for each.
        seed: sample i is a function of (seed, i) alone, whatever `num`, `batch_size` or the device.
        first: the number i of the first sample, so that a run can be continued, or one of its samples drawn alone. What
            belongs to single samples (rows of the template, labels, `Network.padded`) is numbered within this run: its
            row 0 is for sample `first`.
        delta: the time at which to stop. What noise is left then is drawn in one exact one-position step, which costs
            one evaluation of the samples that need it. By default solvers that can step to time 0 do so. Those that
            cannot (frozen intensities on masked processes) leave to it as much of the grid as to each of their own
            evaluations; others (uniformization; forbidden values without masks) stop at 1e-3.
        batch_size: samples run together; by default as many as `memory` holds all conditionals of, at least one.
        memory: bytes of working memory beside the network's own; the rows of positions that jump are done in parts.
        window: run ahead of the network by guessing what it will say, have up to so many guessed states of each sample
            evaluated in one batch, and keep them as far as the guesses prove right: the same samples as with
            ``window=1``, in fewer rounds (``Samples.rounds``) and with more evaluations (``Samples.spent``). "auto"
            guesses more as long as its guesses hold, and never spends more than twice the evaluations of ``window=1``
            (and 16 more at most, where samples are finished before their grid ends). Without a window values are drawn
            by other random numbers: other samples of the same law.
        exact: draw one position at a time, instead of giving a solver, in an order and with a window that need few
            rounds: van der Corput's order on a line, otherwise a random one. What is exact is the law of drawing so:
            the model's own, where its conditionals are those of one law; for a network, whose conditionals may
            disagree, that of its answers in this order. For masked models.
        progress: show a progress bar; by default if standard error is a terminal.
        on_step: called with a `Moment` at the start, after every step, and at the end, for every batch.
    """
    about, model = model if isinstance(model, str) else "", as_model(model)
    require_count("memory", memory)
    require(delta is None or finite(delta), "delta", delta, "give a time, or leave it out")
    if progress is not None:
        require_flag("progress", progress)
    require_flag("exact", exact)
    called = on_step is None or (callable(on_step) and takes(on_step, None) is not False)
    require(called, "on_step", on_step, "give a function of a Moment")
    table = given_rows(model, template, prompt)
    if num is None:
        num = len(table) if table is not None and table.ndim == 2 else 1
    require_count("num", num)
    require_count("first", first, least=0)
    require(num * model.length < WORD, "num", num, "no random numbers are left for so many; give fewer")
    require((first + num) * model.length < WORD, "first", first, "no numbers are left there; give a smaller one")
    if table is not None:
        table = check_template(table, num, model).expand(num, -1)
    inspect(model, None if table is None else table[0])
    positions = None if table is None else max(1, int((table == FREE).sum(1).max()))
    others = {"tolerance": tolerance, "steps": steps, "grid": grid, "delta": delta}
    if exact:
        for option, value in {"solver": None if solver == AUTO else solver, "nfe": nfe, **others}.items():
            require(value is None, option, value, "exact=True draws one position at a time; leave out one of the two")
        own = own_block(model)
        require(own is None, "exact", True, "its order crosses the blocks of this model; give FirstHitting()")
        (chosen, grid), window = parallel.one_at_a_time(model), "auto" if window is None else window
    elif isinstance(solver, str):
        require(solver == AUTO, "solver", solver, "give 'auto', or a solver and no text of it, as in Tweedie()")
        for option, value in others.items():
            require(value is None, option, value, "solver='auto' decides it; leave it out, or name a solver")
        advice = RECOMMEND(model, nfe, positions=positions)
        chosen, grid, nfe = advice.solver, advice.grid, advice.nfe
    else:
        chosen = solver
    method = _with_tolerance(model, chosen, nfe=nfe, steps=steps, grid=grid, tolerance=tolerance)
    method = in_blocks(model, method)
    if tolerance is not None and model.process.mask is None:
        grid, delta = grids.adaptive(model, tolerance, delta=delta or 0.0, seed=seed), None
    times = plan(model, method, nfe=nfe, steps=steps, grid=grid, delta=delta, positions=positions)
    control = control_of(method)
    room = parallel.batch_of(window, memory // (32 * model.length * model.process.states))
    batch_size = room if batch_size is None else batch_size
    require_count("batch_size", batch_size)
    ends: list[State] = []
    info: dict[str, Share] = {}
    starts = range(0, num, batch_size)
    last = control.rounds(times, model.length) + 1
    with torch.no_grad(), progress_bar(progress, "sampling", len(starts) * (last + 1)) as advance:
        for start in starts:
            batch = slice(start, min(start + batch_size, num))
            given = None if table is None else table[batch]
            noise = Stream(seed, first + start, batch.stop - start, model.device, race=window is not None)
            steps_of = run if window is None or window == 1 else partial(parallel.run, window=window)
            for state in steps_of(model, control, times, noise, first=start, template=given, memory=memory):
                for name, share in state.info.items():
                    info[name] = info.get(name, Share(0, 0)) + share
                if on_step is not None:
                    on_step(_moment(state, start))
                if state.stage == last:
                    ends.append(state)
                advance()
    counts = (
        [end.reverse.nfe for end in ends],
        [end.reverse.spent for end in ends],
        [end.reverse.rounds for end in ends],
    )
    x, used, spent, rounds = (_joined(parts) for parts in ([end.x for end in ends], *counts))
    spacing = None if grid is None or exact else getattr(grid, "__name__", None) or times.tolist()
    walk = {"nfe": nfe, "steps": steps, "tolerance": tolerance, "grid": spacing, "delta": delta, "first": first or None}
    draws = {"exact": exact or None, "window": window, "seed": seed, "version": __version__}
    card = {"model": about or _description(model), "solver": repr(chosen), **walk, **draws}
    card = {key: value for key, value in card.items() if value is not None}
    shares = {name: float(share) for name, share in info.items()}
    return Samples(x, used, spent, rounds, shares, _source(model), card)


def given_rows(
    model: Denoiser, template: Template | None, prompt: str | Sequence[str] | None
) -> Int64[Tensor, "*num d"] | None:
    """What `template` or `prompt` gives, if anything is given: a row for all samples, or one for each."""
    if prompt is None:
        return None if template is None else as_template(model, template)
    require(template is None, "template", template, "the prompt says what is given; give one of them")
    if isinstance(prompt, str):
        return read_prompt(model, prompt)
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(text, str) for text in prompt):
        raise TypeError(f"prompt={shown(prompt)}: give text, or a list of texts")
    return torch.stack([read_prompt(model, text) for text in prompt])


def _source(model: Denoiser) -> Source:
    return Source(model.process, *(getattr(model, name, None) for name in ("tokenizer", "shape", "pictures")))


def _description(model: Denoiser) -> str:
    inner, process = unwrapped(model), model.process
    made = f"{type(inner).__name__}, {model.length} positions of {process.states} values, {type(process).__name__}"
    about = getattr(inner, "name", "") or made
    return about if inner is model else f"{type(model).__name__} of {about}"


def _joined(parts: list[Tensor]) -> Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).cpu()


def _moment(state: State, first: int) -> Moment:
    reverse = state.reverse
    counts = (each.clone() for each in (reverse.nfe, reverse.spent, reverse.rounds))
    return Moment(state.stage, state.t, first, state.x, *counts)


def _with_tolerance(model: Denoiser, method: Method, *, tolerance: float | None, **others: object) -> Method:
    """`method`, led by the tolerance where that is for the samples to find out, with masks."""
    if tolerance is None:
        return method
    for name, value in others.items():
        require(value is None, name, value, "the tolerance decides how many steps, and when; leave it out")
    return method if model.process.mask is None else Tolerance(method, tolerance)  # pyright: ignore[reportArgumentType]


def plan(
    model: Denoiser,
    solver: Method,
    *,
    nfe: int | None = None,
    steps: int | None = None,
    grid: Tensor | Sequence[float] | grids.Grid | None = None,
    delta: float | None = None,
    positions: int | None = None,
) -> Float64[Tensor, " times"]:
    """The times that `sample` walks for these arguments, if it may write to so many `positions`, by default to all."""
    process, horizon, grid = model.process, model.horizon, grids.as_grid(grid)
    positions = model.length if positions is None else positions
    require_kind("solver", solver, Method, "give a solver with its parameters, for example Trapezoidal(theta=0.5)")
    if isinstance(solver, Preset) and solver.processes == "masked":
        require_masked(solver, process, "Tweedie() or Trapezoidal()")  # by the name that it was given
    control, own = control_of(in_blocks(model, solver)), own_block(model)
    control.check(process, model.length)
    if isinstance(grid, Tensor):
        given = {"nfe": nfe, "steps": steps, "delta": delta}
        for name, value in given.items():
            require(
                value is None,
                name,
                value,
                "the grid says it already; leave it out, or give a function as grid",
            )
        _require_cleared(model, control, float(grid[-1]) if len(grid) else 0.0)
        return grids.check(grid, horizon)
    if grid is not None and not callable(grid):
        raise TypeError(f"grid={grid!r}: give a decreasing tensor of times, or a function such as grids.power")
    whole = control.reaches_data(process) and not _may_leave(model, control)
    share = delta is None and not whole and process.mask is not None and control.evaluations is not None
    if delta is None:
        delta = 0.0 if whole or share else DELTA
    else:
        _require_cleared(model, control, delta)
    require(finite(delta) and 0 <= delta < horizon, "delta", delta, f"give a time in [0, {horizon:g})")
    name = control.name
    require(nfe is None or steps is None, "(nfe, steps)", (nfe, steps), "give one of them")
    last = not whole or not _ends_clean(process, delta)
    most = control.fewest(
        positions if own is None else min(positions + own - 1, model.length)
    )  # what is given may end within a block
    finish = most if last else 0
    if control.evaluations is None:
        require(nfe is None, "nfe", nfe, f"{name} spends as many evaluations as it takes; leave nfe out")
        steps = most if steps is None else steps
    elif nfe is not None:
        steps = _affordable(control, nfe, positions, cost_of(model), finish)
    else:
        require(
            steps is not None,
            "nfe",
            None,
            f"say how many evaluations to spend, as in sample(..., {name}(), nfe=64), or give a tolerance",
        )
    assert steps is not None
    require_count("steps", steps)
    space = grid or grids.uniform
    if share:  # an equal stretch of the grid for each evaluation, the finishing one included
        each = control.evaluations or 1
        return grids.check(space(horizon, 0.0, each * steps + finish)[: each * steps + 1 : each], horizon)
    return grids.check(space(horizon, delta, steps), horizon)


def _ends_clean(process: Process, delta: float) -> bool:
    return float(process.schedule.alpha(delta)) == 1


def _may_leave(model: Denoiser, control: Control) -> bool:
    """Whether a step to time 0 may leave a position at a value that the model forbids: it may not have jumped."""
    return model.process.mask is None and restricts(model) and not control.exact_kernels


def _require_cleared(model: Denoiser, control: Control, end: float) -> None:
    if end == 0 and _may_leave(model, control):
        raise ValueError(
            f"delta=0.0 with forbidden values: {control.name} may leave them behind there; leave delta out, "
            "or end the grid above 0"
        )


def _affordable(control: Control, nfe: int, length: int, cost: int, finish: int) -> int:
    """Steps that `nfe` evaluations pay for, leaving `finish` for where they may be needed; each counts `cost`."""
    assert control.evaluations is not None
    least = cost * (control.cost(control.fewest(length)) + finish)
    extra = f", and {'one' if finish == 1 else finish} more to finish" if finish else ""
    twice = f", each counting {cost} with guidance" if cost > 1 else ""
    require_count("nfe", nfe, least=1)
    name = control.name
    remedy = f"{name} takes {control.evaluations} per step{extra}{twice}: give at least {least}"
    require(nfe >= least, "nfe", nfe, remedy)
    rest = nfe // cost - finish
    return bisect_right(range(1, rest + 1), rest, key=control.cost)
