"""Work on a GPU recorded once and replayed: no Python and no launch of single operations in between."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """A function of tensors, recorded as a CUDA graph for inputs of these shapes.

    It must not wait for the device, and what it reads besides its inputs must stay where it is. It runs twice before it
    is recorded, so running it again must do no harm.
    """

    def __init__(self, function: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.inputs = [x.clone() for x in inputs]
        with torch.cuda.device(inputs[0].device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(2):  # memory is allocated, kernels are chosen
                    function(*self.inputs)
            torch.cuda.current_stream().wait_stream(beside)
            self.graph = torch.cuda.CUDAGraph()
            # Other devices' threads may allocate meanwhile.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.output = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The output, which the next call overwrites."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new)
        self.graph.replay()
        return self.output
