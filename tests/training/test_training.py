"""Training: data that is read as it is, runs that can be taken up again, and a loss that falls."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from thetaleap.core.noise import Noise, Stream
from thetaleap.training.data import Batch, Corpus, read_corpus
from thetaleap.training.muon import Muon, orthogonal
from thetaleap.training.trainer import (
    CHECKPOINT,
    Recipe,
    advance,
    held_out,
    loss_of,
    optimizers,
    process_of,
    resume,
    save,
    start,
    times,
    train,
)

SMALL = {"length": 12, "hidden": 32, "blocks": 1, "heads": 2, "batch": 8, "warmup": 4}


def letters(count: int = 4000) -> Corpus:
    """A line of tokens in which each says the next: 0 1 2 3 4 0 1 ..."""
    return Corpus(torch.arange(count) % 5, 5, "test")


def images(count: int = 40) -> Corpus:
    rows = torch.arange(12).repeat(count, 1) % 3
    labels = torch.arange(count) % 2
    return Corpus((rows + labels.unsqueeze(1)) % 3, 3, "test", labels=labels, shape=(3, 4))


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


@pytest.mark.parametrize("process", ["masked", "uniform"])
def test_the_loss_falls_to_what_can_be_known(process: str) -> None:
    """A line that repeats is known from any of its tokens: log 5 nats of a stretch of 12, and the rest is noise."""
    recipe = Recipe(process=process, steps=150, rate=5e-3, **SMALL)  # pyright: ignore[reportArgumentType]
    corpus = letters()
    run, kind = start(recipe, corpus), process_of(recipe, 5)
    first = held_out(run, corpus, kind)[0]
    for _ in range(recipe.steps):
        advance(run, corpus, kind)
    last, error = held_out(run, corpus, kind)
    assert first > 1.4
    assert last < (0.5 if process == "masked" else 0.75) * first
    assert 0 < error < 0.2


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("corpus", [letters(), images()], ids=["line", "labels"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(corpus: Corpus, optimizer: str, tmp_path: Path) -> None:
    recipe = Recipe(steps=9, optimizer=optimizer, **SMALL)  # pyright: ignore[reportArgumentType]
    whole = train(corpus, recipe, tmp_path / "whole")
    process, run = process_of(recipe, corpus.states), start(recipe, corpus)
    for _ in range(4):
        advance(run, corpus, process)
    save(run, tmp_path / "parts")
    again = train(corpus, recipe, tmp_path / "parts")
    assert again.step == 9
    for name, value in whole.model.named_parameters():
        assert torch.equal(value, dict(again.model.named_parameters())[name])
        assert torch.equal(whole.averages[name], again.averages[name])
    files = [load_file(tmp_path / part / CHECKPOINT) for part in ("whole", "parts")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(value, files[1][name]) for name, value in files[0].items())


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else() -> None:
    recipe = Recipe(optimizer="muon", **SMALL)  # pyright: ignore[reportArgumentType]
    model = start(recipe, images()).model
    others, muon = optimizers(recipe, model)
    names = {id(value): name for name, value in model.named_parameters()}
    taken, left = (
        {names[id(value)] for group in each.param_groups for value in group["params"]} for each in (muon, others)
    )
    parts = ("adaLN_modulation", "attn_out", "attn_qkv", "mlp.0", "mlp.2")
    assert taken == {f"blocks.0.{part}.weight" for part in parts}
    assert taken | left == set(names.values())
    assert not taken & left
    assert [group["weight_decay"] for group in (*muon.param_groups, *others.param_groups)] == [0.01, 0.01, 0.0]


@pytest.mark.parametrize("shape", [(24, 36), (48, 16), (16, 48)])
def test_muon_steps_as_torch_s_own(shape: tuple[int, int]) -> None:
    """Three steps, up to torch's bfloat16; every singular value of an update is near 1."""
    noise = torch.Generator().manual_seed(0)
    first, grads = torch.randn(shape, generator=noise), torch.randn(3, *shape, generator=noise)
    ours, theirs = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
    both = (Muon([ours], 0.01, 0.1), torch.optim.Muon([theirs], 0.01, 0.1, adjust_lr_fn="match_rms_adamw"))
    for grad in grads:
        for value, optimizer in zip((ours, theirs), both, strict=True):
            value.grad = grad.clone()
            optimizer.step()
    moved = (ours - first).norm()
    assert (ours - theirs).norm() < 0.03 * moved
    values = torch.linalg.svdvals(orthogonal(grads[0]))
    assert 0.5 < values.min() <= values.max() < 1.3


def test_muon_learns_as_well() -> None:
    """At the rate of the test for adamw, to the same bound."""
    recipe = Recipe(optimizer="muon", steps=150, rate=5e-3, **SMALL)  # pyright: ignore[reportArgumentType]
    run, kind = start(recipe, letters()), process_of(recipe, 5)
    first = held_out(run, letters(), kind)[0]
    for _ in range(recipe.steps):
        advance(run, letters(), kind)
    assert held_out(run, letters(), kind)[0] < 0.5 * first


def test_a_checkpoint_from_before_a_field_was_added_is_resumed(tmp_path: Path) -> None:
    """It counts as one with the field's default."""
    recipe = Recipe(steps=9, **SMALL)  # pyright: ignore[reportArgumentType]
    run = start(recipe, letters())
    for _ in range(4):
        advance(run, letters(), process_of(recipe, 5))
    path = save(run, tmp_path)
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    known = json.loads(facts["recipe"])
    del known["optimizer"]
    save_file(load_file(path), path, {**facts, "recipe": json.dumps(known)})
    assert resume(start(recipe, letters()), tmp_path).step == 4
    other = Recipe(steps=9, optimizer="muon", **SMALL)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="optimizer='muon': the checkpoint was made with 'adamw'"):
        resume(start(other, letters()), tmp_path)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    corpus = letters()
    save(start(Recipe(steps=3, **SMALL), corpus), tmp_path)  # pyright: ignore[reportArgumentType]
    other = start(Recipe(steps=3, seed=1, **SMALL), corpus)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="seed=1: the checkpoint was made with 0"):
        resume(other, tmp_path)


KILLED = """
import sys, torch
from pathlib import Path
from tests.training.test_training import SMALL, letters
from thetaleap.training.trainer import Recipe, train
torch.set_num_threads(1)
train(letters(), Recipe(steps=100_000, **SMALL), Path(sys.argv[1]), every=0.02)
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    corpus, recipe = letters(), Recipe(steps=100_000, **SMALL)  # pyright: ignore[reportArgumentType]
    reached = 0
    for moment in (0.05, 0.11):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2])
        limit = time.monotonic() + 60
        stamp = (tmp_path / CHECKPOINT).stat().st_mtime_ns if (tmp_path / CHECKPOINT).is_file() else 0
        while time.monotonic() < limit:
            time.sleep(0.02)
            if (tmp_path / CHECKPOINT).is_file() and (tmp_path / CHECKPOINT).stat().st_mtime_ns != stamp:
                break
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        run = resume(start(recipe, corpus), tmp_path)
        assert run.step > reached
        reached = run.step


def test_text_is_read_as_its_characters(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be\n" * 20)
    corpus = read_corpus(file)
    assert corpus.tokenizer.decode(corpus.tokens[:8].tolist()) == "to be or"
    assert corpus.states == len(set("to be or not to be\n"))
    assert read_corpus(file, "bytes").states == 256
    kept, unseen = corpus.split()
    assert len(kept.tokens) + len(unseen.tokens) == 380
    assert len(unseen.tokens) == 38
    x, labels, _ = kept.draw(7, 5, Stream(0, 0, 7))
    assert labels is None
    drawn = [corpus.tokenizer.decode(row) for row in x.tolist()]
    assert all(len(each) == 5 and each in "to be or not to be\n" * 18 for each in drawn)
    assert len(set(drawn)) > 1


def test_characters_per_token(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("thé et café\n" * 200)
    assert read_corpus(file).characters_per_token == 1
    assert read_corpus(file, "bytes").characters_per_token == 12 / 14
    pairs = read_corpus(file, "bpe:300")
    assert pairs.characters_per_token == 2400 / len(pairs.tokens) > 1
    unseen = pairs.split()[1]
    assert unseen.characters_per_token == len(pairs.tokenizer.decode(unseen.tokens.tolist())) / len(unseen.tokens)
    assert letters().characters_per_token is None


def test_images_and_their_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", pixels)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.arange(5))
    corpus = read_corpus(tmp_path / "train-images-idx3-ubyte.gz", levels=4, side=14)
    averages = pixels.reshape(5, 14, 2, 14, 2).mean((2, 4))
    assert corpus.tokens.tolist() == (averages // 64).reshape(5, 196).tolist()
    assert corpus.labels is not None
    assert corpus.labels.tolist() == [0, 1, 2, 3, 4]
    assert corpus.classes == 5


def test_rows_of_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[0, 1, 2], [2, 1, 0]]))
    corpus = read_corpus(tmp_path / "rows.npy")
    assert corpus.states == 3
    assert corpus.tokens.tolist() == [[0, 1, 2], [2, 1, 0]]


def test_corrupt_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file"):
        read_corpus(tmp_path / "none.txt")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\nfine\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"bad\.txt', line 3: this is no UTF-8 text"):
        read_corpus(bad)
    cut = tmp_path / "train-images-idx3-ubyte"
    cut.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 28, 28) + bytes(100))
    with pytest.raises(ValueError, match="holds 100 bytes, but says 1568"):
        read_corpus(cut)
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(bytes(range(256)) * 4)[:100])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        read_corpus(packed)
    short = tmp_path / "short.txt"
    short.write_text("abc")
    with pytest.raises(ValueError, match="length=9: the data has only 3 tokens"):
        read_corpus(short).draw(2, 9, Stream(0, 0, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"process": "ring"}, "process='ring'"),
        ({"average": 1.0}, "average"),
        ({"weighting": "lambda", "process": "uniform"}, "weighting='lambda': is for masked"),
        ({"precision": "int8"}, "precision='int8'"),
        ({"optimizer": "sgd"}, "optimizer='sgd': choose one of adamw, muon"),
    ],
)
def test_wrong_recipes(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**change)


def test_what_is_given_is_neither_noised_nor_counted() -> None:
    """With all but one position given, the bound of a fresh network is log S for that position, at any time it is
    masked."""

    class Half:
        states, digest, tokenizer, classes, shape = 5, "test", None, None, None

        def draw(self, num: int, length: int, noise: Noise) -> Batch:
            given = torch.ones((num, length), dtype=torch.bool)
            given[:, 3] = False
            return Batch(torch.arange(num * length).view(num, length) % 5, None, given)

    recipe = Recipe(**SMALL)  # pyright: ignore[reportArgumentType]
    run, process = start(recipe, Half()), process_of(recipe, 5)
    seen: list[torch.Tensor] = []
    run.model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    noise = Stream(0, 0, 8).at(0)
    batch, t = Half().draw(8, 12, noise), torch.full((8,), 0.5, dtype=torch.float64)
    loss = loss_of(run, process, batch, t, noise, run.model)
    (xt,) = seen
    assert batch.given is not None
    assert torch.equal(xt[batch.given], batch.tokens[batch.given])
    masked = (xt[:, 3] == 5).float()
    assert 0 < float(masked.sum()) < 8
    # sigma alpha/(1 - alpha) = 1/t for this schedule
    torch.testing.assert_close(loss.detach(), masked * torch.log(torch.tensor(5.0)) / 0.5)


def test_times_of_both_weightings() -> None:
    process = process_of(Recipe(), 5)
    for weighting in ("t", "lambda"):
        t = times(1000, process, Stream(0, 0, 1000).at(0), weighting)
        lost = 1 - process.schedule.alpha(t)
        u = t if weighting == "t" else lost / (1 - process.schedule.alpha(1.0))
        torch.testing.assert_close(u, torch.linspace(0, 1, 1001, dtype=torch.float64)[1:], atol=2.1e-3, rtol=0)


def test_half_precision_learns_as_well() -> None:
    corpus = letters()
    falls = []
    for precision in ("float32", "bfloat16"):
        recipe = Recipe(steps=60, rate=5e-3, precision=precision, **SMALL)  # pyright: ignore[reportArgumentType]
        run, kind = start(recipe, corpus), process_of(recipe, 5)
        for _ in range(recipe.steps):
            advance(run, corpus, kind)
        assert all(value.dtype == torch.float32 for value in run.model.parameters())
        falls.append(held_out(run, corpus, kind)[0])
    assert abs(falls[0] - falls[1]) < 0.1 * falls[0]


TOGETHER = """
import sys, torch
from pathlib import Path
from tests.training.test_training import SMALL, letters
from thetaleap.training.trainer import Recipe, train
torch.set_num_threads(1)
train(letters(), Recipe(steps=5, **SMALL), Path(sys.argv[1]))
"""


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Each takes half of every batch; the gradients are added up, and differ by rounding alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    folders = [tmp_path / "0", tmp_path / "1"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(folder)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **together, "RANK": str(n), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": "2"},
        )
        for n, folder in enumerate(folders)
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    assert not (folders[1] / CHECKPOINT).exists()
    recipe, corpus = Recipe(steps=5, **SMALL), letters()  # pyright: ignore[reportArgumentType]
    both, alone = resume(start(recipe, corpus), folders[0]), train(corpus, recipe, tmp_path / "alone")
    assert both.step == 5
    for name, value in alone.model.named_parameters():
        torch.testing.assert_close(dict(both.model.named_parameters())[name], value, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_no_number_stops_the_run_and_spoils_no_checkpoint(tmp_path: Path) -> None:
    corpus, recipe = letters(), Recipe(steps=9, **SMALL)  # pyright: ignore[reportArgumentType]
    run, process = start(recipe, corpus), process_of(recipe, 5)
    advance(run, corpus, process)
    save(run, tmp_path)
    before = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    with torch.no_grad():
        run.model.output_layer.linear.bias.fill_(math.nan)
    with pytest.raises(
        ValueError, match=r"^the loss is nan in step 1: the last checkpoint is good; give less than rate=0\.001"
    ):
        advance(run, corpus, process)
    again = resume(start(recipe, corpus), tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in again.model.named_parameters())


def test_a_write_that_fails_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""

    def fail(tensors: object, path: Path, facts: object) -> None:
        path.write_text("half of")
        raise OSError(28, "No space left on device")

    corpus, recipe = letters(), Recipe(steps=9, **SMALL)  # pyright: ignore[reportArgumentType]
    run = start(recipe, corpus)
    save(run, tmp_path)
    advance(run, corpus, process_of(recipe, 5))
    monkeypatch.setattr("thetaleap.training.recipes.save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        save(run, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [CHECKPOINT]
    assert resume(start(recipe, corpus), tmp_path).step == 0


@pytest.mark.parametrize("batch", [1, 300])
def test_the_held_out_bound_has_an_error_for_all_sizes_of_batches(batch: int) -> None:
    recipe = Recipe(**{**SMALL, "batch": batch, "length": 4, "hidden": 8})  # pyright: ignore[reportArgumentType]
    bound, error = held_out(start(recipe, letters()), letters(), process_of(recipe, 5), num=16)
    assert 0 < bound < 10
    assert 0 < error < bound
