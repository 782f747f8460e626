"use strict";
// Keys go to the dashboard from the beginning, and again whenever the window comes back to the front.
addEventListener("DOMContentLoaded", () => {
  const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
  new MutationObserver(focus).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  addEventListener("focus", focus);
});
