"""``thetaleap chat``: a conversation whose answers appear as their positions are unmasked."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .. import sampling
from ..conditioning.answering import Manner
from ..conditioning.prompts import prepare
from ..conditioning.wrappers import tempered
from ..control import Blocks
from ..core.checks import require, require_count
from ..evaluation.choice import Budget, Choice, choose, needs_model
from ..models.hf.hub import Vocabulary
from ..models.hf.llm import KINDS, resized, vocabulary_of
from ..models.hf.prefix_reuse import Reuse
from ..models.network import Network
from ..sampling import Moment
from .options import (
    DUAL,
    METHOD,
    REUSE,
    SEED,
    Device,
    DeviceMap,
    Dtype,
    TrustRemoteCode,
    opened,
    option,
    require_no_clash,
    with_hyper_parameters,
)

BLOCK = 32
"""Tokens of a block, for models that have none of their own."""
MASKED = "·"
"""What is shown for a position that is not written yet."""
HELP = """/help   show this
/reset  forget what was said
/quit   end, as Ctrl-D does
Anything else is said to the model. Ctrl-C stops an answer; where there is none, it ends."""

Message = dict[str, str]


Show = Callable[[Sequence[int], str], None]
"""Called with the tokens of an answer so far, masks among them, and the status line."""


def answer(model: Network, manner: Manner, prompt: Sequence[int], length: int, show: Show, **more: Any) -> str:
    """The model's answer to a prompt, of at most so many tokens; `more` is for `sample`."""
    words, start, total = vocabulary_of(model), time.perf_counter(), len(prompt) + length
    if words.context is not None and total > words.context:
        said = f"what was said and --length {length} are {total} tokens together"
        raise ValueError(f"{said}; the model takes {words.context} tokens at most: begin anew with /reset, or say less")
    sized, template = prepare(resized(model, total), [prompt], length)
    reused = None if manner.reuse is None else manner.reuse(sized)

    def on_step(moment: Moment) -> None:
        ids, nfe = words.until_end(moment.x[0, -length:].tolist()), int(moment.nfe[0])
        written = sum(token != words.states for token in ids)
        partial = "" if reused is None else f" ({reused.runs.partial} of them partial)"
        rate = written / max(time.perf_counter() - start, 1e-9)
        spent = f"{nfe} evaluation{'' if nfe == 1 else 's'}{partial}"
        show(ids, f"{spent}, {written} tokens, {rate:.1f} tokens per second, {manner.solver!r}")

    samples = manner.draw(reused or sized, template, progress=False, on_step=on_step, **more)
    ids = words.until_end(samples.x[0, -length:].tolist())
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
    length: int
    """The most tokens of an answer."""
    seed: int = 0
    """Turn n is sample n of it."""
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
            reply = answer(self.model, self.manner, self.prompt, self.length, show, seed=self.seed, first=self.turn)
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
        elif text == "/help":
            console.print(HELP, markup=False)
        elif re.fullmatch(r"/\w+", text):
            typer.echo(f"{text}: there is no such command; /help lists them", err=True)
        elif text:
            try:
                with _display(console, vocabulary_of(conversation.model)) as show:
                    reply = conversation.say(text, show)
            except (ValueError, KeyboardInterrupt) as error:
                if not patient:
                    raise
                said = f"error: {error}" if isinstance(error, ValueError) else "stopped; Ctrl-C again ends"
                console.print(said, style="red", markup=False, highlight=False)
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
    console.print("Write a line; /help lists commands.", style="dim")
    while True:
        try:
            yield console.input("[bold]> [/]")
        except EOFError:
            return


def _manner(choice: Choice, nfe: int | None, length: int, block: int, model: Network) -> Manner:
    """The solver, in blocks that end a turn early, its grid, and its budget."""
    ends = vocabulary_of(model).ends
    solver = Blocks(choice.solver, block, stop=ends[0] if ends else None)
    spend = nfe if solver.evaluations is None else nfe or max(1, length // 2)
    sampling.plan(model, solver, nfe=spend, grid=choice.grid)  # says so before the first turn if it is too little
    return Manner(solver, spend, grid=choice.grid)


_answers = partial(option, "Answers")


@with_hyper_parameters(before="device")
def chat(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A language model, KIND:SOURCE with one of {', '.join(KINDS)}.", metavar="MODEL", show_default=False
        ),
    ],
    solver: Annotated[str, _answers(METHOD, metavar="NAME")] = "semi-autoregressive",
    nfe: Annotated[
        int | None, _answers("The most network evaluations to spend on an answer.", show="half of --length")
    ] = None,
    length: Annotated[int, _answers("The longest answer, in tokens.")] = 128,
    block: Annotated[
        int | None,
        _answers(
            "Tokens per block, from left to right; an answer ends with the block it is finished in.",
            show=f"the model's own, or {BLOCK}",
        ),
    ] = None,
    temperature: Annotated[
        float,
        _answers(
            "Below 1 likely tokens become likelier. At 0 all positions are equally sure, and are unmasked from left to "
            "right."
        ),
    ] = 0.2,
    top_p: Annotated[
        float | None, _answers("Keep the likeliest tokens that make up this probability.", show="all")
    ] = None,
    approximate_reuse: Annotated[bool, _answers(REUSE, "--approximate-reuse", show=False)] = False,
    approximate_dual: Annotated[bool, _answers(DUAL, "--approximate-dual", show=False)] = False,
    seed: Annotated[int, _answers(SEED)] = 0,
    system: Annotated[str | None, _answers("What the model is told before all else.", show="nothing")] = None,
    device: Device = None,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    **hyper: Any,
) -> None:
    """Talk to a masked diffusion language model. Piped input is answered line by line, in plain text.

    Example: [cyan]thetaleap chat llada:GSAI-ML/LLaDA-8B-Instruct --device cuda --trust-remote-code[/]
    """
    kind = model.partition(":")[0]
    require(kind in KINDS, "model", model, f"to talk to, give KIND:SOURCE with one of {', '.join(KINDS)}")
    require_no_clash(solver, chat)
    require_count("length", length)
    if block is not None:
        require_count("block", block)
    both = approximate_reuse and approximate_dual
    require(not both, "approximate_dual", True, "keeps more than --approximate-reuse; give one of the two")
    place = {"device": device, "dtype": dtype, "device_map": device_map, "trust_remote_code": trust_remote_code}
    budget = Budget(nfe or max(1, length // 2))
    choice = None if needs_model(solver) else choose(None, solver, hyper, budget)
    network = opened(model, length=length, **place)
    choice = choice or choose(network, solver, hyper, budget)
    size = block or network.block or BLOCK
    manner = replace(_manner(choice, nfe, length, size, network), temperature=temperature, top_p=top_p)
    tempered(network, temperature, top_p=top_p)  # says so before the first turn if they make no sense
    if approximate_reuse or approximate_dual:
        manner = replace(manner, reuse=(reuse := Reuse(size, approximate_dual)))
        reuse(network)  # the same
    console = Console(highlight=False)
    conversation = Conversation(network, manner, length, seed, system)
    converse(conversation, _turns(console), console, patient=sys.stdin.isatty())
