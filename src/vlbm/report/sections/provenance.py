"""Where the numbers come from, and how to reproduce them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vlbm.report.downloads import make_downloads
from vlbm.report.findings import Findings
from vlbm.report.logs import describe_backtests
from vlbm.report.numbers import format_count, format_number, format_percent
from vlbm.report.parts import Block, Bullets, Code, Facts, Prose, Section
from vlbm.report.sections.methods import seeds_note
from vlbm.version import VERSION

MOST_NAMES = 12  # of observations or actions


def provenance_section(findings: Findings) -> Section:
    """Data, settings, seed, version, commands, and the numbers as files."""
    comparison = findings.comparison
    blocks: list[Block] = [make_downloads(findings), Facts(_list_facts(findings))]
    note = seeds_note(findings)
    if note is not None:
        blocks.append(note)
    tests = describe_backtests(findings.backtests, findings.write)
    if tests:
        blocks.append(Prose(tests))
    logged = comparison.logged
    if logged is not None:
        items = [("caution", text) for text in logged.warnings] + [("note", text) for text in logged.notes]
        if items:
            blocks.append(Bullets(tuple(items)))
    blocks.append(Code(_write_commands(findings), "Reproduce it"))
    for method, found in comparison.estimates.items():
        blocks.append(
            Code(json.dumps(dict(found[0].settings), indent=2), f"Settings of {method}", opened=False)
        )
    return Section("provenance", "Provenance", tuple(blocks))


def _list_facts(findings: Findings) -> tuple[tuple[str, str], ...]:
    comparison, estimates = findings.comparison, findings.estimates
    data, logged = estimates.data, comparison.logged
    # A command says itself which files it reads.
    named = comparison.task or data.get("path") or ("" if comparison.command else "in memory")
    facts = [("data", str(named))] if named else []
    if logged is not None:
        vector = "choices" if logged.discrete else "numbers"
        observed, acted = map(_list_names, (logged.observation_names, logged.action_names))
        facts += [
            ("checksum", logged.fingerprint),
            ("logged", f"{format_count(logged.episodes, 'episode')}, {format_count(logged.steps, 'step')}"),
            (
                "spaces",
                f"observations {logged.observation_size}{observed}, actions {logged.action_size} ({vector})"
                f"{acted}",
            ),
            (
                "mean logged return",
                f"{findings.write(logged.mean)} ± {findings.write(logged.standard_error)}",
            ),
            ("terminated", f"{format_percent(logged.terminated)} of the episodes"),
        ]
        if logged.truncated:
            facts.append(("truncated before the horizon", format_count(logged.truncated, "episode")))
    elif "episodes" in data:
        facts.append(
            ("logged", f"{format_count(data['episodes'], 'episode')}, {format_count(data['steps'], 'step')}")
        )
    seeds = sorted({part.seed for found in comparison.estimates.values() for part in found})
    facts += [
        ("method", ", ".join(comparison.estimates)),
        ("estimated", str(estimates.estimand)),
        *((name, str(estimates.settings[name])) for name in ("episodes",) if name in estimates.settings),
        ("seed", ", ".join(map(str, seeds))),
        ("time", f"{format_number(comparison.seconds(findings.method), 0)} s per seed for {findings.method}"),
        ("version", f"vlbm {VERSION}"),
    ]
    return tuple(facts)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f": {', '.join(names[:MOST_NAMES])}{more}" if names else ""


def _write_commands(findings: Findings) -> str:
    comparison, estimates = findings.comparison, findings.estimates
    install = f"# vlbm {VERSION}, installed from a clone: pip install -c constraints.txt ."
    if comparison.command is not None:
        return f"{install}\n{comparison.command}"
    data, method = estimates.data.get("path") or "DATA", findings.method
    arguments = " ".join(f"--{name} {value}" for name, value in estimates.estimand.arguments.items())
    return (
        f"{install}\nvlbm evaluate {data} POLICY... --method {method} {arguments} "
        f"--seed {estimates.seed} --report report.html"
    )
