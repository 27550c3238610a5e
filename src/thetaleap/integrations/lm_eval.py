"""The model ``thetaleap`` of lm-evaluation-harness.

Releases after 0.4.13 find it by an entry point. Before, only code that runs can add to their registry:
``python -m thetaleap.integrations.lm_eval`` is the harness's command line with this model registered; in a program,
call `register` before ``lm_eval.simple_evaluate``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from .. import __version__
from ..conditioning.answering import Manner, answers, check_lengths
from ..control import Blocks
from ..core.checks import require, require_choice, require_count
from ..evaluation.choice import AUTO, Budget, choose, hyper_parameters
from ..evaluation.metrics.likelihood import answer_log_likelihood, is_greedy
from ..models import load
from ..models.hf.llm import KINDS, resized, vocabulary_of
from ..models.hf.prefix_reuse import Reuse
from ..models.network import Network

NAME = "thetaleap"
LENGTH = 256
"""Tokens of an answer where neither the model's arguments nor the request say."""
OWN = ("until", "max_gen_toks", "max_new_tokens", "max_tokens", "max_length")
"""What is heeded of a request's own settings; how to sample is said with the model."""

log = logging.getLogger(__name__)
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Respondent:
    """A language model that answers the harness's requests; texts in, texts and numbers out."""

    model: Network
    manner: Manner
    length: int | None
    """Tokens of every answer; None is as many as the request asks for."""
    batch_size: int
    seed: int
    mc_num: int
    greedy: bool

    # --- texts

    def generate(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Continue each context, up to the end of the text or the first of the request's stop strings."""
        words = vocabulary_of(self.model)
        prompts = [words.encode(context) for context, _ in requests]
        lengths = [self.length or _wanted(settings) for _, settings in requests]
        groups = {new: [n for n, length in enumerate(lengths) if length == new] for new in sorted(set(lengths))}
        for new, mine in groups.items():
            check_lengths(self.model, [len(prompts[n]) for n in mine], new)
        others = sorted({f"{key}={value}" for _, given in requests for key, value in given.items() if key not in OWN})
        if others:
            log.warning("not used, as --model_args says how to sample: %s", ", ".join(others))
        texts = [""] * len(requests)
        for new, mine in groups.items():
            some = [prompts[n] for n in mine]
            drawn = answers(self.model, self.manner, some, new, seed=self.seed, batch_size=self.batch_size)
            for n, answer in zip(mine, drawn, strict=True):
                until = requests[n][1].get("until") or []
                texts[n] = self._cut(
                    answer.tokens, [until] if isinstance(until, str) else [one for one in until if one]
                )
        return texts

    def _cut(self, tokens: list[int], until: Sequence[str]) -> str:
        """The text of `tokens` before the first stop string; one that is a special token is found as such."""
        tokenizer = vocabulary_of(self.model).tokenizer
        known = tokenizer.get_vocab()
        stops = {known[stop] for stop in until if stop in known}
        end = next((n for n, token in enumerate(tokens) if token in stops), len(tokens))
        text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        return text[: min((text.find(stop) for stop in until if stop in text), default=len(text))]

    # --- likelihoods

    def pair(self, context: str, continuation: str) -> Pair:
        """The tokens of both, cut where the context ends; spaces at its end belong to what comes after it."""
        words, kept = vocabulary_of(self.model), context.rstrip()
        before = words.encode(kept)
        return before, words.encode(context + continuation)[len(before) :]

    def log_likelihoods(self, pairs: Iterable[Pair]) -> list[tuple[float, bool]]:
        """For each answer the bound on its log-likelihood, and whether the model would write it of its own accord."""
        return [self._log_likelihood(n, before, answer, self.greedy) for n, (before, answer) in enumerate(pairs)]

    def rolling(self, texts: Iterable[str]) -> list[float]:
        """For each whole text the bound on its log-likelihood."""
        words, values, index = vocabulary_of(self.model), [], 0
        for text in texts:
            total = 0.0
            for before, part in windows(words.encode(text), words.context):
                total += self._log_likelihood(index, before, part, greedy=False)[0]
                index += 1
            values.append(total)
        return values

    def _log_likelihood(self, index: int, before: list[int], answer: list[int], greedy: bool) -> tuple[float, bool]:
        if not answer:
            return 0.0, True
        x = torch.tensor(before + answer)
        model, positions = resized(self.model, len(x)), torch.arange(len(x)) >= len(before)
        how = {"draws": self.mc_num, "seed": self.seed, "index": index, "batch_size": self.batch_size}
        parts = _parts(model, positions)
        bound = sum(answer_log_likelihood(model, x, part, **how) for part in parts)
        return bound, greedy and all(is_greedy(model, x, part) for part in parts)


def _parts(model: Network, positions: Bool[Tensor, " d"]) -> list[Bool[Tensor, " d"]]:
    """`positions` block by block, where the model has blocks: each is written given all of those before it."""
    if model.block is None:
        return [positions]
    blocks = model.blocks(1)[0]
    return [positions & (blocks == block) for block in blocks[positions].unique().tolist()]


def windows(tokens: list[int], most: int | None) -> list[Pair]:
    """`tokens` in parts of at most `most`, each with what is seen before it: the last one sees as much as there is room
    for, the others nothing."""
    if most is None or len(tokens) <= most:
        return [([], tokens)]
    starts = range(0, len(tokens), most)
    last = starts[-1]
    parts: list[Pair] = [([], tokens[start : start + most]) for start in starts[:-1]]
    return [*parts, (tokens[len(tokens) - most : last], tokens[last:])]


def _wanted(settings: Mapping[str, Any]) -> int:
    """Tokens that a request asks for."""
    for key in ("max_gen_toks", "max_new_tokens", "max_tokens"):
        if key in settings:
            require_count(key, settings[key])
            return settings[key]
    require("max_length" not in settings, "max_length", settings.get("max_length"), "give max_gen_toks in its place")
    return LENGTH


# --- from the harness's arguments


def respondent(
    pretrained: str,
    *,
    solver: str = "trapezoidal",
    nfe: int | None = None,
    steps: int | None = None,
    grid: str | None = None,
    delta: float | None = None,
    tolerance: float | None = None,
    block: int | None = None,
    approximate_reuse: bool = False,
    approximate_dual: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    length: int | None = None,
    seed: int = 0,
    mc_num: int = 128,
    greedy: bool = True,
    batch_size: int | str = 1,
    max_batch_size: int | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    **hyper: Any,
) -> Respondent:
    """What ``--model_args`` makes. Solvers, their hyper-parameters and budgets have the command line's names.

    Args:
        pretrained: ``llada:SOURCE``, ``dream:SOURCE`` and so on, or a folder whose config.json says which of them it is.
        block: run the solver in blocks of so many positions, by default those of the model, if it has some; a sample
            ends with the block that ends it.
        approximate_reuse: run the network on part of the positions while a block is written: see `approximate_prefix`.
        approximate_dual: instead, run it on the block alone: see `approximate_dual`.
        length: tokens of every answer; by default as many as the task asks for.
        seed: of the answers, and of the draws of likelihoods.
        mc_num: draws for each likelihood.
        greedy: find out whether an answer is the model's own, for tasks that want to know: an evaluation per token.
        batch_size: requests, or draws, that go through the network together.
        max_batch_size: not used; the harness gives it.
        dtype: the network's precision, as device, device_map and trust_remote_code: see `llada`.
    """
    size = str(batch_size)
    require(size.isdigit() and int(size) > 0, "batch_size", batch_size, "give a whole number of at least 1")
    for name, count in {"length": length, "mc_num": mc_num, "block": block}.items():
        if count is not None:
            require_count(name, count)
    for name, value in hyper.items():
        require(name != "block_length", name, value, "its blocks count the prompt; give block")
        require_choice("model_args", name, hyper_parameters())
        require(value is not None, name, value, "leave it out, or give a value")
    reusing = [
        name for name, on in (("approximate_reuse", approximate_reuse), ("approximate_dual", approximate_dual)) if on
    ]
    require(len(reusing) < 2, "approximate_dual", True, "keeps more than approximate_reuse; give one of the two")
    require(block is not None or not reusing, "block", block, f"{' '.join(reusing)} is within blocks; give it")
    place = {"device": device, "device_map": device_map, "trust_remote_code": trust_remote_code}
    model = load(_source(pretrained), length=1, **place, **({} if dtype == "auto" else {"dtype": dtype}))
    require(nfe is not None or solver != AUTO, "nfe", nfe, "auto chooses by how much it may spend; give it, as in 64")
    choice = choose(model, solver, hyper, Budget(nfe, steps, tolerance, grid, delta))
    method, ends, block = choice.solver, vocabulary_of(model).ends, block or model.block
    if block is not None:
        method = Blocks(method, block, ends[0] if ends else None)
    manner = Manner(method, nfe, steps, choice.grid, delta, tolerance, float(temperature), top_k, top_p)
    if block is not None and reusing:
        manner = replace(manner, reuse=(reuse := Reuse(block, approximate_dual)))
        reuse(model)  # says so before the first answer if the network cannot
    return Respondent(model, manner, length, int(size), seed, mc_num, greedy)


def _source(pretrained: str) -> str:
    """The name for `load`."""
    kind, colon, _ = pretrained.partition(":")
    if colon and kind in KINDS:
        return pretrained
    config = Path(pretrained) / "config.json"
    told = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config.is_file() else None
    found = sorted((kind for kind in KINDS if kind in str(told).lower()), key=len)[-1:]  # llada2 is no llada
    remedy = f"say which kind of model it is, as in {' or '.join(f'{kind}:{pretrained}' for kind in KINDS)}"
    require(len(found) == 1, "pretrained", pretrained, remedy)
    return f"{found[0]}:{pretrained}"


# --- for the harness


@lru_cache(maxsize=1)
def register() -> Any:
    """Tell the harness of the model; gives its class."""
    try:
        base, registry = import_module("lm_eval.api.model").LM, import_module("lm_eval.api.registry")
        bar = import_module("tqdm").tqdm
        import_module("lm_eval.models")  # else the harness takes a registry with one model for complete
    except ImportError as error:
        raise ImportError(f"lm_eval is not installed ({error}): pip install 'thetaleap[harness]'") from error

    class ThetaLeap(base):
        """A masked diffusion language model, sampled by one of thetaleap's solvers."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__()
            # the harness says so whatever there is, unless it is told otherwise
            if str(arguments.get("device")).startswith("cuda") and not torch.cuda.is_available():
                log.warning("there is no %s: the network runs on the CPU", arguments.pop("device"))
            self.own = respondent(**arguments)
            self._device = self.own.model.device
            self.name = str(arguments["pretrained"])

        @property
        def tokenizer_name(self) -> str:
            return self.name.replace("/", "__")

        def chat_template(self, chat_template: bool | str = False) -> str | None:
            return vocabulary_of(self.own.model).tokenizer.chat_template

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            words = vocabulary_of(self.own.model)
            require(words.chats, "apply_chat_template", True, "this model has no chat template; leave it out")
            open_end = {
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": not add_generation_prompt,
            }
            return words.tokenizer.apply_chat_template(chat_history, tokenize=False, **open_end)

        def get_model_info(self) -> dict[str, str]:
            return {"thetaleap_version": __version__, "thetaleap_solver": repr(self.own.manner)}

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return self._kept("generate_until", requests, self.own.generate([request.args for request in requests]))

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            pairs = [self.own.pair(*request.args) for request in requests]
            check_lengths(self.own.model, (len(before) + len(answer) for before, answer in pairs), 0)
            shown = bar(pairs, desc="likelihoods", disable=disable_tqdm)
            return self._kept("loglikelihood", requests, self.own.log_likelihoods(shown))

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            shown = bar([request.args[0] for request in requests], desc="texts", disable=disable_tqdm)
            return self._kept("loglikelihood_rolling", requests, self.own.rolling(shown))

        def _kept(self, kind: str, requests: list[Any], results: list[Any]) -> list[Any]:
            for request, result in zip(requests, results, strict=True):
                self.cache_hook.add_partial(kind, request.args, result)
            return results

    ThetaLeap.__qualname__ = ThetaLeap.__name__  # by which the entry point knows it
    registry.register_model(NAME)(ThetaLeap)
    return ThetaLeap


def __getattr__(name: str) -> Any:
    """`ThetaLeap`, for the entry point: it derives from a class of the harness, which is imported when it is asked for."""
    if name == "ThetaLeap":
        return register()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """The harness's own command line."""
    register()
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
