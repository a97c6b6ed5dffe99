"""Take them: `python -m scripts.screenshots [FOLDER]`; light and dark, and one as on a phone."""

from __future__ import annotations

import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Literal, TypeAlias

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from scripts.screenshots.shop import open_shop

_ROOT = Path(__file__).parents[2]
_CHROMIUM = "/usr/bin/chromium"
_COLOURS = 64
"""Enough for what has no pictures, and a quarter of the bytes."""
_SIZE = (1240, 800)
_PHONE = (390, 780)
_Look: TypeAlias = Literal["light", "dark"]
_LOOKS: tuple[_Look, ...] = ("light", "dark")
_PAGES = {
    "overview": "/",
    "failed": "/failed",
    "queues": "/queues",
    "workers": "/workers",
    "jobs": "/jobs?place=delayed&connection=redis&queue=mail",
    "batches": "/batches",
    "classes": "/classes",
    "class": "/classes/shop.mail.SendReceipt",
    "schedules": "/schedules",
}


def main() -> int:
    """Take them all; says what was written."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "docs" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="shop-") as temporary,
        open_shop(Path(temporary)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        pages = {**_PAGES, "job": _one_failed(browser, address)}
        for look in _LOOKS:
            for name, path in pages.items():
                _take(browser, address + path, folder / f"{name}-{look}.png", look, _SIZE)
        _take(browser, address + "/", folder / "phone-light.png", "light", _PHONE)
        _take(browser, address + "/failed", folder / "phone-dark.png", "dark", _PHONE)
        browser.close()
    sizes = {each.name: each.stat().st_size for each in sorted(folder.glob("*.png"))}
    for name, size in sizes.items():
        print(f"{size:>8,} {name}")
    print(f"{sum(sizes.values()):>8,} bytes in {folder}")
    return 0


def _one_failed(browser: Browser, address: str) -> str:
    """Give the path of a failed payment, whose payload has a secret in it."""
    page = browser.new_page()
    page.goto(f"{address}/failed?filter=queue:payments")
    link = page.locator("tbody th a").first.get_attribute("href")
    page.close()
    return str(link)


def _take(
    browser: Browser,
    address: str,
    file: Path,
    look: Literal["light", "dark"],
    size: tuple[int, int],
) -> None:
    wide, high = size
    page = browser.new_page(
        viewport={"width": wide, "height": high}, color_scheme=look, device_scale_factor=1
    )
    page.goto(address)
    page.wait_for_timeout(300)  # what is shown first, and the first look of the live part
    shot = Image.open(BytesIO(page.screenshot()))
    page.close()
    shot.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
