from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
from kernels import merge_states, twins
from kernels.twins import merge_states as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
