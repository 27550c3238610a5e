"""``thetaleap chat``: a conversation whose answers appear as their positions are unmasked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any

import torch
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .. import sampling
from ..conditioning.prompts import prepare
from ..conditioning.wrappers import tempered
from ..core.checks import require, require_choice, require_count
from ..models import load
from ..models.hf.llm import resized, vocabulary_of
from ..models.hf.prefix_reuse import approximate_prefix
from ..models.hf.vocabulary import Vocabulary
from ..models.network import Network
from ..sampling import Moment
from ..solvers import Blocks, Solver
from .base import app
from .names import AUTO, SOLVERS, Budget, build, choose
from .sample import DTYPES, REUSE, SPREAD

KINDS = ("llada", "dream")
MASKED = "·"
"""What is shown for a position that is not written yet."""

Message = dict[str, str]


@dataclass(frozen=True)
class Manner:
    """How answers are made."""

    solver: Solver
    nfe: int | None
    length: int
    grid: Any = None
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    reuse: int | None = None
    """The block, for `approximate_prefix`; None is without."""

    def status(self, evaluations: int, tokens: int, seconds: float, partial: int = 0) -> str:
        rate = tokens / max(seconds, 1e-9)
        plural = "" if evaluations == 1 else "s"
        some = "" if self.reuse is None else f" ({partial} of them partial)"
        return f"{evaluations} evaluation{plural}{some}, {tokens} tokens, {rate:.1f} tokens per second, {self.solver!r}"


Show = Callable[[Sequence[int], str], None]
"""Called with the tokens of an answer so far, masks among them, and the status line."""


def answer(model: Network, manner: Manner, prompt: Sequence[int], turn: int, show: Show) -> str:
    """The model's answer to a prompt. Turn n is sample n of the seed."""
    words, start = vocabulary_of(model), time.perf_counter()
    sized, template = prepare(resized(model, len(prompt) + manner.length), [prompt], manner.length)
    reused = None if manner.reuse is None else approximate_prefix(sized, manner.reuse)
    shaped = tempered(reused or sized, manner.temperature, top_p=manner.top_p)

    def on_step(moment: Moment) -> None:
        ids = words.until_end(moment.x[0, -manner.length :].tolist())
        written = sum(token != words.states for token in ids)
        partial = 0 if reused is None else reused.runs.partial
        show(ids, manner.status(int(moment.nfe[0]), written, time.perf_counter() - start, partial))

    samples = sampling.sample(
        shaped,
        manner.solver,
        nfe=manner.nfe,
        grid=manner.grid,
        template=template,
        seed=manner.seed,
        first=turn,
        progress=False,
        on_step=on_step,
    )
    ids = words.until_end(samples.x[0, -manner.length :].tolist())
    return words.tokenizer.decode(ids, skip_special_tokens=True).strip()


def shown(words: Vocabulary, ids: Sequence[int]) -> Text:
    """Tokens as text, with a dot for each mask."""
    text = Text()
    for masked, run in groupby(ids, lambda token: token == words.states):
        tokens = list(run)
        if masked:
            text.append(MASKED * len(tokens), style="dim")
        else:
            text.append(words.tokenizer.decode(tokens, skip_special_tokens=True))
    return text


@dataclass
class Conversation:
    """What has been said, and how it goes on."""

    model: Network
    manner: Manner
    system: str | None = None
    said: list[Message] = field(default_factory=list)
    turn: int = 0

    @property
    def prompt(self) -> list[int]:
        """All that was said, by the chat template; without one, line by line."""
        words = vocabulary_of(self.model)
        given = [] if self.system is None else [{"role": "system", "content": self.system}]
        if words.chats:
            return words.chat([*given, *self.said])
        return words.encode("".join(f"{message['content']}\n" for message in [*given, *self.said]))

    def say(self, text: str, show: Show) -> str:
        """The answer to `text`. If there is none, since it cannot be, the text is as not said."""
        self.said.append({"role": "user", "content": text})
        try:
            reply = answer(self.model, self.manner, self.prompt, self.turn, show)
        except BaseException:
            self.said.pop()
            raise
        self.said.append({"role": "assistant", "content": reply})
        self.turn += 1
        return reply


def converse(conversation: Conversation, turns: Iterator[str], console: Console, patient: bool) -> None:
    """Answer `turns` until they end or one is ``/quit``; `patient`: a turn that cannot be answered is not the end."""
    for turn in turns:
        text = turn.strip()
        if text == "/quit":
            return
        if text == "/reset":
            conversation.said.clear()
        elif text:
            try:
                with _display(console, vocabulary_of(conversation.model)) as show:
                    reply = conversation.say(text, show)
            except ValueError as error:
                if not patient:
                    raise
                console.print(f"error: {error} (/reset begins anew)", style="red", markup=False, highlight=False)
                continue
            if not console.is_terminal:
                typer.echo(reply)


@contextmanager
def _display(console: Console, words: Vocabulary) -> Iterator[Show]:
    """Where the answer appears: on a terminal as it is written, elsewhere not before it is complete."""
    if not console.is_terminal:
        yield lambda ids, status: None
        return
    with Live(console=console, refresh_per_second=12) as live:
        yield lambda ids, status: live.update(Group(shown(words, ids), Text(status, style="dim")))


def _turns(console: Console) -> Iterator[str]:
    """Lines from the terminal, or from what is piped in."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    console.print("Write a line, /reset to begin anew, /quit to end.", style="dim")
    while True:
        try:
            yield console.input("[bold]> [/]")
        except EOFError:
            return


def _method(
    name: str, nfe: int | None, length: int, block: int | None, model: Network
) -> tuple[Solver, Any, int | None]:
    """The solver, in blocks that end a turn early, its grid, and its budget."""
    budget = Budget(nfe or max(1, length // 2), None, None, None, None)
    if name == AUTO:
        choice = choose(model, name, {}, budget)
        inner, grid = choice.solver, choice.grid
    else:
        inner, grid = build(name, {}), None
    ends = vocabulary_of(model).ends
    solver = inner if block is None else Blocks(inner, block, stop=ends[0] if ends else None)
    spend = nfe if solver.evaluations is None else budget.nfe
    sampling.plan(model, solver, nfe=spend, grid=grid)  # says so before the first turn if it is too little
    return solver, grid, spend


def _option(help: str, panel: str, show_default: bool | str = True) -> Any:
    return typer.Option(help=help, show_default=show_default, rich_help_panel=panel)


@app.command()
def chat(
    model: Annotated[
        str, typer.Argument(help="A language model, llada:SOURCE or dream:SOURCE.", metavar="MODEL", show_default=False)
    ],
    solver: Annotated[
        str, _option("The method: [cyan]thetaleap solvers[/] lists them.", "Answers")
    ] = "semi-autoregressive",
    nfe: Annotated[
        int | None, _option("The most network evaluations to spend on an answer.", "Answers", "half of --length")
    ] = None,
    length: Annotated[int, _option("The longest answer, in tokens.", "Answers")] = 128,
    block: Annotated[
        int,
        _option("Tokens per block, from left to right; an answer ends with the block it is finished in.", "Answers"),
    ] = 32,
    temperature: Annotated[
        float,
        _option(
            "Below 1 likely tokens become likelier. At 0 all positions are equally sure, and go from left to right.",
            "Answers",
        ),
    ] = 0.2,
    top_p: Annotated[
        float | None, _option("Keep the likeliest tokens that make up this probability.", "Answers", "all")
    ] = None,
    approximate_reuse: Annotated[
        bool, typer.Option("--approximate-reuse", help=REUSE, show_default=False, rich_help_panel="Answers")
    ] = False,
    seed: Annotated[int, _option("From 0 to 2^64 - 1.", "Answers")] = 0,
    system: Annotated[str | None, _option("What the model is told before all else.", "Answers", "nothing")] = None,
    device: Annotated[str, _option("Where the network runs, as in cuda:0.", "Model")] = "cpu",
    dtype: Annotated[
        str | None,
        _option(f"The network's precision: {', '.join(DTYPES)}.", "Model", "bfloat16 on a GPU, else that of the files"),
    ] = None,
    device_map: Annotated[str | None, _option(SPREAD, "Model", "all on --device")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code in the checkpoint.", rich_help_panel="Model")
    ] = False,
) -> None:
    """Talk to a masked diffusion language model. Piped input is answered line by line, in plain text.

    Example: [cyan]thetaleap chat llada:GSAI-ML/LLaDA-8B-Instruct --device cuda --trust-remote-code[/]
    """
    kind = model.partition(":")[0]
    require(kind in KINDS, "model", model, "to talk to, give llada:SOURCE or dream:SOURCE")
    require_choice("solver", solver, (AUTO, *SOLVERS))
    require_count("length", length)
    require_count("block", block)
    place: dict[str, Any] = {"device": device, "device_map": device_map, "trust_remote_code": trust_remote_code}
    if dtype is not None:
        require_choice("dtype", dtype, DTYPES)
        place["dtype"] = getattr(torch, dtype)
    network = load(model, length=length, **place)
    method, grid, spend = _method(solver, nfe, length, block, network)
    console = Console(highlight=False)
    manner = Manner(method, spend, length, grid, temperature, top_p, seed, block if approximate_reuse else None)
    tempered(network, temperature, top_p=top_p)  # says so before the first turn if they make no sense
    if approximate_reuse:
        approximate_prefix(network, block)  # the same
    converse(Conversation(network, manner, system), _turns(console), console, patient=sys.stdin.isatty())
