"""A model of JAX, Keras, scikit-learn or any other framework: its arrays, and a function that computes its logits."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from filfl.errors import PluginError

Logits = Callable[[list[NDArray[Any]], Any], Any]
"""(arrays, x) -> logits [m, classes], all of numpy. arrays: those of the model, in the order of Flower's
`to_numpy_ndarrays`. x: the inputs of m samples, one array or a dict of arrays."""


class FunctionModel(nn.Module):
    """The function as a torch module, whose parameters are the arrays. It is evaluated, never trained."""

    def __init__(self, logits: Logits, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__()
        self._logits = logits
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        self._arrays = {name: nn.Parameter(t) if t.is_floating_point() else t for name, t in tensors.items()}
        self._parameters_ = nn.ParameterList(t for t in self._arrays.values() if isinstance(t, nn.Parameter))

    def state_dict(self, *_: Any, keep_vars: bool = False, **__: Any) -> dict[str, Any]:  # type: ignore[override]
        """The arrays by their own names, which may have dots."""
        return {name: tensor if keep_vars else tensor.detach() for name, tensor in self._arrays.items()}

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        # Copies, because the function may keep or change what it is given.
        arrays = [tensor.detach().numpy().copy() for tensor in self._arrays.values()]
        inputs = {name: values.numpy().copy() for name, values in named.items()} or x[0].numpy().copy()
        m = len(next(iter(named.values())) if named else x[0])
        return _checked(self._logits(arrays, inputs), m)


def _checked(made: Any, m: int) -> Tensor:
    try:
        z = np.asarray(made)
        z = z if z.dtype in (np.float32, np.float64) else z.astype(np.float32, casting="same_kind")
    except (TypeError, ValueError):
        raise PluginError(f"logits(arrays, x) must return an array of numbers (got {type(made).__name__})") from None
    if z.ndim < 2 or len(z) != m or z.shape[1] < 2:
        two = "; with one score z per sample for two classes, return numpy.stack([-z / 2, z / 2], axis=1)"
        raise PluginError(
            f"logits(arrays, x) must return one row per sample and one column per class, [{m}, classes] "
            f"(got {list(z.shape)}){two if z.size == m else ''}"
        )
    return torch.tensor(z)
