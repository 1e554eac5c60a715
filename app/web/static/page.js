// SPDX-License-Identifier: Apache-2.0
// What makes the page live: filters in place, a question every few seconds, arrow keys on the map, the playground.
// All of the page can be read without it. HTML comes from our own server alone, which escapes every name in it.

const ASK_MS = 5000; // between two questions of whether anything has changed
const DRAWING_SHARE = 20; // times what the last answer took, so that a map of thousands of nodes is drawn less often
const PARTS = ["sum", "shown", "totals"];

const body = document.body;
const live = "tag" in body.dataset;
const started = (tag) => tag?.split("-")[0]; // which process made the page
const say = (words) => { document.getElementById("live").textContent = words; };

// Loads the parts of the page from an address, unless they are still those of the tag. Of two loads at a time the one that
// was begun last is shown, whichever is answered last.
let begun = 0;
async function load(address, tag) {
  const own = ++begun;
  const answer = await fetch(address, { headers: { Accept: "text/html", ...(tag && { "If-None-Match": `"${tag}"` }) } });
  const html = await answer.text();
  if (own !== begun || answer.status === 304) return;
  if (answer.ok) replace(html, PARTS);
  say(answer.ok ? "" : `not loaded: ${answer.status}`);
}

function replace(html, ids) {
  const fetched = new DOMParser().parseFromString(html, "text/html");
  const { tag } = fetched.body.dataset;
  if (live && body.dataset.tag && started(tag) !== started(body.dataset.tag)) { location.reload(); return; }
  const focused = document.activeElement;
  for (const id of ids) {
    const part = fetched.getElementById(id);
    if (part) document.getElementById(id)?.replaceWith(document.adoptNode(part));
  }
  if (tag) body.dataset.tag = tag;
  for (const select of document.querySelectorAll("form.filter select")) { // what can be chosen changes with what is shown
    const fresh = fetched.querySelector(`form.filter select[name=${select.name}]`);
    if (fresh && select !== document.activeElement) select.replaceChildren(...fresh.children);
  }
  enterMap();
  if (!focused.isConnected) focusAgain(focused);
  performance.mark(`shown ${ids.at(-1)}`);
}

// The link that had the focus, in the part that took its place.
function focusAgain(link) {
  const again = document.querySelector(`#shown a[href="${CSS.escape(link.getAttribute("href") ?? "")}"]`);
  if (again?.matches(".t")) enter(again);
  again?.focus();
}

// Filters.

for (const form of document.querySelectorAll("form.filter")) {
  const filter = async () => {
    const asked = new URLSearchParams([...new FormData(form)].filter(([, word]) => word));
    const address = form.getAttribute("action") + (asked.size ? `?${asked}` : "");
    history.replaceState(null, "", address);
    if (live) body.dataset.tag = ""; // a tag says nothing of the filter
    await load(address);
    say(document.querySelector("#shown p").textContent.trim());
  };
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
}

// The map: one stop of the Tab key, then arrow keys.

function enter(tile) {
  document.querySelector("#shown .t[tabindex='0']")?.setAttribute("tabindex", -1);
  tile.tabIndex = 0;
}

function enterMap() {
  const first = document.querySelector("#shown .t[href]");
  if (first) enter(first);
}

function beside(tile, forward) {
  const next = forward ? tile.nextElementSibling : tile.previousElementSibling;
  if (next) return next;
  const tiles = [...document.querySelectorAll(".tiles")];
  const list = tiles[tiles.indexOf(tile.parentElement) + (forward ? 1 : -1)];
  return list && (forward ? list.firstElementChild : list.lastElementChild);
}

document.addEventListener("keydown", (event) => {
  const tile = event.target.closest?.(".tiles .t");
  const forward = { ArrowRight: true, ArrowDown: true, ArrowLeft: false, ArrowUp: false }[event.key];
  const next = tile && forward !== undefined && beside(tile, forward);
  if (!next) return;
  event.preventDefault();
  enter(next);
  next.focus();
});

// The playground.

document.getElementById("playground")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const sent = new URLSearchParams(new FormData(event.target));
  const answer = await fetch("/dry-run", { method: "POST", body: sent, headers: { Accept: "text/html" } });
  replace(await answer.text(), ["result"]);
});

// A page that follows what it shows: it asks again, unless it is paused or out of sight.

const pause = document.getElementById("pause");
let paused = false, next = 0;
async function follow() {
  clearTimeout(next);
  const at = performance.now();
  if (!paused && !document.hidden) await load(location.href, body.dataset.tag).catch(() => say("not loaded: no answer"));
  next = setTimeout(follow, Math.max(ASK_MS, DRAWING_SHARE * (performance.now() - at)));
}

if (live) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  next = setTimeout(follow, ASK_MS);
}
enterMap();
