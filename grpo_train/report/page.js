"use strict";
// One crosshair for all charts: it follows the pointer, and ← → where a chart has the focus. Texts go in as text only.
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent);
  const figures = [...document.querySelectorAll("figure[data-chart]")].map((element) => ({
    element,
    series: data.charts[Number(element.dataset.chart)],
    line: element.querySelector(".cross"),
    output: element.querySelector("output"),
    resting: element.querySelector("output").textContent,
  }));
  let current = null;

  const columnsOf = (series) => data.columns[series.columns];

  // The column that holds a step, else the nearest one.
  const columnAt = (columns, step) => {
    let best = 0;
    for (let i = 0; i < columns.length; i++) {
      const [first, last] = columns[i];
      if (first <= step && step <= last) return i;
      if (Math.abs((first + last) / 2 - step) < Math.abs((columns[best][0] + columns[best][1]) / 2 - step)) best = i;
    }
    return best;
  };

  const show = (step) => {
    current = step;
    for (const { series, line, output } of figures) {
      let place = null;
      const words = [];
      for (const each of series) {
        const columns = columnsOf(each);
        const at = columnAt(columns, step);
        const [first, last, x] = columns[at];
        if (each.letter && (step < columns[0][0] || step > columns[columns.length - 1][1])) continue;
        if (place === null) {
          place = x;
          words.push(first === last ? `step ${first.toLocaleString("en-US")}:` : `steps ${first.toLocaleString("en-US")}–${last.toLocaleString("en-US")}:`);
        }
        words.push(`${each.letter}\u00a0${each.texts[at]}`.trim());
      }
      if (place === null) continue;
      line.setAttribute("x1", place);
      line.setAttribute("x2", place);
      line.setAttribute("visibility", "visible");
      output.textContent = words.join(" ");
    }
  };

  const hide = () => {
    current = null;
    for (const { line, output, resting } of figures) {
      line.setAttribute("visibility", "hidden");
      output.textContent = resting;
    }
  };

  // The columns of a chart's series with the most of them.
  const columnsFor = (figure) => figure.series.map(columnsOf).reduce((a, b) => (b.length > a.length ? b : a), []);

  for (const figure of figures) {
    const svg = figure.element.querySelector("svg");
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      let best = null;
      for (const column of columnsFor(figure)) {
        if (best === null || Math.abs(column[2] - x) < Math.abs(best[2] - x)) best = column;
      }
      if (best) show((best[0] + best[1]) / 2);
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    figure.element.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const columns = columnsFor(figure);
      if (event.key === "Escape") hide();
      if (!direction || !columns.length) return;
      event.preventDefault();
      const at = current === null ? (direction > 0 ? -1 : columns.length) : columnAt(columns, current);
      const [first, last] = columns[Math.max(0, Math.min(columns.length - 1, at + direction))];
      show((first + last) / 2);
    });
  }
})();
