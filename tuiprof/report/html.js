"use strict";
// Click a heading to sort by it, again for the other way; long tables show their first rows until asked for all.
const FIRST = 12;
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const shorten = () => [...body.rows].forEach((row, i) => { row.hidden = table.dataset.all !== "1" && i >= FIRST; });
  const sort = (head, column) => {
    const down = head.ariaSort ? head.ariaSort === "ascending" : head.classList.contains("n");
    const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)], [p, q] = [parseFloat(x), parseFloat(y)];
      return (isNaN(p) || isNaN(q) ? x.localeCompare(y, undefined, { numeric: true }) : p - q) * (down ? -1 : 1);
    });
    heads.forEach((other) => { other.ariaSort = null; });
    head.ariaSort = down ? "descending" : "ascending";
    body.append(...rows);
    shorten();
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head, column));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head, column); });
  });
  if (body.rows.length > FIRST + 3) {
    const button = document.createElement("button");
    button.textContent = `show all ${body.rows.length} rows`;
    button.addEventListener("click", () => { table.dataset.all = "1"; shorten(); button.remove(); });
    table.parentElement.after(button);
    shorten();
  }
}
