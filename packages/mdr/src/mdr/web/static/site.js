"use strict";
/* Everything on these pages works without this file. It adds: a choice of theme, buttons that copy, and a
   check that the bytes served here have the hash that the page says. Nothing is sent anywhere else. */
(() => {
  const root = document.documentElement;
  const THEMES = ["system", "light", "dark"];
  const kept = () => {
    try { return localStorage.getItem("mdr-theme") || "system"; } catch { return "system"; }
  };
  const apply = (theme) => {
    if (theme === "system") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
  };
  root.classList.add("js");
  apply(kept());

  const themeButton = () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const show = (theme) => { button.textContent = "Theme: " + theme; };
    show(kept());
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(kept()) + 1) % THEMES.length];
      try { localStorage.setItem("mdr-theme", next); } catch { /* private mode: lasts for this page */ }
      apply(next);
      show(next);
    });
  };

  const say = (words) => {
    const live = document.getElementById("live");
    if (live) live.textContent = words;
  };

  const copyButtons = () => {
    for (const box of document.querySelectorAll("[data-copy]")) {
      const source = box.querySelector("code");
      if (!source || !navigator.clipboard) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + box.dataset.copy);
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(source.textContent);
          button.textContent = "Copied";
          say("Copied " + box.dataset.copy);
        } catch {
          button.textContent = "Not allowed";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1600);
      });
      box.append(button);
    }
  };

  const hex = (buffer) =>
    Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");

  const checkButtons = () => {
    for (const box of document.querySelectorAll("[data-sha256]")) {
      const button = document.createElement("button");
      const result = document.createElement("output");
      button.type = "button";
      button.className = "check-here";
      button.textContent = "Recompute the hash in this browser";
      button.addEventListener("click", async () => {
        result.className = "";
        if (!globalThis.crypto || !crypto.subtle) {
          result.textContent = "This browser hashes only on https and localhost; use the command.";
          return;
        }
        result.textContent = "Reading the bytes\u2026";
        try {
          const answer = await fetch("/api/v1/blob/" + box.dataset.sha256, { cache: "no-store" });
          if (!answer.ok) throw new Error("HTTP " + answer.status);
          const bytes = await answer.arrayBuffer();
          const found = hex(await crypto.subtle.digest("SHA-256", bytes));
          const same = found === box.dataset.sha256;
          result.className = same ? "same" : "different";
          result.textContent = same
            ? "Recomputed here: same. " + bytes.byteLength.toLocaleString("en") + " bytes hash to " + found
            : "Recomputed here: DIFFERENT. The bytes served hash to " + found;
        } catch (error) {
          result.className = "different";
          result.textContent = "Could not be checked: " + error.message;
        }
      });
      box.append(button, result);
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    copyButtons();
    checkButtons();
  });
})();
