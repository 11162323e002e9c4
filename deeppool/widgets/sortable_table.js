// A table with sortable columns, a filter and rows to choose. Texts are set as text, never as HTML.

const FILTERED_FROM = 12; // rows; fewer are seen at once

function render({ model, el }) {
  const table = document.createElement("table");
  const caption = table.createCaption();
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const frame = document.createElement("div");
  frame.className = "dp-table";
  // JupyterLab's own arrow keys move between cells of the notebook.
  frame.dataset.lmSuppressShortcuts = "true";
  frame.append(table);
  const filter = document.createElement("input");
  filter.type = "search";
  filter.className = "dp-filter";
  filter.placeholder = "filter rows";
  filter.setAttribute("aria-label", "filter rows");
  filter.title = "words that a row must contain";
  filter.dataset.lmSuppressShortcuts = "true";
  filter.oninput = () => {
    model.set("filter", filter.value);
    model.save_changes();
  };
  const found = document.createElement("span");
  found.className = "dp-found";
  found.setAttribute("role", "status");
  const bar = document.createElement("div");
  bar.append(filter, found);
  el.append(bar, frame);
  // A narrow page shows fewer columns, rather than scroll sideways.
  const shown = () => model.get("heads").map(({ least_width }) => least_width <= (frame.clientWidth || Infinity));
  let drawn = "";
  let current = 0; // the row that Tab reaches, by its place in `cells`

  function order() {
    const column = model.get("sort_by");
    const sign = model.get("descending") ? -1 : 1;
    const cells = model.get("cells");
    const heads = model.get("heads");
    const words = model.get("filter").toLowerCase().split(/\s+/).filter(Boolean);
    return cells
      .map((_, row) => row)
      .filter((row) => {
        // Numbers are sorted by; words are looked for in names.
        const names = cells[row].filter((_, column) => !heads[column].numeric);
        const text = names.map(([shown]) => shown).join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      })
      .sort((a, b) => {
        const [x, y] = [cells[a][column][1], cells[b][column][1]];
        const less = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
        return sign * less || a - b;
      });
  }

  function drawHead() {
    const focused = [...head.children].findIndex((cell) => cell.contains(document.activeElement));
    head.replaceChildren(
      ...model.get("heads").map(({ title, numeric, hint }, column) => {
        const cell = document.createElement("th");
        const button = document.createElement("button");
        const sorted = model.get("sort_by") === column;
        const down = model.get("descending");
        cell.scope = "col";
        cell.className = numeric ? "dp-number" : "";
        cell.setAttribute("aria-sort", sorted ? (down ? "descending" : "ascending") : "none");
        button.type = "button";
        button.title = hint;
        button.textContent = title + (sorted ? (down ? " ▼" : " ▲") : "");
        button.onclick = () => {
          model.set("descending", sorted ? !down : numeric);
          model.set("sort_by", column);
          model.save_changes();
        };
        cell.append(button);
        cell.hidden = !shown()[column];
        return cell;
      }),
    );
    head.children[focused]?.firstChild.focus();
  }

  function choose(row) {
    const chosen = model.get("selected");
    const next = chosen.includes(row) ? chosen.filter((other) => other !== row) : [...chosen, row];
    model.set("selected", next.slice(-model.get("most")));
    model.save_changes();
  }

  function drawBody() {
    const heads = model.get("heads");
    const cells = model.get("cells");
    const hadFocus = body.contains(document.activeElement);
    const rows = order();
    bar.style.display = cells.length < FILTERED_FROM && !model.get("filter") ? "none" : "";
    found.textContent = model.get("filter") ? `${rows.length} of ${cells.length} rows` : "";
    if (!rows.includes(current)) current = rows[0] ?? 0;
    const visible = shown();
    drawn = visible.join();
    body.replaceChildren(
      ...rows.map((row) => {
        const line = document.createElement("tr");
        line.dataset.row = row;
        heads.forEach(({ numeric }, column) => {
          const cell = line.insertCell();
          cell.className = numeric ? "dp-number" : "";
          cell.hidden = !visible[column];
          if (!numeric) cell.title = cells[row][column][0];
          if (column !== nameColumn()) {
            cell.textContent = cells[row][column][0];
            return;
          }
          const button = document.createElement("button");
          button.type = "button";
          button.textContent = cells[row][column][0];
          const others = heads.map(({ title }, place) => (visible[place] ? "" : `\n${title}: ${cells[row][place][0]}`));
          cell.title += others.join("");
          cell.append(button);
        });
        line.onclick = () => {
          setCurrent(row);
          choose(row);
        };
        return line;
      }),
    );
    mark();
    if (hadFocus) buttonOf(current)?.focus();
  }

  const nameColumn = () => Math.max(0, model.get("heads").findIndex(({ numeric }) => !numeric));
  const buttonOf = (row) => body.querySelector(`tr[data-row="${row}"] button`);

  function mark() {
    const chosen = model.get("selected");
    for (const line of body.rows) {
      const row = Number(line.dataset.row);
      const button = buttonOf(row);
      line.classList.toggle("dp-chosen", chosen.includes(row));
      button.setAttribute("aria-pressed", chosen.includes(row));
      button.tabIndex = row === current ? 0 : -1;
    }
  }

  function setCurrent(row) {
    current = row;
    mark();
    buttonOf(row)?.focus();
  }

  body.onkeydown = (event) => {
    const rows = [...body.rows].map((line) => Number(line.dataset.row));
    const at = rows.indexOf(current);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || rows[to] === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    setCurrent(rows[to]);
  };

  function draw() {
    caption.textContent = model.get("caption");
    if (filter.value !== model.get("filter")) filter.value = model.get("filter");
    drawHead();
    drawBody();
  }

  // Several traits that change together come in one message, but as one event each.
  let waiting = false;
  function drawSoon() {
    if (waiting) return;
    waiting = true;
    queueMicrotask(() => {
      waiting = false;
      draw();
    });
  }
  for (const name of ["caption", "heads", "cells", "filter", "sort_by", "descending"]) model.on(`change:${name}`, drawSoon);
  model.on("change:selected", mark);
  const sizes = new ResizeObserver(() => {
    if (shown().join() !== drawn) drawSoon();
  });
  sizes.observe(frame);
  draw();
  return () => sizes.disconnect();
}

export default { render };
