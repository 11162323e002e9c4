// Plotly's own widget, but its library is loaded once for all figures of the page.

const REFERENCE = "IPY_MODEL_";

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

export default () => {
  let started;

  async function start(model) {
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
      plotly.initialize({ model });
      return plotly;
    } finally {
      model.off("change", hear);
      for (const [name, value] of early) model.set(name, value);
    }
  }

  return {
    initialize({ model }) {
      started = start(model);
      // Each view reports it.
      started.catch(() => {});
    },
    async render(context) {
      return (await started).render(context);
    },
  };
};
