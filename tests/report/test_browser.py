"""The page in a real browser: headless Chromium."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pages import NAMES, made_comparison

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")

EVIL = "<script>alert(1)</script>"
PHONE = {"width": 390, "height": 844}
# Without these, Chromium calls home as it starts, and cannot run as root.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as player:
        try:
            started = player.chromium.launch(executable_path=path, args=list(QUIET))
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[..., Path]:
    """Pages by what is on them, each written once."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def write(names: tuple[str, ...] = NAMES, **sizes: int) -> Path:
        key = (names, *sorted(sizes.items()))
        if key not in made:
            made[key] = folder / f"{len(made)}.html"
            made_comparison(names, **sizes).report(made[key])
        return made[key]

    return write


@pytest.fixture
def visit(browser, written) -> Iterator[Callable[..., playwright.Page]]:
    """Opens a page; whatever it complains about or asks the network for fails the test."""
    contexts, complaints = [], []

    def open_page(path: Path | None = None, **options) -> playwright.Page:
        context = browser.new_context(**options)
        contexts.append(context)
        path = written() if path is None else path
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: complaints.append(f"request: {request.url[:80]}"))
        page.goto(path.as_uri())
        assert complaints.pop(0) == f"request: {path.as_uri()[:80]}"
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in complaints if not text.startswith("request: data:")] == []


def names_in_order(page) -> list[str]:
    return page.locator(".ranking .opener .name").all_inner_texts()


def colour(text: str) -> tuple[float, float, float]:
    digits = re.findall(r"[\d.]+", text)[:3]
    return float(digits[0]), float(digits[1]), float(digits[2])


def contrast(first: str, second: str) -> float:
    """As WCAG defines it."""

    def light(text: str) -> float:
        parts = [part / 255 for part in colour(text)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palette(page) -> dict[str, str]:
    """Every colour of the style sheet as the browser sees it."""
    return page.evaluate(
        """() => {
          const probe = document.body.appendChild(document.createElement("i"));
          const names = ["ink", "soft", "paper", "panel", "accent", "logged", "sound", "caution", "doubtful"];
          for (let i = 0; i < 8; i++) names.push("c" + i);
          const found = {};
          for (const name of names) {
            probe.style.color = `var(--${name})`;
            found[name] = getComputedStyle(probe).color;
          }
          probe.remove();
          return found;
        }"""
    )


def test_it_loads_without_complaints_and_without_the_network(visit):
    page = visit(offline=True)
    assert page.title() == "snail is estimated best"
    assert page.locator("h1").inner_text().startswith("snail is estimated best of 3")
    assert page.locator("svg").count() > 10


def test_a_click_on_a_heading_sorts_and_another_turns_the_order(visit):
    page = visit()
    assert names_in_order(page) == ["snail", "hare", "tortoise"]
    heading = page.get_by_role("columnheader", name="Policy")
    heading.get_by_role("button").click()
    assert names_in_order(page) == ["hare", "snail", "tortoise"]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").click()
    assert names_in_order(page) == ["tortoise", "snail", "hare"]
    assert page.locator("[aria-sort]").count() == 1
    page.get_by_role("columnheader", name="CVaR").get_by_role("button").click()
    assert names_in_order(page) == ["snail", "hare", "tortoise"]
    assert page.locator("#announcements").inner_text() == "Sorted by CVaR 10 %, descending"


def test_a_row_opens_and_closes_and_goes_with_its_details_when_sorted(visit):
    page = visit()
    row = page.locator(".policy-row", has_text="hare")
    detail = page.locator(f"#{row.locator('.opener').get_attribute('aria-controls')}")
    assert detail.is_hidden()
    row.locator("td.value").click()
    assert detail.is_visible()
    assert detail.get_by_role("heading", name="Where it leaves the data").is_visible()
    page.get_by_role("columnheader", name="Policy").get_by_role("button").click()
    assert row.evaluate("row => row.nextElementSibling.id") == detail.get_attribute("id")
    row.locator(".opener").click()
    assert detail.is_hidden()


def test_the_keyboard_is_enough(visit):
    page = visit()
    opener = page.locator(".opener").first
    opener.focus()
    page.keyboard.press("Enter")
    assert opener.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Space")
    assert opener.get_attribute("aria-expanded") == "false"
    page.get_by_role("button", name="Open all").focus()
    page.keyboard.press("Enter")
    assert page.locator("tr.detail:visible").count() == 3
    page.get_by_role("button", name="Close all").click()
    assert page.locator("tr.detail:visible").count() == 0


def test_dimensions_can_be_chosen(visit, written):
    page = visit(written(dimensions=5))
    page.locator(".opener").first.click()
    detail = page.locator("tr.detail").first
    courses = detail.get_by_role("heading", name=re.compile(r"Observation \d"))
    assert courses.all_inner_texts()[:3] == ["Observation 0", "Observation 1", "Observation 2"]
    chip = detail.get_by_role("button", name="Observation 4")
    chip.click()
    assert courses.count() == 4
    assert chip.get_attribute("aria-pressed") == "true"
    detail.get_by_role("button", name="Observation 0").click()
    assert detail.get_by_role("heading", name="Observation 0").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read_in_light_and_dark(scheme, visit):
    page = visit(color_scheme=scheme)
    found = palette(page)
    assert (sum(colour(found["paper"])) < 200) == (scheme == "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == found["paper"]
    for ground in ("paper", "panel"):
        for name in ("ink", "soft", "accent"):
            assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
        for name in ("logged", "sound", "caution", "doubtful", *(f"c{index}" for index in range(8))):
            assert contrast(found[name], found[ground]) >= 3, (name, ground)


def test_on_a_phone_nothing_sticks_out_and_everything_is_large_enough(visit, written):
    page = visit(written((*NAMES, "x" * 200)), viewport=PHONE)
    page.get_by_role("button", name="Open all").click()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator(".policy-row").first.evaluate("row => getComputedStyle(row).display") == "grid"
    heights = page.locator("svg.plot text.tick:visible").evaluate_all(
        "texts => texts.map(text => text.getBoundingClientRect().height)"
    )
    assert min(heights) >= 10
    widths = page.locator("figure:visible").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert max(widths) <= PHONE["width"]


def test_on_paper_the_dark_page_is_white_and_without_buttons(visit):
    page = visit(color_scheme="dark", viewport={"width": 690, "height": 1000})  # A4 within its margins
    page.emulate_media(media="print")
    assert page.locator(".ranking").evaluate("table => getComputedStyle(table).display") == "table"
    assert page.evaluate("document.documentElement.scrollWidth") == 690
    assert colour(page.evaluate("getComputedStyle(document.body).backgroundColor")) == (255, 255, 255)
    assert page.locator("nav").is_hidden()
    assert page.locator(".button:visible").count() == 0
    assert page.pdf()[:5] == b"%PDF-"


def test_without_a_script_everything_is_shown(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("tr.detail").first.is_visible()


def test_the_csv_equals_the_json(visit, tmp_path):
    page = visit()
    kept = {}
    for name in ("CSV", "JSON"):
        with page.expect_download() as waiting:
            page.get_by_role("link", name=name).click()
        download = waiting.value
        download.save_as(tmp_path / download.suggested_filename)
        kept[download.suggested_filename] = (tmp_path / download.suggested_filename).read_text()
    rows = list(csv.DictReader(io.StringIO(kept["estimates.csv"])))
    records = json.loads(kept["estimates.json"])["records"]
    assert len(rows) == 6
    assert rows == [
        {name: "" if value is None else str(value) for name, value in record.items()} for record in records
    ]


def test_a_name_with_a_script_shows_as_text(visit, written):
    page = visit(written((EVIL, "tame")))
    page.get_by_role("button", name="Open all").click()
    assert EVIL in names_in_order(page)
    assert page.locator("script").count() == 1


def test_no_other_script_could_run(browser, written):
    page = browser.new_page()
    page.goto(written().as_uri())
    with pytest.raises(playwright.Error, match="Content Security Policy"):
        page.add_script_tag(content="document.title = 'owned'")
    assert page.title() == "snail is estimated best"
    page.close()


def test_a_page_of_eleven_policies_opens_within_two_seconds(browser, written):
    path = written(tuple(f"policy_{index}" for index in range(11)), dimensions=24, points=600)
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    # Time that the page's thread was busy: what else the machine does is not the page's fault.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 2
    page.close()
