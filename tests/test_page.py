"""The page in a browser: figures, keyboard, phone width, themes; the chat and the live numbers.

These stand before a fake server, where every origin and every failure can be had, and once before
the real one.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from starlette.responses import JSONResponse, Response

from draftproof.server.explain import figures_app
from fake_server import SENTENCE, STATS, Fake, chunks, served
from served import markov, serving

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def figures() -> Iterator[str]:
    with served(figures_app()) as url:
        yield url


@pytest.fixture
def fake() -> Fake:
    return Fake()


@contextmanager
def opened(
    browser: Browser, url: str, refused: bool = False, width: int = 1200, **options: Any
) -> Iterator[Page]:
    """A page that says nothing on its console, but that a response was refused where it was."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(5000)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    page.wait_for_selector("html[data-figures=ready]")
    yield page
    context.close()
    assert [text for text in said if not (refused and "Failed to load resource" in text)] == []


@pytest.fixture(scope="module")
def page(browser: Browser, figures: str) -> Iterator[Page]:
    """The figures alone, as the test before left them."""
    with opened(browser, figures) as page:
        yield page


@pytest.fixture
def chat(browser: Browser, fake: Fake) -> Iterator[Page]:
    """The chat, before the fake server."""
    with served(fake.app) as url, opened(browser, url) as page:
        yield page


def stage(page: Page, name: str) -> Locator:
    return page.locator(f"#fig-{name}")


def slide(slider: Locator, value: float) -> None:
    slider.evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')) }", value
    )


def texts(found: Locator) -> list[str]:
    return [text.strip() for text in found.all_text_contents()]


def fits(page: Page) -> bool:
    """Whether nothing makes the page wider than the screen."""
    wide: bool = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return not wide


def test_the_figures_alone_have_neither_chat_nor_live_numbers(page: Page) -> None:
    expect(page.locator("#how")).to_be_visible()
    expect(page.locator(".tabs, #chat, #live").filter(visible=True)).to_have_count(0)
    expect(page.locator(".stage > :first-child")).to_have_count(6)


def test_the_schedule_gives_both_lanes_the_same_text(page: Page) -> None:
    figure = stage(page, "schedule")
    ordinary, speculative = figure.locator(".words").all()
    heads = figure.locator(".lane-head span")
    for k in (1, 4, 8):
        slide(figure.get_by_label("Draft length k"), k)
        expect(figure.locator(".result strong")).to_contain_text(".")
        assert ordinary.text_content() == speculative.text_content()
        assert heads.first.text_content() == "16 passes, 16.0 steps"
    before = ordinary.text_content()
    figure.get_by_role("button", name="Another text").click()
    expect(ordinary).not_to_have_text(before or "")
    expect(speculative).to_have_text(ordinary.text_content() or "")
    slide(figure.get_by_label("Draft cost c"), 1)
    expect(figure.locator(".result")).to_contain_text("a loss")


def test_the_schedule_plays(page: Page) -> None:
    figure = stage(page, "schedule")
    slide(figure.get_by_label("Time"), 0)
    expect(figure.locator(".words .token:not(.ahead)")).to_have_count(0)
    figure.get_by_role("button", name="Play").click()
    expect(figure.locator(".words .token:not(.ahead)").first).to_be_visible()
    figure.get_by_role("button", name="Pause").click()
    assert 0 < float(figure.get_by_label("Time").input_value()) < 16


OUTCOMES = {
    "First mismatch": (0, "the quick brown fox jumped ran"),
    "All accepted + bonus": (4, "the quick brown fox jumped over the lazy dog"),
    "Middle mismatch": (2, "the quick brown fox jumped over the and"),
}


def test_a_round_is_stepped_through(page: Page) -> None:
    figure = stage(page, "round")
    step, back = (figure.get_by_role("button", name=name) for name in ("Step", "Back"))
    for outcome, (accepted, line) in OUTCOMES.items():
        figure.get_by_label(outcome).check()
        expect(figure.locator(".words")).to_have_text("the quick brown fox")
        steps = 1 + 4 + 1 + accepted + 1
        for _ in range(steps):
            step.press("Enter")
        expect(step).to_be_disabled()
        last = "+ bonus" if accepted == 4 else "✗ rejected"
        verdicts = [*accepted * ["✓ accepted"], last, *(4 - accepted) * ["not read"]]
        assert texts(figure.locator(".check-verdict")) == verdicts
        expect(figure.locator(".words")).to_have_text(line)
        back.click()
        expect(figure.locator(".place")).to_have_text(f"{steps} / {steps + 1}")


def test_what_stands_behind_a_rejection_is_not_read(page: Page) -> None:
    figure = stage(page, "checks")
    for accepted in range(5):
        figure.get_by_role("radio").nth(accepted).check()
        expect(figure.locator(".void")).to_have_count(max(0, 4 - accepted))
    expect(figure.locator(".grid-said").last).to_contain_text("adds the bonus")


def test_the_output_is_always_the_target(page: Page) -> None:
    figure = stage(page, "correction")
    rows = figure.locator("tbody tr")
    for mass in (0, 7, 45, 70, 100):
        slide(figure.get_by_role("slider"), mass)
        for row in rows.all():
            p, q, accepted, correction, output = map(float, texts(row.locator("td")))
            assert output == p
            assert accepted <= q
            assert abs(accepted + correction - p) < 0.0011
    figure.get_by_role("button", name="Draft equals target").click()
    expect(figure.locator(".result strong")).to_have_text("100%")
    assert texts(figure.locator("tfoot td")) == ["1.000", "1.000", "1.000", "0.000", "1.000"]


def test_the_speedup_is_that_of_the_paper(page: Page) -> None:
    figure = stage(page, "speedup")
    alpha, numbers = figure.get_by_label("Acceptance rate"), figure.locator(".number strong")
    slide(alpha, 0)
    expect(numbers.first).to_have_text("1.00")
    expect(figure.locator(".numbers")).to_contain_text("a loss")
    slide(alpha, 0.8)
    slide(figure.get_by_label("Draft length k"), 4)
    slide(figure.get_by_label("Draft cost c"), 0.1)
    slide(figure.get_by_label("Verify cost v"), 1)
    expect(numbers.nth(1)).to_contain_text("2.40")
    expect(numbers.first).to_have_text("3.36")
    expect(figure.locator("circle")).to_have_count(12)


def test_block_verification_keeps_more(page: Page) -> None:
    figure = stage(page, "verification")
    mass, length = figure.get_by_label("mass on a"), figure.get_by_label("Draft length")
    slide(length, 2)
    for value, token, block in ((20, "2.000", "2.000"), (40, "1.111", "1.222")):
        slide(mass, value)
        expect(figure.locator(".mean-block")).to_have_text(block)
        expect(figure.locator(".mean-token")).to_have_text(token)
    slide(length, 3)
    expect(figure.get_by_role("radio")).to_have_count(8)


FOCUS = """() => {
  const node = document.activeElement;
  const shown = node.matches(".choice input") ? node.nextSibling : node;
  const { outlineStyle, outlineWidth } = getComputedStyle(shown);
  return [node.tagName, node.type ?? "", outlineStyle, parseFloat(outlineWidth)];
}"""


def test_everything_is_reached_and_used_by_keyboard_alone(browser: Browser, figures: str) -> None:
    with opened(browser, figures) as page:
        reached = Counter(stops(page))
        assert reached["INPUT", "range"] == 11
        assert reached["INPUT", "radio"] == 3  # one stop for each group
        assert reached["BUTTON", "button"] >= 7
        assert reached["A", ""] == 7
        slider = stage(page, "speedup").get_by_label("Draft length k")
        slider.focus()
        page.keyboard.press("ArrowRight")
        expect(stage(page, "speedup").locator(".number strong").first).to_have_text("3.69")
        assert slider.get_attribute("aria-valuetext") == "5"
        stage(page, "checks").get_by_role("radio").nth(1).focus()
        page.keyboard.press("ArrowRight")
        expect(stage(page, "checks").locator(".void")).to_have_count(2)


def stops(page: Page) -> Iterator[tuple[str, str]]:
    """Where the Tab key stops; it can be seen that the focus is there."""
    while True:
        page.keyboard.press("Tab")
        tag, kind, style, width = page.evaluate(FOCUS)
        if tag == "BODY":
            return
        assert style == "solid", (tag, kind)
        assert width >= 3
        yield tag, kind


MOVING = """() => [...document.querySelectorAll("*")].flatMap((node) =>
  [null, "::before", "::after"].map((part) => getComputedStyle(node, part))
).filter(({ transitionDuration, animationName, scrollBehavior }) =>
  transitionDuration !== "0s" || animationName !== "none" || scrollBehavior === "smooth"
).length"""


def test_with_reduced_motion_nothing_moves_by_itself(browser: Browser, fake: Fake) -> None:
    fake.pause = 0.3
    moving = {}
    for wish in ("no-preference", "reduce"):
        with served(fake.app) as url, opened(browser, url, reduced_motion=wish) as page:
            ask(page, "the planets")
            expect(page.locator(".running .token").first).to_be_visible()
            moving[wish] = page.evaluate(MOVING)
            page.get_by_role("tab", name="How it works").click()
            time = stage(page, "schedule").get_by_label("Time")
            slide(time, 0)
            stage(page, "schedule").get_by_role("button", name="Play").click()
            stays = wish == "reduce" and time.input_value() == "1"
    assert moving["reduce"] == 0 < moving["no-preference"]
    assert stays


COLOURS = (
    "ink",
    "soft",
    "draft",
    "accepted",
    "correction",
    "bonus",
    "forced",
    "target",
    "rejected",
)


def luminance(colour: str) -> float:
    """Of a colour #rrggbb, by WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(browser: Browser, figures: str, theme: str) -> None:
    with opened(browser, figures, color_scheme=theme) as page:
        style = page.evaluate_handle("getComputedStyle(document.documentElement)")
        value = {
            name: style.evaluate("(style, name) => style.getPropertyValue(name)", f"--{name}")
            for name in (*COLOURS, "paper", "sheet", "hold")
        }
    light = {name: luminance(colour) for name, colour in value.items()}
    assert (light["paper"] > light["ink"]) == (theme == "light")
    for name in COLOURS:
        for ground in ("paper", "sheet"):
            darker, lighter = sorted((light[name], light[ground]))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (name, ground)


def test_a_phone_scrolls_one_way_only(browser: Browser, fake: Fake) -> None:
    with served(fake.app) as url, opened(browser, url, width=360) as page:
        ask(page, "the planets")
        expect(page.locator(".answer:not(.running)")).to_be_visible()
        for width in (360, 320):
            page.set_viewport_size({"width": width, "height": 640})
            for tab in ("How it works", "Live", "Chat"):
                page.get_by_role("tab", name=tab).click()
                assert fits(page), (width, tab)


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def finished(page: Page, count: int = 1) -> Locator:
    expect(page.locator(".answer:not(.running)")).to_have_count(count)
    return page.locator(".answer").last


def test_an_answer_shows_where_its_tokens_come_from(chat: Page, fake: Fake) -> None:
    ask(chat, "List the planets.")
    answer = finished(chat)
    body = answer.locator(".answer-text")
    kept = body.evaluate(
        "(node) => { const copy = node.cloneNode(true);"
        " copy.querySelectorAll('del').forEach((one) => one.remove()); return copy.textContent }"
    )
    assert re.sub(" +", " ", kept) == SENTENCE
    rounds = [found for found in chunks(True) if "round" in found]
    origins = [piece["origin"] for found in rounds for piece in found["pieces"]]
    for origin in {"accepted", "correction", "bonus", "plain", "forced"}:
        expect(body.locator(f".token.{origin}")).to_have_count(origins.count(origin))
        expect(answer.locator(f".shape.{origin}")).to_have_count(origins.count(origin))
    rejected = body.locator("del")
    expect(rejected).to_have_count(origins.count("correction"))
    expect(body.locator("del + .token.correction")).to_have_count(origins.count("correction"))
    expect(answer.locator(".times .verify")).to_have_count(len(rounds))
    expect(answer.locator(".answer-numbers")).to_contain_text(f"42 tokens in {len(rounds)} passes")
    expect(chat.locator(".hidden[role=status]")).to_contain_text("Answer finished: 42 tokens")
    chat.get_by_label("Show rejected drafts").uncheck()
    expect(rejected.first).to_be_hidden()
    assert body.locator("b").count() == 0  # text is text


def test_a_request_says_what_the_settings_say(chat: Page, fake: Fake) -> None:
    chat.get_by_label("Temperature").fill("0.3")
    chat.get_by_label("Seed").fill("11")
    chat.get_by_label("Most tokens").fill("99")
    chat.get_by_role("spinbutton", name="Draft length").fill("3")
    ask(chat, "First")
    finished(chat)
    ask(chat, "Second")
    finished(chat, 2)
    first, second = fake.bodies
    assert first == {
        "model": STATS["model"],
        "messages": [{"role": "user", "content": "First"}],
        "temperature": 0.3,
        "seed": 11,
        "max_tokens": 99,
        "num_draft_tokens": 3,
        "stream": True,
        "include_rounds": True,
    }
    assert [message["content"] for message in second["messages"]] == ["First", SENTENCE, "Second"]
    chat.get_by_label("Temperature").fill("7")
    ask(chat, "Third")
    expect(chat.get_by_label("Temperature")).to_be_focused()
    assert len(fake.bodies) == 2
    chat.get_by_role("button", name="New chat").click()
    expect(chat.locator(".answer")).to_have_count(0)


def test_an_answer_is_replayed_without_speculation(chat: Page, fake: Fake) -> None:
    ask(chat, "List the planets.")
    finished(chat)
    chat.get_by_role("switch", name="Replay without speculation").check()
    verdict = chat.locator(".verdict.same")
    expect(verdict).to_contain_text(f"The same text without speculation, all {len(SENTENCE)}")
    expect(verdict).to_contain_text("61.4 tokens/s instead of 38.2: 38% of the time saved")
    first, second = fake.bodies
    assert second == {**first, "speculation": False}
    assert isinstance(first["seed"], int)


def test_a_replay_with_another_text_says_where_and_why(chat: Page, fake: Fake) -> None:
    fake.differing = True
    chat.get_by_role("switch", name="Replay without speculation").check()
    ask(chat, "List the planets.")
    verdict = chat.locator(".verdict.other")
    expect(verdict).to_contain_text(f"part at character {SENTENCE.index('Venus') + 1}: “Venus,")
    expect(verdict).to_contain_text("all but tied")


def test_an_answer_can_be_stopped(chat: Page, fake: Fake) -> None:
    fake.pause = 0.2
    ask(chat, "List the planets.")
    expect(chat.locator(".answer-text .token").first).to_be_visible()
    chat.keyboard.press("Escape")
    finished(chat)
    expect(chat.locator(".answer-note")).to_have_text("Stopped.")
    fake.pause = 0
    ask(chat, "Go on")
    finished(chat, 2)
    partial = fake.bodies[1]["messages"][1]["content"]
    assert partial
    assert SENTENCE.startswith(partial)
    fake.pause = 0.2
    ask(chat, "Once more")
    chat.get_by_role("button", name="Stop").click()
    expect(chat.locator(".answer-note")).to_have_text(["Stopped.", "Stopped."])
    expect(chat.get_by_role("button", name="Send")).to_be_visible()


def test_errors_are_told_kindly(browser: Browser, fake: Fake) -> None:
    with served(fake.app) as url, opened(browser, url, refused=True) as page:
        alert = page.locator("#chat [role=alert]")
        fake.refusal = Response(status_code=429, headers={"Retry-After": "3"})
        ask(page, "Anyone there?")
        expect(alert).to_have_text("The server is busy. Try again in 3 s.")
        expect(page.get_by_label("Message")).to_have_value("Anyone there?")
        fake.refusal = JSONResponse({"error": {"message": "seed must be a number"}}, 400)
        ask(page, "Anyone there?")
        expect(alert).to_have_text("seed must be a number")
        fake.refusal = Response(status_code=401)
        ask(page, "Anyone there?")
        page.get_by_label("API key").fill("secret")
        fake.refusal, fake.failing = None, True
        ask(page, "Anyone there?")
        expect(alert).to_have_text("the model failed: load it again")
        expect(page.locator(".answer-text")).to_contain_text("planets")
        assert fake.keys[-2:] == [None, "Bearer secret"]
        page.route("**/v1/**", lambda route: route.abort())
        ask(page, "Anyone there?")
        expect(alert).to_contain_text("cannot be reached")


class Dying(Fake):
    """Its process ends in mid-answer, once."""

    async def events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        sent = 0
        async for event in super().events(body):
            yield event
            sent += 1
            if sent == 3 and len(self.bodies) == 1:
                raise ConnectionAbortedError


def test_an_answer_that_breaks_off_is_no_answer(browser: Browser) -> None:
    fake = Dying()
    fake.pause = 0.05
    with served(fake.app) as url, opened(browser, url, refused=True) as page:
        ask(page, "List the planets.")
        answer = finished(page)
        alert = page.locator("#chat [role=alert]")
        expect(alert).to_have_text("The connection ended before the answer did.")
        expect(answer.locator(".answer-text")).to_contain_text("planets")
        expect(answer.locator(".answer-note")).to_have_text("This answer is incomplete.")
        expect(page.locator(".hidden[role=status]")).to_have_text("")
        expect(page.get_by_label("Message")).to_have_value("List the planets.")
        ask(page, "Again")
        finished(page, 2)
        assert fake.bodies[1]["messages"] == [{"role": "user", "content": "Again"}]


def test_a_full_conversation_offers_a_new_one(browser: Browser) -> None:
    with serving(markov()) as server, opened(browser, server.url, refused=True) as page:
        alert = page.locator("#chat [role=alert]")
        page.get_by_label("Most tokens").fill("3")
        ask(page, "ab" * 200)
        expect(alert).to_contain_text("shorten")
        ask(page, "ab" * 100)
        finished(page)
        ask(page, "ba" * 100)
        expect(alert).to_contain_text("The conversation is full")
        alert.get_by_role("button", name="New chat").click()
        expect(page.locator(".answer")).to_have_count(0)
        expect(alert).to_be_hidden()
        page.keyboard.press("Enter")
        finished(page)


def test_an_anchor_that_is_none_is_no_mistake(browser: Browser, figures: str) -> None:
    with opened(browser, figures + "/#fig-:x") as page:
        page.wait_for_timeout(50)


@pytest.mark.parametrize("width", [1200, 320])
def test_the_live_bars_can_be_compared(browser: Browser, fake: Fake, width: int) -> None:
    with served(fake.app) as url, opened(browser, url + "/#live", width=width) as page:
        expect(page.locator("#live .mass")).to_have_count(10)
        tracks = page.locator("#live .lengths").evaluate_all(
            """(lists) => lists.map((list) => [...list.querySelectorAll(".mass")].map((track) => {
              const { left, right } = track.getBoundingClientRect();
              const box = list.getBoundingClientRect();
              return [left - box.left, right - left].map(Math.round).join();
            }))"""
        )
        (track,) = {track for card in tracks for track in card}
        assert int(track.split(",")[1]) >= 60
        assert fits(page)


def test_the_live_numbers(chat: Page) -> None:
    chat.get_by_role("tab", name="Chat").focus()
    chat.keyboard.press("End")
    expect(chat.get_by_role("tab", name="Live")).to_be_focused()
    live = chat.locator("#live")
    expect(live).to_contain_text("85% of 402")
    expect(live).to_contain_text("313 rounds")
    expect(live).to_contain_text("Speculation makes it 1.61")
    assert texts(live.locator(".number strong"))[1:4] == ["73%", "3.13", "1,290"]
    chat.keyboard.press("ArrowRight")
    expect(chat.locator("#chat")).to_be_visible()
    expect(live).to_be_hidden()


def test_the_page_and_the_real_server(browser: Browser) -> None:
    with serving(markov()) as server, opened(browser, server.url) as page:
        page.get_by_label("Most tokens").fill("40")
        page.get_by_label("Seed").fill("4")
        page.get_by_role("switch", name="Replay without speculation").check()
        ask(page, "ab")
        expect(page.locator(".verdict.same")).to_contain_text("The same text")
        kinds = page.locator(".answer-text .token").evaluate_all(
            "(nodes) => [...new Set(nodes.map((node) => node.classList[1]))]"
        )
        assert {"accepted", "plain"} < set(kinds)
        page.get_by_role("tab", name="Live").click()
        expect(page.locator("#live .number strong").nth(2)).to_have_text(re.compile(r"\d\.\d\d"))
        page.get_by_role("tab", name="How it works").click()
        numbers = page.locator("#fig-speedup .number strong")
        expect(numbers.first).to_have_text("3.36")
        expect(numbers.nth(1)).to_contain_text("2.40")
