"""The console in a real Chromium: what it shows, that content stays text, and that all can use it.

TESTS_WRITE_SCREENSHOTS=1 writes the pictures of the documentation.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pidlease.core.slots import SLOTS
from pidlease.engine.shared_cluster import SharedCluster
from proxy.http.console_answers import Broker
from tests.console.chromium import HANG_MS, Seen, Served, chromium, page_of, served
from tests.crash.seeds import SOAK
from tests.http_api.appending import path_of, producer
from tests.unit.engine.shared_memory import Coordinator
from tests.unit.engine.test_shared_cluster import all_read, servers

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_IMAGES: Final = Path(__file__).resolve().parents[2] / "docs/images"
_IMAGE_BYTES_MAX: Final = 150_000
_WRITES: Final = bool(os.environ.get("TESTS_WRITE_SCREENSHOTS"))

#: A drawing each two seconds.
_DRAWINGS_PER_HOUR: Final = 1800

#: Content that would act if it were markup.
_SCRIPT: Final = "<script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"

#: The address of each view, with text that it shows, and the picture of it.
_VIEWS: Final = (
    ("#now", "Records a second", "now"),
    ("#partitions", "this server", "partitions"),
    ("#producers?topic=orders", "orders-import", "producers"),
    ("#leases", "of 1,000,000", "leases"),
    ("#refusals", "A later producer has the same identity", "refusals"),
    ("#browse?topic=orders&format=json", '"tea"', "browse"),
    ("#servers", "runs without --shared", ""),
    ("#jobs", "payments-7: 1,312 from offset 80112", "jobs"),
)


#: Reports of two copiers of one group, and of two runs of a query.
_STARTED_MS: Final = 1_790_000_000_000
_QUERY: Final = {
    "kind": "spark", "job": "enrich-orders", "source": "KafkaV2[Subscribe[orders]]",
    "partitions": 12,
}  # fmt: skip
_COPY: Final = {
    "kind": "copy", "job": "mirror", "source": "kafka-a:9092", "started_ms": _STARTED_MS,
    "partitions": 6,
}  # fmt: skip
_LAGGING: Final = {"topic": "payments", "partition": 7, "offset": 80_112, "lag": 1_312}
_JOBS: Final[tuple[dict[str, Any], ...]] = (
    {**_QUERY, "process": "5f0c7a52-4d1e", "state": "failed", "started_ms": _STARTED_MS,
     "reason": "another run of this query has taken over: run-000002", "records": 41_000, "lag": 0},
    {**_QUERY, "process": "b0771c9e-88aa", "started_ms": _STARTED_MS + 400_000,
     "records": 1_204_000, "duplicates": 350, "lag": 18_200, "step_seconds": 4.5},
    {**_COPY, "process": "edge-2:811:7bd0c1f2", "records": 2_051_000, "duplicates": 12,
     "lag": 1_312, "lagging": [_LAGGING]},
    {**_COPY, "process": "edge-1:4711:03aa51ce", "records": 1_977_000, "lag": 0},
)  # fmt: skip


@pytest.fixture
async def browser() -> AsyncIterator["Browser"]:
    async with chromium() as found:
        yield found


async def append(
    console: Served, topic: str, values: list[Any], headers: dict[str, str], **more: Any
) -> int:
    records = [
        value if isinstance(value, dict) else {"value": json.dumps({"drink": value})}
        for value in values
    ]
    response = await console.client.post(
        path_of(topic), json={"records": records, **more}, headers=headers
    )
    return response.status_code


async def fill(console: Served) -> dict[str, Any]:
    """An hour of a shop: a named import that is replaced, sensors with their own ids, a gap."""
    client = console.client
    for name, partitions in (("orders", 1), ("payments", 3), ("sensors", 1)):
        body = {"name": name, "partitions": partitions}
        assert (await client.post("/v1/topics", json=body)).status_code == 201
    wanted = {"topic": "orders", "partition": 0, "name": "orders-import"}
    first = (await client.post("/v1/leases", json=wanted)).json()
    console.history.sample(0)
    sends = 330 if _WRITES else 60
    for n in range(sends):
        at = {"pid": first["pid"], "generation": first["generation"], "first_sequence": n * 2}
        assert await append(console, "orders", ["tea", "coffee"], {}, **at) == 200
        if n % 5 == 0 and n < 60:
            assert await append(console, "orders", ["tea", "coffee"], {}, **at) == 200
        if n % 3 == 0:
            beats = {f"k{i}": i for i in range(n % 17 + 1)}
            device = str(producer("device-7", 0, n // 3)["producer-id"])
            headers = {"Producer-Id": device, "Producer-Epoch": "0", "Producer-Seq": str(n // 3)}
            assert await append(console, "sensors", list(beats), headers) == 200
        console.sample()
    for job in _JOBS:
        assert (await client.post("/v1/jobs", json=job)).status_code == 204
    gap = {"pid": first["pid"], "generation": first["generation"], "first_sequence": 900}
    assert await append(console, "orders", ["tea"], {}, **gap) == 409
    second = (await client.post("/v1/leases", json=wanted)).json()
    stale = {"pid": first["pid"], "generation": first["generation"], "first_sequence": sends * 2}
    for _ in range(3):
        assert await append(console, "orders", ["tea"], {}, **stale) == 409
    console.sample()
    assert second["pid"] == first["pid"]
    return dict(first)


async def show(page: "Page", console: Served, address: str, text: str) -> None:
    await page.goto(f"{console.url}/{address}")
    await page.get_by_text(text).first.wait_for()


async def until(page: "Page", condition: str, argument: Any = None) -> None:
    """Wait for a condition; playwright's own wait needs eval, which the policy forbids."""
    async with asyncio.timeout(HANG_MS / 1000):
        while not await page.evaluate(condition, argument):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def overflow(page: "Page") -> int:
    """By how many pixels the page is wider than its window."""
    return int(
        await page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
    )


async def picture(page: "Page", name: str) -> None:
    """Write a picture of the documentation, if that is wanted."""
    if _WRITES:
        _IMAGES.mkdir(exist_ok=True)
        path = _IMAGES / f"console-{name}.png"
        await page.screenshot(path=path)
        assert path.stat().st_size < _IMAGE_BYTES_MAX


def check(seen: Seen, console: Served) -> None:
    """Nothing was reported, and nothing came from another host."""
    assert seen.errors == []
    assert all(url.startswith(console.url) for url in seen.urls), seen.urls


# ---------------------------------------------------------------------- the views


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
async def test_each_view(tmp_path: Path, browser: "Browser", width: int, scheme: str) -> None:
    async with served(tmp_path) as console, page_of(browser, width, scheme=scheme) as (page, seen):
        lease = await fill(console)
        one = (f"#producer?pid={lease['pid']}", "lower generations are fenced", "producer")
        for address, text, name in (*_VIEWS, one):
            await show(page, console, address, text)
            assert await overflow(page) <= 0, address
            assert await page.evaluate(_UNLABELLED) == []
            assert await page.evaluate(_LOW_CONTRAST) == []
            if (width, scheme) == (1280, "light") and name:
                await picture(page, name)
            elif name == "now":
                await picture(page, f"{name}-{scheme}-{width}")
        check(seen, console)


#: Fields without a label, tables without a caption, drawings without a text.
_UNLABELLED: Final = """
[...document.querySelectorAll("input, select")].filter((each) => !each.labels.length)
  .concat([...document.querySelectorAll("table")].filter((each) => !each.caption?.textContent))
  .concat([...document.querySelectorAll("svg")].filter((each) => !each.getAttribute("aria-label")))
  .map((each) => each.outerHTML.slice(0, 100))
"""
#: Texts whose contrast is below that of WCAG 2.2, 1.4.3 (AA).
_LOW_CONTRAST: Final = """
(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const part = (value) => {
    value /= 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const back = (each) => {
    for (; each; each = each.parentElement) {
      const found = numbers(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !each.checkVisibility()) continue;
    const pair = [light(numbers(getComputedStyle(each).color)), light(back(each))].sort();
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) found.add(`${each.tagName} ${each.className} ${ratio.toFixed(2)}`);
  }
  return [...found];
})()
"""


async def test_what_the_views_say(tmp_path: Path, browser: "Browser") -> None:
    brokers = (
        Broker(1, "kafka-1:9092", connected=True),
        Broker(2, "kafka-2:9092", connected=False),
    )
    async with served(tmp_path, brokers=brokers) as console, page_of(browser) as (page, seen):
        lease = await fill(console)
        await show(page, console, "#now", "kafka-2:9092")
        tiles = await page.locator(".tiles").inner_text()
        for text in ("Duplicates caught\n12", "Gaps\n1", "Fenced\n3", "Partitions\n5"):
            assert text in tiles, tiles
        assert await page.locator("figure svg").count() == 4
        before = await page.locator(".tiles").inner_text()
        assert await append(console, "payments", ["one more"], {}) == 200
        await until(
            page, "(before) => document.querySelector('.tiles').innerText !== before", before
        )

        await page.get_by_role("link", name="Partitions").click()
        await page.get_by_label("Part of the topic's name").fill("PAY")
        await page.get_by_role("button", name="Show").click()
        await page.wait_for_url("**/#partitions?search=PAY")
        await until(page, "document.querySelectorAll('tbody tr').length === 3")

        await page.get_by_role("link", name="Refusals").click()
        await page.get_by_role("link", name="fenced").click()
        await until(page, "document.querySelectorAll('table')[1].rows.length === 4")
        await page.get_by_role("link", name=str(lease["pid"])).first.click()
        await page.get_by_role("heading", name="Timeline").wait_for()
        shown = await page.locator(".timeline").inner_text()
        for text in ("fenced", "gap", "expected 120", "duplicate caught", "PID leased"):
            assert text in shown, shown

        await show(page, console, "#producers?name=device-7", "device-7")
        await show(page, console, "#producer?pid=-1&name=device-7", "its own id")
        await show(page, console, "#producer?pid=12345", "has no lease of the PID")
        await show(page, console, "#producers?pid=x", "pid:")
        check_expected(seen)


def check_expected(seen: Seen) -> None:
    """Chromium reports the responses with errors that the test has asked for, and no more."""
    assert all("Failed to load resource" in each for each in seen.errors), seen.errors


async def test_servers_and_their_slots(
    tmp_path: Path, browser: "Browser", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three share a cluster. One ends: its slots have no owner until they are divided again."""
    shared = Coordinator()
    monkeypatch.setattr(SharedCluster, "_run", _only_when_asked)
    async with (
        served(tmp_path) as console,
        servers(shared, 1, 2, 3) as sharing,
        page_of(browser) as (page, seen),
    ):
        await show(page, console, "#servers", "runs without --shared")
        for each in sharing:
            each.cluster.topics = lambda: {"orders": 99}
        await all_read(sharing)
        own = sharing[1].cluster
        console.server.engine.shared_cluster = own  # type: ignore[misc]
        await page.get_by_text("host:2 (this one)").wait_for()
        labels = await page.locator(".slots svg").evaluate_all(
            "all => all.map((each) => each.getAttribute('aria-label'))"
        )
        owned = [int(label.split()[2]) for label in labels]
        assert (len(owned), sum(owned)) == (3, SLOTS)
        assert min(owned) > SLOTS // 4
        rows = [row.split("\t") for row in await page.locator("tbody tr").all_inner_texts()]
        assert [row[-1] for row in rows] == ["divides the slots", "serves", "serves"]
        assert sum(int(row[-2]) for row in rows) == 99
        await picture(page, "servers")
        await page.set_viewport_size({"width": 400, "height": 800})
        await page.emulate_media(color_scheme="dark")
        assert await overflow(page) <= 0
        assert await page.evaluate(_UNLABELLED) == []
        assert await page.evaluate(_LOW_CONTRAST) == []

        del shared.members[3]
        shared.members[2] = shared.members[2]._replace(draining=True)
        await own.refresh()
        await page.get_by_text("hands its slots over").wait_for()
        tiles = await page.locator(".tiles").inner_text()
        assert f"Slots without owner\n{owned[2]}" in tiles, tiles
        label = f"No server has {owned[2]} of {SLOTS} slots"
        assert await page.locator(f"[aria-label^='{label}']").count() == 1
        own.pings.note_refusal(1)
        await page.get_by_text("does not answer").wait_for()
        check(seen, console)


async def _only_when_asked(self: SharedCluster) -> None:
    """The test says when members and map are read."""
    await asyncio.Event().wait()


async def test_browsing_in_pages_and_by_time(tmp_path: Path, browser: "Browser") -> None:
    async with served(tmp_path) as console, page_of(browser) as (page, seen):
        body = {"name": "t", "partitions": 1}
        assert (await console.client.post("/v1/topics", json=body)).status_code == 201
        records = [
            {"value": f"v{n}", "timestamp_ms": 1_760_000_000_000 + n * 1000} for n in range(150)
        ]
        assert await append(console, "t", records, {}) == 200
        await show(page, console, "#browse?topic=t", "v99")
        await page.get_by_role("link", name="Next page").click()
        await page.get_by_text("v149").wait_for()
        assert await page.locator("tbody tr").count() == 50
        await page.get_by_role("link", name="First page").click()
        await page.get_by_text("v0", exact=True).wait_for()
        await show(page, console, "#browse?topic=t&time=2025-10-09T08:55:40", "v140")
        assert await page.locator("tbody tr").count() == 10
        await show(page, console, "#browse?topic=t&offset=9999", "Continue at offset 0")
        await page.get_by_role("link", name="Continue at offset 0").click()
        await page.get_by_text("v99").wait_for()
        check_expected(seen)


# ---------------------------------------------------------------------- content stays text


async def test_markup_in_records_and_names_stays_text(tmp_path: Path, browser: "Browser") -> None:
    async with served(tmp_path) as console, page_of(browser) as (page, seen):
        body = {"name": "t", "partitions": 1}
        assert (await console.client.post("/v1/topics", json=body)).status_code == 201
        wanted = {"topic": "t", "partition": 0, "name": _SCRIPT}
        lease = (await console.client.post("/v1/leases", json=wanted)).json()
        record = {
            "key": _SCRIPT,
            "value": json.dumps({"text": _SCRIPT}),
            "headers": [{"key": _SCRIPT, "value": _SCRIPT}],
        }
        at = {"pid": lease["pid"], "generation": lease["generation"]}
        assert await append(console, "t", [record], {}, first_sequence=0, **at) == 200
        assert await append(console, "t", [record], {}, first_sequence=7, **at) == 409
        binary = {"value": {"base64": "//48c2NyaXB0Pg=="}}
        assert await append(console, "t", [binary], {}) == 200
        for address in ("browse?topic=t", "browse?topic=t&format=json", "producers", "leases",
                        f"producer?pid={lease['pid']}", "refusals"):  # fmt: skip
            await show(page, console, f"#{address}", "window.owned = 1")
        await show(page, console, "#browse?topic=t&format=hex", "3c 73 63 72 69 70 74 3e")
        await show(page, console, "#browse?topic=t", "not UTF-8, in hex: ff fe 3c")
        assert await page.evaluate("window.owned") is None
        assert await page.locator("main script, main img").count() == 0
        check(seen, console)


async def test_the_policy_keeps_scripts_and_styles_out(tmp_path: Path, browser: "Browser") -> None:
    async with served(tmp_path) as console, page_of(browser) as (page, seen):
        await show(page, console, "#now", "Records a second")
        check(seen, console)
        blocked = await page.evaluate("""() => {
          const found = [];
          const attempt = (name, work) => {
            try { work(); } catch { found.push(name); }
          };
          attempt("markup", () => { document.body.innerHTML = "<b>x</b>"; });
          attempt("script", () => {
            const made = document.createElement("script");
            made.textContent = "window.ran = 1";
            document.body.append(made);
          });
          const styled = document.createElement("p");
          styled.setAttribute("style", "color: rgb(1, 2, 3)");
          document.body.append(styled);
          if (getComputedStyle(styled).color !== "rgb(1, 2, 3)") found.push("style");
          return found;
        }""")
        assert blocked == ["markup", "script", "style"]
        assert await page.evaluate("window.ran") is None


# -------------------------------------------------------------------- keyboard, a server that fails


async def test_the_keyboard_is_enough(tmp_path: Path, browser: "Browser") -> None:
    async with served(tmp_path) as console, page_of(browser) as (page, seen):
        await fill(console)
        await show(page, console, "#now", "Records a second")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        link = page.get_by_role("link", name="Partitions")
        await link.focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Partitions").wait_for()
        await until(page, "document.activeElement.tagName === 'H2'")
        assert await link.get_attribute("aria-current") == "page"
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.name") == "search"
        await page.keyboard.type("sens")
        await page.keyboard.press("Enter")
        await until(page, "document.querySelectorAll('tbody tr').length === 1")
        assert await page.evaluate("document.activeElement.value") == "sens"
        await page.get_by_role("link", name="sensors-0").focus()
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Browse a topic").wait_for()
        check(seen, console)


async def test_a_server_that_is_not_ready(tmp_path: Path, browser: "Browser") -> None:
    async with served(tmp_path) as console, page_of(browser) as (page, seen):
        await show(page, console, "#now", "Records a second")
        alert = page.get_by_role("alert")
        assert await alert.count() == 0
        console.server.engine.ready = False
        await alert.get_by_text("recovering or stopping").wait_for()
        console.server.engine.ready = True
        await alert.wait_for(state="hidden")
        check_expected(seen)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="it takes minutes: make soak")
@pytest.mark.timeout(1800)
async def test_an_open_page_leaks_nothing(tmp_path: Path, browser: "Browser") -> None:
    """After as many drawings as in an hour, elements, listeners and bytes are as before."""
    async with served(tmp_path) as console, page_of(browser) as (page, _):
        await fill(console)
        cdp = await page.context.new_cdp_session(page)
        await cdp.send("Performance.enable")

        async def used() -> dict[str, float]:
            await cdp.send("HeapProfiler.collectGarbage")
            found = (await cdp.send("Performance.getMetrics"))["metrics"]
            return {each["name"]: each["value"] for each in found}

        await page.clock.install()
        await show(page, console, "#now", "Records a second")
        before: dict[str, float] = {}
        for number in range(_DRAWINGS_PER_HOUR):
            if number % 5 == 0:
                console.sample()
            async with page.expect_response("**/v1/history*"):
                await page.clock.run_for(2000)
            if number == _DRAWINGS_PER_HOUR // 10:
                before = await used()
        after = await used()
    for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize"):
        print(f"{name}: {before[name]:,.0f}, then {after[name]:,.0f}")
    assert after["Nodes"] <= before["Nodes"] + 500
    assert after["JSEventListeners"] <= before["JSEventListeners"] + 50
    assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] * 1.5
