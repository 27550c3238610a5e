"""Set-up for the whole test run."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the test run itself is spread over the cores

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `data` where the shared data folder is absent."""
    if DATA.is_dir():
        return
    absent = [item for item in items if item.get_closest_marker("data")]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]
