"""Policies saved as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from vlbm.errors import InputError, first_line, require
from vlbm.policies.archives import read_whole
from vlbm.policies.base import HostPolicy
from vlbm.policies.onnx_content import names_other_files

FLOATS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


class ONNXPolicy(HostPolicy):
    """An ONNX graph from observations `[batch, obs]` to actions, its first output; further ones are ignored.

    It is deterministic: a graph has no seed to set. Whole numbers are ids of discrete actions. On data with
    discrete actions, one float for every action is a probability or a logit (`ScoredPolicy`). A graph that
    was exported for a fixed batch is run as often as it takes, the last time on repeated rows; a free batch
    is much faster.
    """

    may_give_scores = True

    def __init__(self, path: Path):
        self.path = path
        runtime = require("onnxruntime", extra="onnx", purpose="Running an ONNX policy")
        content = read_whole(path)
        try:
            elsewhere = names_other_files(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not a readable ONNX file ({error})") from error
        if elsewhere:
            raise InputError(
                f"{path}: keeps its weights in other files, which are not read; save it as one file "
                "(onnx.save without save_as_external_data)"
            )
        options = runtime.SessionOptions()
        # Single-threaded: policies are small, and the roll-out uses the other cores.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = runtime.InferenceSession(
                content, sess_options=options, providers=["CPUExecutionProvider"]
            )
            inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        except Exception as error:  # the runtime has a class of error for each way to fail
            raise InputError(f"{path}: not a readable ONNX file ({first_line(error)})") from error
        if len(inputs) != 1 or inputs[0].type not in FLOATS or len(inputs[0].shape) != 2:
            listed = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
            raise InputError(f"{path}: a policy takes one float input [batch, obs]; this one takes {listed}")
        if not outputs or not outputs[0].type.startswith("tensor("):
            raise InputError(f"{path}: a policy gives a tensor of actions first; this one gives none")
        self._input, self._output = inputs[0].name, outputs[0].name
        self._dtype = FLOATS[inputs[0].type]
        self._batch, self.observation_size = (_fixed_size(size) for size in inputs[0].shape)
        floats = outputs[0].type in FLOATS
        if floats and len(outputs[0].shape) == 2:
            self.action_size = _fixed_size(outputs[0].shape[1])
        # Several floats are an action vector, or one for every discrete action: the data will tell.
        self.discrete = not floats if not floats or self.action_size == 1 else None

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Shaped[np.ndarray, " batch *act"]:
        rows = np.asarray(observation, self._dtype)
        if self._batch is None or self._batch == len(rows):
            return self._run(rows)
        short = -len(rows) % self._batch
        whole = np.concatenate([rows, np.repeat(rows[-1:], short, axis=0)])
        parts = [self._run(part) for part in np.split(whole, len(whole) // self._batch)]
        if any(len(np.atleast_1d(part)) != self._batch for part in parts):
            raise InputError(f"{self.path}: the policy gave no action for each of {self._batch} observations")
        return np.concatenate(parts)[: len(rows)]

    def _run(self, rows: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(self._session.run([self._output], {self._input: rows})[0])
        except Exception as error:
            raise InputError(
                f"{self.path}: the policy failed on observations of shape {rows.shape} ({first_line(error)})"
            ) from error


def _fixed_size(size: Any) -> int | None:
    """Free sizes are texts or None, and some exporters write them as -1 or 0."""
    return size if isinstance(size, int) and size > 0 else None
