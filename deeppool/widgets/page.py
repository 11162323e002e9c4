"""What only the page knows of a notebook, whether it is dark, and what only the page can do for a panel."""

from typing import Any

import anywidget
import traitlets


class Page(anywidget.AnyWidget):
    """An empty widget that tells the kernel about the page that shows it; it must be shown for that.

    It also lets the keys that are pressed in its panel reach the panel's controls, and figures be as wide as the panel.
    """

    _esm = """
    function isDark() {
      // JupyterLab says so; elsewhere the background's lightness does.
      const told = document.body.dataset.jpThemeLight;
      if (told !== undefined) return told === "false";
      const seen = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g)?.map(Number) ?? [];
      if (seen.length < 3 || seen[3] === 0) return matchMedia("(prefers-color-scheme: dark)").matches;
      return 0.299 * seen[0] + 0.587 * seen[1] + 0.114 * seen[2] < 128;
    }
    function serve(panel) {
      // Else JupyterLab takes arrows and letters for commands of the notebook: "b" in a list inserts a cell.
      // It asks the element that has the focus; Ctrl-S and its like stay JupyterLab's.
      const claim = (event) => {
        if (!panel.contains(event.target)) return;
        event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey);
      };
      window.addEventListener("keydown", claim, true);
      // plotly listens to the window alone.
      const sizes = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
      sizes.observe(panel);
      return () => { sizes.disconnect(); window.removeEventListener("keydown", claim, true); };
    }
    function render({ model, el }) {
      el.style.display = "none";
      let leave = () => {};
      // A widget is drawn before it is put into its panel.
      requestAnimationFrame(() => {
        const panel = el.closest(".dp-panel");
        if (panel) leave = serve(panel);
      });
      const tell = () => {
        if (model.get("dark") === isDark()) return;
        model.set("dark", isDark());
        model.save_changes();
      };
      tell();
      const watcher = new MutationObserver(tell);
      watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
      return () => { watcher.disconnect(); leave(); };
    }
    export default { render };
    """
    dark: Any = traitlets.Bool(False).tag(sync=True)
