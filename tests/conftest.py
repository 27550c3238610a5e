"""Set-up for the whole test run."""

import torch

torch.set_num_threads(1)  # the test run itself is spread over the cores
