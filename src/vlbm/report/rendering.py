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
    """The template escapes all text; pictures are markup that escapes its own."""
    style, script = _read_asset("style.css"), _read_asset("page.js")
    return (
        _make_environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=Markup(style),
            script=Markup(script),
            # The content security policy allows this script alone, and no requests.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def data_url(download: Download) -> str:
    """The file as a data URL."""
    return f"data:{download.media};charset=utf-8,{quote(download.text)}"


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vlbm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_url"] = data_url
    return environment


@cache
def _read_asset(name: str) -> str:
    return (files("vlbm.report") / "templates" / name).read_text(encoding="utf-8")
