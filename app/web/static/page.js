// SPDX-License-Identifier: Apache-2.0
// What makes the page live: filters in place, events of the server, arrow keys on the map, the playground.
// All of the page can be read without it. HTML comes from our own server alone, which escapes every name in it.

const AGAIN_MS = 5000; // between two loads of a part of the page that events asked for, and before a lost stream is tried again
const ROWS_KEPT = 200; // of the live tail, as many as the server shows

const body = document.body;
const shown = () => document.getElementById("shown");
const say = (words) => { document.getElementById("live").textContent = words; };

// One part of the page, loaded anew from an address; tells whether it is worth trying again. Of two loads at a time the
// one that was begun last is shown, whichever is answered last.
let begun = 0;
async function load(address, id = "shown") {
  const own = ++begun;
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const html = await answer.text();
  if (own !== begun) return false;
  if (!answer.ok) { say(`not loaded: ${answer.status}`); return answer.status === 429 || answer.status >= 500; }
  replace(html, id);
  return false;
}

function replace(html, id) {
  const fetched = new DOMParser().parseFromString(html, "text/html");
  const part = fetched.getElementById(id);
  if (!part) return;
  document.getElementById(id).replaceWith(document.adoptNode(part));
  const had = Number(body.dataset.generation);
  if (fetched.body.dataset.generation) body.dataset.generation = fetched.body.dataset.generation;
  for (const select of document.querySelectorAll("form.filter select")) { // what can be chosen changes with what is shown
    const fresh = fetched.querySelector(`form.filter select[name=${select.name}]`);
    if (fresh && select !== document.activeElement) select.replaceChildren(...fresh.children);
  }
  if (Number(body.dataset.generation) < had) listen(); // what came while the part was on its way is sent once more
  enterMap();
  performance.mark(`loaded ${id}`);
}

// Loads the shown part again, soon, and not more often than every few seconds. What is asked for while the part is on its
// way may have come too late for it, and asks for one more load.
let due = 0, underway = false, askedMeanwhile = false, loaded = 0;
function loadSoon() {
  if (underway) askedMeanwhile = true;
  else due ||= setTimeout(loadNow, Math.max(0, loaded + AGAIN_MS - Date.now()));
}

async function loadNow() {
  due = 0;
  underway = true;
  const again = await load(location.href).catch(() => true);
  loaded = Date.now();
  underway = false;
  if (again || askedMeanwhile) loadSoon();
  askedMeanwhile = false;
}

// Filters.

for (const form of document.querySelectorAll("form.filter")) {
  const filter = async () => {
    const asked = new URLSearchParams([...new FormData(form)].filter(([, word]) => word));
    const address = form.getAttribute("action") + (asked.size ? `?${asked}` : "");
    history.replaceState(null, "", address);
    await load(address);
    say(shown().querySelector("p").textContent.trim());
    listen();
  };
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
}

// The map: one stop of the Tab key, then arrow keys.

function enterMap() {
  const first = document.querySelector("#shown .t[href]");
  if (first) first.tabIndex = 0;
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
  tile.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

// The playground.

document.getElementById("playground")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const sent = new URLSearchParams(new FormData(event.target));
  const answer = await fetch("/dry-run", { method: "POST", body: sent, headers: { Accept: "text/html" } });
  replace(await answer.text(), "result");
});

// Events.

const heard = {
  hello: ({ start }) => { if (start !== body.dataset.start) location.reload(); },
  reload: loadSoon,
  waiting: loadSoon,
  totals: ({ html }) => { replace(html, "sum"); replace(html, "totals"); },
  tiles: ({ generation, tiles }) => {
    body.dataset.generation = generation;
    for (const [name, newTile] of Object.entries(tiles)) draw(name, newTile);
    performance.mark("tiles");
  },
  decisions: ({ html, total }) => {
    const rows = document.getElementById("rows"), fresh = document.createElement("tbody");
    fresh.innerHTML = html;
    for (const row of fresh.rows) document.getElementById(row.id)?.remove(); // equal decisions are one row, which comes again
    rows.prepend(...fresh.rows);
    while (rows.rows.length > ROWS_KEPT) rows.deleteRow(-1);
    body.dataset.generation = total;
    document.getElementById("total").textContent = total.toLocaleString("en");
    performance.mark("decisions");
  },
};

// Draws one tile anew in its place; where it has none yet, or another now, the map is loaded again.
function draw(name, newTile) {
  const tile = document.getElementById(`n-${name}`);
  if (!newTile) { tile?.remove(); return; }
  const [product, html] = newTile;
  if (!tile || tile.closest("section").dataset.product !== product) { loadSoon(); return; }
  const focused = tile === document.activeElement, stop = tile.tabIndex;
  tile.outerHTML = html;
  const fresh = document.getElementById(`n-${name}`);
  fresh.classList.add("fresh");
  fresh.tabIndex = stop;
  if (focused) fresh.focus();
}

let stream = null, paused = false;
function listen() {
  stream?.close();
  if (!body.dataset.live || paused) return;
  const asked = new URLSearchParams(location.search);
  asked.set("of", body.dataset.live);
  if (body.dataset.generation) asked.set("since", body.dataset.generation);
  stream = new EventSource(`/events?${asked}`);
  for (const [name, hear] of Object.entries(heard)) {
    stream.addEventListener(name, (event) => hear(JSON.parse(event.data)));
  }
  stream.onopen = () => { body.dataset.connected = "yes"; };
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS); // refused: too many pages, or the end
  };
}

const pause = document.getElementById("pause");
if (body.dataset.live) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    if (paused) stream?.close(); else load(location.href).then(listen);
  });
}
if (body.dataset.live === "pending") setInterval(() => { if (!paused && !document.hidden) loadSoon(); }, 60_000); // ages
addEventListener("pagehide", () => stream?.close());
enterMap();
listen();
