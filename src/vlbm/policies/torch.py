"""Policies saved as TorchScript."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from vlbm.errors import InputError, require
from vlbm.policies.archives import pack_again, unpack
from vlbm.policies.base import HostPolicy
from vlbm.policies.pickles import check_storages

# Operations that reach outside, or into memory, whatever they are called on.
FORBIDDEN = re.compile(r"\b(save|from_file|load_tensor|data_ptr|rpc_\w+)\b")


class TorchScriptPolicy(HostPolicy):
    """A TorchScript module, called on the CPU.

    `forward` takes observations `[batch, obs]` and gives actions, or a tuple whose first part is the
    actions. If the module exports a method `sample`, it draws the random actions, from PyTorch's
    generator seeded by the key; otherwise the policy always acts by `forward`. On data with discrete
    actions, whole numbers are ids, and one float for every action is a probability or a logit: these are
    then the whole policy (`ScoredPolicy`), and `sample` is not called.
    """

    may_give_scores = True

    def __init__(self, path: Path):
        self.path = path
        self._torch = require("torch", extra="torch", purpose="Running a TorchScript policy")
        try:
            # The inputs that a module was traced with are not needed, and often not there.
            members = {name: part for name, part in unpack(path).items() if "traced_inputs" not in name}
            _check_code(members)
            check_storages(members)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated in PyTorch
                packed = pack_again(members)
                self._module = self._torch.jit.load(packed, map_location="cpu").eval()
            tensors = [*self._module.parameters(), *self._module.buffers()]
            # A tensor with a stride of 0 can be of any size.
            if sum(tensor.nbytes for tensor in tensors) > 4 * sum(map(len, members.values())):
                raise ValueError("its tensors claim more numbers than it holds")
        except InputError:
            raise
        except Exception as error:  # PyTorch raises what it likes for a damaged file
            raise InputError(f"{path}: not a readable TorchScript file ({_last_error(error)})") from error
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
        except Exception as error:  # whatever the script raises
            raise InputError(
                f"{self.path}: the policy failed on observations of shape {tuple(batch.shape)} "
                f"({_last_error(error)})"
            ) from error
        output = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(output, self._torch.Tensor):
            raise InputError(
                f"{self.path}: the policy gave a {type(output).__name__}, not a tensor of actions"
            )
        return output.numpy()


def _check_code(members: dict[str, bytes]) -> None:
    """Refuse what a script could do beside computing: PyTorch lets it read and write files, and more."""
    if "model.json" in members:
        raise ValueError("written by an old version of PyTorch; save it again")
    for name, content in members.items():
        if not name.endswith(".py"):
            continue
        code = content.decode()
        found = FORBIDDEN.search(code)
        if found:
            raise ValueError(f"its code asks for '{found[0]}', which a policy has no use for")
        if len(re.findall(r"\bops\b", code)) > len(re.findall(r"\bops\.(?:prim|aten|quantized)\.\w", code)):
            raise ValueError("its code asks for operations that are not those of tensors")


def _last_error(error: Exception) -> str:
    """PyTorch says what is wrong at the end of the trace of the script."""
    lines = [line.strip()[:200] for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else repr(error))
