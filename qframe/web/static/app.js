// What a page does besides: it renews itself, and keys lead to pages. All else works without this.
"use strict";
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("state");
  let source = null;

  const isInUse = () =>
    live.contains(document.activeElement) && document.activeElement !== document.body
      || live.querySelector("input[type=checkbox]:checked") !== null
      || String(window.getSelection()) !== "";

  const stop = () => { if (source) { source.close(); source = null; } };

  const start = () => {
    if (source || !live || !live.dataset.live || document.hidden) return;
    source = new EventSource(live.dataset.live);
    source.onmessage = (event) => {
      const text = JSON.parse(event.data);
      state.textContent = text ? "" : "the backend does not answer";
      if (!text || isInUse()) return;
      const parsed = new DOMParser().parseFromString(text, "text/html");
      live.replaceChildren(...parsed.body.childNodes);
      offerAll();
    };
    source.onerror = () => { state.textContent = "not connected; trying again"; };
    source.onopen = () => { state.textContent = ""; };
  };

  // A box above a column of boxes chooses all of them; without this there is none.
  const offerAll = () => {
    for (const head of document.querySelectorAll("th.all")) {
      if (head.querySelector("input")) continue;
      const all = document.createElement("input");
      all.type = "checkbox";
      all.setAttribute("aria-label", "select all on this page");
      all.autocomplete = "off";
      all.addEventListener("change", () => {
        for (const each of head.closest("table").querySelectorAll("input[name=uuids]")) each.checked = all.checked;
      });
      head.append(all);
    }
  };
  offerAll();

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", start);
  start();

  const pages = { o: 0, q: 1, j: 2, f: 3, w: 4, b: 5, l: 6, c: 7, s: 8 };
  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/") {
      const filter = document.getElementById("filter");
      if (filter) { event.preventDefault(); filter.focus(); }
    } else if (event.key === "g") {
      went = Date.now();
    } else if (event.key in pages && Date.now() - went < 1500) {
      document.querySelectorAll("nav a")[pages[event.key]].click();
    }
  });
})();
