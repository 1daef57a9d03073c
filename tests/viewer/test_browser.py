"""The viewer in a real browser: Chromium, if there is one on this machine."""

from __future__ import annotations

import numpy as np
import pytest

import browser as chromium
from loaderx import Dataset
from viewing import served, site

pytestmark = [
    pytest.mark.skipif(
        chromium.missing() is not None, reason=f"needs a browser: {chromium.missing()}"
    ),
    pytest.mark.foreign,  # a browser keeps connections
]

HARM = "window.harmed = true"
BAD = [
    f"<script>{HARM}</script>",
    f'<img src=x onerror="{HARM}">',
    f"\"'><svg onload={HARM.replace(' ', '')}>",
    f'</pre></td></table><body onload="{HARM}">',
    f'<a href="javascript:{HARM}">x</a>',
]


def chain():
    images = np.arange(90 * 64, dtype=np.uint8).reshape(90, 8, 8)
    return Dataset.from_arrays(image=images, label=np.arange(90)).shuffle(seed=0).batch(10)


@pytest.fixture(scope="module")
def window():
    with chromium.browser() as made:
        yield made


@pytest.fixture(scope="module")
def server():
    with served(site(chain())) as made:
        yield made


def labels(window):
    told = window.text("main")
    return [int(line.split()[1]) for line in told.splitlines() if line.startswith("label ")]


def shown(window, step):
    """Waits until the page has a step, and gives the labels of its batch."""
    window.wait(f"document.querySelector('input[type=number]').value == '{step}'")
    return labels(window)


def test_the_slider_changes_the_step(window, server):
    steps = [batch["label"].tolist() for batch in chain()]
    window.open(server.url)
    assert shown(window, 0) == steps[0]
    window.run("document.querySelector('input[type=range]').focus()")
    for step in (1, 2):
        window.press("right")
        assert shown(window, step) == steps[step]
    assert window.run("return location.search") == "?step=2"
    window.run(
        "const slider = document.querySelector('input[type=range]'); slider.value = 7;"
        "slider.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert shown(window, 7) == steps[7]
    assert window.messages() == []


def test_arrow_keys_and_links(window, server):
    steps = [batch["label"].tolist() for batch in chain()]
    window.open(server.url + "?step=3")
    window.press("right")
    assert shown(window, 4) == steps[4]
    for step in (3, 2):
        window.press("left")
        assert shown(window, step) == steps[step]
    window.click("a[rel=next]")
    assert shown(window, 3) == steps[3]
    assert window.run("return document.querySelector('input[type=range]').value") == "3"
    window.click(".grid a:nth-child(5)")
    window.wait("document.querySelectorAll('.passed').length > 0")
    assert f"label\n{steps[3][4]}" in window.text("main").replace("\t", "\n")
    assert window.messages() == []


def test_it_works_without_scripts(window, server):
    window.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(server.url)
        assert "live" not in window.run("return document.documentElement.className")
        window.click("a[rel=next]")
        window.wait("location.search == '?step=1' && document.readyState == 'complete'")
        window.run("document.querySelector('input[type=number]').value = 5")
        window.click("button")
        window.wait("location.search == '?step=5' && document.readyState == 'complete'")
        assert labels(window) == [batch["label"].tolist() for batch in chain()][5]
    finally:
        window.devtools("Emulation.setScriptExecutionDisabled", value=False)
    assert window.messages() == []


def test_bad_html_in_the_data_does_nothing(window):
    records = [{"text": text, BAD[0]: n, BAD[1]: text} for n, text in enumerate(BAD)]
    dataset = Dataset.from_source(records).map(lambda r: {**r, BAD[2]: r["text"].upper()})
    with served(site(dataset.batch(5))) as server:
        for place in ("", "records", "record?record=2", "columns", "stages?step=0&record=1"):
            window.open(server.url + place)
            told = window.text("main")
            assert BAD[0] in told
            assert window.run("return window.harmed") is None
            assert window.run("return document.querySelectorAll('script').length") == 1
            found = "main :is(img, a[href^=javascript], [onerror], [onload])"
            assert window.run("return document.querySelectorAll(arguments[0]).length", found) == 0
        window.open(server.url)
        window.press("right")  # the script puts the data into the page, too
        shown(window, 1)
        assert BAD[1] in window.text("main")
        assert window.run("return window.harmed") is None
    assert window.messages() == []


def test_the_page_cannot_ask_anybody_else(window, server):
    window.open(server.url)
    asked = window.run(
        "return fetch('http://localhost:1/').then(() => 'answered', () => 'refused')"
    )
    assert asked == "refused"
    window.run(
        "document.body.append(Object.assign(new Image(), {src: 'http://localhost:1/x.png'}))"
    )
    window.run("document.body.setAttribute('style', 'color: red')")
    window.run(
        "const made = document.createElement('script'); made.textContent = 'window.harmed = 1';"
        "document.body.append(made)"
    )
    assert window.run("return window.harmed") is None
    told = window.messages_with("connect-src", "img-src", "style-src", "script-src")
    assert all("Content Security Policy" in one for one in told)


CONTRAST = """
const bright = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const solid = (node) => {
  const colour = getComputedStyle(node).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" && node.parentElement ? solid(node.parentElement) : colour;
};
return [...document.querySelectorAll("main span, main a, main pre, h1, h2, h3, th, .note")]
  .filter((node) => node.textContent.trim() && !node.matches("span.step, .s0"))
  .map((node) => [bright(getComputedStyle(node).color), bright(solid(node))])
  .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
"""


def packed():
    documents = [{"tokens": np.full(3 + i % 9, i)} for i in range(200)]
    return Dataset.from_source(documents).pack({"tokens": 64}, window=50).batch(4)


@pytest.mark.parametrize("width", [1200, 600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(window, server, width, scheme):
    with served(site(packed())) as other:
        for one in (server, other):
            for place in ("", "records", "columns", "stages?step=1&record=1"):
                window.look(width=width, scheme=scheme)
                window.open(one.url + place)
                paper = window.run(
                    "return getComputedStyle(document.documentElement).backgroundColor"
                )
                assert (paper == "rgb(20, 22, 27)") == (scheme == "dark")
                assert min(window.run(CONTRAST)) >= 4.5, (place, scheme)  # WCAG's AA
                wide = window.run("return document.scrollingElement.scrollWidth - innerWidth")
                assert wide <= 0, place
    assert window.messages() == []


def test_a_file_leads_to_the_page(window, server, tmp_path):
    path = tmp_path / "view.html"  # as the command makes it
    path.write_text(f'<meta http-equiv="refresh" content="0; url={server.url}">')
    window.open(path.as_uri(), leads_to=server.url)
    assert shown(window, 0) == next(iter(chain()))["label"].tolist()
    assert window.messages() == []


def test_an_end_is_told(window):
    with served(site(chain())) as server:
        window.open(server.url)
    window.press("right")
    window.wait("document.querySelector('main > .problem')")
    assert "does not answer any more" in window.text("main")
    assert all("ERR_CONNECTION" in one for one in window.messages())
