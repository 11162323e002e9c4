// A list of the user's runs in JupyterLab's sidebar, which needs no kernel. Served as it is: nothing is compiled.

// JupyterLab loads an extension as a container of webpack's module federation: an object with `init`, which gets the
// modules that are shared, and `get`, which returns a factory of the extension's own module.
(() => {
  const REFRESH_SECONDS = 2;
  const EMPTY =
    "You have no runs in progress on this machine. Runs of notebooks, scripts and commands appear here " +
    "(dp.start, dp.train, dp.launch, deeppool train …).";
  let shared;

  async function load(name) {
    const [newest] = Object.values(shared[name]).reverse();
    return (await newest.get())();
  }

  function element(tag, text = "", style = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    made.style.cssText = style;
    return made;
  }

  function row(run, stop) {
    const line = element("li", "", "margin: 0 0 12px; overflow-wrap: anywhere");
    const bar = element("progress", "", "width: calc(100% - 72px); vertical-align: middle");
    bar.value = run.progress;
    bar.setAttribute("aria-label", `progress of ${run.what}`);
    const button = element("button", run.stopping ? "Stopping" : "Stop", "width: 64px; margin-left: 8px");
    button.className = "jp-mod-styled jp-mod-minimal";
    button.disabled = run.stopping;
    button.title = `end ${run.what}`;
    button.onclick = () => stop(run);
    line.append(
      element("strong", run.what),
      element("div", `${run.doing} (${Math.round(100 * run.progress)} %, ${run.age})`),
      bar,
      button,
      element("div", `${run.where}, in ${run.folder}`, "color: var(--jp-ui-font-color2)"),
    );
    return line;
  }

  async function extension() {
    const { Widget } = await load("@lumino/widgets");
    const { ServerConnection } = await load("@jupyterlab/services");

    class RunsSidebar extends Widget {
      constructor(settings) {
        super();
        this.settings = settings;
        this.stopping = new Set();
        this.id = "deeppool-runs";
        this.title.label = "Runs";
        this.title.caption = "Runs in progress on this machine";
        this.addClass("dp-runs-sidebar");
        this.node.style.cssText = "background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); " +
          "padding: 12px; overflow-y: auto; font-size: var(--jp-ui-font-size1)";
        this.list = element("ul", "", "list-style: none; padding: 0; margin: 8px 0");
        this.problem = element("div", "", "color: var(--jp-error-color1)");
        this.problem.setAttribute("role", "alert");
        this.node.append(element("strong", "Runs in progress"), this.problem, this.list);
      }

      onAfterShow() {
        this.refresh();
        this.timer = setInterval(() => this.refresh(), 1000 * REFRESH_SECONDS);
      }

      onBeforeHide() {
        clearInterval(this.timer);
      }

      onBeforeDetach() {
        clearInterval(this.timer);
      }

      async ask(path, options) {
        const url = `${this.settings.baseUrl}deeppool/${path}`;
        const answer = await ServerConnection.makeRequest(url, options, this.settings);
        if (!answer.ok) throw new ServerConnection.ResponseError(answer, (await answer.json()).message);
        return answer.status === 204 ? null : answer.json();
      }

      async refresh() {
        try {
          const { runs } = await this.ask("runs", {});
          this.showRuns(runs);
          this.problem.textContent = "";
        } catch (error) {
          this.problem.textContent = error.message;
        }
      }

      showRuns(runs) {
        // A button that is rebuilt under the pointer or the focus would lose a click.
        const told = JSON.stringify([runs, [...this.stopping]]);
        if (told === this.told) return;
        this.told = told;
        const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.run : undefined;
        const rows = runs.map((run) => {
          const made = row({ ...run, stopping: this.stopping.has(run.name) }, (each) => this.stop(each));
          made.querySelector("button").dataset.run = run.name;
          return made;
        });
        this.list.replaceChildren(...(rows.length ? rows : [element("li", EMPTY, "line-height: 1.4")]));
        this.list.querySelector(`button[data-run="${focused}"]`)?.focus();
      }

      async stop(run) {
        this.stopping.add(run.name);
        try {
          await this.ask(`runs/${run.name}/stop`, { method: "POST" });
        } catch (error) {
          this.stopping.delete(run.name);
          this.problem.textContent = error.message;
        }
        this.refresh();
      }
    }

    return {
      id: "deeppool:runs",
      description: "Lists the user's runs on this machine, and stops them.",
      autoStart: true,
      activate: (app) => app.shell.add(new RunsSidebar(app.serviceManager.serverSettings), "left", { rank: 900 }),
    };
  }

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB.deeppool = {
    init: (scope) => {
      shared = scope;
    },
    get: async () => {
      const plugin = await extension();
      return () => plugin;
    },
  };
})();
