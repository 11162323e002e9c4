// Plotly's own widget, but its library is loaded once for all figures of the page.

const REFERENCE = "IPY_MODEL_";
const UNDEFINED = "_undefined_"; // what plotly's kernel side sends for a trace whose property an update leaves

async function load(library) {
  const url = URL.createObjectURL(new Blob([library.get("source")], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function libraryOf(model) {
  const library = await model.widget_manager.get_model(model.get("_library").slice(REFERENCE.length));
  const loaded = (globalThis.deeppoolPlotly ??= {});
  return (loaded[library.get("version")] ??= load(library));
}

// Only plotly's views take such traces out; its model would set the text, and views that are opened later then fail.
function commandOf(model, name) {
  const command = model.get(name);
  const style = command?.style_data ?? command?.restyle_data;
  if (!style) return command;
  const own = (values) => (Array.isArray(values) ? values.map((value) => (value === UNDEFINED ? undefined : value)) : values);
  const changes = Object.fromEntries(Object.entries(style).map(([property, values]) => [property, own(values)]));
  return { ...command, [command.style_data ? "style_data" : "restyle_data"]: changes };
}

// Plotly keeps the width of a figure whose height was changed; its page may have become narrower meanwhile.
function followWidth(plot) {
  const follow = () => {
    if (!(Math.abs(plot._fullLayout.width - parseFloat(getComputedStyle(plot).width)) > 1)) return;
    delete plot.layout.width;
    window.dispatchEvent(new Event("resize"));
  };
  for (const event of ["plotly_relayout", "plotly_update"]) plot.on(event, follow);
}

export default () => {
  let model, started;
  // Of plotly's part: its views do not take theirs back, and fail at the next update when they are gone.
  const listeners = [];

  async function start() {
    // A figure that takes two seconds to start hears no more messages of anywidget's, so it starts at once; plotly's
    // part then hears what has come meanwhile.
    let early = [];
    const hear = ({ changed }) => {
      // All that came before is in the data.
      if ("_widget_data" in changed) early = [];
      early.push(...Object.entries(changed).filter(([name]) => name.startsWith("_py2js_")));
    };
    model.on("change", hear);
    try {
      const plotly = (await libraryOf(model)).default();
      const on = (...listener) => {
        listeners.push(listener);
        model.on(...listener);
      };
      const get = (name) => (name.startsWith("_py2js_") ? commandOf(model, name) : model.get(name));
      plotly.initialize({ model: { ...model, get, on } });
      return plotly;
    } finally {
      model.off("change", hear);
      for (const [name, value] of early) model.set(name, value);
    }
  }

  return {
    initialize(context) {
      model = context.model;
      started = start();
      // Each view reports it.
      started.catch(() => {});
    },
    async render({ el, ...context }) {
      const plotly = await started;
      const before = listeners.length;
      // Where there is no kernel, JupyterLab adds an icon to its element, by whose height plotly would take its own.
      const inner = el.appendChild(document.createElement("div"));
      const remove = plotly.render({ ...context, el: inner });
      followWidth(inner);
      const own = listeners.splice(before);
      return () => {
        for (const listener of own) model.off(...listener);
        remove();
      };
    },
  };
};
