"""Policies saved as TorchScript."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from vlbm.errors import InputError, require
from vlbm.policies.base import HostPolicy


class TorchScriptPolicy(HostPolicy):
    """A TorchScript module, called on the CPU.

    `forward` takes observations `[batch, obs]` and gives actions, or a tuple whose first part is the
    actions. If the module exports a method `sample`, it draws the random actions, from PyTorch's
    generator seeded by the key; otherwise the policy always acts by `forward`.
    """

    def __init__(self, path: Path):
        self.path = path
        self._torch = require("torch", extra="torch", purpose="Running a TorchScript policy")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated in PyTorch
                self._module = self._torch.jit.load(str(path), map_location="cpu").eval()
        except Exception as error:  # PyTorch raises what it likes for a damaged file
            raise InputError(f"{path}: not a readable TorchScript file ({_first_line(error)})") from error
        floats = (tensor.dtype for tensor in self._module.parameters() if tensor.is_floating_point())
        self._dtype = next(floats, self._torch.float32)

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, " batch *act"]:
        return self._run(self._module, observation)

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Shaped[np.ndarray, " batch *act"]:
        if not hasattr(self._module, "sample"):
            return self.mean(observation)
        # The generator is global; its state is restored afterwards.
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
            return self._run(self._module.sample, observation)

    def _run(self, function: Any, observation: Float[np.ndarray, "batch obs"]) -> np.ndarray:
        batch = self._torch.tensor(np.asarray(observation), dtype=self._dtype)
        try:
            with self._torch.no_grad():
                output = function(batch)
        except RuntimeError as error:
            raise InputError(
                f"{self.path}: the policy failed on observations of shape {tuple(batch.shape)} "
                f"({_first_line(error)})"
            ) from error
        output = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(output, self._torch.Tensor):
            raise InputError(
                f"{self.path}: the policy gave a {type(output).__name__}, not a tensor of actions"
            )
        return output.numpy()


def _first_line(error: Exception) -> str:
    """PyTorch says what is wrong at the end of the trace of the script."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else repr(error))
