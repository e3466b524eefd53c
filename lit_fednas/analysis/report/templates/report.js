// Draws the charts, in light or dark colours; arrow keys go through the values of the chart that has the focus.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = [...document.querySelectorAll("[data-figure]")];
  const config = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false };

  function template() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = {
      automargin: true, gridcolor: colour("line"), linecolor: colour("quiet"), zerolinecolor: colour("line"),
      title: { standoff: 8 },
    };
    return {
      layout: {
        font: { family: "system-ui, sans-serif", size: 12, color: colour("text") },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 50, r: 12, t: 20, b: 40 },
        hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), align: "left", namelength: -1 },
        xaxis: axis, yaxis: axis,
      },
    };
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    for (const chart of charts) {
      const coloured = (_, name) => JSON.stringify(style.getPropertyValue(name).trim());
      const { data, layout } = JSON.parse(chart.dataset.figure.replace(/"var\((--[\w-]+)\)"/g, coloured));
      Plotly.react(chart, data, { ...layout, template: template() }, config);
    }
  }

  // The values of a chart in their order: by x where hovering reads all lines at once, else point by point.
  function values(chart) {
    const points = chart.data.flatMap((line, curveNumber) =>
      line.hoverinfo === "skip" ? [] : chart.calcdata[curveNumber].map((_, pointNumber) => ({
        curveNumber, pointNumber, xval: line.x[pointNumber], yval: line.y[pointNumber],
      })));
    if (!chart.layout.hovermode.startsWith("x")) return points.map((point) => [point]);
    const byX = new Map(points.filter((point) => point.yval !== null).map((point) => [point.xval, point]));
    return [...byX.values()].sort((a, b) => a.xval - b.xval);
  }

  document.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const chart = document.activeElement;
    if (!charts.includes(chart) || !(event.key in steps)) return;
    event.preventDefault();
    const all = values(chart);
    if (!all.length) return;
    const next = chart.shown === undefined ? (steps[event.key] > 0 ? 0 : all.length - 1) : chart.shown + steps[event.key];
    chart.shown = Math.min(all.length - 1, Math.max(0, next));
    Plotly.Fx.hover(chart, all[chart.shown], "xy");
  });
  document.addEventListener("focusout", (event) => {
    if (!charts.includes(event.target)) return;
    Plotly.Fx.unhover(event.target);
    delete event.target.shown;
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-traces]");
    if (!button) return;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    const chart = button.closest("figure").querySelector("[data-figure]");
    Plotly.restyle(chart, { visible: shown }, button.dataset.traces.split(" ").map(Number));
  });

  dark.addEventListener("change", draw);
  draw();
})();
