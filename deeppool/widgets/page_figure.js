/* A figure whose page loads Plotly once, from one widget of the kernel: otherwise each figure brings its own copy. */

const loaded = (globalThis.deeppoolPlotly ??= {});

async function plotly(model) {
  const library = await model.widget_manager.get_model(model.get("library").replace("IPY_MODEL_", ""));
  const source = new Blob([library.get("source")], { type: "text/javascript" });
  return (loaded[library.get("version")] ??= import(URL.createObjectURL(source)));
}

export default () => {
  let figure;
  return {
    async initialize(context) {
      figure = (await plotly(context.model)).default();
      return figure.initialize(context);
    },
    render(context) {
      return figure.render(context);
    },
  };
};
