"use strict";
// Everything works without this script. It makes the slider live, and lets arrow keys walk.

document.documentElement.classList.add("live");
let wanted = null;
let isBusy = false;

async function show(url) {
  wanted = url;
  if (isBusy) return; // the page under way is followed by the one that was wanted last
  isBusy = true;
  try {
    while (wanted !== null) {
      const next = wanted;
      wanted = null;
      const answer = await fetch(next);
      const made = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const name = part.dataset.live;
        const other = made.querySelector(`[data-live="${name}"]`);
        if (other === null) return location.assign(next); // another kind of page
        part.replaceChildren(...other.childNodes);
      }
      const slider = document.querySelector("input[type=range]");
      const from = made.querySelector("input[type=range]");
      if (slider && from && slider !== document.activeElement) slider.value = from.getAttribute("value");
      document.title = made.title;
      history.replaceState(null, "", next);
    }
  } catch {
    document.querySelector("main").prepend(ended());
  } finally {
    isBusy = false;
  }
}

function ended() {
  const told = document.createElement("p");
  told.className = "problem";
  told.textContent = "The viewer does not answer any more: start it again.";
  document.querySelector("main > .problem")?.remove();
  return told;
}

document.addEventListener("input", (event) => {
  const slider = event.target;
  if (slider.type !== "range") return;
  const url = new URL(location.href);
  url.searchParams.set(slider.dataset.name, slider.value);
  show(url.href);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[rel=prev], a[rel=next]");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(link.href);
});

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel=${rel}]`);
  if (link) show(link.href);
});
