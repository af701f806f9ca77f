"use strict";
// Sorting, opening rows, choosing charts: everything else on this page works without a script.
(() => {
  const announce = (text) => { document.getElementById("announcements").textContent = text; };

  const order = (body, column) => {
    const text = body.rows[0].cells[column].dataset.order;
    return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
  };

  const compare = (first, second) =>
    typeof first === "number" && typeof second === "number"
      ? first - second
      : String(first).localeCompare(String(second), undefined, { numeric: true });

  const open = (button, wanted) => {
    button.setAttribute("aria-expanded", String(wanted));
    document.getElementById(button.getAttribute("aria-controls")).hidden = !wanted;
  };
  const isOpen = (button) => button.getAttribute("aria-expanded") === "true";

  for (const table of document.querySelectorAll("table.ranking")) {
    const heads = [...table.tHead.rows[0].cells];
    for (const button of table.querySelectorAll("[data-sort]")) {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const now = head.getAttribute("aria-sort");
        const next = now === null ? button.dataset.first : now === "ascending" ? "descending" : "ascending";
        const sign = next === "ascending" ? 1 : -1;
        const column = Number(button.dataset.sort);
        const bodies = [...table.tBodies];
        bodies.sort((a, b) => sign * compare(order(a, column), order(b, column)));
        bodies.forEach((body) => table.append(body));
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        announce(`Sorted by ${button.textContent}, ${next}`);
      });
    }

    const openers = [...table.querySelectorAll(".opener")];
    for (const row of table.querySelectorAll(".policy-row")) {
      row.addEventListener("click", (event) => {
        // Selecting a number to copy it must not open the row.
        if (String(window.getSelection()) !== "" && !event.target.closest("button")) return;
        const button = row.querySelector(".opener");
        open(button, !isOpen(button));
      });
    }

    const all = table.parentElement.querySelector("[data-all]");
    all.addEventListener("click", () => {
      const wanted = !isOpen(all);
      openers.forEach((button) => open(button, wanted));
      all.setAttribute("aria-expanded", String(wanted));
      all.textContent = wanted ? "Close all" : "Open all";
    });
  }

  for (const chip of document.querySelectorAll("[data-chooser] .chip")) {
    chip.addEventListener("click", () => {
      const wanted = chip.getAttribute("aria-pressed") !== "true";
      chip.setAttribute("aria-pressed", String(wanted));
      document.getElementById(chip.getAttribute("aria-controls")).hidden = !wanted;
    });
  }
})();
