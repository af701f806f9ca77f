"""Where the numbers come from, and how to make them again."""

from __future__ import annotations

import json

from vlbm.report.downloads import downloads
from vlbm.report.findings import Findings
from vlbm.report.numbers import count, number, percent
from vlbm.report.parts import Block, Bullets, Code, Facts, Section
from vlbm.report.sections.methods import seeds_note
from vlbm.version import VERSION


def provenance_section(findings: Findings) -> Section:
    """Data, settings, seed, version, commands, and the numbers as files."""
    comparison = findings.comparison
    blocks: list[Block] = [downloads(findings), Facts(_facts(findings))]
    note = seeds_note(findings)
    if note is not None:
        blocks.append(note)
    logged = comparison.logged
    if logged is not None:
        told = [("caution", text) for text in logged.warnings] + [("note", text) for text in logged.notes]
        if told:
            blocks.append(Bullets(tuple(told)))
    blocks.append(Code(_commands(findings), "Make it again"))
    for method, found in comparison.estimates.items():
        blocks.append(
            Code(json.dumps(dict(found[0].settings), indent=2), f"Settings of {method}", opened=False)
        )
    return Section("provenance", "Provenance", tuple(blocks))


def _facts(findings: Findings) -> tuple[tuple[str, str], ...]:
    comparison, estimates = findings.comparison, findings.estimates
    data, logged = estimates.data, comparison.logged
    facts = [("data", str(comparison.task or data.get("path") or "in memory"))]
    if logged is not None:
        vector = "choices" if logged.discrete else "numbers"
        facts += [
            ("checksum", logged.fingerprint),
            ("logged", f"{count(logged.episodes, 'episode')}, {count(logged.steps, 'step')}"),
            ("spaces", f"observations {logged.observation_size}, actions {logged.action_size} ({vector})"),
            (
                "mean logged return",
                f"{findings.write(logged.mean)} ± {findings.write(logged.standard_error)}",
            ),
            ("ended by the system", f"{percent(logged.ended)} of the episodes"),
        ]
        if logged.cut:
            facts.append(("cut off before the horizon", count(logged.cut, "episode")))
    elif "episodes" in data:
        facts.append(("logged", f"{count(data['episodes'], 'episode')}, {count(data['steps'], 'step')}"))
    seeds = sorted({part.seed for found in comparison.estimates.values() for part in found})
    facts += [
        ("method", ", ".join(comparison.estimates)),
        ("estimated", str(estimates.estimand)),
        *((name, str(estimates.settings[name])) for name in ("episodes",) if name in estimates.settings),
        ("seed", ", ".join(map(str, seeds))),
        ("time", f"{number(comparison.seconds(findings.method), 0)} s per seed for {findings.method}"),
        ("version", f"vlbm {VERSION}"),
    ]
    return tuple(facts)


def _commands(findings: Findings) -> str:
    comparison, estimates = findings.comparison, findings.estimates
    install = f"pip install vlbm=={VERSION}"
    if comparison.command is not None:
        return f"{install}\n{comparison.command}"
    data, method = estimates.data.get("path") or "DATA", findings.method
    question = " ".join(f"--{name} {value}" for name, value in estimates.estimand.question.items())
    return (
        f"{install}\nvlbm evaluate {data} POLICY... --method {method} {question} "
        f"--seed {estimates.seed} --report report.html"
    )
