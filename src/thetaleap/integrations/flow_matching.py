"""Models of flow_matching, drawn by solvers of ours.

Its data is at time 1 and its noise at time 0, where ours are at 0 and 1; ``kappa`` of its path is our ``alpha``. Its models
give the probabilities of the clean token given *all* of the noisy sequence: without masks the likelihood of the token
that a position holds is divided out.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..conditioning.answering import Manner
from ..control import Method
from ..control.grids import Grid
from ..core.checks import require, require_count, require_kind
from ..core.processes import Masked, Uniform
from ..core.times import as_time
from ..solvers import Tweedie
from .driven import Driven

try:
    Solver: Any = import_module("flow_matching.solver").Solver
    MixtureDiscreteProbPath: Any = import_module("flow_matching.path").MixtureDiscreteProbPath
except ImportError as error:
    raise ImportError(f"flow_matching is not installed ({error}): pip install 'thetaleap[flow_matching]'") from error

EPS = 1e-6
"""What is left of alpha at the start, as in other schedules, so that the rate there is finite."""


@dataclass(frozen=True)
class PathSchedule:
    """``alpha(t) = eps + (1 - eps) kappa(1 - t)``, kappa being that of a scheduler of flow_matching."""

    scheduler: Any
    eps: float = EPS
    horizon = 1.0

    def alpha(self, t: float | Tensor) -> Tensor:
        return 1 - (1 - self.eps) * self.scheduler(1 - as_time(t)).sigma_t

    def sigma(self, t: float | Tensor) -> Tensor:
        return (1 - self.eps) * self.scheduler(1 - as_time(t)).d_alpha_t / self.alpha(t)

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        return 1 - self.scheduler.kappa_inverse(1 - (1 - as_time(a)) / (1 - self.eps))


class ThetaLeapSolver(Solver):
    """In the place of ``MixtureDiscreteEulerSolver``, with any of our solvers.

    Args:
        model: a ``ModelWrapper`` that gives probabilities of the clean tokens, (b, ..., vocabulary_size).
        path: the ``MixtureDiscreteProbPath`` that it was trained on.
        vocabulary_size: values of the model's output.
        solver: e.g. ``Multistep()``.
        mask_token: the token that the source distribution is made of; None is uniform noise. Others are not for this.
    """

    def __init__(
        self,
        model: Any,
        path: Any,
        vocabulary_size: int,
        solver: Method | None = None,
        mask_token: int | None = None,
    ) -> None:
        super().__init__()
        require_count("vocabulary_size", vocabulary_size, least=2)
        require_kind("path", path, MixtureDiscreteProbPath, "give a MixtureDiscreteProbPath")
        self.model, self.path, self.vocabulary_size = model, path, vocabulary_size
        self.solver, self.mask_token = Tweedie() if solver is None else solver, mask_token
        schedule = PathSchedule(path.scheduler)
        self.process = (Uniform if mask_token is None else Masked)(vocabulary_size, schedule)

    @torch.no_grad()
    def sample(
        self,
        x_init: Tensor,
        nfe: int | None = None,
        *,
        grid: Grid | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        **model_extras: Any,
    ) -> Tensor:
        """Samples of the shape of `x_init`; sample i is a function of its row there, of the seed and of i.

        Args:
            x_init: noise, (b, ...). Tokens among masks are given, and stay.
            nfe: the most evaluations to spend on any sample, and so on: see `sample` and `tempered`.
            model_extras: for the model, as flow_matching has them.
        """
        x, mask = x_init.flatten(1), self.mask_token
        given = None if mask is None else x != mask
        manner = Manner(self.solver, nfe, grid=grid, temperature=temperature, top_k=top_k, top_p=top_p)
        run = Driven(
            manner, self.process, x, seed=seed, given=given, mask=mask, posterior=mask is None, time_free=False
        )
        while not run.done:
            asked, time = run.x, (1 - run.t).to(torch.get_default_dtype())
            said = self.model(x=asked.view(x_init.shape), t=time, **model_extras)
            good = tuple(said.shape) == (*x_init.shape, self.vocabulary_size)
            require(good, "model output", tuple(said.shape), f"must be {(*x_init.shape, self.vocabulary_size)}")
            run.tell(said.log().flatten(1, -2), asked)
        return run.x.view(x_init.shape)
