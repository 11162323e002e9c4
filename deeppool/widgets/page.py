"""An invisible widget that reports the page's theme and handles keyboard and resize events in the browser."""

from typing import Any

import anywidget
import traitlets


class Page(anywidget.AnyWidget):
    """An empty widget that reports the page's theme to the kernel; it must be displayed to do so.

    It also routes key presses in its panel to the panel's controls, and resizes figures with the panel.
    """

    _esm = """
    function isDark() {
      // JupyterLab sets an attribute; elsewhere the background's lightness decides.
      const light = document.body.dataset.jpThemeLight;
      if (light !== undefined) return light === "false";
      const rgba = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g)?.map(Number) ?? [];
      if (rgba.length < 3 || rgba[3] === 0) return matchMedia("(prefers-color-scheme: dark)").matches;
      return 0.299 * rgba[0] + 0.587 * rgba[1] + 0.114 * rgba[2] < 128;
    }
    function attach(panel) {
      // Otherwise JupyterLab treats arrows and letters as notebook commands: "b" in a list inserts a cell.
      // It checks the focused element; Ctrl-S and the like stay JupyterLab's.
      const claim = (event) => {
        if (!panel.contains(event.target)) return;
        event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey);
      };
      window.addEventListener("keydown", claim, true);
      // plotly only listens to the window.
      const sizes = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
      sizes.observe(panel);
      return () => { sizes.disconnect(); window.removeEventListener("keydown", claim, true); };
    }
    function render({ model, el }) {
      el.style.display = "none";
      let detach = () => {};
      // A widget is rendered before it is added to its panel.
      requestAnimationFrame(() => {
        const panel = el.closest(".dp-panel");
        if (panel) detach = attach(panel);
      });
      const report = () => {
        if (model.get("dark") === isDark()) return;
        model.set("dark", isDark());
        model.save_changes();
      };
      report();
      const watcher = new MutationObserver(report);
      watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
      return () => { watcher.disconnect(); detach(); };
    }
    export default { render };
    """
    dark: Any = traitlets.Bool(False).tag(sync=True)
