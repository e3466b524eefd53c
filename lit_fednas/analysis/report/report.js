// Reads out the element under the pointer or, with arrow keys, in the focused drawing.
"use strict";
(() => {
  const box = document.createElement("div");
  box.className = "tip";
  box.setAttribute("role", "status");
  document.body.append(box);
  let shown = null;

  function hide() {
    if (shown) shown.classList.remove("on");
    shown = null;
    box.style.display = "none";
  }

  function show(mark, x, y) {
    if (mark !== shown) {
      hide();
      shown = mark;
      mark.classList.add("on");
      box.textContent = mark.dataset.tip.replaceAll(",", ",\u200b"); // lines break there
    }
    box.style.display = "block";
    const { width, height } = box.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, x + 14), room - width - 8);
    const above = y - height - 12;
    box.style.left = Math.max(8, left) + "px";
    box.style.top = (above > 8 ? above : y + 18) + "px";
  }

  function at(event) {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  }

  document.addEventListener("pointermove", at);
  document.addEventListener("pointerdown", at);
  document.addEventListener("scroll", hide, { passive: true, capture: true });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const drawing = document.activeElement;
    if (event.key === "Escape") hide();
    if (!(event.key in steps) || !drawing || drawing.tagName !== "svg") return;
    const marks = [...drawing.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    event.preventDefault();
    const place = marks.indexOf(shown);
    const next = place < 0 ? (steps[event.key] > 0 ? 0 : marks.length - 1) : place + steps[event.key];
    const mark = marks[Math.min(marks.length - 1, Math.max(0, next))];
    const area = mark.getBoundingClientRect();
    show(mark, area.left + area.width / 2, area.top + area.height / 2);
  });
})();
