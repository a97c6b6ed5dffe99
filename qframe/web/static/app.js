// What a page does besides: it renews itself, asks in place, and has keys. All else works without this.
"use strict";
(() => {
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");
  const ask = document.getElementById("ask");
  const keys = document.getElementById("keys");
  const SILENT = 12000;  // the page sends something every four seconds

  // -- times: relative ones tick, and the exact one has the local time, too ---------------------
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const pad = (number) => String(number).padStart(2, "0");
  const span = (seconds) => {
    const units = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "", 1]];
    for (const [unit, size, below, part] of units) {
      if (seconds < size) continue;
      const rest = below && seconds < size * 10 ? Math.floor((seconds % size) / part) : 0;
      return Math.floor(seconds / size) + " " + unit + (rest ? " " + rest + " " + below : "");
    }
    return Math.floor(seconds) + " s";
  };
  const tick = () => {
    for (const each of document.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (isNaN(at)) continue;
      if (!each.dataset.local) {
        const day = at.getFullYear() + "-" + pad(at.getMonth() + 1) + "-" + pad(at.getDate());
        each.dataset.local = day + " " + pad(at.getHours()) + ":" + pad(at.getMinutes()) + ":" + pad(at.getSeconds());
        if (at.getTimezoneOffset()) each.title += "\n" + each.dataset.local + " " + zone;
      }
      const ago = (Date.now() - at) / 1000;
      const text = ago >= 0 ? span(ago) + " ago" : "in " + span(-ago);
      if (each.textContent !== text) each.textContent = text;
    }
  };
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  // -- what a page offers besides, again after each renewal ---------------------------------------
  const copyable = (area) => {
    for (const each of area.querySelectorAll("[data-copy]")) {
      if (each.querySelector("button") || each.nextElementSibling?.className === "copy") continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "copy " + each.dataset.copy);
      button.addEventListener("click", async () => {
        const of = each.dataset.of ? document.getElementById(each.dataset.of) : each;
        try { await navigator.clipboard.writeText(of.textContent.trim()); button.textContent = "Copied"; }
        catch { getSelection().selectAllChildren(of); button.textContent = "Selected"; }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      each.after(button);
    }
  };
  const selectable = (area) => {
    for (const form of area.querySelectorAll("form.many")) {
      const boxes = () => [...form.querySelectorAll("input[name=uuids]")];
      const show = () => {
        const count = boxes().filter((each) => each.checked).length;
        for (const button of [...form.elements].filter((each) => each.dataset.selected)) {
          button.disabled = !count;
          button.textContent = button.dataset.selected + (count ? " " + count : "") + " selected";
        }
      };
      const head = form.querySelector("th.all");
      if (head && !head.querySelector("input")) {
        const all = document.createElement("input");
        all.type = "checkbox";
        all.setAttribute("aria-label", "select all on this page");
        all.autocomplete = "off";
        all.addEventListener("change", () => { for (const each of boxes()) each.checked = all.checked; });
        head.append(all);
      }
      form.addEventListener("change", show);
      show();
    }
  };
  const charted = (area) => {
    for (const chart of area.querySelectorAll(".chart")) {
      const rects = [...chart.querySelectorAll(".over rect")];
      const tip = document.createElement("div");
      tip.className = "tip";
      tip.hidden = true;
      chart.append(tip);
      for (const each of rects) { each.dataset.tip = each.firstElementChild.textContent; each.firstElementChild.remove(); }
      let at = -1;
      const show = (number) => {
        rects[at]?.classList.remove("at");
        at = number;
        tip.hidden = at < 0;
        if (at < 0) return;
        rects[at].classList.add("at");
        tip.textContent = rects[at].dataset.tip + localTime(rects[at].dataset.at);
        const box = rects[at].getBoundingClientRect(), whole = chart.getBoundingClientRect();
        const right = box.right - whole.left + 8;
        const fits = right + tip.offsetWidth < whole.width;
        tip.style.left = Math.max(4, fits ? right : box.left - whole.left - 8 - tip.offsetWidth) + "px";
      };
      chart.addEventListener("pointermove", (event) => show(rects.indexOf(event.target)));
      chart.addEventListener("pointerleave", () => show(-1));
      chart.addEventListener("blur", () => show(-1));
      chart.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        event.preventDefault();
        show(Math.min(rects.length - 1, Math.max(0, at < 0 ? rects.length - 1 : at + by)));
      });
    }
  };
  const localTime = (seconds) => {
    const at = new Date(seconds * 1000);
    if (!at.getTimezoneOffset()) return "";
    return "\n" + pad(at.getHours()) + ":" + pad(at.getMinutes()) + " " + zone;
  };
  const offer = (area) => { selectable(area); copyable(area); charted(area); tick(); };
  offer(document);

  // -- it renews itself ---------------------------------------------------------------------------
  let source = null, heard = Date.now(), waiting = null;

  const isInUse = () =>
    live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
      || live.querySelector("input[type=checkbox]:checked") !== null
      || live.querySelector(".chart:hover, .chart:focus") !== null
      || String(window.getSelection()) !== "";
  const told = (text) => {
    lost.textContent = text;
    if (live) live.classList.toggle("old", text !== "");
  };
  const named = (each) =>
    [each.tagName, each.id, each.getAttribute("href"), each.textContent.slice(0, 60), each.form ? new URLSearchParams(new FormData(each.form)) + each.form.action : ""].join("|");
  const renew = (text) => {
    const parsed = new DOMParser().parseFromString(text, "text/html");
    const open = new Set([...live.querySelectorAll("details[open][id]")].map((each) => each.id));
    const closed = new Set([...live.querySelectorAll("details:not([open])[id]")].map((each) => each.id));
    const focused = live.contains(document.activeElement) ? named(document.activeElement) : "";
    live.replaceChildren(...parsed.body.childNodes);
    for (const each of live.querySelectorAll("details[id]")) {
      if (open.has(each.id)) each.open = true;
      if (closed.has(each.id)) each.open = false;
    }
    offer(live);
    if (focused) {
      const again = [...live.querySelectorAll("a, button, summary")].find((each) => named(each) === focused);
      again?.focus({ preventScroll: true });
    }
  };
  const stop = () => { if (source) { source.close(); source = null; } };
  const start = () => {
    if (source || !live || !live.dataset.live || document.hidden) return;
    heard = Date.now();
    source = new EventSource(live.dataset.live);
    const hear = () => { heard = Date.now(); if (waiting !== "") told(""); };
    source.onopen = hear;
    source.addEventListener("same", hear);
    source.onmessage = (event) => {
      const text = JSON.parse(event.data);
      heard = Date.now();
      waiting = text;
      told(text ? "" : "The backend does not answer: this is what was known before.");
      if (text && !isInUse()) renew(text);
    };
    source.onerror = () => { source && gone(); };
  };
  const gone = () => {
    const at = new Date(heard);
    told("Connection lost: this is as of " + pad(at.getHours()) + ":" + pad(at.getMinutes()) + ":" + pad(at.getSeconds()) + ". Trying again.");
    if (source && source.readyState === EventSource.CLOSED) { stop(); setTimeout(start, 2000); }
  };
  setInterval(() => { if (source && !document.hidden && Date.now() - heard > SILENT) gone(); }, 1000);
  window.addEventListener("offline", () => source && gone());
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", start);
  start();

  // -- it asks in place ---------------------------------------------------------------------------
  document.addEventListener("submit", async (event) => {
    const form = event.target, button = event.submitter;
    const to = new URL(button?.hasAttribute("formaction") ? button.formAction : form.action, location.href);
    if (event.defaultPrevented || form.method !== "get" || !to.pathname.includes("/confirm/")) return;
    event.preventDefault();
    to.search = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(to);
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".confirm, .trouble");
      if (!found) throw new Error("no question");
      ask.replaceChildren(found);
      ask.showModal();
    } catch { location.assign(to); }
  });
  ask.addEventListener("click", (event) => {
    if (event.target === ask || event.target.closest("a.no")) { event.preventDefault(); ask.close(); }
  });

  // -- keys ---------------------------------------------------------------------------------------
  const show = document.getElementById("show-keys");
  show.hidden = false;
  show.addEventListener("click", () => keys.showModal());
  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || ask.open) return;
    if (event.key === "/") {
      const filter = document.getElementById("filter");
      if (filter) { event.preventDefault(); filter.focus(); }
    } else if (event.key === "?") {
      keys.open ? keys.close() : keys.showModal();
    } else if (event.key === "g") {
      went = Date.now();
    } else if (Date.now() - went < 1500) {
      document.querySelector("nav a[data-key='" + CSS.escape(event.key) + "']")?.click();
    }
  });
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
})();
