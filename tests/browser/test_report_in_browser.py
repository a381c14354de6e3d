"""A report of real runs, opened in headless Chromium: nothing missing, nothing in the way.

Skipped without Chromium, its driver and selenium; `make test-browser` installs them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_app.grid import LocalGrid
from server_app.run import run_server
from tests import tiny_run

selenium = pytest.importorskip("selenium", reason="selenium is missing: make test-browser")
from selenium.webdriver import Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage"
)
"""A page of a file needs no network, and tries none with these."""
ARMS = (
    ("strategy=fedrecgel", "strategy.sam.rho_shared=0", "strategy.sam.rho_private=0.02"),
    ("strategy=fedrecgel", "strategy.sam.rho_shared=0.1", "strategy.sam.rho_private=0.02"),
    ("strategy=fedmf",),
)
ROUNDS = "federation.rounds=3"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three arms and two seeds, and a landscape of two of the runs."""
    root = tmp_path_factory.mktemp("browser")
    (root / "data").mkdir()
    runs = root / "data" / "runs"
    for arm, words in enumerate(ARMS):
        for seed in (0, 1):
            kept = ("evaluation.user_ranks=true", "evaluation.item_drift=true")
            more = (f"name=arm-{arm}-{seed}", f"seed={seed}", "evaluation.every=1", ROUNDS)
            cfg = tiny_run.config(root / "data", *words, *kept, *more, f"output={runs}")
            run_server(LocalGrid(cfg.federation.num_nodes), cfg)
    drawn = ("--grid", "5", "--users", "10", "--out", str(root / "landscape"))
    _command("landscape", str(runs / "arm-0-0"), str(runs / "arm-1-0"), *drawn)
    _command("report", str(runs), "--out", str(root / "report"))
    return root / "report" / "report.html"


def _command(*words: str) -> None:
    code = "from server_app.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is missing: make test-browser")
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for word in QUIET.split():
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


def _open(browser: Any, page: Path, width: int) -> None:
    sizes = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    browser.get_log("performance")
    browser.get(page.as_uri())
    assert browser.execute_script("return window.innerWidth") == width


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_fits_and_every_figure_is_there(browser: Any, page: Path, width: int) -> None:
    _open(browser, page, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(figure => {"
        "  const image = figure.querySelector('img, svg'), box = image.getBoundingClientRect();"
        "  const drawn = image.tagName === 'IMG' ? image.complete && image.naturalWidth > 0"
        "                                        : image.childElementCount > 0;"
        "  return [figure.innerText, drawn, box.left, box.right, box.height];"
        "})"
    )
    assert len(figures) >= 6, [said for said, *_ in figures]
    for said, drawn, left, right, height in figures:
        assert said.strip() and drawn, said
        assert left >= 0 and right <= width and height >= 100, (said, left, right, height)


def test_wide_tables_scroll_in_their_own_box(browser: Any, page: Path) -> None:
    _open(browser, page, 400)
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('table')].map(table => {"
        "  const box = table.parentElement;"
        "  box.scrollLeft = 100000;"
        "  return [table.scrollWidth, box.clientWidth, box.scrollLeft];"
        "})"
    )
    assert any(table > box for table, box, _ in boxes)
    for table, box, scrolled in boxes:
        assert box <= 400
        assert scrolled >= table - box - 1, (table, box, scrolled)


def test_every_link_of_the_contents_leads_somewhere(browser: Any, page: Path) -> None:
    _open(browser, page, 400)
    links = browser.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].map("
        "  link => document.getElementById(decodeURIComponent(link.hash.slice(1))) !== null)"
    )
    assert links and all(links)


def test_nothing_is_asked_of_a_network(browser: Any, page: Path) -> None:
    _open(browser, page, 1200)
    asked = [entry["message"] for entry in browser.get_log("performance")]
    requests = [text for text in asked if '"Network.requestWillBeSent"' in text]
    assert requests
    assert not [text for text in requests if '"url":"http' in text]


def test_a_dark_page_has_readable_text(browser: Any, page: Path) -> None:
    """WCAG 2.1, 1.4.3: contrast of at least 4.5 between text and ground, in both schemes."""
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        _open(browser, page, 1200)
        text, ground = browser.execute_script(
            "const style = getComputedStyle(document.body);"
            "const of = css => css.match(/[\\d.]+/g).slice(0, 3).map(Number);"
            "const root = getComputedStyle(document.documentElement).backgroundColor;"
            "const own = style.backgroundColor;"
            "return [of(style.color), of(own.includes(', 0)') ? root : own)];"
        )
        lighter, darker = sorted([_luminance(text), _luminance(ground)], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (scheme, text, ground)


def _luminance(rgb: list[float]) -> float:
    """Relative luminance as WCAG 2.1 defines it, of 0 to 255 a channel."""
    shares = [channel / 255 for channel in rgb]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
