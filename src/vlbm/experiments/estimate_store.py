"""EstimateStore: finished estimates of a comparison, with diagnostics for its page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlbm.errors import InputError
from vlbm.estimators.base import flatten_settings
from vlbm.experiments.evidence.collect import Evidence
from vlbm.experiments.evidence.store import load_evidence, save_evidence
from vlbm.experiments.executors.base import Failure, Finished, Outcome
from vlbm.experiments.plan import Cell, Question
from vlbm.experiments.run import Store
from vlbm.results.estimates import Estimates
from vlbm.storage import check_identity, read_information


class EstimateStore(Store[Outcome]):
    """Files of the form METHOD-SEED.safetensors in a directory; without one nothing is kept."""

    def __init__(self, question: Question, directory: Path | None, *, resume: bool):
        self.question = question
        self.directory = directory
        self.resume = resume

    def load(self, cell: Cell) -> Outcome | None:
        """Estimates of something else are the failure of their method."""
        if self.directory is None or not self.resume:
            return None
        file, evidence_file = self._name_files(self.directory, cell)
        if not file.is_file() or (cell.evidence and not evidence_file.is_file()):
            return None
        try:
            check_identity(file, read_information(file)["identity"], self._identify(cell))
            evidence = load_evidence(evidence_file, Evidence) if cell.evidence else None
            return Finished(Estimates.load(file), evidence)
        except InputError as error:
            return Failure.of(error)

    def keep(self, cell: Cell, outcome: Outcome) -> Outcome:
        if self.directory is None or isinstance(outcome, Failure):
            return outcome
        file, evidence_file = self._name_files(self.directory, cell)
        outcome.estimates.save(file, identity=self._identify(cell))
        if outcome.evidence is not None:
            save_evidence(evidence_file, outcome.evidence)
        return outcome

    def prepare(self, cell: Cell) -> Cell:
        if self.directory is None:
            return cell
        return cell.keep_in(self.directory / f"{cell.method}-{cell.seed}", resume=self.resume)

    def _identify(self, cell: Cell) -> dict[str, Any]:
        """What a finished estimate must have been made from to be taken again."""
        return {
            "settings": flatten_settings(asdict(cell.estimator)),
            "data": self.question.fingerprint,
            "policies": list(self.question.policies),
            **vars(self.question.estimand),
            "confidence": cell.confidence,
        }

    @staticmethod
    def _name_files(directory: Path, cell: Cell) -> tuple[Path, Path]:
        """The files of estimates and of their evidence."""
        name = f"{cell.method}-{cell.seed}"
        return directory / f"{name}.safetensors", directory / f"{name}-evidence.safetensors"
