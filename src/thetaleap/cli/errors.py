"""Errors on the command line: one line that names what was typed, and what to type instead."""

from __future__ import annotations

import difflib
import errno
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import typer
from rich.console import Console

from ..core.checks import of_this_package
from ..registry import SOLVERS, models

USAGE: Any = typer.BadParameter.__mro__[1]
"""What the parser raises, whichever it is: versions of typer differ in where theirs is."""
OTHERWISE = {"source": "model", "weights": "model", "experiment": "name", "judge": "critic", "x": "file"}
"""Arguments of the library that have another name on the command line."""


class Typed(NamedTuple):
    """The context of a command, and the words behind its name."""

    context: Any
    words: list[str]


TYPED: ContextVar[Any] = ContextVar("typed", default=None)
"""What is run, once that is known."""
_CALL = r"\w*\((?:[^()]|\([^()]*\))*\)"
_VALUE = rf"'(?:[^'\\]|\\.)*'|'.*?\.\.\.|\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|{_CALL}|[^\s:;,()]+"
_HEAD = re.compile(rf"(?P<end>ending of )?-*(?P<name>\w[\w-]*)=(?P<value>{_VALUE})(?=: |, line | with | on )")
_INSIDE = re.compile(
    rf"(?<=[^,] )(?P<name>\w+)=(?P<value>{_VALUE})|(?<=leave )(?P<left>\w+)(?= out)|(?<![-\w])(?P<word>nfe)(?![\w=])"
)


def fail(message: str) -> typer.Exit:
    """Say it in red; the exit code is 2."""
    console = Console(stderr=True, emoji=False)
    # the terminal would break lines within words, a log should not break them at all
    console.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=not console.is_terminal)
    return typer.Exit(2)


@contextmanager
def about(argument: str, value: Any) -> Iterator[None]:
    """Errors name this argument, whatever they name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        said = re.sub(rf"^[\w ]+=(?:{_VALUE}): ", "", str(error))
        raise ValueError(f"{argument}={str(value)!r}: {said}") from None


@contextmanager
def in_one_line() -> Iterator[None]:
    """Errors that users can mend are one line. Others keep their traceback, as only that helps to mend them."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise fail(_usage(error)) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever was to read it has gone
            raise
        raise fail(
            f"{_whose(error.filename)}{error.strerror or error}; give another, or change what is there"
        ) from None
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not short and "can't allocate memory" not in str(error):
            raise
        raise fail("there is not enough memory; give a smaller --batch-size, --num or --length") from None
    except (ValueError, TypeError, ImportError) as error:
        if not of_this_package(error):
            raise
        raise fail(translated(str(error))) from None


def translated(message: str) -> str:
    """What the library says of its arguments, said of options as they were typed."""
    if TYPED.get() is None:
        return message
    head, typed = _HEAD.match(message), ""
    param = None if head is None else _param(head["name"])
    if head is not None and param is not None:
        line = re.search(r", line \d+(?='$)", head["value"])
        typed, message = _typed(param, head["value"]) + (line[0] if line else ""), message[head.end() :]
        message = message.replace("choose one of", "let it end with one of", 1) if head["end"] else message

    def inside(found: re.Match[str]) -> str:
        param = _param(found["name"] or found["left"] or found["word"])
        if param is None or param.param_type_name != "option":
            return found[0]
        return param.opts[0] + (f" {found['value']}" if found["name"] and not param.is_flag else "")

    message = re.sub(r"\bprocess=(\w+)", r"the process \1", _INSIDE.sub(inside, message))
    return typed + re.sub(r"\b[A-Z]\w+\(\)", lambda found: _by_name(found[0]), message)


def _whose(path: Any) -> str:
    """A file or folder, as it was typed if it was."""
    values = {} if TYPED.get() is None else TYPED.get().context.params
    names = [name for name, value in values.items() if value is not None and str(value) == str(path)]
    return "" if path is None else f"{_typed(_param(names[0]), '') if names else path}: "


def _by_name(call: str) -> str:
    """A solver in Python as it is typed."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", call.removesuffix("()")).lower()
    return name if name in SOLVERS else call


def typed_words(param: Any) -> list[str]:
    """An option and its value as they were typed, the last time; nothing where it was not."""
    words, found = TYPED.get().words, []
    for n, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in (*param.opts, *param.secondary_opts):
            found = [name, value] if equals else words[n : n + 2] if not param.is_flag else [name]
    return found


def retyped(**changes: Any) -> str:
    """The command that was typed, with other values for some options; without those that are None."""
    typed = TYPED.get()
    words = list(typed.words)
    for name, value in changes.items():
        param = _param(name)
        for n in reversed(range(len(words))):
            if words[n].partition("=")[0] in param.opts:
                del words[n : n + (1 if param.is_flag or "=" in words[n] else 2)]
        words += [] if value is None else [param.opts[0], str(value)]
    return shlex.join([*typed.context.command_path.split(), *words])


def _param(name: str) -> Any:
    name = name.replace("-", "_")
    params = {one.name: one for one in TYPED.get().context.command.params}
    return params.get(name) or params.get(OTHERWISE.get(name, ""))


def _typed(param: Any, value: str) -> str:
    if param.param_type_name == "argument":
        return f"{param.metavar} {shlex.quote(str(TYPED.get().context.params[param.name]))}"
    words = typed_words(param)
    if words:
        return " ".join(map(shlex.quote, words))
    return f"{param.opts[0]} is missing" if value == "None" else f"{param.opts[0]} {value} (the default)"


def _usage(error: Any) -> str:
    """What the parser has to say, in one line."""
    ctx, kind = error.ctx or TYPED.get().context, type(error).__name__
    command = ctx.command_path
    example = re.search(r"Example:\s+\[cyan\](.*?)\[/\]", ctx.command.help or "", re.DOTALL)
    remedy = f"for example: {' '.join(example[1].split())}" if example else f"{command} --help says what there is"
    if kind == "NoSuchOption":
        words = [] if TYPED.get() is None else TYPED.get().words
        typed = next((word for word in words if word.startswith(error.option_name)), error.option_name)
        options = [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("--")]
        return (
            f"{typed}: {command} has no such option; {_near('-' + typed.lstrip('-'), options)}{command} -h lists them"
        )
    if kind == "MissingParameter":
        option = f"{error.param.opts[0]} " if error.param.param_type_name == "option" else ""
        return f"{option}{error.param.metavar} is missing; {remedy}"
    if kind == "BadParameter":
        wanted = "a whole number" if "integer" in error.message else "a number" if "number" in error.message else None
        wanted = "a number" if wanted is None and "float" in error.message else wanted
        typed = shlex.join(typed_words(error.param))
        return f"{typed}: {f'give {wanted}' if wanted else error.message}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: its value is missing; {remedy}"
    extra = re.search(r"unexpected extra argument.*\((.*)\)", error.message)
    if extra is not None:
        return f"{extra[1]}: nothing more is expected here; put what has spaces in quotes; {remedy}"
    word = re.match(r"No such command '(.*?)'", error.message)
    if word is not None:
        if word[1] in models(sourced=False) or word[1].partition(":")[0] in models(sourced=True):
            return f"{word[1]}: this is a model; to draw samples: {command} sample {word[1]}"
        known = list(ctx.command.commands)
        return f"{word[1]}: there is no such command; {_near(word[1], known)}the commands are {', '.join(known)}"
    return f"{error.format_message()}; {remedy}"


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""
