"""IgLM as a judge of antibodies: an autoregressive model, so that the likelihoods it gives are proper ones.

Its package, code and weights, is licensed for non-commercial use. It is not part of this library nor needed by it: who
may use it installs it. Only its data files are read; its code is never imported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import require, require_choice
from ...models.hf.hub import filled, transformers
from ...models.proteins.antibodies import read_weights
from ...models.weights import package_file

COMMAND = "pip install --no-deps iglm==0.1.0"
LICENCE = "its licence, the JHU Academic Software License, allows non-commercial use only"
CHAINS = {"heavy": "[HEAVY]", "light": "[LIGHT]"}
SPECIES = {name: f"[{name.upper()}]" for name in ("human", "mouse", "rat", "rabbit", "rhesus", "camel")}
SIZES = {"large": "IgLM", "small": "IgLM-S"}
ROWS = 32
"""Sequences that are judged together."""


@dataclass(frozen=True, eq=False)
class IgLM:
    """IgLM (Shuai, Ruffolo, Gray 2023), asked about one kind of chain of one species."""

    model: Any
    vocabulary: tuple[str, ...]
    before: tuple[str, str]

    def log_likelihoods(
        self, sequences: list[str], positions: Int64[Tensor, " m"] | None = None
    ) -> Float64[Tensor, " num"]:
        """For each sequence the mean over `positions` of ``log p(residue | chain, species, all residues before)``,
        in nats.

        Args:
            sequences: of one length, in the letters of the amino acids.
            positions: those that count, by default all. Given the others before them; what comes after is not seen.
        """
        lengths = {len(sequence) for sequence in sequences}
        require(len(lengths) == 1, "sequences", sorted(lengths), "give at least one, and all of one length")
        (length,) = lengths
        chosen = torch.arange(length) if positions is None else positions
        good = len(chosen) > 0 and bool(((chosen >= 0) & (chosen < length)).all())
        require(good, "positions", chosen.tolist(), f"give numbers from 0 to {length - 1}, at least one")
        unknown = "".join(sorted(set("".join(sequences)) - set(self.vocabulary)))
        require(not unknown, "sequences", unknown, "no residue that IgLM knows; use the amino acids' letters")
        number = {token: n for n, token in enumerate(self.vocabulary)}
        ids = torch.tensor([[number[token] for token in (*self.before, *sequence)] for sequence in sequences])
        parts = [self._log_p(part)[:, chosen].mean(1) for part in ids.split(ROWS)]
        return torch.cat(parts)

    def _log_p(self, ids: Int64[Tensor, "b n"]) -> Float64[Tensor, "b d"]:
        with torch.no_grad():
            logits = self.model(input_ids=ids).logits[:, len(self.before) - 1 : -1]
        log_p = torch.log_softmax(logits.to(torch.float64), 2)
        return log_p.gather(2, ids[:, len(self.before) :].unsqueeze(2)).squeeze(2)


def iglm(chain: str = "heavy", species: str = "human", size: str = "large") -> IgLM:
    """IgLM from the files of its own package, which is asked for by name if it is absent.

    Args:
        chain: "heavy" or "light".
        species: "human", "mouse", "rat", "rabbit", "rhesus" or "camel".
        size: "large", of 13 million parameters, or "small".
    """
    require_choice("chain", chain, CHAINS)
    require_choice("species", species, SPECIES)
    require_choice("size", size, SIZES)
    folder = package_file("iglm", "trained_models/vocab.txt", f"{COMMAND} ({LICENCE})").parent
    hub = transformers()
    vocabulary = tuple((folder / "vocab.txt").read_text(encoding="utf-8").split())
    saved = json.loads((folder / SIZES[size] / "config.json").read_text(encoding="utf-8"))
    config = hub.GPT2Config(**saved | {"bos_token_id": None, "eos_token_id": None})  # there, those of GPT-2's text
    weights = read_weights(folder / SIZES[size] / "pytorch_model.bin")
    # masks of attention, which are no weights
    weights = {name: value for name, value in weights.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
    model = filled(hub.GPT2LMHeadModel, config, weights)
    return IgLM(model.eval().requires_grad_(False), vocabulary, (CHAINS[chain], SPECIES[species]))
