"""Calls as people get them wrong, and what they are told: the argument, its value and the remedy, in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thetaleap as tl

NAMES: dict[str, Any] = {
    **{"tl": tl, "torch": torch, "np": np, "net": nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))},
    **{"cube": tl.load("cube3"), "moving": tl.load("cube3-uniform"), "plays": tl.load("shakespeare-char")},
    **{"halves": torch.tensor([0.5, 0.5]), "mnist": tl.load("mnist"), "flat": lambda x, t: torch.zeros((*x.shape, 3))},
}

SAMPLE = """
tl.sample(net, nfe=4)                                       | model=Sequential: is a network, and no model yet; make one: from_network(
tl.sample(tl.Masked(3), nfe=4)                              | model=Masked(states=3, schedule=LogLinear(eps=0.001)): is no model; give the name of one
tl.sample("shakespear", nfe=4)                              | model='shakespear': did you mean 'shakespeare'?
tl.sample(cube, tl.Tweedie, nfe=4)                          | solver=Tweedie: is a class; give a solver with its parameters
tl.sample(cube, "tweedie", nfe=4)                           | solver='tweedie':
tl.sample(cube, 8)                                          | solver=8: give a solver with its parameters
tl.sample(cube, tl.Tweedie(), nfe="8")                      | nfe='8': give a whole number
tl.sample(cube, tl.Tweedie(), nfe=8.0)                      | nfe=8.0: give a whole number
tl.sample(cube, tl.Tweedie(), nfe=4, steps=2)               | (nfe, steps)=(4, 2): give one of them
tl.sample(cube, tl.Tweedie(), nfe=4, num=0)                 | num=0: give a whole number of at least 1
tl.sample(cube, tl.Tweedie(), nfe=4, num=2**63 - 1)         | num=9223372036854775807: no random numbers are left for so many
tl.sample(cube, tl.Tweedie(), nfe=4, seed="zero")           | seed='zero': give a whole number of at least 0
tl.sample(cube, tl.Tweedie(), nfe=4, seed=None)             | seed=None: give a whole number of at least 0
tl.sample(cube, tl.Tweedie(), nfe=4, memory="1GB")          | memory='1GB': give a whole number
tl.sample(cube, tl.Tweedie(), nfe=4, delta="0.1")           | delta='0.1': give a time
tl.sample(cube, tl.Tweedie(), nfe=4, grid="cosine")         | grid='cosine': give a decreasing tensor of times, or a function
tl.sample(cube, tl.Tweedie(), grid=[0.0, 0.5, 1.0])         | grid[0:2]=[0.0, 0.5]: times must decrease strictly, from noise to data; use grid.flip(0)
tl.sample(cube, tl.Tweedie(), nfe=4, grid=lambda n: n)      | grid=<lambda>: must be a function of (start, end, steps)
tl.sample(cube, tl.Euler(), tolerance=0.1)                  | solver=Euler() with a tolerance: on masked models only Tweedie and Multistep
tl.sample(cube, tl.Tweedie(), nfe=4, on_step="print")       | on_step='print': give a function of a Moment
tl.sample(cube, tl.Tweedie(), nfe=4, progress="yes")        | progress='yes': say True or False
tl.sample(cube, tl.FirstHitting(), nfe=4)                   | nfe=4: FirstHitting spends as many evaluations as it takes; leave nfe out
tl.sample(moving, tl.Tweedie(tl.FixedCount()), nfe=4)       | planner=FixedCount(schedule='process') on process=Uniform
tl.sample(moving, tl.Blocks(tl.Tweedie(), 2), nfe=4)        | solver=Blocks on process=Uniform
tl.sample(cube, tl.Tweedie(), nfe=4, template=[0, 1])       | template of shape (2,): the model has 3 positions; give (3,)
tl.sample(cube, tl.Tweedie(), nfe=4, template=[0, 1, 3])    | template[0, 2]=3: this is the mask; give tokens from 0 to 2, or -1
tl.sample(cube, tl.Tweedie(), nfe=4, template=[0, None, 1]) | template=[0, None, 1]: is no table of numbers; give whole numbers, with -1
tl.sample(cube, tl.Tweedie(), nfe=4, template=[[0, 1], [2]]) | template=[[0, 1], [2]]: is no table of numbers
tl.sample(cube, tl.Tweedie(), nfe=4, template=np.zeros(3))  | template of torch.float64: give whole numbers
tl.sample(cube, tl.Tweedie(), nfe=4, template="to be _")    | template='to be ': 'to' is no token: this model has no text; give token numbers
tl.sample(plays, nfe=4, template="caf\\u00e9 ___")          | template='café ': letter='é': not in the alphabet
tl.sample(plays, nfe=4, prompt="x" * 300)                   | prompt='xx
tl.sample(plays, nfe=4, prompt=["a", 3])                    | prompt=['a', 3]: give text, or a list of texts
tl.sample(plays, nfe=4, prompt="a", template="b")           | template='b': the prompt says what is given; give one of them
tl.sample(cube, nfe=4).text                                 | tokenizer=None: the model has no text; read x
tl.sample(cube, nfe=4).save("samples.csv")                  | ending of path='.csv': choose one of .parquet
tl.sample(cube, nfe=4).save("nowhere/samples.npy")          | path='nowhere/samples.npy': the folder 'nowhere' does not exist; make it first
tl.sample(cube, nfe=4).save(3)                              | path=3: give the name of a file
"""

MODELS = """
tl.load(None)                                               | name=None: give the name of a model
tl.load("chain")                                            | model='chain': did you mean 'chain64'?
tl.load("trained:")                                         | model='trained:': say where it is, as in trained:folder
tl.load("trained:nowhere")                                  | source='nowhere': there is no such folder
tl.load("chain64", length=8)                                | length=8: chain64 has no such option
tl.load("shakespeare", length="long")                       | length='long': give a whole number
tl.load("shakespeare", device="gpu")                        | device='gpu': there is none
tl.load("shakespeare", dtype="int8")                        | dtype='int8': give a floating-point one
tl.from_network(100, length=4, network=net)                 | process=100: give a process, as in Masked(states=100)
tl.from_network(tl.Masked, length=4, network=net)           | process=Masked: is a class; give a process
tl.from_network(tl.Masked(3), length="4", network=net)      | length='4': give a whole number
tl.from_network(tl.Masked(3), length=4, network="net")      | network='net': give a function f(x, t) -> logits
tl.from_network(tl.Masked(3), length=4, network=net)        | network=Sequential: takes x alone, and so ignores time: say time_free=True
tl.from_network(tl.Masked(3), length=4, network=flat, shape=(2, 3)) | shape=(2, 3): has 6 positions, but the length is 4
tl.from_network(tl.Masked(3), length=4, network=flat, shape=4)      | shape=4: give (length,) or (height, width)
tl.from_network(tl.Masked(3), length=4, network=flat, tokenizer="gpt2") | tokenizer='gpt2': has no decode
tl.from_network(tl.Masked(3), length=4, network=flat, time_free="yes")  | time_free='yes': say True or False
tl.from_network(tl.Masked(3), length=4, network=flat, device="tpu")     | device='tpu': there is none
tl.sample(tl.from_network(tl.Masked(3), length=4, network=net, time_free=True), nfe=2) | network=Sequential: fails when it is called with int64 (1, 4)
tl.Masked(1)                                                | states=1: give a whole number of at least 2
tl.Masked(3, schedule="cosine")                             | schedule='cosine': give a schedule, as in LogLinear()
tl.Uniform(3, tl.Constant)                                  | schedule=Constant: is a class; give a schedule
tl.RateMatrix([[-1, 1], [1, -1]])                           | rates='list': give a square torch tensor
tl.RateMatrix(torch.tensor([[-1.0, 2.0], [1.0, -1.0]]))     | rates=1.0: rows must sum to 0
tl.Geometric(low=3, high=1)                                 | (low, high)=(3, 1): needs 0 < low < high
tl.LogLinear(eps="small")                                   | eps='small': give a number
tl.oracles.joint([[0.5, 0.5]], tl.Masked(2))                | p0 is list: give a floating-point torch tensor
tl.oracles.joint(torch.ones(2, 2), tl.Masked(2))            | p0 sums to 4: divide it by its sum
tl.oracles.joint(halves, "masked")                          | process='masked': give a process
tl.oracles.joint(halves, tl.Masked(3))                      | p0 shape=(2,): give (S,)*d with S = 3
tl.oracles.markov_chain(torch.eye(3), "4")                  | length='4': give a whole number
tl.oracles.markov_chain(torch.eye(3), 4, process=tl.Uniform(3)) | process=Uniform: a Markov chain is exact under Masked only
tl.oracles.ising(40, 4, coupling=0.4)                       | height=40: 2**40 different columns
tl.oracles.tree([0, 0], halves, halves.expand(2, 2))        | parents=(0,): position 0 is the root; begin with -1
tl.oracles.noisy(net, 0.3)                                  | model=Sequential: is a network
cube.log_prob([[0, 1, 2]])                                  | x=[[0, 1, 2]]: give an int64 tensor
"""

THE_REST = """
tl.Trapezoidal(theta="half")                                | theta='half': give a number
tl.Trapezoidal(theta=1)                                     | theta=1: must lie in (0, 1)
tl.Trapezoidal(rule="rejct")                                | rule='rejct': did you mean 'reject'?
tl.Tweedie("fixed-count")                                   | planner='fixed-count': give a planner with its parameters, as in FixedCount()
tl.Tweedie(tl.FixedCount)                                   | planner=FixedCount: is a class; give a planner
tl.Multistep(planner=tl.Tweedie())                          | planner=Tweedie(planner=Bernoulli()): give a planner
tl.Multistep(window=0)                                      | window=0: give a whole number of at least 1
tl.LowDiscrepancy(shape=8)                                  | shape=8: give (height, width)
tl.Confidence(schedule="cosine")                            | schedule='cosine': choose one of process, arccos, even
tl.EntropyBounded(gamma=-1)                                 | gamma=-1: must lie in [0, inf)
tl.SemiAutoregressive(block_length=0)                       | block_length=0: give a whole number of at least 1
tl.Blocks(tl.Tweedie, 8)                                    | solver=Tweedie: is a class; give a solver to run in blocks
tl.Blocks(tl.Tweedie(), 0)                                  | length=0: give a whole number of at least 1
tl.Blocks(tl.Tweedie(), 8, stop="end")                      | stop='end': give a token, by its number
tl.grids.uniform(0.0, 1.0, 4)                               | (start, end)=(0.0, 1.0): needs 0 <= end < start
tl.grids.uniform("1", 0.0, 4)                               | (start, end)=('1', 0.0): needs 0 <= end < start
tl.grids.power(1.0, 0.0, 4, exponent=-1)                    | exponent=-1: must lie in (0, inf)
tl.grids.logarithmic(1.0, 0.0, 4)                           | end=0.0: a logarithmic grid needs a positive end
tl.grids.alpha_power("loglinear")                           | schedule='loglinear': give a schedule
tl.grids.adaptive(cube, 0.1)                                | model='Masked': with masks give the tolerance to sample()
tl.grids.counted(cube, [1, 1])                              | counts=(1, 1): sum to 2, but the model has 3 positions
tl.grids.counted(cube, 3)                                   | counts=3: give whole numbers of at least 1
tl.grids.planned(cube, tl.Multistep(), nfe=9)               | nfe=9: every step unmasks at least one of the 3 positions
tl.tempered(cube, "cold")                                   | temperature='cold': give a finite number of at least 0
tl.tempered(cube, top_p=1.5)                                | top_p=1.5: must lie in (0, 1]
tl.tempered(net, 0.5)                                       | model=Sequential: is a network
tl.constrained(cube)                                        | (allow, forbid)=(None, None): give at least one
tl.constrained(cube, forbid=[3])                            | forbid=3: values are 0 to 2
tl.constrained(cube, forbid="xyz")                          | forbid='xyz': 'xyz' is no token: this model has no text
tl.constrained(plays, allow="\\u00a7")                      | allow='§': letter='§': not in the alphabet
tl.constrained(cube, forbid=5)                              | forbid=5: give values by number, as in [0, 3, 7], or as text
tl.constrained(cube, allow=[True, False])                   | allow shape=(2,): give (3,) or (3, 3)
tl.guided(cube, 1.0, 3)                                     | condition=3 for Joint: labels are for networks that take them
tl.guided(cube, 1.0, "cat")                                 | condition='cat': give a label
tl.guided(mnist, 1.0, 11)                                   | condition=11: labels are whole numbers, 0 to 9
tl.guided(mnist, -1.0, 3)                                   | weight=-1.0: give a finite number of at least 0
tl.exact.law(cube, tl.Tweedie, [1.0, 0.0])                  | solver=Tweedie: is a class; give a solver
tl.exact.law(cube, tl.Tweedie(), 4)                         | grid=int: give a tensor of at least two times
tl.exact.law(cube, tl.Tweedie(), [1.0, 0.0], [0, 1])        | template of shape (2,): the model has 3 positions
tl.exact.law("chain64", tl.Tweedie(), [1.0, 0.0])           | model='5.61e+78 sequences, masks included': exact laws are for at most
tl.exact.reverse_law(cube, [1.0, 0.0])                      | grid end=0.0: intensities grow without bound there
tl.recommend(net, nfe=8)                                    | model=Sequential: is a network
tl.recommend(cube, nfe=8, geometry=3)                       | geometry=3: give "line", "none" or (height, width)
tl.compare(net, ["auto"], [4])                              | model=Sequential: is a network, and no model yet
tl.compare("cube4", ["auto"], [4])                          | model='cube4': did you mean 'cube3'?
tl.compare(cube, ["tweedy"], [4])                           | contenders='tweedy': did you mean 'tweedie'?
tl.compare(cube, "auto", [4])                               | contenders='auto': give a list or a dictionary of at least one
tl.compare(cube, tl.Tweedie(), [4])                         | contenders=Tweedie(planner=Bernoulli()): give a list or a dictionary
tl.compare(cube, [], [4])                                   | contenders=[]: give a list or a dictionary of at least one
tl.compare(cube, [3], [4])                                  | contenders=[3]: a list holds solvers or their texts
tl.compare(cube, {"a": 3}, [4])                             | contenders['a']=3: give a solver, its text, or a Contender
tl.compare(cube, {"a": "Tweedie(2)"}, [4])                  | contenders['a']='Tweedie(2)': planner is 2; give a planner
tl.compare(cube, ["auto"], 4)                               | budgets=4: give a list of at least one
tl.compare(cube, ["auto"], [4, "8"])                        | budgets[1]='8': give a whole number
tl.compare(cube, ["auto"], [4], num=2)                      | num=2: give a whole number of at least 3
tl.compare(cube, ["auto"], [4], reference="mine")           | reference='mine': give samples, a number, "model", or leave it out
tl.compare(cube, ["auto"], [4], reference=3)                | reference=3: give a whole number of at least 5
tl.compare(cube, ["auto"], [4], reference=[[0, 1, 2]])      | reference=[[0, 1, 2]]: give samples, a number, "model", or leave it out
tl.compare(cube, ["auto"], [4], progress="yes")             | progress='yes': say True or False
tl.train("plays.txt", "run")                                | data='plays.txt': there is no such file
tl.train(3, "run")                                          | data=3: give the name of a file, or text
tl.train("a\\nb", "run", stesp=3)                           | keyword='stesp': did you mean 'steps'?
tl.train("a\\nb", "run", steps="3")                         | steps='3': give a whole number
tl.train("a\\nb", "run", tokenizer="chars")                 | tokenizer='chars': did you mean 'char'?
tl.train("a\\nb", "run", store="int8")                      | store='int8': choose one of float32
"""
CALLS = [line.split("|", 1) for line in (SAMPLE + MODELS + THE_REST).strip().splitlines() if line]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "answer"), CALLS, ids=[call.strip() for call, _ in CALLS])
def test_the_answer_to_a_wrong_call(call: str, answer: str) -> None:
    with pytest.raises((ValueError, TypeError)) as found:
        eval(call.strip(), NAMES)
    said = str(found.value)
    assert said.startswith(answer.strip())
    assert "\n" not in said
    assert len(said.split(": ", 1)[1]) > 10, "a remedy"
