// Tables that sort: a click on a head orders the rows, a second one turns the order round.
function sortBy(table, column, ascending) {
  const body = table.tBodies[0];
  const key = (row) => {
    const value = row.cells[column].dataset.value;
    return value === undefined ? row.cells[column].textContent : value === "" ? NaN : Number(value);
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => {
    if (typeof a === "string") return ascending ? a.localeCompare(b) : b.localeCompare(a);
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return ascending ? a - b : b - a;
  });
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, index) => {
    cell.setAttribute("aria-sort", index === column ? (ascending ? "ascending" : "descending") : "none");
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const explained = table.closest("section").querySelector(".explained");
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = cell.querySelector("button");
    if (!button) return;
    const explain = () => { if (explained && cell.title) explained.textContent = `${button.textContent}: ${cell.title}`; };
    button.addEventListener("click", () => {
      explain();
      const first = cell.dataset.better === "high" ? "descending" : "ascending";
      const now = cell.getAttribute("aria-sort");
      const next = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
      sortBy(table, column, next === "ascending");
    });
    button.addEventListener("focus", explain);
    button.addEventListener("pointerenter", explain);
  });
}
