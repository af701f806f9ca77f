"""Pages as self-contained HTML: one file, nothing fetched, nothing run but its own script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vlbm.report.parts import Download, Page
from vlbm.storage import write_text


def write_html(page: Page, path: Path) -> None:
    write_text(path, render(page))


def render(page: Page) -> str:
    """All text is escaped by the template; only pictures, which escape their own, are taken as they are."""
    style, script = _asset("style.css"), _asset("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=Markup(style),
            script=Markup(script),
            # Only this very script may run, and nothing may be fetched: names of policies cannot change that.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def data_address(download: Download) -> str:
    """The file itself, as an address."""
    return f"data:{download.media};charset=utf-8,{quote(download.text)}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vlbm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["address"] = data_address
    return environment


@cache
def _asset(name: str) -> str:
    return (files("vlbm.report") / "templates" / name).read_text(encoding="utf-8")
